// See the header.
#include "actors/usage_record.hpp"

#include <fmt/format.h>

#include "monitoring/json_line.hpp"

namespace althing::actors {

std::string to_json(const UsageRecord& record, double price_usd, double unix_seconds) {
  const scheduler::UsageTally& tally = record.tally;
  monitoring::JsonLine line;
  line.raw("ended", fmt::format("{:.3f}", unix_seconds));
  line.add("request_id", record.label.request_id).add("tenant", record.label.tenant).add("reason", name_of(tally.reason));
  if (tally.reason == FinishReason::error || tally.reason == FinishReason::cancelled) line.add("error", name_of(tally.code));
  line.add("choices", tally.choices).add("prompt_tokens", tally.prompt_tokens).add("completion_tokens", tally.completion_tokens);
  line.add("computed_tokens", tally.computed_tokens).add("recomputed_tokens", tally.recomputed_tokens).add("restored_tokens", tally.restored_tokens);
  line.add("cached_tokens", tally.cached_tokens);
  line.add("expert_tokens", record.expert_tokens).add("recomputed_expert_tokens", record.recomputed_expert_tokens);
  line.add("preemptions", tally.preemptions);
  line.raw("device_ms", fmt::format("{:.6f}", static_cast<double>(tally.device_ns) * 1e-6));
  line.raw("kv_byte_seconds", fmt::format("{:.3f}", tally.kv_byte_seconds));
  line.raw("seconds", fmt::format("{:.6f}", record.seconds)).raw("price_usd", fmt::format("{:.6f}", price_usd));
  if (tally.taken_over) line.add("taken_over", true);
  return line.object();
}

}  // namespace althing::actors
