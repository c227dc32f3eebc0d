// See the header.
#include "actors/recovery_log.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace althing::actors {
namespace {

double seconds_between(RecoveryLog::Clock::time_point from, RecoveryLog::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

double RecoveryLog::Fault::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

void RecoveryLog::condemned(std::uint32_t rank, const std::string& cause, const std::string& how, Clock::time_point last_sign) {
  condemned_.push_back({rank, cause, how, last_sign});
}

std::string RecoveryLog::lost(std::uint32_t rank, const std::string& how, std::uint64_t epoch, Clock::time_point last_sign, Clock::time_point now) {
  Fault fault{rank, "exit", how, epoch, RecoveredBy::epoch, {}};
  const auto verdict = std::find_if(condemned_.begin(), condemned_.end(), [&](const Condemned& c) { return c.rank == rank; });
  if (verdict != condemned_.end()) {
    fault.cause = verdict->cause;
    fault.how = verdict->how;
    last_sign = verdict->last_sign;
    condemned_.erase(verdict);
  }
  std::string cause = fault.cause;
  open_.push_back({std::move(fault), last_sign, now, std::nullopt});
  loaded_.reset();
  ready_.reset();
  return cause;
}

void RecoveryLog::stalled(const std::string& how, std::uint64_t epoch, Clock::time_point last_sign, Clock::time_point now) {
  open_.push_back({Fault{std::nullopt, "stalled", how, epoch, RecoveredBy::epoch, {}}, last_sign, now, std::nullopt});
  ready_.reset();
}

void RecoveryLog::announced(RecoveredBy by, Clock::time_point now) {
  for (Open& open : open_) {
    // An epoch that is only announced once more, or grows again before its streams have gone on, repairs nothing that is not repaired already.
    const bool repairs = by != RecoveredBy::epoch && by != RecoveredBy::grow && by != RecoveredBy::start;
    if (!open.announced || repairs) open.fault.by = by;
    if (!open.announced) open.announced = now;
  }
}

void RecoveryLog::loaded(Clock::time_point now) { loaded_ = now; }

void RecoveryLog::ready(Clock::time_point now) { ready_ = now; }

std::vector<RecoveryLog::Fault> RecoveryLog::resumed(std::chrono::milliseconds first_token, std::chrono::milliseconds last_token) {
  std::vector<Fault> faults;
  if (!ready_) return faults;
  for (Open& open : open_) {
    auto& seconds = open.fault.seconds;
    const auto at = [&](RecoveryPhase phase) -> double& { return seconds[static_cast<std::size_t>(phase)]; };
    const Clock::time_point announced = open.announced.value_or(open.noticed);
    // Where nothing had to be loaded, the phase is empty.
    const Clock::time_point loaded = loaded_ ? std::clamp(*loaded_, announced, std::max(announced, *ready_)) : announced;
    at(RecoveryPhase::detect) = seconds_between(open.last_sign, open.noticed);
    at(RecoveryPhase::agree) = seconds_between(open.noticed, announced);
    at(RecoveryPhase::weights) = seconds_between(announced, loaded);
    at(RecoveryPhase::join) = seconds_between(loaded, *ready_);
    at(RecoveryPhase::recompute) = std::chrono::duration<double>(first_token).count();
    at(RecoveryPhase::resume) = std::chrono::duration<double>(last_token - first_token).count();
    faults.push_back(std::move(open.fault));
  }
  open_.clear();
  return faults;
}

}  // namespace althing::actors
