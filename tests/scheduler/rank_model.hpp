// One rank of each DP group as plan.hpp describes it, with stamps instead of tensors: every place of every page of every group remembers what it
// holds (a hash of all tokens up to its own), and every key that attention would read is checked. It trusts nothing of a plan, so a page handed out
// twice, too early or not at all is found where a real rank would silently compute nonsense. A row touches pages of its own group only: there is no
// way to name another's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "tests/scheduler/mirror_model.hpp"
#include "tests/scheduler/pseudo_model.hpp"

namespace althing::tests {

class RankModel {
 public:
  // All tokens that a request has or will have: what a row that begins behind position 0 must find in its pages.
  using Truth = std::function<std::vector<TokenId>(RequestId)>;
  // Whose pages a request may be given.
  using SaltOf = std::function<PageKey(RequestId)>;

  RankModel(const Limits& limits, const KvLayout& kv, std::uint32_t vocabulary, std::uint32_t dp_groups = 1, Truth truth = {}, SaltOf salt_of = {})
      : limits_(limits),
        kv_(kv),
        vocabulary_(vocabulary),
        rows_(limits.rows_max),
        pages_(dp_groups, std::vector<KvPage>(kv.page_count)),
        truth_(std::move(truth)),
        salt_of_(std::move(salt_of)),
        mirror_(kv) {}

  // Runs one plan. Empty: `result` is the rank's answer. Else the first rule of plan.hpp that the plan breaks.
  std::string apply(const StepPlan& plan, StepResult& result) {
    if (auto broken = begin(plan); !broken.empty()) return broken;
    if (auto broken = change_rows(plan); !broken.empty()) return broken;
    if (auto broken = grant_pages(plan); !broken.empty()) return broken;
    if (auto broken = scrub_pages(plan); !broken.empty()) return broken;
    result = StepResult{plan.step, plan.epoch, {}};
    if (auto broken = restore_pages(plan, result); !broken.empty()) return broken;
    flights_.push_back({plan.step, {}, {}, {}});
    for (const LeftPage& left : plan.scrub) flights_.back().scrubbed.emplace_back(left.dp_group, left.page);
    std::uint64_t tokens = 0;
    draws_ = 0;
    for (std::size_t i = 0; i < plan.work.size(); ++i) {
      const RowWork& work = plan.work[i];
      if (i > 0 && !(plan.work[i - 1].row < work.row)) return "work does not ascend by row";
      if (auto broken = compute(work, result); !broken.empty()) return at(work.row) + broken;
      tokens += work.count;
    }
    for (const MirrorPage& page : plan.mirror) {
      if (page.dp_group.value >= pages_.size() || page.page.value >= kv_.page_count) return "a page is mirrored that does not exist";
      const KvPage& full = pages_[page.dp_group.value][page.page.value];
      const auto has = [&](const Owner& owner) { return row_of(owner) != nullptr; };
      if (!any_owner({page.dp_group, page.page}, has)) return "page " + std::to_string(page.page.value) + " is mirrored and nobody has it";
      if (auto broken = mirror_.order(page, full); !broken.empty()) return broken;
    }
    if (plan.work.empty() && plan.scrub.empty() && plan.restore.empty()) return "a step without work";
    if (tokens > limits_.step_tokens_max) return "a step of " + std::to_string(tokens) + " tokens";
    return {};
  }

  // The core has been told that the step is done: its pages may change hands from now on.
  void done(StepId step) {
    for (; !flights_.empty() && flights_.front().step <= step; flights_.pop_front()) {
      for (const GroupPage& place : flights_.front().tainted) tainted_.insert(place);
      for (const GroupPage& place : flights_.front().scrubbed) scrubbing_.erase(place);
    }
  }

  // The next plan comes from another core, which counts steps and memberships anew.
  void forget_rows() {
    for (auto& row : rows_) row.reset();
    flights_.clear();
    owners_.clear();
    tainted_.clear();  // the rule that nobody reads what he has not written is all that is left
    scrubbing_.clear();
    step_ = StepId{};
  }
  MirrorModel& mirror() { return mirror_; }
  std::uint64_t kept_pages() const { return kept_pages_; }  // that rows were given with others' keys in them, so far
  // Makes the copy that has waited longest. Whether there was one.
  bool copy_one() {
    return mirror_.copy_one([this](const MirrorPage& page) {
      const GroupPage place{page.dp_group, page.page};
      bool nan = tainted_.contains(place);
      for (const Flight& flight : flights_)
        for (const GroupPage& tainted : flight.tainted) nan = nan || tainted == place;
      return nan ? nullptr : &pages_[page.dp_group.value][page.page.value];
    });
  }

 private:
  struct Row {
    std::uint64_t setup = 0;  // a number that no other request or earlier stay in a row has
    RowSetup given;
    std::vector<std::vector<PageId>> tables;
    std::vector<std::uint64_t> kv;  // by position: the hash of all tokens up to it
    bool fetched = false;           // its pages came from the mirror, or were there; how far, its first work tells
    bool broken = false;            // or did not all come
    std::uint32_t guessed = 0;      // so many of the last positions may not count
    std::uint32_t computed() const { return static_cast<std::uint32_t>(kv.size()); }
    std::uint32_t certain() const { return computed() - guessed; }
    std::optional<TokenId> drawn;  // in the row's previous step
    std::uint32_t next_draw = 0;   // of a row with penalties: the position of its next draw
  };
  struct Owner {
    RowIndex row;
    std::uint64_t setup = 0;
    std::uint32_t group = 0;
    std::uint32_t index = 0;
  };
  using GroupPage = std::pair<DpGroup, PageId>;
  struct Flight {
    StepId step;
    std::vector<GroupPage> touched;
    std::vector<GroupPage> tainted;   // hold NaN, once the core has heard of it
    std::vector<GroupPage> scrubbed;  // clean once the step is done
  };

  static std::string at(RowIndex row) { return "row " + std::to_string(row.value) + ": "; }

  std::uint32_t first_read(std::uint32_t group, std::uint32_t position) const {
    const std::uint32_t window = kv_.groups[group].window;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }

  std::string begin(const StepPlan& plan) {
    if (plan.step <= step_) return "step " + std::to_string(plan.step.value) + " is used again";
    if (plan.snapshot) {
      if (plan.epoch <= epoch_) return "a snapshot of an epoch that has begun already";
      if (!plan.cleared.empty()) return "a snapshot that clears rows";
      for (auto& row : rows_) row.reset();
      flights_.clear();
      owners_.clear();
      scrubbing_.clear();  // whether it was done nobody knows: the core asks again
    } else {
      if (plan.epoch != epoch_) return "epoch " + std::to_string(plan.epoch.value) + " without a snapshot";
      if (plan.base != step_) return "base " + std::to_string(plan.base.value) + " but the last step was " + std::to_string(step_.value);
      if (plan.step.value != step_.value + 1) return "a gap between steps of an epoch";
    }
    if (flights_.size() >= limits_.steps_in_flight_max) return "too many steps in flight";
    epoch_ = plan.epoch;
    step_ = plan.step;
    return {};
  }

  std::string change_rows(const StepPlan& plan) {
    for (const RowIndex row : plan.cleared) {
      if (row.value >= rows_.size()) return at(row) + "cleared but not a row";
      if (!rows_[row.value]) return at(row) + "cleared but empty";
      rows_[row.value].reset();
    }
    for (const RowSetup& setup : plan.set) {
      if (setup.row.value >= rows_.size()) return at(setup.row) + "set but not a row";
      if (rows_[setup.row.value]) return at(setup.row) + "set but occupied";
      if (setup.dp_group.value >= pages_.size()) return at(setup.row) + "set in DP group " + std::to_string(setup.dp_group.value);
      for (const auto& other : rows_)
        if (other && other->given.request == setup.request) return at(setup.row) + "its request has another row";
      if (auto broken = check_tokens(setup); !broken.empty()) return at(setup.row) + broken;
      Row row;
      row.next_draw = static_cast<std::uint32_t>(setup.tokens.size());
      row.setup = ++setups_;
      row.given = setup;
      row.tables.resize(kv_.groups.size());
      rows_[setup.row.value] = std::move(row);
    }
    return {};
  }

  // What penalties are computed from.
  std::string check_tokens(const RowSetup& setup) const {
    if (!setup.sampling.penalizes()) return setup.tokens.empty() ? "" : "set with tokens that nobody needs";
    if (setup.tokens.empty() || setup.prompt_count == 0 || setup.prompt_count > setup.tokens.size())
      return "set with penalties and not with its tokens";
    const std::vector<TokenId> truth = truth_ ? truth_(setup.request) : setup.tokens;
    if (setup.tokens.size() > truth.size() || !std::equal(setup.tokens.begin(), setup.tokens.end(), truth.begin()))
      return "set with the tokens of another";
    return {};
  }

  std::string grant_pages(const StepPlan& plan) {
    std::map<DpGroup, std::size_t> granted;
    for (const PageGrant& grant : plan.pages)
      if (grant.row.value < rows_.size() && rows_[grant.row.value]) granted[rows_[grant.row.value]->given.dp_group] += grant.pages.size();
    for (const auto& [group, count] : granted)
      if (count > kv_.page_count) return "a step grants " + std::to_string(count) + " pages and a group has " + std::to_string(kv_.page_count);
    for (const PageGrant& grant : plan.pages) {
      if (grant.row.value >= rows_.size() || !rows_[grant.row.value]) return at(grant.row) + "pages for an empty row";
      if (grant.group >= kv_.groups.size()) return at(grant.row) + "pages for an unknown group";
      Row& row = *rows_[grant.row.value];
      auto& table = row.tables[grant.group];
      const bool window_begins = kv_.groups[grant.group].window > 0 && table.empty();
      if (grant.first != table.size() && !window_begins) return at(grant.row) + "pages are not appended";
      table.resize(grant.first, PageId{kv_.page_count});
      for (const PageId page : grant.pages) {
        if (page.value >= kv_.page_count) return at(grant.row) + "page " + std::to_string(page.value) + " does not exist";
        const GroupPage place{row.given.dp_group, page};
        if (tainted_.contains(place)) return at(grant.row) + "page " + std::to_string(page.value) + " is granted with NaN in it";
        if (scrubbing_.contains(place)) return at(grant.row) + "page " + std::to_string(page.value) + " is granted while it is being scrubbed";
        if (!grant.kept) {
          if (in_use(place)) return at(grant.row) + "page " + std::to_string(page.value) + " is granted while another still needs it";
          for (const Flight& flight : flights_)
            for (const GroupPage& touched : flight.touched)
              if (touched == place) return at(grant.row) + "page " + std::to_string(page.value) + " is granted while a step in flight touches it";
          mirror_.withdraw(page, row.given.dp_group);
          owners_[place].clear();
          salts_[place] = salt_of(row);
        } else if (salts_[place] != salt_of(row)) {
          return at(grant.row) + "page " + std::to_string(page.value) + " was computed under another salt";
        }
        owners_[place].push_back(Owner{grant.row, row.setup, grant.group, static_cast<std::uint32_t>(table.size())});
        table.push_back(page);
      }
      if (!grant.kept) continue;
      if (row.computed() > 0) return at(grant.row) + "is given pages of others after it has begun";
      row.fetched = true;
      kept_pages_ += grant.pages.size();
    }
    return {};
  }

  std::string scrub_pages(const StepPlan& plan) {
    for (const auto& [dp_group, page] : plan.scrub) {
      const std::string what = "page " + std::to_string(page.value) + " of DP group " + std::to_string(dp_group.value);
      if (dp_group.value >= pages_.size() || page.value >= kv_.page_count) return what + " is scrubbed and does not exist";
      const GroupPage place{dp_group, page};
      if (in_use(place)) return what + " is scrubbed while a row still needs it";
      tainted_.erase(place);
      scrubbing_.insert(place);
      mirror_.withdraw(page, dp_group);
      pages_[dp_group.value][page.value] = KvPage{};
    }
    return {};
  }

  std::string restore_pages(const StepPlan& plan, StepResult& result) {
    for (const SlotOfGroup& place : plan.forget) mirror_.forget(place);
    for (const MirrorPage& page : plan.restore) {
      const std::string what = "page " + std::to_string(page.page.value);
      const auto found = owners_.find({page.dp_group, page.page});
      if (found == owners_.end() || !in_use(found->first) || found->second.size() != 1) return what + " is restored for nobody, or for several";
      const Owner& owner = found->second[0];
      if (owner.group != page.group) return what + " is restored for another group";
      Row& row = *rows_[owner.row.value];
      if (row.computed() > 0) return what + " is restored for a row that has begun";
      for (const RowWork& work : plan.work)
        if (work.row == owner.row) return what + " is restored for a row that works in the same step";
      row.fetched = true;
      const auto copy = mirror_.fetch(page);
      pages_[page.dp_group.value][page.page.value] = copy.value_or(KvPage{});
      if (copy) continue;
      row.broken = true;
      result.unrestored.push_back({page.dp_group, page.slot});
    }
    std::sort(result.unrestored.begin(), result.unrestored.end());
    return {};
  }

  // Whether a row that is still set may read the page again.
  bool in_use(const GroupPage& place) const {
    return any_owner(place, [this](const Owner& owner) {
      const Row* const row = row_of(owner);
      return row != nullptr && owner.index >= first_read(owner.group, row->computed()) / kv_.groups[owner.group].tokens_per_page;
    });
  }

  PageKey salt_of(const Row& row) const { return salt_of_ ? salt_of_(row.given.request) : PageKey{}; }

  const Row* row_of(const Owner& owner) const {
    const auto& row = rows_[owner.row.value];
    return row && row->setup == owner.setup ? &*row : nullptr;
  }

  template <class Test>
  bool any_owner(const GroupPage& place, Test test) const {
    const auto found = owners_.find(place);
    return found != owners_.end() && std::any_of(found->second.begin(), found->second.end(), test);
  }

  std::string compute(const RowWork& work, StepResult& result) {
    if (work.row.value >= rows_.size() || !rows_[work.row.value]) return "work for an empty row";
    Row& row = *rows_[work.row.value];
    if (work.count == 0 || work.count > limits_.prefill_chunk_max) return "work of " + std::to_string(work.count) + " tokens";
    if (row.broken) return "works, and its pages did not come back";
    if (auto broken = begin_behind(row, work.start); !broken.empty()) return broken;
    // Of what was guessed, the core knows how much held.
    if (row.guessed > 0 && work.start < row.computed() && work.start + row.guessed >= row.computed()) {
      row.kv.resize(work.start);
      if (work.tokens.empty()) return "the token is to be the drawn one, and it was guessed which that is";
    }
    row.guessed = 0;
    if (work.start != row.computed()) return "starts at " + std::to_string(work.start) + " but " + std::to_string(row.computed()) + " are computed";
    if (work.tokens.empty()) {
      if (work.count != 1 || !row.drawn) return "the token is to be the drawn one, but there is none";
      row.kv.push_back(mix(row.kv.back(), *row.drawn));
    } else {
      if (work.tokens.size() != work.count) return "counts differ";
      for (const TokenId token : work.tokens) {
        if (token >= vocabulary_) return "token out of range";
        row.kv.push_back(mix(row.kv.empty() ? kv_start : row.kv.back(), token));
      }
    }
    for (std::uint32_t group = 0; group < kv_.groups.size(); ++group)
      if (auto broken = touch(row, group, work); !broken.empty()) return "group " + std::to_string(group) + ", " + broken;
    row.drawn.reset();
    if (work.draws == 0 || work.draws > work.count || (work.draws > 1 && !work.sample)) return "draws " + std::to_string(work.draws) + " times";
    row.guessed = work.draws - 1;
    if (work.sample && (draws_ += work.draws) > limits_.rows_max) return "a step draws more often than there are rows";
    if (work.draws > 1 && row.given.sampling.penalizes()) return "guesses behind draws that penalties are computed from";
    for (std::uint32_t back = work.draws; work.draws > 1 && --back > 0;) {
      const PseudoDraw draw = pseudo_draw(row.kv[row.kv.size() - 1 - back], row.given.sampling, vocabulary_);
      result.drawn.push_back({work.row, row.given.request, draw.token, draw.nonfinite});
      if (draw.nonfinite) taint(row);
    }
    if (work.sample) {
      if (row.given.sampling.penalizes() && work.start + work.count != row.next_draw++) return "draws for another position than its tokens lead to";
      const PseudoDraw draw = pseudo_draw(row.kv.back(), row.given.sampling, vocabulary_);
      row.drawn = draw.token;
      result.drawn.push_back({work.row, row.given.request, draw.token, draw.nonfinite});
      if (draw.nonfinite) taint(row);
    }
    return guess(work, row, result);
  }

  // A draft model that is right most of the time, and sometimes has nothing to say.
  std::string guess(const RowWork& work, const Row& row, StepResult& result) const {
    if (work.guesses == 0) return {};
    if (!limits_.draft_model || !row.given.drafted || !work.sample || work.guesses > limits_.speculation_tokens_max) return "is asked for guesses";
    const std::size_t first = result.drawn.size() - work.draws;
    std::uint32_t held = 0;
    while (held + 1 < work.draws && work.tokens[work.tokens.size() - (work.draws - 1) + held] == result.drawn[first + held].token) ++held;
    TokenId next = result.drawn[first + held].token;
    std::uint64_t kv = row.kv[row.kv.size() - work.draws + held];
    RowGuesses guesses{work.row, row.given.request, {}};
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kv % 8, work.guesses));
    for (std::uint32_t i = 0; i < count; ++i) {
      kv = mix(kv, next);
      next = pseudo_draw(kv, row.given.sampling, vocabulary_).token;
      guesses.tokens.push_back(kv % 9 == 0 ? (next + 1) % vocabulary_ : next);
    }
    if (!guesses.tokens.empty()) result.guesses.push_back(std::move(guesses));
    return {};
  }

  void taint(const Row& row) {
    for (std::uint32_t group = 0; group < kv_.groups.size(); ++group)
      for (std::size_t i = first_read(group, row.certain()) / kv_.groups[group].tokens_per_page; i < row.tables[group].size(); ++i)
        flights_.back().tainted.emplace_back(row.given.dp_group, row.tables[group][i]);
  }

  // A row whose pages were fetched goes on where these end.
  std::string begin_behind(Row& row, std::uint32_t start) {
    if (!row.fetched || row.computed() > 0) return {};
    const std::vector<TokenId> tokens = truth_ ? truth_(row.given.request) : std::vector<TokenId>{};
    if (start == 0 || tokens.size() < start) return "begins at " + std::to_string(start) + " after its pages were fetched";
    for (std::uint32_t i = 0; i < start; ++i) row.kv.push_back(mix(row.kv.empty() ? kv_start : row.kv.back(), tokens[i]));
    return {};
  }

  // Writes the new keys and then reads all that the window of any of the positions covers.
  std::string touch(const Row& row, std::uint32_t group, const RowWork& work) {
    const std::uint32_t per_page = kv_.groups[group].tokens_per_page;
    for (std::uint32_t position = first_read(group, work.start); position < work.start + work.count; ++position)
      if (position / per_page >= row.tables[group].size() || row.tables[group][position / per_page].value >= kv_.page_count)
        return "position " + std::to_string(position) + " has no page";
    const auto& table = row.tables[group];
    std::vector<KvPage>& pages = pages_[row.given.dp_group.value];
    const std::uint32_t end = work.start + work.count;
    for (std::uint32_t position = work.start; position < end; ++position) {
      const auto other = [&](const Owner& owner) { return row_of(owner) != nullptr && row_of(owner) != &row; };
      if (any_owner({row.given.dp_group, table[position / per_page]}, other))
        return "page " + std::to_string(table[position / per_page].value) + " is written while another has it";
      KvPage& page = pages[table[position / per_page].value];
      if (page.group != group) page = KvPage{group, std::vector<KvPage::Stamp>(per_page)};
      page.stamps[position % per_page] = {row.kv[position], position};
    }
    for (std::uint32_t position = first_read(group, work.start); position < end; ++position) {
      const PageId id = table[position / per_page];
      const KvPage& page = pages[id.value];
      const bool whole = page.group == group && page.stamps[position % per_page] == KvPage::Stamp{row.kv[position], position};
      if (!whole) return "the key of position " + std::to_string(position) + " is gone from page " + std::to_string(id.value);
      auto& touched = flights_.back().touched;
      const GroupPage place{row.given.dp_group, id};
      if (touched.empty() || touched.back() != place) touched.push_back(place);
    }
    return {};
  }

  Limits limits_;
  KvLayout kv_;
  std::uint32_t vocabulary_;
  EpochId epoch_;
  StepId step_;
  std::uint64_t setups_ = 0;
  std::uint32_t draws_ = 0;  // of the step in hand
  std::vector<std::optional<Row>> rows_;
  std::vector<std::vector<KvPage>> pages_;  // by DP group
  Truth truth_;
  SaltOf salt_of_;
  MirrorModel mirror_;
  std::map<GroupPage, std::vector<Owner>> owners_;
  std::map<GroupPage, PageKey> salts_;
  std::uint64_t kept_pages_ = 0;
  std::set<GroupPage> tainted_, scrubbing_;
  std::deque<Flight> flights_;
};

}  // namespace althing::tests
