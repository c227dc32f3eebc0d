// gpt-oss as a DecoderSpec: config in both key styles, tensors in the Hugging Face layout (MXFP4, or bf16 experts transposed) and in the original
// layout. Every tensor in the checkpoint must be used and every tensor of the model present with its shape, or the error names it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/decoder_spec.hpp"
#include "gpu/weights/checkpoint.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::gpu {

struct Model {
  std::shared_ptr<const Checkpoint> checkpoint;  // owns what `spec` points into
  DecoderSpec spec;
  std::vector<TokenId> stop_tokens;  // eos ids of generation_config.json, else of config.json
  // A dummy model (gpt_oss_dummy.hpp) has no checkpoint: its tensors lie in reserved memory that reads as zeros, and a backend makes their values,
  // each a function of this seed and the tensor's name.
  std::optional<std::uint64_t> dummy_seed;
  std::shared_ptr<const void> reserved;
};

// Errors: those of Checkpoint::open; unsupported (another architecture, an option this build cannot do); corrupt (missing, unused or
// misshapen tensors, all of them listed up to ten).
Result<std::shared_ptr<const Model>> load_gpt_oss(const std::filesystem::path& directory);

}  // namespace althing::gpu
