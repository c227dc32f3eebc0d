// See the header. Order of the checks is the order of application in the plan's contract: base, clear, set, pages, work.
#include "gpu/row_table.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "scheduler/vocabulary/logprobs.hpp"
#include "scheduler/vocabulary/token_mask.hpp"

namespace althing::gpu {
namespace {

std::string text(std::uint64_t number) { return std::to_string(number); }
Status refuse(const char* field, const std::string& why) {
  return Error{ErrorCode::invalid_argument, "the step plan does not fit this rank: " + why, field};
}

Status check_sampling(const SamplingParameters& s) {
  if (!(s.temperature >= 0.0F) || !std::isfinite(s.temperature)) return refuse("temperature", "temperature must be a number of at least 0");
  if (!(s.top_p > 0.0F && s.top_p <= 1.0F)) return refuse("top_p", "top_p must be over 0 and at most 1");
  if (!(s.min_p >= 0.0F && s.min_p <= 1.0F)) return refuse("min_p", "min_p must be between 0 and 1");
  if (!(s.repetition_penalty > 0.0F) || !std::isfinite(s.repetition_penalty))
    return refuse("repetition_penalty", "repetition_penalty must be over 0");
  if (!std::isfinite(s.presence_penalty)) return refuse("presence_penalty", "presence_penalty must be a number");
  if (!std::isfinite(s.frequency_penalty)) return refuse("frequency_penalty", "frequency_penalty must be a number");
  // Any more and a finite logit might not stay one.
  const auto out_of_range = [](const TokenBias& entry) { return !(std::abs(entry.bias) <= 100.0F); };
  if (std::any_of(s.logit_bias.begin(), s.logit_bias.end(), out_of_range)) return refuse("logit_bias", "biases must be between -100 and 100");
  if (s.top_logprobs > logprobs_top_max) return refuse("top_logprobs", "at most " + text(logprobs_top_max) + " logprobs of a draw are told");
  return Ok{};
}

}  // namespace

RowTable::RowTable(Bounds bounds) : bounds_(std::move(bounds)), rows_(bounds_.rows_max) {}

Result<RowTable::Staged> RowTable::check(const StepPlan& plan) const {
  Staged staged;
  staged.snapshot = plan.snapshot;
  if (auto s = check_base(plan); !s) return s.error();
  if (auto s = stage_rows(plan, staged); !s) return s.error();
  if (auto s = stage_pages(plan, staged); !s) return s.error();
  if (auto s = check_kept(plan); !s) return s.error();
  if (auto s = check_scrub(plan); !s) return s.error();
  if (auto s = check_mirror(plan, staged); !s) return s.error();
  if (auto s = check_work(plan, staged); !s) return s.error();
  if (auto s = check_written_pages(plan, staged); !s) return s.error();
  return staged;
}

void RowTable::commit(const StepPlan& plan, Staged&& staged) {
  if (staged.snapshot) std::fill(rows_.begin(), rows_.end(), RowState{});
  for (auto& [index, row] : staged.rows) rows_[index] = std::move(row);
  step_ = plan.step;
  epoch_ = plan.epoch;
  known_ = true;
}

void RowTable::lose() { known_ = false; }

const RowState& RowTable::staged_row(const Staged& staged, RowIndex row) const {
  const auto found = staged.rows.find(row.value);
  if (found != staged.rows.end()) return found->second;
  return staged.snapshot ? vacant_ : rows_[row.value];
}

Status RowTable::check_base(const StepPlan& plan) const {
  if (plan.epoch < epoch_) return refuse("epoch", "its epoch is " + text(plan.epoch.value) + ", this rank is already in " + text(epoch_.value));
  if (plan.epoch == epoch_ && plan.step <= step_)
    return refuse("step", "step " + text(plan.step.value) + " is not after step " + text(step_.value) + " of the same epoch");
  if (plan.snapshot) return Ok{};
  if (!known_) return refuse("snapshot", "it is a difference, and this rank has no rows to apply it to; send a snapshot");
  if (plan.epoch != epoch_)
    return refuse("epoch", "it is a difference in epoch " + text(plan.epoch.value) + ", the rows are of " + text(epoch_.value));
  if (plan.base != step_)
    return refuse("base", "it is a difference against step " + text(plan.base.value) + ", the rows stand after " + text(step_.value));
  return Ok{};
}

Status RowTable::stage_rows(const StepPlan& plan, Staged& staged) const {
  const auto in_range = [&](RowIndex row) { return row.value < bounds_.rows_max; };
  for (const RowIndex row : plan.cleared) {
    if (!in_range(row)) return refuse("cleared", "row " + text(row.value) + " does not exist, there are " + text(bounds_.rows_max));
    staged.rows[row.value] = RowState{};
  }
  for (const RowSetup& setup : plan.set) {
    if (!in_range(setup.row)) return refuse("set", "row " + text(setup.row.value) + " does not exist, there are " + text(bounds_.rows_max));
    if (const RowState& old = staged_row(staged, setup.row); old.occupied)
      return refuse("set", "row " + text(setup.row.value) + " is still held by request " + text(old.request.value));
    if (setup.dp_group.value >= bounds_.dp_groups)
      return refuse("set",
                    "row " + text(setup.row.value) + " is of DP group " + text(setup.dp_group.value) + ", there are " + text(bounds_.dp_groups));
    if (auto s = check_sampling(setup.sampling); !s) return s;
    RowState row;
    row.occupied = true;
    row.request = setup.request;
    row.sampling = setup.sampling;
    row.dp_group = setup.dp_group;
    row.trace_top_m = setup.trace_top_m;
    row.pages.resize(bounds_.kv.groups.size());
    if (auto s = stage_seen(setup, row); !s) return s;
    staged.rows[setup.row.value] = std::move(row);
  }
  return Ok{};
}

// Penalties without the tokens that they are about would be wrong without a sign.
Status RowTable::stage_seen(const RowSetup& setup, RowState& row) const {
  if (!setup.sampling.penalizes()) return Ok{};
  const std::string where = "row " + text(setup.row.value) + " has penalties and comes with " + text(setup.tokens.size()) + " tokens, ";
  if (setup.tokens.empty() || setup.tokens.size() > bounds_.context_tokens_max)
    return refuse("set", where + "where 1 to " + text(bounds_.context_tokens_max) + " are needed");
  if (setup.prompt_count > setup.tokens.size()) return refuse("set", where + "fewer than the " + text(setup.prompt_count) + " of its prompt");
  for (const TokenId token : setup.tokens)
    if (token >= bounds_.vocabulary)
      return refuse("set", where + "of which " + text(token) + " is not in the vocabulary of " + text(bounds_.vocabulary));
  row.seen = std::make_shared<SeenTokens>(setup.tokens, setup.prompt_count);
  row.next_draw = row.seen->length();
  return Ok{};
}

Status RowTable::stage_pages(const StepPlan& plan, Staged& staged) const {
  for (const PageGrant& grant : plan.pages) {
    if (grant.row.value >= bounds_.rows_max || !staged_row(staged, grant.row).occupied)
      return refuse("pages", "pages are granted to row " + text(grant.row.value) + ", which nobody holds");
    if (grant.group >= bounds_.kv.groups.size())
      return refuse("pages", "group " + text(grant.group) + " does not exist, there are " + text(bounds_.kv.groups.size()));
    const KvGroup& group = bounds_.kv.groups[grant.group];
    auto entry = staged.rows.find(grant.row.value);
    if (entry == staged.rows.end()) entry = staged.rows.emplace(grant.row.value, rows_[grant.row.value]).first;
    auto& table = entry->second.pages[grant.group];
    // A window group may begin behind its end: pages that slid out before this rank met the row are never read.
    if (grant.first < table.size() || (group.window == 0 && grant.first > table.size()))
      return refuse("pages", "row " + text(grant.row.value) + ", group " + text(grant.group) + ": pages are appended at " + text(grant.first) +
                                 ", the table ends at " + text(table.size()));
    const std::uint64_t entries_max = std::uint64_t{bounds_.context_tokens_max} / group.tokens_per_page + 2;
    if (grant.first + std::uint64_t{grant.pages.size()} > entries_max)
      return refuse("pages", "row " + text(grant.row.value) + " would have " + text(grant.first + grant.pages.size()) + " pages in group " +
                                 text(grant.group) + ", a context of " + text(bounds_.context_tokens_max) + " tokens needs at most " +
                                 text(entries_max));
    for (const PageId page : grant.pages)
      if (page.value >= bounds_.kv.page_count)
        return refuse("pages", "page " + text(page.value) + " does not exist, there are " + text(bounds_.kv.page_count));
    table.resize(grant.first, no_page);
    table.insert(table.end(), grant.pages.begin(), grant.pages.end());
  }
  return Ok{};
}

// Others read these pages too: a row may begin behind them, and nowhere else.
Status RowTable::check_kept(const StepPlan& plan) const {
  for (const PageGrant& grant : plan.pages) {
    if (!grant.kept) continue;
    const std::string where = "row " + text(grant.row.value) + " is granted pages that others have";
    const auto sets = [&](const RowSetup& setup) { return setup.row == grant.row; };
    if (std::none_of(plan.set.begin(), plan.set.end(), sets)) return refuse("pages", where + " after it was set");
    const std::uint64_t end = (grant.first + std::uint64_t{grant.pages.size()}) * bounds_.kv.groups[grant.group].tokens_per_page;
    for (const RowWork& work : plan.work)
      if (work.row == grant.row && work.start < end)
        return refuse("start", where + " up to position " + text(end) + ", and it starts at " + text(work.start));
  }
  return Ok{};
}

Status RowTable::check_scrub(const StepPlan& plan) const {
  for (const LeftPage& left : plan.scrub) {
    if (left.dp_group.value >= bounds_.dp_groups)
      return refuse("scrub", "a page of DP group " + text(left.dp_group.value) + " is to be scrubbed, there are " + text(bounds_.dp_groups));
    if (left.page.value >= bounds_.kv.page_count)
      return refuse("scrub", "page " + text(left.page.value) + " is to be scrubbed, there are " + text(bounds_.kv.page_count));
  }
  return Ok{};
}

// A restored page is one that the plan grants, so that nobody else reads or writes it, and its row computes nothing before it is known to be whole.
Status RowTable::check_mirror(const StepPlan& plan, const Staged& staged) const {
  for (const SlotOfGroup& place : plan.forget)
    if (auto s = check_slot(place); !s) return s;
  for (const MirrorPage& page : plan.mirror)
    if (auto s = check_mirror_page("mirror", page); !s) return s;
  std::vector<std::tuple<DpGroup, std::uint32_t, PageId>> granted;
  if (!plan.restore.empty())
    for (const PageGrant& grant : plan.pages) {
      const auto works = [&](const RowWork& work) { return work.row == grant.row; };
      if (std::any_of(plan.work.begin(), plan.work.end(), works)) continue;
      for (const PageId page : grant.pages) granted.emplace_back(staged_row(staged, grant.row).dp_group, grant.group, page);
    }
  std::sort(granted.begin(), granted.end());
  for (const MirrorPage& page : plan.restore) {
    if (auto s = check_mirror_page("restore", page); !s) return s;
    if (!std::binary_search(granted.begin(), granted.end(), std::tuple{page.dp_group, page.group, page.page}))
      return refuse("restore", "page " + text(page.page.value) + " is to be restored, and the plan grants it to no row that is idle in this step");
  }
  return Ok{};
}

Status RowTable::check_slot(const SlotOfGroup& place) const {
  if (place.dp_group.value >= bounds_.dp_groups)
    return refuse("mirror", "a mirror slot of DP group " + text(place.dp_group.value) + " is named, there are " + text(bounds_.dp_groups));
  if (place.slot.value >= bounds_.mirror_slots)
    return refuse("mirror", "mirror slot " + text(place.slot.value) + " does not exist, there are " + text(bounds_.mirror_slots));
  return Ok{};
}

Status RowTable::check_mirror_page(const char* field, const MirrorPage& page) const {
  if (auto s = check_slot({page.dp_group, page.slot}); !s) return s;
  if (page.group >= bounds_.kv.groups.size())
    return refuse(field, "group " + text(page.group) + " does not exist, there are " + text(bounds_.kv.groups.size()));
  if (page.page.value >= bounds_.kv.page_count)
    return refuse(field, "page " + text(page.page.value) + " does not exist, there are " + text(bounds_.kv.page_count));
  return Ok{};
}

Status RowTable::check_work(const StepPlan& plan, const Staged& staged) const {
  std::uint64_t tokens = 0, draws = 0;
  for (std::size_t i = 0; i < plan.work.size(); ++i) {
    const RowWork& work = plan.work[i];
    if (i > 0 && work.row <= plan.work[i - 1].row) return refuse("work", "work must be ascending by row, row " + text(work.row.value) + " is not");
    if (work.row.value >= bounds_.rows_max || !staged_row(staged, work.row).occupied)
      return refuse("work", "row " + text(work.row.value) + " has work, and nobody holds it");
    if (auto s = check_item(work, staged_row(staged, work.row)); !s) return s;
    tokens += work.count;
    draws += work.sample ? work.draws : 0;
  }
  if (draws > bounds_.rows_max) return refuse("draws", "it has " + text(draws) + " draws, a step makes at most " + text(bounds_.rows_max));
  if (tokens > bounds_.step_tokens_max)
    return refuse("work", "it has " + text(tokens) + " tokens, a step takes at most " + text(bounds_.step_tokens_max));
  return Ok{};
}

Status RowTable::check_item(const RowWork& work, const RowState& row) const {
  const std::string where = "row " + text(work.row.value) + ": ";
  const std::uint64_t end = std::uint64_t{work.start} + work.count;
  if (work.count == 0) return refuse("count", where + "it has work of 0 tokens");
  if (end > bounds_.context_tokens_max)
    return refuse("count", where + "its tokens end at " + text(end) + ", the context has " + text(bounds_.context_tokens_max));
  if (row.started && work.start > row.length)
    return refuse("start", where + "it starts at " + text(work.start) + ", only " + text(row.length) + " positions are computed");
  if (work.tokens.empty()) {
    if (work.count != 1) return refuse("tokens", where + "no tokens are given for " + text(work.count) + " positions");
    if (!row.drawn || row.drawn_position != work.start)
      return refuse("tokens", where + "the token at " + text(work.start) + " is to be this rank's last draw, which " +
                                  (row.drawn ? "was for " + text(row.drawn_position) : std::string("does not exist")));
  } else if (work.tokens.size() != work.count) {
    return refuse("tokens", where + text(work.tokens.size()) + " tokens are given for " + text(work.count) + " positions");
  }
  if (work.sample && (work.draws == 0 || work.draws > work.count))
    return refuse("draws", where + text(work.draws) + " draws from the logits of " + text(work.count) + " tokens");
  if (work.sample && row.seen && work.draws > 1)
    return refuse("draws", where + text(work.draws) + " draws in one step, and its penalties change with each");
  if (work.sample && row.seen && end != row.next_draw)
    return refuse("sample", where + "it is to draw for position " + text(end) + ", and what its penalties know ends at " + text(row.next_draw));
  if (!work.mask.empty()) {
    if (!work.sample) return refuse("mask", where + "it has a mask and draws nothing");
    if (const auto mask = decode_mask(work.mask, bounds_.vocabulary); !mask) return refuse("mask", where + mask.error().message);
  }
  for (const TokenId token : work.tokens)
    if (token >= bounds_.vocabulary)
      return refuse("tokens", where + "token " + text(token) + " is not in the vocabulary of " + text(bounds_.vocabulary));
  for (std::size_t g = 0; g < bounds_.kv.groups.size(); ++g) {
    const KvGroup& group = bounds_.kv.groups[g];
    const std::uint32_t first = group.window == 0 || work.start < group.window ? 0 : work.start - group.window + 1;
    const auto& table = row.pages[g];
    for (std::uint64_t page = first / group.tokens_per_page; page <= (end - 1) / group.tokens_per_page; ++page)
      if (page >= table.size() || table[page] == no_page)
        return refuse("pages", where + "group " + text(g) + " has no page for position " + text(page * group.tokens_per_page) + ", its table has " +
                                   text(table.size()));
  }
  return Ok{};
}

// Two writers of one page would corrupt each other silently.
Status RowTable::check_written_pages(const StepPlan& plan, const Staged& staged) const {
  std::vector<std::tuple<DpGroup, std::uint32_t, std::uint32_t>> written;  // whose pool, page, row
  for (const RowWork& work : plan.work) {
    const RowState& row = staged_row(staged, work.row);
    for (std::size_t g = 0; g < bounds_.kv.groups.size(); ++g) {
      const std::uint32_t size = bounds_.kv.groups[g].tokens_per_page;
      for (std::uint32_t page = work.start / size; page <= (work.start + work.count - 1) / size; ++page)
        written.emplace_back(row.dp_group, row.pages[g][page].value, work.row.value);
    }
  }
  std::sort(written.begin(), written.end());
  for (std::size_t i = 1; i < written.size(); ++i) {
    const auto [before_group, before_page, before_row] = written[i - 1];
    const auto [group, page, row] = written[i];
    if (group == before_group && page == before_page)
      return refuse("pages", "page " + text(page) + " is written twice, by row " + text(before_row) + " and row " + text(row));
  }
  return Ok{};
}

}  // namespace althing::gpu
