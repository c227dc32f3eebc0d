// See the header.
#include "actors/usage_book.hpp"

#include <utility>

namespace althing::actors {

void UsageBook::open(const SubmitRequest& submit, RequestId first, bool taken_over, Clock::time_point now) {
  const auto prompt_tokens = static_cast<std::uint32_t>(submit.submitted.prompt.size());
  for (std::uint32_t i = 0; i < submit.submitted.choices; ++i)
    ledger_.open(RequestId{submit.submitted.request.value + i}, first, prompt_tokens, taken_over);
  opened_.try_emplace(first, Opened{submit.label, now});
}

void UsageBook::hold(std::vector<scheduler::HeldPages> held, std::uint64_t page_bytes, Clock::time_point now) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  ledger_.hold(std::move(held), page_bytes, static_cast<std::uint64_t>(us));
}

void UsageBook::step_done(StepId step, Clock::duration took, std::uint32_t ranks, monitoring::Metrics& metrics) {
  const std::uint64_t all = ledger_.device_ns(), nobodys = ledger_.unattributed_ns();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  ledger_.done(step, static_cast<std::uint64_t>(ns) * ranks);
  metrics.device_time(static_cast<double>(ledger_.device_ns() - all) * 1e-9, static_cast<double>(ledger_.unattributed_ns() - nobodys) * 1e-9);
}

std::vector<UsageRecord> UsageBook::take_records(Clock::time_point now) {
  std::vector<UsageRecord> records;
  for (const scheduler::ClosedTally& closed : ledger_.take_closed()) {
    const auto it = opened_.find(closed.request);
    Opened opened = std::move(it->second);
    opened_.erase(it);
    if (!closed.accepted) continue;
    UsageRecord record;
    record.tally = closed.tally;
    record.recomputed_expert_tokens = closed.tally.recomputed_tokens * experts_of_a_token_;
    record.expert_tokens = closed.tally.computed_tokens * experts_of_a_token_ - record.recomputed_expert_tokens;
    record.seconds = std::chrono::duration<double>(now - opened.at).count();
    record.label = std::move(opened.label);
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace althing::actors
