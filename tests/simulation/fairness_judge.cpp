// The count: see the header.
#include "tests/simulation/fairness_judge.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

namespace althing::tests {
namespace {

constexpr std::uint64_t drawn_weight = 2;

}  // namespace

// Whoever is ahead may be so by all that its rows can still compute (the bound of virtual token counters), and when the count began it may have been
// behind by as much.
FairnessJudge::FairnessJudge(const Limits& limits) : allowed_(2 * drawn_weight * limits.rows_max * limits.context_tokens_max) {}

void FairnessJudge::begin(RequestId request, TenantId tenant, std::int64_t came_ms, std::uint32_t prompt_tokens, std::uint32_t known_tokens,
                          bool waits) {
  // What a core before this one has computed was paid for there.
  requests_[request] = {tenant, {came_ms, accepted_++}, prompt_tokens, known_tokens > prompt_tokens ? known_tokens - 1 : 0, waits, false};
  served_[tenant];
}

void FairnessJudge::end(RequestId request) { requests_.erase(request); }

std::string FairnessJudge::planned(const StepPlan& plan) {
  if (plan.snapshot) lost();
  const auto leave = [this](RowIndex row) {
    const auto found = rows_.find(row);
    if (found == rows_.end()) return;
    if (const auto request = requests_.find(found->second); request != requests_.end()) request->second.has_row = false;
    rows_.erase(found);
  };
  for (const RowIndex row : plan.cleared) leave(row);
  std::string passed_over;
  for (const RowSetup& setup : plan.set) {
    if (passed_over.empty()) passed_over = passed_over_by(setup.request);
    rows_[setup.row] = setup.request;
    if (const auto request = requests_.find(setup.request); request != requests_.end()) request->second.has_row = true;
  }
  for (const RowWork& work : plan.work) {
    const auto row = rows_.find(work.row);
    const auto found = row == rows_.end() ? requests_.end() : requests_.find(row->second);
    if (found == requests_.end()) continue;
    Request& request = found->second;
    for (std::uint32_t position = std::max(work.start, request.charged); position < work.start + work.count; ++position)
      served_[request.tenant] += position < request.prompt_tokens ? 1 : drawn_weight;
    request.charged = std::max(request.charged, work.start + work.count);
  }
  return passed_over;
}

std::string FairnessJudge::passed_over_by(RequestId request) const {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return {};
  for (const auto& [id, other] : requests_)
    if (other.waits && !other.has_row && other.tenant == found->second.tenant && other.came < found->second.came)
      return "request " + std::to_string(request.value) + " gets a row before request " + std::to_string(id.value) +
             " of the same tenant, which came earlier";
  return {};
}

void FairnessJudge::lost() {
  rows_.clear();
  for (auto& [id, request] : requests_) request.has_row = false;
}

void FairnessJudge::reset() {
  requests_.clear();
  rows_.clear();
  served_.clear();
  pairs_.clear();
}

std::string FairnessJudge::check() {
  if (served_.size() < 2) return {};
  std::set<TenantId> waiting;
  for (const auto& [id, request] : requests_)
    if (request.waits && !request.has_row) waiting.insert(request.tenant);
  for (auto one = served_.begin(); one != served_.end(); ++one)
    for (auto other = std::next(one); other != served_.end(); ++other) {
      Pair& pair = pairs_[{one->first, other->first}];
      const std::int64_t ahead = static_cast<std::int64_t>(one->second) - static_cast<std::int64_t>(other->second);
      const bool both = waiting.contains(one->first) && waiting.contains(other->first);
      if (both && !pair.compared) pair.began = ahead;
      pair.compared = both;
      if (!both) continue;
      const auto by = static_cast<std::uint64_t>(std::abs(ahead - pair.began));
      worst_ = std::max(worst_, by * 1000 / allowed_);
      if (by > allowed_)
        return "tenant " + std::to_string((ahead > pair.began ? one : other)->first.value) + " got " + std::to_string(by) +
               " tokens more than tenant " + std::to_string((ahead > pair.began ? other : one)->first.value) + " while both waited; " +
               std::to_string(allowed_) + " is the most";
    }
  return {};
}

}  // namespace althing::tests
