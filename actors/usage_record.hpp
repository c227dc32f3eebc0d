// What one request has used, as it goes from the scheduler to whoever writes it down.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/usage_ledger.hpp"

namespace althing::actors {

// Whose request it is, in the client's words.
struct UsageLabel {
  std::string request_id;
  std::string tenant = "default";
};
inline UsageLabel label_of(const std::string& request_id, const std::string& tenant) {
  return {request_id, tenant.empty() ? UsageLabel{}.tenant : tenant};
}

struct UsageRecord {
  UsageLabel label;
  scheduler::UsageTally tally;
  // (token, layer, expert) triples: every computed token counts, in each layer, once for each expert that the model gives a token.
  std::uint64_t expert_tokens = 0;             // of tokens computed for the first time
  std::uint64_t recomputed_expert_tokens = 0;  // of tokens computed again
  double seconds = 0;                          // from its submission to the end of its last step
};

// One line of the usage log, without its end. docs/accounting.md has the fields.
std::string to_json(const UsageRecord& record, double price_usd, double unix_seconds);

}  // namespace althing::actors
