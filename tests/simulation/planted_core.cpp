// The bugs: see the header. Each strikes now and then, as real ones do.
#include "tests/simulation/planted_core.hpp"

#include <algorithm>
#include <utility>

namespace althing::tests {
namespace {

constexpr std::array<std::string_view, plant_count> names = {"none",
                                                             "cancel_lost",
                                                             "stop_lost",
                                                             "deadline_lost",
                                                             "drain_lost",
                                                             "loss_unheard",
                                                             "stale_result_taken",
                                                             "drawn_again",
                                                             "draws_unasked",
                                                             "unrestored_unheard",
                                                             "end_twice",
                                                             "end_lost",
                                                             "token_lost",
                                                             "token_twice",
                                                             "tokens_swapped",
                                                             "page_twice",
                                                             "kept_page_wrong",
                                                             "scrub_lost",
                                                             "recomputed_wrong",
                                                             "snapshot_lost",
                                                             "row_leaks",
                                                             "tenants_forgotten",
                                                             "priority_reversed",
                                                             "starvation",
                                                             "resubmission_lost",
                                                             "resubmission_untold",
                                                             "end_untold",
                                                             "stop_too_late",
                                                             "credit_ignored"};

}  // namespace

std::string_view name_of(Plant plant) { return names[static_cast<std::size_t>(plant)]; }

std::optional<Plant> plant_of(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Plant>(found - names.begin());
}

PlantedCore::PlantedCore(const scheduler::CoreConfig& config, Plant plant, std::uint64_t seed)
    : core_(std::move(*scheduler::Core::create(config))), plant_(plant), dice_(seed ^ 0xB06u) {}

const std::vector<Effect>& PlantedCore::on(const Event& event) {
  effects_.clear();
  if (clean()) {
    feed(event);
    return effects_;
  }
  if (const auto through = altered(event)) feed(*through);
  if (const auto* ready = std::get_if<RanksReady>(&event)) epoch_ = std::max(epoch_, ready->epoch);
  if (std::holds_alternative<RanksLost>(event) || std::holds_alternative<RanksReady>(event)) in_flight_.clear();
  if (const auto* done = std::get_if<StepDone>(&event); done != nullptr && !in_flight_.empty() && in_flight_.front() == done->result.step)
    in_flight_.pop_front();
  let_starved_in();
  alter_effects();
  return effects_;
}

void PlantedCore::feed(const Event& event) {
  const auto effects = core_->on(event);
  effects_.insert(effects_.end(), effects.begin(), effects.end());
}

std::optional<Event> PlantedCore::altered(const Event& event) {
  if (const auto* cancelled = std::get_if<Cancelled>(&event)) return altered(*cancelled);
  if (const auto* done = std::get_if<StepDone>(&event)) return altered(*done);
  if (const auto* submitted = std::get_if<Submitted>(&event)) return altered(*submitted);
  if (std::holds_alternative<Stopped>(event) && plant_ == Plant::stop_lost && now(4)) return std::nullopt;
  if (std::holds_alternative<DrainStarted>(event) && plant_ == Plant::drain_lost) return std::nullopt;
  if (std::holds_alternative<RanksLost>(event) && plant_ == Plant::loss_unheard && now(3)) return std::nullopt;
  return event;
}

std::optional<Event> PlantedCore::altered(const Cancelled& event) {
  if (plant_ == Plant::cancel_lost && now(3)) return std::nullopt;
  if (!starved_.empty() && starved_.front().request == event.request) {
    starved_.pop_front();
    effects_.emplace_back(Finished{event.request, FinishReason::cancelled, usage_[event.request], event.error});
    return std::nullopt;
  }
  if (plant_ == Plant::row_leaks && now(2)) {
    const auto held = core_->held_pages();
    const auto runs = [&](const scheduler::HeldPages& sequence) { return sequence.sequence == event.request; };
    if (std::none_of(held.begin(), held.end(), runs)) return event;
    ghosts_.insert(event.request);
    effects_.emplace_back(Finished{event.request, FinishReason::cancelled, usage_[event.request], event.error});
    return std::nullopt;
  }
  return event;
}

std::optional<Event> PlantedCore::altered(const StepDone& event) {
  StepDone done = event;
  if (plant_ == Plant::stale_result_taken && !in_flight_.empty() && done.result.epoch < epoch_) {
    done.result.epoch = epoch_;
    done.result.step = in_flight_.front();
    in_flight_.pop_front();
  }
  if (plant_ == Plant::unrestored_unheard && now(2)) done.result.unrestored.clear();
  return done;
}

std::optional<Event> PlantedCore::altered(const Submitted& event) {
  Submitted submitted = event;
  for (std::uint32_t i = 0; i < event.choices; ++i)
    usage_[RequestId{event.request.value + i}] = {static_cast<std::uint32_t>(event.prompt.size()), static_cast<std::uint32_t>(event.drawn.size())};
  if (plant_ == Plant::deadline_lost && now(2)) submitted.deadline_ms = 0;
  if (plant_ == Plant::draws_unasked) submitted.constrained = false;
  if (plant_ == Plant::tenants_forgotten) submitted.tenant = TenantId{};
  if (plant_ == Plant::priority_reversed) submitted.priority = -submitted.priority;
  if (plant_ == Plant::drawn_again && !submitted.drawn.empty()) submitted.drawn.pop_back();
  if (plant_ == Plant::starvation && event.choices == 1 && event.deadline_ms == 0 && starved_.empty() && !core_->stats().draining &&
      core_->stats().waiting > 0 && now(2)) {
    starved_.push_back(event);
    effects_.emplace_back(Accepted{event.request});
    return std::nullopt;
  }
  return submitted;
}

void PlantedCore::let_starved_in() {
  if (starved_.empty() || core_->stats().running + core_->stats().waiting > 0) return;
  const Submitted event = std::move(starved_.front());
  starved_.pop_front();
  const auto effects = core_->on(event);
  // That it was accepted has been said.
  effects_.insert(effects_.end(), effects.begin() + 1, effects.end());
}

void PlantedCore::alter_effects() {
  std::erase_if(effects_, [this](const Effect& effect) {
    if (const auto* drawn = std::get_if<TokensDrawn>(&effect)) return ghosts_.contains(drawn->request) || (plant_ == Plant::token_lost && now(40));
    const auto* finished = std::get_if<Finished>(&effect);
    if (finished == nullptr || finished->reason == FinishReason::cancelled) return false;
    return ghosts_.contains(finished->request) || (plant_ == Plant::end_lost && now(8));
  });
  std::vector<std::size_t> drawn;
  for (std::size_t i = 0; i < effects_.size(); ++i) {
    if (auto* run = std::get_if<RunStep>(&effects_[i])) {
      in_flight_.push_back(run->plan.step);
      alter_plan(run->plan);
    }
    if (const auto* tokens = std::get_if<TokensDrawn>(&effects_[i])) {
      drawn.push_back(i);
      usage_[tokens->request].completion_tokens += static_cast<std::uint32_t>(tokens->tokens.size());
    }
    const bool twice = (plant_ == Plant::end_twice && std::holds_alternative<Finished>(effects_[i]) && now(8)) ||
                       (plant_ == Plant::token_twice && std::holds_alternative<TokensDrawn>(effects_[i]) && now(40));
    if (!twice) continue;
    effects_.emplace_back(Effect(effects_[i]));
    return;
  }
  if (plant_ == Plant::tokens_swapped && drawn.size() > 1 && now(10))
    std::swap(std::get<TokensDrawn>(effects_[drawn[0]]).tokens, std::get<TokensDrawn>(effects_[drawn[1]]).tokens);
}

void PlantedCore::alter_plan(StepPlan& plan) {
  if (plant_ == Plant::scrub_lost && plan.work.size() > 0) plan.scrub.clear();
  if (plant_ == Plant::snapshot_lost && plan.snapshot && now(2)) {
    plan.snapshot = false;
    plan.base = StepId{plan.step.value - 1};
  }
  for (PageGrant& grant : plan.pages) {
    const bool strikes = plant_ == (grant.kept ? Plant::kept_page_wrong : Plant::page_twice) && now(10) && granted_.size() > 1;
    if (strikes) grant.pages.back() = granted_[dice_.bits() % granted_.size()];
    granted_.insert(granted_.end(), grant.pages.begin(), grant.pages.end());
    if (granted_.size() > 16) granted_.erase(granted_.begin(), granted_.end() - 16);
  }
  if (plant_ == Plant::recomputed_wrong && now(10))
    for (RowWork& work : plan.work)
      if (!work.tokens.empty()) work.tokens.front() ^= 1u;
}

}  // namespace althing::tests
