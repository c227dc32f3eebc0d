// The scheduler shell's dealings with what a step tells besides tokens: whose rows are traced, who hears what a step did for them, which ends wait
// for it, and how likely drawn tokens were.
#include <algorithm>
#include <map>
#include <utility>

#include "actors/logging.hpp"
#include "actors/scheduler_actor.hpp"

namespace althing::actors {

void SchedulerShell::note_traced(const StepPlan& plan, PendingStep& pending) {
  for (const RowSetup& setup : plan.set) {
    if (setup.trace_top_m > 0)
      traced_rows_[setup.row] = setup.request;
    else if (!traced_rows_.empty())
      traced_rows_.erase(setup.row);
  }
  if (traced_rows_.empty()) return;
  for (const RowWork& work : plan.work)
    if (const auto it = traced_rows_.find(work.row); it != traced_rows_.end()) pending.traced.push_back(it->second);
}

// Of a step that was accepted, as its counts are.
void SchedulerShell::tell_routing(const std::string& routing, StepId step, EpochId epoch) {
  std::string_view left = routing;
  while (const auto section = next_section(left)) {
    const auto it = live_.find(RequestId{section->request});
    if (it == live_.end()) continue;
    const std::uint32_t before = std::max(it->second.computed, section->start) - section->start;
    self_->send(it->second.frontend,
                Routed{it->first, step, epoch, section->start, section->count, std::min(before, section->count), std::string(section->body)});
    it->second.computed = std::max(it->second.computed, section->start + section->count);
  }
}

// A step draws one token for a request at most. What cannot be read is left out, which the frontend notices.
void SchedulerShell::attach(const std::string& logprobs, std::vector<Effect>& effects) const {
  auto read = read_logprobs(logprobs);
  if (!read) return log(LogLevel::error, "logprobs_unread", {{"reason", read.error().message}});
  std::map<RequestId, TokenLogprobs*> told;
  for (RequestLogprobs& one : *read) told.emplace(one.request, &one.told);
  for (Effect& effect : effects) {
    auto* const drawn = std::get_if<TokensDrawn>(&effect);
    const auto found = drawn == nullptr ? told.end() : told.find(drawn->request);
    if (found != told.end() && drawn->tokens.size() == 1 && found->second->token == drawn->tokens[0])
      drawn->logprobs.push_back(std::move(*found->second));
  }
}

bool SchedulerShell::trace_is_due(RequestId request) const {
  return std::any_of(pending_steps_.begin(), pending_steps_.end(), [request](const auto& entry) {
    const auto& traced = entry.second.traced;
    return std::find(traced.begin(), traced.end(), request) != traced.end();
  });
}

void SchedulerShell::finish_held() {
  for (const Finished& finished : std::exchange(held_, {})) finish(finished);
}

}  // namespace althing::actors
