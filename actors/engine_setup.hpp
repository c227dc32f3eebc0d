// What the core and every rank must agree on, computed from the model folder and the settings alone, so that each process can do it for itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/settings.hpp"
#include "gpu/executor.hpp"
#include "gpu/kv_identity.hpp"
#include "protocol/chat/chat_format.hpp"
#include "scheduler/core.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::actors {

struct EngineSetup {
  std::shared_ptr<const gpu::Model> model;
  Grid grid;
  std::vector<RankPlacement> placements;
  gpu::Device device = gpu::Device::cpu;
  std::string device_why;  // for the log
  gpu::DenseFormat dense = gpu::DenseFormat::bf16;
  gpu::ExpertControl control{};
  std::uint64_t kv_mib = 0;  // of each rank, as given or as computed
  KvLayout kv;
  Limits limits;                                         // context clipped to what the model allows
  std::shared_ptr<const gpu::DraftModel> draft{};        // what guesses, on the first rank; null: nothing
  std::uint32_t kv_mirror_mib = 0;                       // of each rank; 0: no mirror
  bool share_prefixes = false;                           // requests go on from pages that others have computed
  std::shared_ptr<const gpu::SyntheticScript> script{};  // what a synthetic engine says
  std::chrono::microseconds synthetic_step{0};

  // Pages that the mirror of each rank has room for.
  std::uint32_t mirror_slots() const { return gpu::MirrorMemory::slots_in(std::uint64_t{kv_mirror_mib} << 20, kv.page_bytes); }
  // What the keys of its pages depend on besides tokens.
  std::uint64_t mirror_identity() const { return gpu::kv_identity(model->spec, kv, device, placements.front()); }

  // What ends a turn, of the model's own list and of the format's.
  std::vector<TokenId> stop_tokens(const protocol::chat::ChatFormat& format) const { return format->stop_tokens(model->stop_tokens); }
  scheduler::CoreConfig core_config() const {
    return {limits, kv, model->spec.vocabulary, placements.front().dp, mirror_slots(), mirror_identity(), share_prefixes};
  }
  KvShape kv_shape() const { return {placements.front().dp, kv, mirror_slots(), mirror_identity()}; }
  // `gpu` is the device of the process, whatever rank it is.
  gpu::ExecutorConfig executor_config(std::uint32_t rank, std::uint32_t threads, std::uint32_t gpu, std::shared_ptr<gpu::MirrorMemory> mirror) const {
    gpu::ExecutorConfig config{placements[rank], kv, limits, threads, device, dense, gpu};
    config.control = control;
    config.mirror = std::move(mirror);
    config.count_steps = rank == 0;  // whose results the core hears
    if (rank == 0) config.draft = draft;
    config.script = script;
    config.synthetic_step = synthetic_step;
    return config;
  }
  ModelShape shape() const { return {model->spec.query_heads, model->spec.kv_heads, model->spec.experts, model->spec.vocabulary}; }
};

// Asks the machine for its GPUs only where the settings leave something open, and never makes a context. The setup's device and kv_mib, given as
// settings, lead to the same setup in another process, without asking. Errors: those of load_gpt_oss or dummy_model, place, choose_device,
// cuda::kv_bytes and kv_layout; unsupported for a dummy model on CPU ranks; those of
// chat_format for a synthetic engine, which speaks in its tokens.
Result<EngineSetup> set_up_engine(const ServeSettings& settings);

// The same model and machine in another grid: its placements, and KV pages of as much memory a rank. It may hold shorter requests than the first
// grid, down to a quarter of the context: longer ones are refused while it serves. Errors: those of place and kv_layout.
Result<EngineSetup> with_grid(const EngineSetup& setup, const Grid& grid);

// The chat format, with the tokenizer of the settings' tokenizer folder, else of the model's: tokenizer.json, else the ranks of o200k_base.tiktoken
// with Harmony's special tokens. Errors: those of Tokenizer, Format::of and plain_template; invalid_argument when a dummy model comes without a
// folder.
Result<protocol::chat::ChatFormat> chat_format(const ServeSettings& settings);

// The folder's name, which clients are told; dummy-20b for a dummy model. With synthetic- in front of it where nothing computes it.
std::string model_name(const ServeSettings& settings);

// One line that says which device computes, and why.
void log_device(const EngineSetup& setup);

// Weights, KV, its mirror and what is left of the machine's memory, as a table for people.
std::string memory_table(const EngineSetup& setup, const gpu::ExecutorMemory& memory);

}  // namespace althing::actors
