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
  Sequence& opened = sequences_[sequence];
  opened.id = sequence;
  opened.request = request;
  opened.account = &account;
}

void UsageLedger::refused(RequestId sequence) {
  const auto it = sequences_.find(sequence);
  if (it == sequences_.end()) return;
  --it->second.account->tally.choices;
  erase(it->second);
}

void UsageLedger::finished(const Finished& end) {
  const auto it = sequences_.find(end.request);
  if (it == sequences_.end() || std::exchange(it->second.ended, true)) return;
  Request& account = *it->second.account;
  account.accepted = true;
  account.tally.completion_tokens += end.usage.completion_tokens;
  account.tally.preemptions += end.usage.preemptions;
  if (end.reason >= account.tally.reason) {
    account.tally.reason = end.reason;
    account.tally.code = end.error.code;
  }
  close_if_over(it->second);
}

void UsageLedger::set_row(RowIndex row, Sequence* sequence) {
  if (rows_.size() <= row.value) rows_.resize(row.value + 1, nullptr);
  if (Sequence* const before = rows_[row.value]; before != nullptr && before->row == row) before->row.reset();
  rows_[row.value] = sequence;
  if (sequence == nullptr) return;
  if (sequence->row && *sequence->row != row) rows_[sequence->row->value] = nullptr;
  sequence->row = row;
}

void UsageLedger::planned(const StepPlan& plan) {
  if (plan.snapshot)
    for (std::uint32_t row = 0; row < rows_.size(); ++row) set_row(RowIndex{row}, nullptr);
  for (const RowIndex row : plan.cleared) set_row(row, nullptr);
  for (const RowSetup& setup : plan.set) {
    const auto it = sequences_.find(setup.request);
    set_row(setup.row, it == sequences_.end() ? nullptr : &it->second);
    if (it == sequences_.end()) continue;
    it->second.starts = true;
    it->second.kept = false;
  }
  for (const PageGrant& grant : plan.pages)
    if (grant.kept && grant.row.value < rows_.size() && rows_[grant.row.value] != nullptr) rows_[grant.row.value]->kept = true;
  std::vector<Work>& works = steps_[plan.step];
  for (const RowWork& work : plan.work) {
    Sequence* const sequence = work.row.value < rows_.size() ? rows_[work.row.value] : nullptr;
    works.push_back({sequence, work.start, work.count});
    if (sequence == nullptr) continue;
    // A row begins at position 0, or behind what was there or came back from the mirror.
    UsageTally& tally = sequence->account->tally;
    if (std::exchange(sequence->starts, false)) {
      (sequence->kept ? tally.cached_tokens : tally.restored_tokens) += work.start;
      // By whomever: if it is lost, computing it is doing so again.
      if (sequence->kept) sequence->computed_most = std::max(sequence->computed_most, work.start);
    }
    ++sequence->in_flight;
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
  if (work.sequence == nullptr) {
    unattributed_ns_ += share_ns;
    return;
  }
  Sequence& sequence = *work.sequence;
  UsageTally& tally = sequence.account->tally;
  const std::uint32_t end = work.start + work.count;
  tally.device_ns += share_ns;
  tally.computed_tokens += work.count;
  tally.recomputed_tokens += std::min(end, sequence.computed_most) - std::min(work.start, sequence.computed_most);
  sequence.computed_most = std::max(sequence.computed_most, end);
  --sequence.in_flight;
  close_if_over(sequence);
}

void UsageLedger::lost() {
  steps_.clear();
  for (std::uint32_t row = 0; row < rows_.size(); ++row) set_row(RowIndex{row}, nullptr);
  for (auto next = sequences_.begin(); next != sequences_.end();) {
    const auto it = next++;  // closing erases it
    it->second.in_flight = 0;
    close_if_over(it->second);
  }
}

void UsageLedger::hold(std::vector<HeldPages> held, std::uint64_t page_bytes, std::uint64_t now_us) {
  // The core has them in order of acceptance, which is that of their ids as a rule.
  const auto before_it = [](const HeldPages& a, const HeldPages& b) { return a.sequence < b.sequence; };
  if (!std::is_sorted(held.begin(), held.end(), before_it)) std::sort(held.begin(), held.end(), before_it);
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
  it->second.account->tally.kv_byte_seconds += static_cast<double>(held.pages) * static_cast<double>(held.page_bytes) * seconds;
}

std::vector<ClosedTally> UsageLedger::take_closed() { return std::exchange(closed_, {}); }

void UsageLedger::close_if_over(Sequence& sequence) {
  if (sequence.ended && sequence.in_flight == 0) erase(sequence);
}

// With its request, when that was its last sequence.
void UsageLedger::erase(Sequence& sequence) {
  if (sequence.row) set_row(*sequence.row, nullptr);
  const auto it = requests_.find(sequence.request);
  sequences_.erase(sequence.id);
  if (--it->second.open > 0) return;
  closed_.push_back({it->first, it->second.tally, it->second.accepted});
  requests_.erase(it);
}

}  // namespace althing::scheduler
