// See the header.
#include "actors/accountant.hpp"

#include <chrono>
#include <utility>

#include "actors/guard.hpp"
#include "actors/usage_record.hpp"

namespace althing::actors {
namespace {

void write_down(const AccountantOptions& options, const UsageRecord& record) {
  const scheduler::UsageTally& tally = record.tally;
  monitoring::TenantUsage usage;
  usage.prompt_tokens = tally.prompt_tokens;
  usage.completion_tokens = tally.completion_tokens;
  usage.computed_tokens = tally.computed_tokens;
  usage.recomputed_tokens = tally.recomputed_tokens;
  usage.expert_tokens = record.expert_tokens;
  usage.recomputed_expert_tokens = record.recomputed_expert_tokens;
  usage.device_seconds = static_cast<double>(tally.device_ns) * 1e-9;
  usage.kv_byte_seconds = tally.kv_byte_seconds;
  usage.price_usd = price_of(tally, options.prices);
  options.metrics->tenant_usage(record.label.tenant, usage);
  if (!options.log) return;
  const double unix_seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  options.metrics->usage_record(options.log->append(to_json(record, usage.price_usd, unix_seconds)));
}

}  // namespace

caf::behavior accountant_actor(caf::stateful_actor<AccountantState>* self, AccountantOptions options) {
  guard(self);
  self->state.options = std::move(options);
  return {
      [=](const UsageRecord& record) { write_down(self->state.options, record); },
      [=](flush_beat) { return true; },
  };
}

}  // namespace althing::actors
