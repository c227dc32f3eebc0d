// What `althing serve` can be told: flags over environment (ALTHING_…) over a TOML file. One struct, filled once, passed down.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "actors/logging.hpp"
#include "protocol/harmony/render.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::actors {

inline constexpr std::string_view dummy_prefix = "dummy:";

// Limits whose defaults depend on the device, or on other settings, are 0 until those are known (device_choice.hpp, set_up_engine).
inline Limits unset_engine_limits() {
  Limits limits;
  limits.rows_max = limits.step_tokens_max = limits.prefill_chunk_max = 0;
  limits.gateway_requests_max = 0;  // as many as HTTP connections, which each carry one
  return limits;
}

struct LogSettings {
  std::string level = "info";
  bool json = false;
};

struct ServeSettings {
  std::string model;          // "" with `load`
  std::string load;           // "", "dummy:20b" or "dummy:120b"
  std::string draft_model;    // folder, or as `load`; "": none
  std::string tokenizer;      // folder; "" for the model's
  std::string chat_template;  // file (docs/chat-templates.md); "" for Harmony
  std::uint32_t ranks = 1;
  std::uint32_t dp = 1;
  std::uint32_t tp = 0;                 // 0: ranks / dp
  std::uint32_t ep = 0;                 // 0: ranks
  std::string replicas = "0";           // a number of experts, or ids=3,7
  std::string device = "auto";          // auto, cpu, cuda or synthetic
  std::uint32_t synthetic_step_us = 0;  // how long a step of a synthetic engine takes
  std::uint32_t threads = 1;            // a CPU rank
  std::string bind = "tcp://127.0.0.1:4550";
  std::string curve_key;                   // secret key file: clients need keys; "" for none, and anybody on this machine is let in
  std::string curve_allow;                 // the list of their keys
  std::string metrics = "127.0.0.1:9464";  // "" for none
  std::string http;                        // HOST:PORT of the OpenAI-compatible API; "" for none
  std::string api_keys;                    // file of those who may use it; "": everybody on this machine
  std::string http_metrics;                // HOST:PORT of its numbers; "": at its own /metrics, if it is loopback
  std::uint32_t http_connections_max = 1024;
  std::uint32_t http_responses_max = 4096;    // of the Responses API, kept in the gateway's memory …
  std::uint32_t http_responses_mib = 128;     // … and so much of it
  std::uint32_t http_keep_alive_ms = 15'000;  // 0: resting streams say nothing
  bool expert_metrics = false;                // /metrics/experts
  std::uint32_t expert_series_max = 20'000;   // on that page
  double expert_capacity_factor = 1.25;       // of the mean load: an expert that takes more is saturated
  std::uint64_t kv_mib = 0;                   // a rank; 0: 256 on CPU ranks, what gpu_memory_fraction leaves on GPUs
  std::uint32_t kv_mirror_mib = 256;          // a rank, outside of the KV cache; taken as needed; 0: no copies
  std::string prefix_sharing = "tenant";      // tenant, all or off: who may go on from pages that others' prompts left
  std::string dense = "bf16";                 // attention and head on GPUs: bf16 as in the checkpoint, or fp8
  double gpu_memory_fraction = 0.9;           // of what is installed
  std::string capacity_policy = "none";       // none, reroute, drop or pad: what happens to tokens that find an expert full
  double capacity_factor = 1.25;
  std::uint32_t capacity_multiple = 1;
  bool adaptive_capacity = false;
  double router_temperature = 1.0;
  std::string dynamic_k = "off";  // off, gap:LOGITS or mass:SHARE
  Limits limits = unset_engine_limits();
  std::uint32_t step_timeout_ms = 10'000;
  std::uint32_t drain_seconds = 10;
  std::uint32_t restarts_max = 10;                        // deaths of one child within a minute before it is given up, for a while or for good
  std::uint32_t spares = 0;                               // processes beside the ranks that take a lost one's place
  std::string on_rank_loss = "respawn";                   // or shrink
  std::string reasoning_history = "drop_finished_turns";  // upstream or keep: which analysis of a conversation the model sees again
  std::uint32_t quarantine_seconds = 30;                  // for a rank that died more than restarts_max times within a minute; doubles
  std::uint32_t token_log_mib = 256;                      // memory that open streams may take to survive a core's death; 0: they do not
  std::string journal;                                    // "" for none
  std::string usage_log;                                  // "" for none
  std::string cost_file;                                  // "" for the default prices
  std::uint32_t tenants_max = 50;                         // whose totals are kept apart
  std::string ready_file;                                 // "" for none
  bool in_process = false;
  bool allow_faults = false;  // `althing inject` works
  std::string control;        // where it finds us; "": a path of the server's choice
  LogSettings log;
  std::string config;         // the settings file; "" for none
  std::string notify_socket;  // of the service manager that started us (service_manager.hpp); "" for none

  // Set by the supervisor for its children only.
  std::string child;             // "", "core", "rank" or "gateway"
  std::uint32_t child_rank = 0;  // the member's number: a rank's at first, or a spare's
  std::string child_place;       // what it makes itself into before it says that it has loaded (epoch_layout.hpp); "" for a spare
};

// Adds the flags to a (sub)command. REQUIRES: `settings` outlives the parse.
void add_serve_options(CLI::App& app, ServeSettings& settings);
// The part of them that says what computes: ranks and their layout, device, threads, memory.
void add_engine_options(CLI::App& app, ServeSettings& settings);
// What text is to the model: tokenizer and chat format.
void add_chat_options(CLI::App& app, ServeSettings& settings);
// Where it listens.
void add_address_options(CLI::App& app, ServeSettings& settings);
void add_log_options(CLI::App& app, LogSettings& settings);

// How the settings lay the ranks out. Errors: invalid_argument (`replicas` is neither form). Whether the model allows it is placement's to say.
Result<Grid> grid_of(const ServeSettings& settings);

// Takes what neither a flag nor the environment has set from a TOML file of `flag-name = value` lines. (CLI11's own config files win over the
// environment, which is the wrong way round.) Errors: not_found, invalid_argument (naming the key).
// `all`: what the file may say besides; a command that takes some of the settings passes over the others.
Status apply_settings_file(CLI::App& app, const std::string& path, const CLI::App* all = nullptr);

// Errors: invalid_argument.
Result<protocol::harmony::AnalysisHistory> reasoning_history_of(const ServeSettings& settings);

// Bounds that flags may have broken. Errors: invalid_argument.
Status check(const ServeSettings& settings);

}  // namespace althing::actors
