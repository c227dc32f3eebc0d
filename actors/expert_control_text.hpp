// Expert control as people write it on the command line.
#pragma once

#include <string>

#include "actors/settings.hpp"
#include "gpu/expert_control.hpp"

namespace althing::actors {

// none, reroute, drop or pad. Errors: invalid_argument, naming `flag`.
Result<gpu::OverflowPolicy> overflow_policy_of(const std::string& text, const std::string& flag);
// Sets the rule and its number from off, gap:LOGITS or mass:SHARE. Errors: invalid_argument.
Status set_dynamic_k(gpu::ExpertControl& control, const std::string& text);
// Errors: those of the above and of check().
Result<gpu::ExpertControl> expert_control_of(const ServeSettings& settings);

}  // namespace althing::actors
