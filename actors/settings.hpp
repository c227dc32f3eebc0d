// What `althing serve` can be told: flags over environment (ALTHING_…) over a TOML file. One struct, filled once, passed down.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "actors/logging.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {

inline constexpr std::string_view dummy_prefix = "dummy:";

// Limits whose defaults depend on the device are 0 until it is known (device_choice.hpp).
inline Limits unset_engine_limits() {
  Limits limits;
  limits.rows_max = limits.step_tokens_max = limits.prefill_chunk_max = 0;
  return limits;
}

struct LogSettings {
  std::string level = "info";
  bool json = false;
};

struct ServeSettings {
  std::string model;      // "" with `load`
  std::string load;       // "", "dummy:20b" or "dummy:120b"
  std::string tokenizer;  // folder; "" for the model's
  std::uint32_t ranks = 1;
  std::string device = "auto";  // auto, cpu or cuda
  std::uint32_t threads = 1;    // a CPU rank
  std::string bind = "tcp://127.0.0.1:4550";
  std::string metrics = "127.0.0.1:9464";  // "" for none
  std::uint64_t kv_mib = 0;                // a rank; 0: 256 on CPU ranks, what gpu_memory_fraction leaves on GPUs
  std::string dense = "bf16";              // attention and head on GPUs: bf16 as in the checkpoint, or fp8
  double gpu_memory_fraction = 0.9;        // of what is installed
  Limits limits = unset_engine_limits();
  std::uint32_t step_timeout_ms = 10'000;
  std::uint32_t drain_seconds = 10;
  std::uint32_t restarts_max = 10;  // child deaths within a minute before giving up
  std::string journal;              // "" for none
  std::string ready_file;           // "" for none
  bool in_process = false;
  LogSettings log;
  std::string config;  // the settings file; "" for none

  // Set by the supervisor for its children only.
  std::string child;  // "", "core" or "rank"
  std::uint32_t child_rank = 0;
};

// Adds the flags to a (sub)command. REQUIRES: `settings` outlives the parse.
void add_serve_options(CLI::App& app, ServeSettings& settings);
// The part of them that says what computes: ranks, device, threads, memory.
void add_engine_options(CLI::App& app, ServeSettings& settings);
void add_log_options(CLI::App& app, LogSettings& settings);

// Takes what neither a flag nor the environment has set from a TOML file of `flag-name = value` lines. (CLI11's own config files win over the
// environment, which is the wrong way round.) Errors: not_found, invalid_argument (naming the key).
Status apply_settings_file(CLI::App& app, const std::string& path);

// Bounds that flags may have broken. Errors: invalid_argument.
Status check(const ServeSettings& settings);

}  // namespace althing::actors
