// A fault that somebody orders against a live server (`althing inject`): what, where, when. One text form for every line that it travels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

enum class FaultKind : std::uint8_t { kill, stop, slow, hang_collective, drop, delay, corrupt_kv, nan, oom, status };
inline constexpr int fault_kind_count = static_cast<int>(FaultKind::status) + 1;

constexpr std::string_view name_of(FaultKind kind) {
  constexpr std::string_view names[fault_kind_count] = {"kill",       "stop", "slow", "hang-collective", "drop", "delay",
                                                        "corrupt-kv", "nan",  "oom",  "status"};
  return names[static_cast<int>(kind)];
}

struct FaultOrder {
  FaultKind kind = FaultKind::status;
  bool core = false;             // the core process; else …
  std::uint32_t rank = 0;        // … this rank
  std::uint64_t after = 0;       // steps that go by unharmed first
  std::uint32_t collective = 0;  // kill, stop, hang-collective: on entering this collective of the step, 1 …; 0: before the step
  std::uint32_t ms = 50;         // slow, delay: for how long
  std::uint32_t steps = 1;       // slow: how many steps

  friend bool operator==(const FaultOrder&, const FaultOrder&) = default;
};

// "kill rank=1 after=5": as words, in any order after the first. Errors: invalid_argument names the word.
std::string to_text(const FaultOrder& order);
Result<FaultOrder> fault_order_of(const std::vector<std::string>& words);
// Whether the kind can be done to that target at all. Errors: invalid_argument.
Status check(const FaultOrder& order);

}  // namespace althing::actors
