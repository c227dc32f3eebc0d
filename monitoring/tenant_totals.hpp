// What finished requests have used, by tenant: metrics and one JSON page from the same sums. A tenant is a label that clients choose, so there are
// only so many of them: those that come after the first `named_max` are summed as "other".
// Thread-safe; a call takes a lock for a microsecond.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace prometheus {
class Registry;
}

namespace althing::monitoring {

// Of one finished request; sums of these.
struct TenantUsage {
  std::uint64_t requests = 1;
  std::uint64_t prompt_tokens = 0, completion_tokens = 0;
  std::uint64_t computed_tokens = 0, recomputed_tokens = 0;  // the second is part of the first
  std::uint64_t expert_tokens = 0, recomputed_expert_tokens = 0;
  double device_seconds = 0, kv_byte_seconds = 0, price_usd = 0;

  TenantUsage& operator+=(const TenantUsage& other);
};

class TenantTotals {
 public:
  // REQUIRES: the registry outlives this.
  TenantTotals(prometheus::Registry& registry, std::uint32_t named_max);
  ~TenantTotals();
  TenantTotals(const TenantTotals&) = delete;
  TenantTotals& operator=(const TenantTotals&) = delete;

  // Returns how many series it has made for it: 0 unless the tenant is new.
  std::size_t add(std::string_view tenant, const TenantUsage& usage);

  // {"tenants_max":N,"tenants":[{"tenant":…},…]}, by name; "other" last, once there is one.
  std::string json() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace althing::monitoring
