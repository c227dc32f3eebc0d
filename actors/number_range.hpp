// What a setting's number may be, said once: the command line refuses by it, and check() holds settings to it that came another way.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace althing::actors {

struct WholeRange {
  std::int64_t min = 0;
  std::uint64_t max = std::numeric_limits<std::uint32_t>::max();

  constexpr bool holds(std::int64_t number) const { return number >= min && (number < 0 || static_cast<std::uint64_t>(number) <= max); }
  constexpr bool holds(std::uint64_t number) const { return number <= max && (min <= 0 || number >= static_cast<std::uint64_t>(min)); }
  constexpr bool holds(std::uint32_t number) const { return holds(std::uint64_t{number}); }
  std::string text() const { return "a whole number from " + std::to_string(min) + " to " + std::to_string(max); }
  std::string brief() const { return std::to_string(min) + ".." + std::to_string(max); }
};

// From min to max, or over min. Comparisons are written so that NaN is in no range.
struct RealRange {
  int min = 0, max = 1;
  bool over_min = false;

  constexpr bool holds(double number) const { return (over_min ? number > min : number >= min) && number <= max; }
  std::string text() const {
    return over_min ? "a number over " + std::to_string(min) + ", up to " + std::to_string(max)
                    : "a number from " + std::to_string(min) + " to " + std::to_string(max);
  }
  std::string brief() const { return (over_min ? "over " : "") + std::to_string(min) + ".." + std::to_string(max); }
};

inline constexpr WholeRange any_count{};  // of 32 bits
inline constexpr WholeRange positive{1};
inline constexpr WholeRange bench_steps{1, 100'000};
inline constexpr WholeRange any_seed{0, std::numeric_limits<std::uint64_t>::max()};
inline constexpr WholeRange ranks_range{1, 64};
inline constexpr WholeRange ranks_or_default_range{0, 64};
inline constexpr WholeRange threads_range{1, 256};
inline constexpr WholeRange kv_mib_range{0, 1u << 24};
inline constexpr RealRange gpu_memory_fraction_range{0, 1, true};
inline constexpr RealRange capacity_factor_range{1, 1000, true};  // 1 is the mean itself
inline constexpr RealRange room_factor_range{0, 64, true};
inline constexpr WholeRange capacity_multiple_range{1, 256};
inline constexpr RealRange router_temperature_range{0, 100, true};
inline constexpr RealRange bandwidth_gbps_range{0, 1'000'000, true};
inline constexpr WholeRange step_timeout_ms_range{100};
inline constexpr WholeRange synthetic_step_us_range{0, 1'000'000};
inline constexpr WholeRange spares_range{0, 64};
inline constexpr WholeRange quarantine_seconds_range{1, 3600};
inline constexpr WholeRange tenants_max_range{1, 1000};
inline constexpr WholeRange token_log_mib_range{0, 4096};
inline constexpr RealRange repetition_penalty_range{0, 10, true};
inline constexpr RealRange penalty_range{-2, 2};
inline constexpr RealRange logit_bias_range{-100, 100};

}  // namespace althing::actors
