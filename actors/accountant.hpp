// The accountant writes down what requests have used: a price for each, a line in the usage log, and totals by tenant. It stands beside the path of
// steps: a disk that is slow or full delays and loses lines, and nobody who serves waits for it.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <memory>

#include "actors/cost_file.hpp"
#include "actors/messages.hpp"
#include "actors/usage_log.hpp"
#include "monitoring/metrics.hpp"

namespace althing::actors {

struct AccountantOptions {
  std::shared_ptr<monitoring::Metrics> metrics;
  Prices prices;
  std::shared_ptr<UsageLog> log;  // null for none
};

struct AccountantState {
  static inline const char* name = "accountant";
  AccountantOptions options;
};

// Takes UsageRecord; answers flush_beat once everything before it is written down. Spawn it detached: it writes to a disk.
caf::behavior accountant_actor(caf::stateful_actor<AccountantState>* self, AccountantOptions options);

}  // namespace althing::actors
