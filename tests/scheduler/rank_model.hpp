// A rank as plan.hpp describes it, with stamps instead of tensors: every place of every page remembers whose key it holds, and every key
// that attention would read is checked. It trusts nothing of a plan, so a page handed out twice, too early or not at all is found where a
// real rank would silently compute nonsense.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "tests/scheduler/pseudo_model.hpp"

namespace althing::tests {

class RankModel {
 public:
  RankModel(const Limits& limits, const KvLayout& kv, std::uint32_t vocabulary)
      : limits_(limits), kv_(kv), vocabulary_(vocabulary), rows_(limits.rows_max), pages_(kv.page_count) {}

  // Runs one plan. Empty: `result` is the rank's answer. Else the first rule of plan.hpp that the plan breaks.
  std::string apply(const StepPlan& plan, StepResult& result) {
    if (auto broken = begin(plan); !broken.empty()) return broken;
    if (auto broken = change_rows(plan); !broken.empty()) return broken;
    if (auto broken = grant_pages(plan); !broken.empty()) return broken;
    result = StepResult{plan.step, plan.epoch, {}};
    flights_.push_back({plan.step, {}});
    std::uint64_t tokens = 0;
    for (std::size_t i = 0; i < plan.work.size(); ++i) {
      const RowWork& work = plan.work[i];
      if (i > 0 && !(plan.work[i - 1].row < work.row)) return "work does not ascend by row";
      if (auto broken = compute(work, result); !broken.empty()) return at(work.row) + broken;
      tokens += work.count;
    }
    if (plan.work.empty()) return "a step without work";
    if (tokens > limits_.step_tokens_max) return "a step of " + std::to_string(tokens) + " tokens";
    return {};
  }

  // The core has been told that the step is done: its pages may change hands from now on.
  void done(StepId step) {
    while (!flights_.empty() && flights_.front().step <= step) flights_.pop_front();
  }

 private:
  struct Stamp {
    std::uint64_t setup = 0;  // 0: nothing was written yet
    std::uint32_t position = 0;
  };
  struct Page {
    std::optional<std::uint32_t> group;  // pages are bytes: another group's keys overwrite these
    std::vector<Stamp> stamps;
  };
  struct Row {
    std::uint64_t setup = 0;  // a number that no other request or earlier stay in a row has
    RowSetup given;
    std::vector<std::vector<PageId>> tables;
    std::uint32_t computed = 0;
    std::uint64_t chain = 0;
    std::optional<TokenId> drawn;  // in the row's previous step
  };
  struct Owner {
    RowIndex row;
    std::uint64_t setup = 0;
    std::uint32_t group = 0;
    std::uint32_t index = 0;
  };
  struct Flight {
    StepId step;
    std::vector<PageId> touched;
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
      for (const auto& other : rows_)
        if (other && other->given.request == setup.request) return at(setup.row) + "its request has another row";
      Row row;
      row.setup = ++setups_;
      row.given = setup;
      row.tables.resize(kv_.groups.size());
      row.chain = chain_start(setup.sampling);
      rows_[setup.row.value] = std::move(row);
    }
    return {};
  }

  std::string grant_pages(const StepPlan& plan) {
    for (const PageGrant& grant : plan.pages) {
      if (grant.row.value >= rows_.size() || !rows_[grant.row.value]) return at(grant.row) + "pages for an empty row";
      if (grant.group >= kv_.groups.size()) return at(grant.row) + "pages for an unknown group";
      Row& row = *rows_[grant.row.value];
      auto& table = row.tables[grant.group];
      if (grant.first != table.size()) return at(grant.row) + "pages are not appended";
      for (const PageId page : grant.pages) {
        if (page.value >= kv_.page_count) return at(grant.row) + "page " + std::to_string(page.value) + " does not exist";
        if (in_use(page)) return at(grant.row) + "page " + std::to_string(page.value) + " is granted while another still needs it";
        for (const Flight& flight : flights_)
          for (const PageId touched : flight.touched)
            if (touched == page) return at(grant.row) + "page " + std::to_string(page.value) + " is granted while a step in flight touches it";
        owners_[page] = Owner{grant.row, row.setup, grant.group, static_cast<std::uint32_t>(table.size())};
        table.push_back(page);
      }
    }
    return {};
  }

  // Whether a row that is still set may read the page again.
  bool in_use(PageId page) const {
    const auto found = owners_.find(page);
    if (found == owners_.end()) return false;
    const Owner& owner = found->second;
    const auto& row = rows_[owner.row.value];
    if (!row || row->setup != owner.setup) return false;
    return owner.index >= first_read(owner.group, row->computed) / kv_.groups[owner.group].tokens_per_page;
  }

  std::string compute(const RowWork& work, StepResult& result) {
    if (work.row.value >= rows_.size() || !rows_[work.row.value]) return "work for an empty row";
    Row& row = *rows_[work.row.value];
    if (work.count == 0 || work.count > limits_.prefill_chunk_max) return "work of " + std::to_string(work.count) + " tokens";
    if (work.start != row.computed) return "starts at " + std::to_string(work.start) + " but " + std::to_string(row.computed) + " are computed";
    if (work.tokens.empty()) {
      if (work.count != 1 || !row.drawn) return "the token is to be the drawn one, but there is none";
      row.chain = mix(row.chain, *row.drawn);
    } else {
      if (work.tokens.size() != work.count) return "counts differ";
      for (const TokenId token : work.tokens) {
        if (token >= vocabulary_) return "token out of range";
        row.chain = mix(row.chain, token);
      }
    }
    for (std::uint32_t group = 0; group < kv_.groups.size(); ++group)
      if (auto broken = touch(row, group, work); !broken.empty()) return "group " + std::to_string(group) + ", " + broken;
    row.computed += work.count;
    row.drawn.reset();
    if (work.sample) {
      const PseudoDraw draw = pseudo_draw(row.chain, row.given.sampling, vocabulary_);
      row.drawn = draw.token;
      result.drawn.push_back({work.row, row.given.request, draw.token, draw.nonfinite});
    }
    return {};
  }

  // Writes the new keys and then reads all that the window of any of the positions covers.
  std::string touch(const Row& row, std::uint32_t group, const RowWork& work) {
    const std::uint32_t per_page = kv_.groups[group].tokens_per_page;
    const auto& table = row.tables[group];
    const std::uint32_t end = work.start + work.count;
    if (std::uint64_t{table.size()} * per_page < end) return "position " + std::to_string(end - 1) + " has no page";
    for (std::uint32_t position = work.start; position < end; ++position) {
      Page& page = pages_[table[position / per_page].value];
      if (page.group != group) page = Page{group, std::vector<Stamp>(per_page)};
      page.stamps[position % per_page] = {row.setup, position};
    }
    for (std::uint32_t position = first_read(group, work.start); position < end; ++position) {
      const PageId id = table[position / per_page];
      const Page& page = pages_[id.value];
      const bool whole =
          page.group == group && page.stamps[position % per_page].setup == row.setup && page.stamps[position % per_page].position == position;
      if (!whole) return "the key of position " + std::to_string(position) + " is gone from page " + std::to_string(id.value);
      auto& touched = flights_.back().touched;
      if (touched.empty() || touched.back() != id) touched.push_back(id);
    }
    return {};
  }

  Limits limits_;
  KvLayout kv_;
  std::uint32_t vocabulary_;
  EpochId epoch_;
  StepId step_;
  std::uint64_t setups_ = 0;
  std::vector<std::optional<Row>> rows_;
  std::vector<Page> pages_;
  std::map<PageId, Owner> owners_;
  std::deque<Flight> flights_;
};

}  // namespace althing::tests
