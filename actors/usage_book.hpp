// The scheduler shell's side of accounting: it keeps the ledger beside the core, knows whose request is whose, and hands out a record when a request
// has ended for good.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "actors/messages.hpp"
#include "actors/usage_record.hpp"
#include "monitoring/metrics.hpp"
#include "scheduler/usage_ledger.hpp"

namespace althing::actors {

class UsageBook {
 public:
  using Clock = std::chrono::steady_clock;

  UsageBook() = default;
  // How many experts a token is computed by, in all layers together.
  explicit UsageBook(std::uint64_t experts_of_a_token) : experts_of_a_token_(experts_of_a_token) {}

  // Before any of them is submitted: all of them are one request, `first` its name here.
  void open(const SubmitRequest& submit, RequestId first, bool taken_over, Clock::time_point now);

  // The ledger hears what the core did, in this order: what is held, then effects, then the end of a step.
  scheduler::UsageLedger& ledger() { return ledger_; }
  void hold(std::vector<scheduler::HeldPages> held, std::uint64_t page_bytes, Clock::time_point now);
  // `took` is the step's own time, and `ranks` of them took part.
  void step_done(StepId step, Clock::duration took, std::uint32_t ranks, monitoring::Metrics& metrics);

  std::vector<UsageRecord> take_records(Clock::time_point now);

 private:
  struct Opened {
    UsageLabel label;
    Clock::time_point at;
  };

  std::uint64_t experts_of_a_token_ = 0;
  scheduler::UsageLedger ledger_;
  std::map<RequestId, Opened> opened_;  // by the request's first sequence
};

}  // namespace althing::actors
