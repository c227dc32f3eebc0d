// See the header. Constants of the controller: those of the adaptive capacity rule that operators know (target 0.8, dead band 0.64 to 0.96).
#include "gpu/expert_control.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace althing::gpu {
namespace {

constexpr double load_high = 0.96, load_low = 0.64;  // 0.8 and a fifth of it on either side
constexpr double capacity_factor_max = 64.0;
constexpr std::uint32_t capacity_multiple_max = 256;  // more would pad a step to sizes that never end
constexpr float temperature_min = 0.01F, temperature_max = 100.0F;

Error wrong(const char* field, const std::string& value, const std::string& range) {
  return {ErrorCode::invalid_argument, std::string(field) + " is " + value + "; use " + range, field};
}

}  // namespace

Status check(const ExpertControl& c) {
  if (!(c.capacity_factor > 0.0 && c.capacity_factor <= capacity_factor_max))
    return wrong("capacity-factor", std::to_string(c.capacity_factor), "a number over 0, up to 64");
  if (c.capacity_multiple == 0 || c.capacity_multiple > capacity_multiple_max)
    return wrong("capacity-multiple", std::to_string(c.capacity_multiple), "1 to 256");
  if (!(c.router_temperature >= temperature_min && c.router_temperature <= temperature_max))
    return wrong("router-temperature", std::to_string(c.router_temperature), "0.01 to 100");
  if (c.adaptive && c.overflow == OverflowPolicy::none)
    return wrong("adaptive-capacity", "on", "it with a --capacity-policy other than none, which has no capacity to adapt");
  if (c.dynamic_k == DynamicK::gap && !(c.dynamic_k_value >= 0.0F && std::isfinite(c.dynamic_k_value)))
    return wrong("dynamic-k", "gap:" + std::to_string(c.dynamic_k_value), "a gap of 0 or more");
  if (c.dynamic_k == DynamicK::mass && !(c.dynamic_k_value > 0.0F && c.dynamic_k_value <= 1.0F))
    return wrong("dynamic-k", "mass:" + std::to_string(c.dynamic_k_value), "a mass over 0, up to 1");
  return Ok{};
}

std::uint32_t expert_capacity(std::uint64_t tokens, std::uint32_t k, std::uint32_t experts, double factor, std::uint32_t multiple) {
  const double share = static_cast<double>(tokens * k) * factor / experts;
  const std::uint64_t whole = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(share - 1e-9)));
  return static_cast<std::uint32_t>((whole + multiple - 1) / multiple * multiple);
}

void AdaptiveCapacity::observe(double load) {
  if (load > load_high) {
    factor_ = std::min(1.1 * factor_, factor_max);
  } else if (load < load_low) {
    factor_ = std::max(0.9 * factor_, factor_min);
  }
}

namespace {

constexpr std::uint64_t ControlCounts::*members[] = {&ControlCounts::wanted,  &ControlCounts::to_replica, &ControlCounts::rerouted,
                                                     &ControlCounts::dropped, &ControlCounts::omitted,    &ControlCounts::padding,
                                                     &ControlCounts::room};

}  // namespace

ControlCounts& ControlCounts::operator+=(const ControlCounts& other) {
  for (const auto member : members) this->*member += other.*member;
  return *this;
}

ControlCounts& ControlCounts::operator-=(const ControlCounts& other) {
  for (const auto member : members) this->*member -= other.*member;
  return *this;
}

}  // namespace althing::gpu
