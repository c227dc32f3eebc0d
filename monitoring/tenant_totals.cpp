// See the header.
#include "monitoring/tenant_totals.hpp"

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <vector>

#include "monitoring/json_line.hpp"

namespace althing::monitoring {
namespace {

using prometheus::Counter;

constexpr std::string_view other = "other";

std::string fixed(double number, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, number);
  return text;
}

std::string to_json(std::string_view tenant, const TenantUsage& sum) {
  return JsonLine()
      .add("tenant", tenant)
      .add("requests", sum.requests)
      .add("prompt_tokens", sum.prompt_tokens)
      .add("completion_tokens", sum.completion_tokens)
      .add("computed_tokens", sum.computed_tokens)
      .add("recomputed_tokens", sum.recomputed_tokens)
      .add("expert_tokens", sum.expert_tokens)
      .add("recomputed_expert_tokens", sum.recomputed_expert_tokens)
      .raw("device_ms", fixed(sum.device_seconds * 1e3, 6))
      .raw("kv_byte_seconds", fixed(sum.kv_byte_seconds, 3))
      .raw("price_usd", fixed(sum.price_usd, 6))
      .object();
}

}  // namespace

TenantUsage& TenantUsage::operator+=(const TenantUsage& more) {
  requests += more.requests;
  prompt_tokens += more.prompt_tokens;
  completion_tokens += more.completion_tokens;
  computed_tokens += more.computed_tokens;
  recomputed_tokens += more.recomputed_tokens;
  expert_tokens += more.expert_tokens;
  recomputed_expert_tokens += more.recomputed_expert_tokens;
  device_seconds += more.device_seconds;
  kv_byte_seconds += more.kv_byte_seconds;
  price_usd += more.price_usd;
  return *this;
}

struct TenantTotals::State {
  struct Tenant {
    TenantUsage sum{.requests = 0};
    std::vector<Counter*> counters;  // by `families`
  };
  struct Family {
    prometheus::Family<Counter>* counters;
    double (*of)(const TenantUsage&);
  };

  void family(prometheus::Registry& registry, const char* name, const char* help, double (*of)(const TenantUsage&)) {
    families.push_back({&prometheus::BuildCounter().Name(name).Help(help).Register(registry), of});
  }

  std::uint32_t named_max;
  std::vector<Family> families;
  mutable std::mutex mutex;
  std::map<std::string, Tenant, std::less<>> tenants;  // and `other`
};

TenantTotals::TenantTotals(prometheus::Registry& registry, std::uint32_t named_max) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.named_max = named_max;
  s.family(registry, "althing_tenant_requests_total", "Accepted requests that ended.",
           [](const TenantUsage& u) { return static_cast<double>(u.requests); });
  s.family(registry, "althing_tenant_prompt_tokens_total", "Prompt tokens of requests that ended.",
           [](const TenantUsage& u) { return static_cast<double>(u.prompt_tokens); });
  s.family(registry, "althing_tenant_completion_tokens_total", "Completion tokens of requests that ended.",
           [](const TenantUsage& u) { return static_cast<double>(u.completion_tokens); });
  s.family(registry, "althing_tenant_computed_tokens_total", "Tokens computed for requests that ended, again too.",
           [](const TenantUsage& u) { return static_cast<double>(u.computed_tokens); });
  s.family(registry, "althing_tenant_expert_tokens_total", "Tokens times layers times experts a token, of requests that ended, again too.",
           [](const TenantUsage& u) { return static_cast<double>(u.expert_tokens + u.recomputed_expert_tokens); });
  s.family(registry, "althing_tenant_device_seconds_total", "Shares of the ranks' time of requests that ended.",
           [](const TenantUsage& u) { return u.device_seconds; });
  s.family(registry, "althing_tenant_kv_byte_seconds_total", "Bytes of KV pages times seconds held, of requests that ended.",
           [](const TenantUsage& u) { return u.kv_byte_seconds; });
  s.family(registry, "althing_tenant_price_usd_total", "Prices of requests that ended.", [](const TenantUsage& u) { return u.price_usd; });
}

TenantTotals::~TenantTotals() = default;

std::size_t TenantTotals::add(std::string_view name, const TenantUsage& usage) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const std::size_t named = s.tenants.size() - s.tenants.count(other);
  if (s.tenants.find(name) == s.tenants.end() && named >= s.named_max) name = other;
  const auto [it, is_new] = s.tenants.try_emplace(std::string(name));
  State::Tenant& tenant = it->second;
  if (is_new)
    for (const State::Family& family : s.families) tenant.counters.push_back(&family.counters->Add({{"tenant", it->first}}));
  tenant.sum += usage;
  for (std::size_t i = 0; i < s.families.size(); ++i) tenant.counters[i]->Increment(s.families[i].of(usage));
  return is_new ? s.families.size() : 0;
}

std::string TenantTotals::json() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> lines;
  for (const auto& [name, tenant] : state_->tenants)
    if (name != other) lines.push_back(to_json(name, tenant.sum));
  if (const auto it = state_->tenants.find(other); it != state_->tenants.end()) lines.push_back(to_json(other, it->second.sum));
  return JsonLine().add("tenants_max", state_->named_max).raw("tenants", json_list(lines, [](const std::string& line) { return line; })).object() +
         "\n";
}

}  // namespace althing::monitoring
