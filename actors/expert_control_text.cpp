// See the header.
#include "actors/expert_control_text.hpp"

#include <cstdlib>

namespace althing::actors {

Result<gpu::OverflowPolicy> overflow_policy_of(const std::string& text, const std::string& flag) {
  using enum gpu::OverflowPolicy;
  for (const gpu::OverflowPolicy policy : {none, reroute, drop, pad})
    if (name_of(policy) == text) return policy;
  return Error{ErrorCode::invalid_argument, "--" + flag + " is '" + text + "'; use none, reroute, drop or pad", flag};
}

Status set_dynamic_k(gpu::ExpertControl& control, const std::string& text) {
  control.dynamic_k = gpu::DynamicK::off;
  if (text == "off") return Ok{};
  const std::size_t colon = text.find(':');
  const std::string rule = text.substr(0, colon), number = colon == std::string::npos ? "" : text.substr(colon + 1);
  char* end = nullptr;
  control.dynamic_k_value = std::strtof(number.c_str(), &end);
  if (number.empty() || *end != '\0' || (rule != "gap" && rule != "mass"))
    return Error{ErrorCode::invalid_argument, "--dynamic-k is '" + text + "'; use off, gap:LOGITS, as in gap:1.5, or mass:SHARE, as in mass:0.9",
                 "dynamic-k"};
  control.dynamic_k = rule == "gap" ? gpu::DynamicK::gap : gpu::DynamicK::mass;
  return Ok{};
}

Result<gpu::ExpertControl> expert_control_of(const ServeSettings& settings) {
  gpu::ExpertControl control;
  auto policy = overflow_policy_of(settings.capacity_policy, "capacity-policy");
  if (!policy) return policy.error();
  control.overflow = *policy;
  control.capacity_factor = settings.capacity_factor;
  control.capacity_multiple = settings.capacity_multiple;
  control.adaptive = settings.adaptive_capacity;
  control.router_temperature = static_cast<float>(settings.router_temperature);
  if (auto status = set_dynamic_k(control, settings.dynamic_k); !status) return status.error();
  if (auto status = gpu::check(control); !status) return status.error();
  return control;
}

}  // namespace althing::actors
