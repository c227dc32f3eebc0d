// The supervisor's dealings with faults: it looks at the ranks' stamps, carries out verdicts, tells each recovery once, and takes orders for faults
// where they are allowed. A verdict on a rank is carried out by SIGKILL at once, which ends a stopped process too: nobody returns from a membership
// that is over.
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "actors/logging.hpp"
#include "actors/supervisor.hpp"

namespace althing::actors {
namespace {

// A process that has closed its connections is reaped within this time.
constexpr std::chrono::milliseconds death_wait{60};

std::string ms_text(double seconds) {
  return std::to_string(static_cast<long>(seconds * 1e6) / 1000) + "." + std::to_string(static_cast<long>(seconds * 1e4) % 10);
}

}  // namespace

Supervisor::Clock::time_point Supervisor::last_sign_of(std::uint32_t member) const {
  const std::uint64_t beat = members_[member].page ? members_[member].page->stamps()->beat_ns.load() : 0;
  if (beat == 0) return Clock::now();
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(beat)));
}

void Supervisor::watch_ranks() {
  if (exit_code_) return;
  std::vector<RankWatch::Seen> seen(members_.size());
  for (std::uint32_t m = 0; m < members_.size(); ++m)
    if (members_[m].process && members_[m].page && !members_[m].condemned)
      seen[m] = {members_[m].page->stamps().get(), members_[m].process->pid(), membership_->current().rank_of(m).has_value()};
  const auto now = Clock::now();
  if (stall_ && stall_->epoch != epoch_) stall_.reset();
  const bool dying = std::any_of(members_.begin(), members_.end(), [](const Member& member) { return member.condemned; });
  if (stall_ && !dying && now - stall_->since > death_wait) {
    const Stall stall = *std::exchange(stall_, std::nullopt);
    return stalled(stall.how, stall.since);
  }
  // Without a core there is no membership to judge, only processes.
  for (const RankWatch::Verdict& verdict : watch_->look(now, seen, core_port_.empty() ? 0 : epoch_)) {
    const Clock::time_point last_sign = now - verdict.silence;
    if (verdict.kind == RankWatch::Verdict::Kind::epoch) {
      if (!core_port_.empty()) return stalled(verdict.why, last_sign);
      continue;
    }
    condemn(verdict.rank, verdict.kind == RankWatch::Verdict::Kind::frozen ? "frozen" : "stuck", verdict.why, last_sign);
  }
}

// A core that is stopped, or whose scheduler or gateway does not go round any more, ends like one that died.
void Supervisor::watch_core() {
  if (!core_ || core_verdict_ || exit_code_) return;
  const std::vector<RankWatch::Seen> seen{{core_page_->stamps().get(), core_->pid()}};
  for (const RankWatch::Verdict& verdict : core_watch_->look(Clock::now(), seen, 0)) {
    core_verdict_ = verdict.why;
    log(LogLevel::error, "core_condemned", {{"how", verdict.why}, {"silent_ms", verdict.silence.count()}, {"epoch", epoch_}});
    core_->signal(SIGKILL);
  }
}

// Its death, not this, starts the next epoch.
void Supervisor::condemn(std::uint32_t member, const std::string& cause, const std::string& how, Clock::time_point last_sign) {
  Member& target = members_[member];
  if (!target.process || target.condemned) return;
  log(LogLevel::error, "rank_condemned", {{"who", name_of_member(member)}, {"cause", cause}, {"how", how}, {"epoch", epoch_}});
  target.condemned = true;
  if (const auto rank = membership_->current().rank_of(member)) recovery_.condemned(*rank, cause, how, last_sign);
  target.process->signal(SIGKILL);
}

void Supervisor::stalled(const std::string& how, Clock::time_point last_sign) {
  log(LogLevel::error, "epoch_stalled", {{"how", how}, {"epoch", epoch_}});
  note({"epoch_stalled", std::nullopt, "stalled", how, epoch_});
  recovery_.stalled(how, epoch_, last_sign, Clock::now());
  new_epoch();
}

// "resumed EPOCH FIRST_MS LAST_MS STREAMS RESTORED RECOMPUTED": the times since that membership was complete.
void Supervisor::tell_recovery(const ControlMessage& message) {
  const auto& words = message.words;
  if (words.size() < 7 || words[1] != std::to_string(epoch_)) return;
  membership_->resumed();
  for (const RecoveryLog::Fault& fault :
       recovery_.resumed(std::chrono::milliseconds(std::stoull(words[2])), std::chrono::milliseconds(std::stoull(words[3])))) {
    const auto phase = [&](RecoveryPhase which) { return ms_text(fault.seconds[static_cast<std::size_t>(which)]); };
    log(LogLevel::warning, "fault",
        {{"rank", fault.rank ? std::to_string(*fault.rank) : "none"},
         {"cause", fault.cause},
         {"how", fault.how},
         {"epoch", fault.epoch},
         {"next_epoch", epoch_},
         {"recovered_by", std::string(name_of(fault.by))},
         {"streams", words[4]},
         {"restored_tokens", words[5]},
         {"recomputed_tokens", words[6]},
         {"detect_ms", phase(RecoveryPhase::detect)},
         {"agree_ms", phase(RecoveryPhase::agree)},
         {"weights_ms", phase(RecoveryPhase::weights)},
         {"join_ms", phase(RecoveryPhase::join)},
         {"recompute_ms", phase(RecoveryPhase::recompute)},
         {"resume_ms", phase(RecoveryPhase::resume)},
         {"total_ms", ms_text(fault.total())}});
    note_recovery(fault, std::stoull(words[4]));
    if (!core_) continue;
    std::string text = "fault " + fault.cause + " " + std::string(name_of(fault.by)) + " ";
    for (const double seconds : fault.seconds) text += std::to_string(seconds) + ",";
    text.pop_back();
    core_->control().send(text);
  }
}

std::string Supervisor::status_of(std::uint32_t rank) const {
  const std::uint32_t number = membership_->current().members[rank];
  const Member& target = members_[number];
  const std::string who = "ok rank " + std::to_string(rank) + " member=" + std::to_string(number);
  if (!target.process || !target.page) return who + " pid=-1";
  const RankStamps& s = *target.page->stamps();
  return who + " pid=" + std::to_string(target.process->pid()) + " epoch=" + std::to_string(s.epoch) + " steps=" + std::to_string(s.steps) +
         " in_flight=" + std::to_string(s.in_flight) + " collectives=" + std::to_string(s.left) + " faults=" + std::to_string(s.faults) +
         " step_p99_us=" + std::to_string(s.times.quantile(0.99).count() / 1000) + " patience_ms=" + std::to_string(watch_->patience(s).count());
}

std::optional<std::string> Supervisor::order(const FaultOrder& order, std::uint64_t id) {
  const std::vector<std::uint32_t>& members = membership_->current().members;
  if (!order.core && order.rank >= members.size()) {
    const std::string why = membership_->why_left_out(order.rank, Clock::now());
    return "refused " +
           (why.empty() ? "there is no rank " + std::to_string(order.rank) + ": this server has ranks 0 to " + std::to_string(settings_.ranks - 1)
                        : why + "; try again when althing_degraded is 0");
  }
  // A message that is lost on its way to the core is lost by rank 0, which sends them.
  const bool to_core = order.core && order.kind != FaultKind::drop && order.kind != FaultKind::delay;
  const std::uint32_t rank = order.core ? 0 : order.rank;
  std::optional<ChildProcess>& target = to_core ? core_ : members_[members[rank]].process;
  const std::string who = to_core ? "the core" : "rank " + std::to_string(rank);
  if (order.kind == FaultKind::status)
    return to_core ? "ok core pid=" + std::to_string(core_ ? core_->pid() : -1) + " epoch=" + std::to_string(epoch_) : status_of(rank);
  if (!target) return "refused " + who + " is not there: it died and is not started again yet";
  const bool by_signal = order.kind == FaultKind::kill || order.kind == FaultKind::stop;
  if (by_signal && order.after == 0 && order.collective == 0) {
    log(LogLevel::warning, "fault_injected", {{"fault", to_text(order)}, {"pid", static_cast<long>(target->pid())}, {"epoch", epoch_}});
    target->signal(order.kind == FaultKind::kill ? SIGKILL : SIGSTOP);
    return "ok sent " + std::string(order.kind == FaultKind::kill ? "SIGKILL" : "SIGSTOP") + " to " + who + ", process " +
           std::to_string(target->pid());
  }
  if (!target->control().send("inject " + std::to_string(id) + " " + to_text(order))) return "refused " + who + " does not read its line";
  return std::nullopt;
}

// "armed ID" or "unarmed ID why".
void Supervisor::answer_order(const ControlMessage& message) {
  if (!faults_ || message.words.size() < 2) return;
  std::uint64_t id = 0;
  const std::string& text = message.words[1];
  if (std::from_chars(text.data(), text.data() + text.size(), id).ec != std::errc{}) return;
  std::string why;
  for (std::size_t i = 2; i < message.words.size(); ++i) why += " " + message.words[i];
  faults_->answer(id, message.words[0] == "armed" ? "ok armed" : "refused" + why);
}

}  // namespace althing::actors
