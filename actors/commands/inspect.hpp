// `althing verify` looks at a model folder, `althing doctor` at the machine. Both print one line a finding and say what to do about it.
#pragma once

#include <string>

#include "actors/settings.hpp"

namespace althing::actors {

// Exit codes: 0 when nothing is wrong, 3 when the folder is not there, 4 otherwise.
int run_verify(const std::string& directory, bool json);

// Exit codes: 0, or 5 when something needed is missing, or when the model, if one is named, does not answer twice alike. `bind` and `metrics` are
// where a server would listen: an address that cannot be one is 2.
int run_doctor(const ServeSettings& settings, bool json);

}  // namespace althing::actors
