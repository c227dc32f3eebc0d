// gpt-oss models without a checkpoint: the published shapes, and no weights. For measuring speed where no weights are at hand; what such a model says
// means nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "gpu/models/gpt_oss.hpp"

namespace althing::gpu {

// `size` is "20b" or "120b": experts in MXFP4, the rest bf16, Hugging Face names. Views point into reserved address space, so every address is valid
// and reads as zeros; nothing is allocated for it. Errors: invalid_argument (another size), too_large (no address space).
Result<std::shared_ptr<const Model>> dummy_model(std::string_view size, std::uint64_t seed = 1);

}  // namespace althing::gpu
