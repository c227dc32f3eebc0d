// What the core and every rank must agree on, computed from the model folder and the settings alone, so that each process can do it for itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/settings.hpp"
#include "gpu/executor.hpp"
#include "protocol/harmony/format.hpp"
#include "scheduler/core.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::actors {

struct EngineSetup {
  std::shared_ptr<const gpu::Model> model;
  std::vector<RankPlacement> placements;
  KvLayout kv;
  Limits limits;  // context clipped to what the model allows

  // What ends a turn: the model's own list, else the format's.
  std::vector<TokenId> stop_tokens(const protocol::harmony::Format& format) const {
    return model->stop_tokens.empty() ? format.sampling_stops() : model->stop_tokens;
  }
  scheduler::CoreConfig core_config() const { return {limits, kv, model->spec.vocabulary}; }
  gpu::ExecutorConfig executor_config(std::uint32_t rank, std::uint32_t threads) const { return {placements[rank], kv, limits, threads}; }
};

// Errors: those of load_gpt_oss, place and kv_layout.
Result<EngineSetup> set_up_engine(const ServeSettings& settings);

// The chat format of a model folder. Errors: those of Tokenizer::of_model and Format::of.
Result<protocol::harmony::Format> chat_format(const std::string& model_directory);

// The folder's name, which clients are told.
std::string model_name(const std::string& model_directory);

// Weights, KV and what is left of the machine's memory, as a table for people.
std::string memory_table(const EngineSetup& setup, const gpu::ExecutorMemory& memory);

}  // namespace althing::actors
