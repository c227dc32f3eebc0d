// Whether tenants get the same. What is computed for a tenant is counted here anew, from the plans alone, as the core's rule has it (fair_queue.hpp):
// a token counts when it is computed first, one that was drawn twice as much as one of a prompt. As long as two tenants both have somebody waiting,
// neither may get ahead of the other by more than what runs without being asked again: full rows of requests that have begun. And within a tenant
// nobody gets a row before one that counts as having come earlier.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::tests {

class FairnessJudge {
 public:
  explicit FairnessJudge(const Limits& limits);

  // A request that is served; `came_ms`: as it counts, with head start; `waits`: for a row and
  // nothing else, neither for another choice of its request nor for somebody who decides about its draws.
  void begin(RequestId request, TenantId tenant, std::int64_t came_ms, std::uint32_t prompt_tokens, std::uint32_t known_tokens, bool waits);
  void end(RequestId request);
  // Empty, or who was passed over.
  std::string planned(const StepPlan& plan);
  void lost();   // every row is gone
  void reset();  // another core

  // Empty, or who is ahead of whom. To be asked after every event.
  std::string check();
  std::uint64_t worst() const { return worst_; }  // in thousandths of what is allowed

 private:
  struct Request {
    TenantId tenant;
    std::pair<std::int64_t, std::uint64_t> came;  // and in which order they were accepted
    std::uint32_t prompt_tokens = 0, charged = 0;
    bool waits = false, has_row = false;
  };
  struct Pair {
    bool compared = false;
    std::int64_t began = 0;  // the difference when both had somebody waiting first
  };

  std::string passed_over_by(RequestId request) const;

  std::uint64_t allowed_, accepted_ = 0;
  std::map<RequestId, Request> requests_;
  std::map<RowIndex, RequestId> rows_;
  std::map<TenantId, std::uint64_t> served_;
  std::map<std::pair<TenantId, TenantId>, Pair> pairs_;
  std::uint64_t worst_ = 0;
};

}  // namespace althing::tests
