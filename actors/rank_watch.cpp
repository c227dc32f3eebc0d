// See the header.
#include "actors/rank_watch.hpp"

#include <algorithm>
#include <utility>

namespace althing::actors {
namespace {

using std::chrono::milliseconds;

// A look that comes later than this was itself kept waiting, and says nothing of the time before it.
constexpr milliseconds look_max{50};
// The kernel is asked only about ranks that gave no sign for this long, so a healthy server never reads /proc.
constexpr milliseconds suspicious{80};
constexpr std::uint64_t steps_known_min = 32;  // a percentile of fewer means little
constexpr std::uint64_t cpu_noise_ms = 10;     // one tick: the heart, a probe answered

}  // namespace

milliseconds RankWatch::patience(const RankStamps& stamps) const {
  // A rank that stamps every layer sleeps only while it waits for peers, however long its steps are.
  if (!limits_.coarse) return limits_.floor;
  const auto slow = std::chrono::duration_cast<milliseconds>(20 * stamps.times.quantile(0.99));
  const milliseconds patience = std::max(limits_.floor, slow);
  // A step without stamps inside may be far larger than all before it, as a long prefill after decodes is.
  if (stamps.times.count() < steps_known_min || stamps.tokens.load() > stamps.tokens_done_max.load()) return std::max(limits_.deadline, patience);
  return std::max(patience, 4 * std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(stamps.slowest_ns.load())));
}

// Takes over what is new; false when there was no sign of progress although steps are in flight, or no beat.
bool RankWatch::moved(Watched& w, const Seen& seen, milliseconds passed) {
  const RankStamps& s = *seen.stamps;
  if (w.pid != seen.pid) w = Watched{}, w.pid = seen.pid;
  const auto take = [](auto& known, auto now) { return std::exchange(known, now) != now; };
  const bool beat = take(w.beats, s.beats.load(std::memory_order_acquire));
  bool progressed = take(w.progress, s.progress.load());
  progressed = take(w.entered, s.entered.load()) || progressed;
  progressed = take(w.left, s.left.load()) || progressed;
  progressed = take(w.steps, s.steps.load()) || progressed;
  progressed = take(w.epoch, s.epoch.load()) || progressed;
  progressed = take(w.in_flight, s.in_flight.load()) || progressed;
  if (beat) w.silent = w.stopped = w.quiet = {};
  if (progressed || w.in_flight == 0) w.still = w.asleep = {}, w.still_cpu_ms.reset();
  if (!beat) w.silent += passed;
  if (!progressed && w.in_flight > 0) w.still += passed;
  return w.silent < suspicious && w.still < suspicious;
}

void RankWatch::ask_kernel(Watched& w, milliseconds passed) const {
  const auto state = state_of_(w.pid);
  if (!state) return;  // its pidfd says the rest
  const std::uint64_t burned = w.cpu_ms ? state->cpu_ms - std::min(state->cpu_ms, *w.cpu_ms) : 0;
  w.cpu_ms = state->cpu_ms;
  if (!w.still_cpu_ms && w.still > milliseconds(0)) w.still_cpu_ms = state->cpu_ms;
  const bool idle = !state->runnable && !state->on_disk && burned <= cpu_noise_ms;
  if (state->stopped) w.stopped += passed;
  if (idle && w.silent > milliseconds(0)) w.quiet += passed;
  if (idle && w.still > milliseconds(0)) w.asleep += passed;
}

std::optional<RankWatch::Verdict> RankWatch::frozen(std::uint32_t rank, const RankStamps& stamps) const {
  const Watched& w = watched_[rank];
  if (w.stopped >= limits_.frozen) return Verdict{Verdict::Kind::frozen, rank, "the process is stopped", w.silent};
  // Before its first beat it may still be loaded by the kernel.
  if (w.beats > 0 && w.quiet >= patience(stamps)) return Verdict{Verdict::Kind::frozen, rank, "no thread of the process runs", w.silent};
  return std::nullopt;
}

// Asleep for all of its patience, or busy for as much processor time without getting anywhere.
bool RankWatch::is_still(const Watched& w, const RankStamps& stamps) const {
  if (w.asleep >= patience(stamps)) return true;
  // Layers take their time, and the longest may not have been seen: only far more processor time than any step ever took is a loop.
  const milliseconds burned(w.still_cpu_ms && w.cpu_ms ? *w.cpu_ms - *w.still_cpu_ms : 0);
  const bool known = stamps.times.count() >= steps_known_min && stamps.tokens.load() <= stamps.tokens_done_max.load();
  const auto slowest = std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(stamps.slowest_ns.load()));
  const auto slow = std::chrono::duration_cast<milliseconds>(20 * stamps.times.quantile(0.99));
  return burned >= (known ? std::max({limits_.floor, slow, 4 * slowest}) : limits_.deadline);
}

std::optional<RankWatch::Verdict> RankWatch::judge(std::uint32_t rank, const std::vector<Seen>& ranks, std::uint64_t epoch) const {
  const RankStamps& stamps = *ranks[rank].stamps;
  if (auto verdict = frozen(rank, stamps)) return verdict;
  const Watched& w = watched_[rank];
  if (w.still < limits_.floor || !is_still(w, stamps)) return std::nullopt;
  const bool waits = w.entered > w.left;
  // Of an epoch that is over every wait has ended: who is still in one does not come back.
  if (!waits || epoch == 0 || w.epoch != epoch)
    return Verdict{Verdict::Kind::stuck, rank, waits ? "it does not leave a collective of an epoch that is over" : "it makes no progress", w.still};
  bool all_in = true;
  for (std::uint32_t peer = 0; peer < ranks.size(); ++peer) {
    if (peer == rank || !ranks[peer].in_epoch) continue;
    const Watched& p = watched_[peer];
    const bool arrived = ranks[peer].stamps != nullptr && p.epoch == epoch && p.entered >= w.entered;
    // A peer that shows itself in the collective may still wait for a processor to arrive there in earnest.
    all_in = all_in && arrived && p.asleep >= limits_.floor;
    // It waits for a rank that was given nothing to do: a plan was lost on its way there.
    const bool idle = ranks[peer].stamps != nullptr && p.in_flight == 0 && p.epoch == epoch && p.idle >= limits_.lost;
    if (!arrived && idle && w.asleep >= limits_.lost)
      return Verdict{Verdict::Kind::epoch, peer, "rank " + std::to_string(peer) + " has no plan and others wait for it", w.still};
  }
  if (all_in) return Verdict{Verdict::Kind::epoch, rank, "all ranks are in a collective and none leaves it", w.still};
  return std::nullopt;
}

// While somebody waits: whoever has nothing to do, and no thread that a plan may be waiting for to run.
void RankWatch::note_idle(const std::vector<Seen>& ranks, const std::vector<std::uint32_t>& suspects, milliseconds passed) {
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    Watched& w = watched_[rank];
    if (suspects.empty() || ranks[rank].stamps == nullptr || !ranks[rank].in_epoch || w.in_flight > 0) {
      w.idle = {};
      continue;
    }
    const auto state = state_of_(w.pid);
    if (state && !state->runnable && !state->on_disk && !state->stopped) w.idle += passed;
  }
}

std::vector<RankWatch::Verdict> RankWatch::look(Clock::time_point now, const std::vector<Seen>& ranks, std::uint64_t epoch) {
  const milliseconds passed = last_ ? std::min(look_max, std::chrono::duration_cast<milliseconds>(now - *last_)) : milliseconds(0);
  if (last_ && passed == milliseconds(0)) return {};
  last_ = now;
  watched_.resize(ranks.size());
  // Whoever waited in the old membership gets the time to come out of it.
  if (std::exchange(epoch_, epoch) != epoch)
    for (Watched& watched : watched_) watched.still = watched.asleep = {}, watched.still_cpu_ms.reset();
  std::vector<std::uint32_t> suspects;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].stamps == nullptr) {
      watched_[rank] = Watched{};
      continue;
    }
    if (moved(watched_[rank], ranks[rank], passed)) continue;
    ask_kernel(watched_[rank], passed);
    suspects.push_back(rank);
  }
  note_idle(ranks, suspects, passed);
  std::vector<Verdict> verdicts;
  for (const std::uint32_t rank : suspects)
    if (auto verdict = judge(rank, ranks, epoch)) verdicts.push_back(std::move(*verdict));
  // Whoever waits for a rank that is frozen or stuck is not to blame, and its epoch ends with that rank.
  const bool blamed = std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.kind != Verdict::Kind::epoch; });
  if (blamed) std::erase_if(verdicts, [](const Verdict& v) { return v.kind == Verdict::Kind::epoch; });
  return verdicts;
}

}  // namespace althing::actors
