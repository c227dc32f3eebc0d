// See the header.
#include "actors/core_recovery.hpp"

#include <utility>

#include "actors/logging.hpp"
#include "actors/rank_stamps.hpp"

namespace althing::actors {
namespace {

double milliseconds_between(std::uint64_t from, std::uint64_t to) { return to > from ? static_cast<double>(to - from) / 1e6 : 0.0; }

}  // namespace

CoreRecovery::CoreRecovery(std::shared_ptr<monitoring::Metrics> metrics, Found found)
    : metrics_(std::move(metrics)), found_(found), rebuilt_ns_(monotonic_ns()) {
  metrics_->core_restarts(found_.deaths);
  metrics_->state(monitoring::ServerState::recovering);
}

void CoreRecovery::ready() {
  const std::lock_guard lock(mutex_);
  if (ready_ns_ != 0) return;
  ready_ns_ = monotonic_ns();
  if (found_.open == 0) finish_locked(ready_ns_);
}

void CoreRecovery::first_token() {
  const std::lock_guard lock(mutex_);
  finish_locked(monotonic_ns());
}

void CoreRecovery::finish_locked(std::uint64_t now) {
  if (std::exchange(told_, true)) return;
  metrics_->core_recovered(milliseconds_between(found_.died_ns, now) / 1e3);
  if (on_told) on_told(milliseconds_between(found_.died_ns, now) / 1e3, found_);
  log(LogLevel::info, "core_recovered",
      {{"deaths", found_.deaths},
       {"streams", found_.open},
       {"finished", found_.finished},
       {"damaged", found_.damaged},
       {"given_up", found_.given_up},
       {"noticed", static_cast<double>(found_.died_ns) / 1e9},  // on the monotonic clock
       {"start_ms", milliseconds_between(found_.died_ns, found_.started_ns)},
       {"rebuild_ms", milliseconds_between(found_.started_ns, rebuilt_ns_)},
       {"ranks_ms", milliseconds_between(rebuilt_ns_, ready_ns_)},
       {"first_token_ms", milliseconds_between(ready_ns_, now)},
       {"seconds", milliseconds_between(found_.died_ns, now) / 1e3}});
}

}  // namespace althing::actors
