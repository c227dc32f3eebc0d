// Every change of a tally is made here, in the order in which the shell tells of it.
#include "scheduler/usage_ledger.hpp"

#include <algorithm>
#include <utility>

namespace althing::scheduler {

void UsageLedger::open(RequestId sequence, RequestId request, std::uint32_t prompt_tokens, bool taken_over) {
  Request& account = requests_[request];
  account.tally.prompt_tokens = prompt_tokens;
  account.tally.taken_over = taken_over;
  ++account.tally.choices;
  ++account.open;
  sequences_[sequence] = Sequence{request};
}

void UsageLedger::refused(RequestId sequence) {
  const auto it = sequences_.find(sequence);
  if (it == sequences_.end()) return;
  const RequestId request = it->second.request;
  sequences_.erase(it);
  --requests_.at(request).tally.choices;
  leave(request);
}

void UsageLedger::finished(const Finished& end) {
  const auto it = sequences_.find(end.request);
  if (it == sequences_.end() || std::exchange(it->second.ended, true)) return;
  Request& account = requests_.at(it->second.request);
  account.accepted = true;
  account.tally.completion_tokens += end.usage.completion_tokens;
  account.tally.preemptions += end.usage.preemptions;
  if (end.reason >= account.tally.reason) {
    account.tally.reason = end.reason;
    account.tally.code = end.error.code;
  }
  close_if_over(end.request);
}

void UsageLedger::planned(const StepPlan& plan) {
  if (plan.snapshot) rows_.clear();
  for (const RowIndex row : plan.cleared) rows_.erase(row);
  for (const RowSetup& setup : plan.set) {
    rows_[setup.row] = setup.request;
    if (const auto it = sequences_.find(setup.request); it != sequences_.end()) it->second.starts = true;
  }
  std::vector<Work>& works = steps_[plan.step];
  for (const RowWork& work : plan.work) {
    const RequestId id = rows_[work.row];
    works.push_back({id, work.start, work.count});
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) continue;
    // A row begins at position 0, or behind what came back from the mirror.
    if (std::exchange(it->second.starts, false)) requests_.at(it->second.request).tally.restored_tokens += work.start;
    ++it->second.in_flight;
  }
}

void UsageLedger::done(StepId step, std::uint64_t device_ns) {
  const auto flight = steps_.find(step);
  if (flight == steps_.end()) return;
  const std::vector<Work> works = std::move(flight->second);
  steps_.erase(flight);
  device_ns_ += device_ns;
  std::uint64_t all = 0;
  for (const Work& work : works) all += work.count;
  if (all == 0) unattributed_ns_ += device_ns;
  // Shares are differences of rounded sums, so they add up to the whole. Quotient and remainder apart, because the product of both might not fit.
  const auto share_up_to = [&](std::uint64_t tokens) { return device_ns / all * tokens + device_ns % all * tokens / all; };
  std::uint64_t before = 0;
  for (const Work& work : works) {
    computed(work, share_up_to(before + work.count) - share_up_to(before));
    before += work.count;
  }
}

void UsageLedger::computed(const Work& work, std::uint64_t share_ns) {
  const auto it = sequences_.find(work.sequence);
  if (it == sequences_.end()) {
    unattributed_ns_ += share_ns;  // nobody whom we know
    return;
  }
  Sequence& sequence = it->second;
  UsageTally& tally = requests_.at(sequence.request).tally;
  const std::uint32_t end = work.start + work.count;
  tally.device_ns += share_ns;
  tally.computed_tokens += work.count;
  tally.recomputed_tokens += std::min(end, sequence.computed_most) - std::min(work.start, sequence.computed_most);
  sequence.computed_most = std::max(sequence.computed_most, end);
  --sequence.in_flight;
  close_if_over(work.sequence);
}

void UsageLedger::lost() {
  steps_.clear();
  rows_.clear();
  for (auto next = sequences_.begin(); next != sequences_.end();) {
    const auto it = next++;  // closing erases it
    it->second.in_flight = 0;
    close_if_over(it->first);
  }
}

void UsageLedger::hold(std::vector<HeldPages> held, std::uint64_t page_bytes, std::uint64_t now_us) {
  std::sort(held.begin(), held.end(), [](const HeldPages& a, const HeldPages& b) { return a.sequence < b.sequence; });
  std::vector<std::pair<RequestId, Held>> next;
  next.reserve(held.size());
  auto before = held_.begin();
  for (const HeldPages& pages : held) {
    for (; before != held_.end() && before->first < pages.sequence; ++before) charge(before->first, before->second, now_us);
    Held now{pages.pages, page_bytes, now_us};
    if (before != held_.end() && before->first == pages.sequence) {
      const Held& then = before->second;
      if (then.pages == now.pages && then.page_bytes == now.page_bytes)
        now.since_us = then.since_us;
      else
        charge(before->first, then, now_us);
      ++before;
    }
    next.emplace_back(pages.sequence, now);
  }
  for (; before != held_.end(); ++before) charge(before->first, before->second, now_us);
  held_ = std::move(next);
}

void UsageLedger::charge(RequestId sequence, const Held& held, std::uint64_t now_us) {
  const auto it = sequences_.find(sequence);
  if (it == sequences_.end()) return;
  const double seconds = static_cast<double>(now_us - held.since_us) * 1e-6;
  requests_.at(it->second.request).tally.kv_byte_seconds += static_cast<double>(held.pages) * static_cast<double>(held.page_bytes) * seconds;
}

std::vector<ClosedTally> UsageLedger::take_closed() { return std::exchange(closed_, {}); }

void UsageLedger::close_if_over(RequestId id) {
  const auto it = sequences_.find(id);
  if (!it->second.ended || it->second.in_flight > 0) return;
  const RequestId request = it->second.request;
  sequences_.erase(it);
  leave(request);
}

// One of its sequences is over.
void UsageLedger::leave(RequestId request) {
  const auto it = requests_.find(request);
  if (--it->second.open > 0) return;
  closed_.push_back({request, it->second.tally, it->second.accepted});
  requests_.erase(it);
}

}  // namespace althing::scheduler
