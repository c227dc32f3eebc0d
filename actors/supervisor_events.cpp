// The supervisor's memory of what happened to its processes, for the live page. It is kept here because the core, which has the page, may be who
// died; the core is told each event, and a new core all that are kept.
#include <chrono>
#include <utility>

#include "actors/supervisor.hpp"

namespace althing::actors {

void Supervisor::note(monitoring::ServerEvent event) {
  if (event.epoch == 0) event.epoch = epoch_;
  events_.add(event, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  tell_events();
}

// A message that the core did not take is sent again with the next one.
void Supervisor::tell_events() {
  if (!core_ || core_port_.empty()) return;
  constexpr std::string_view verb = "events ";
  for (const std::string& lines : events_.lines_after(events_told_, ControlChannel::message_bytes_max - verb.size())) {
    if (!core_->control().send(std::string(verb) + lines)) return;
    const std::size_t last = lines.rfind('\n', lines.size() - 2);
    events_told_ = std::stoull(lines.substr(last == std::string::npos ? 0 : last + 1));
  }
}

void Supervisor::note_recovery(const RecoveryLog::Fault& fault, std::uint64_t streams) {
  monitoring::ServerEvent event{"recovered", fault.rank, fault.cause, fault.how, fault.epoch};
  event.next_epoch = epoch_;
  event.recovered_by = name_of(fault.by);
  event.streams = streams;
  event.phase_seconds.assign(fault.seconds.begin(), fault.seconds.end());
  event.total_seconds = fault.total();
  note(std::move(event));
}

}  // namespace althing::actors
