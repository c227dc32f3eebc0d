// The scheduler shell's dealings with masks: it keeps what frontends decided about draws until their tokens are heard of, and puts it into plans. The
// core knows only when a draw may be made.
#include <utility>

#include "actors/scheduler_actor.hpp"

namespace althing::actors {

// REQUIRES: live_ has all choices of the request.
void SchedulerShell::expect_masks(const SubmitRequest& request) {
  const Submitted& submitted = request.submitted;
  for (std::uint32_t i = 0; i < submitted.choices; ++i) {
    Live& live = live_.at(RequestId{submitted.request.value + i});
    live.constrained = true;
    if (request.mask) live.masks[submitted.draws_ready - 1] = request.mask;
  }
}

void SchedulerShell::allow(AllowDraws& allowed) {
  const auto it = live_.find(allowed.request);
  if (it == live_.end() || !it->second.constrained || allowed.until == 0) return;
  if (allowed.mask) it->second.masks[allowed.until - 1] = std::move(allowed.mask);
  feed(DrawsReady{allowed.request, allowed.until});
}

// The core plans no draw of a constrained request that its frontend has not decided about, so what is not here is free.
void SchedulerShell::put_masks(StepPlan& plan) {
  for (const RowSetup& setup : plan.set) {
    const auto it = live_.find(setup.request);
    if (it != live_.end() && it->second.constrained)
      masked_rows_[setup.row] = setup.request;
    else if (!masked_rows_.empty())
      masked_rows_.erase(setup.row);
  }
  if (masked_rows_.empty()) return;
  for (RowWork& work : plan.work) {
    const auto row = work.sample ? masked_rows_.find(work.row) : masked_rows_.end();
    const auto it = row == masked_rows_.end() ? live_.end() : live_.find(row->second);
    if (it == live_.end()) continue;
    const auto mask = it->second.masks.find(work.start + work.count - it->second.prompt_tokens);
    if (mask != it->second.masks.end()) work.mask = *mask->second;
  }
}

}  // namespace althing::actors
