// From a decoder as data to the ops that one rank runs. All slicing of weights by placement happens here; no backend knows of it.
#pragma once

#include "gpu/ops/ops.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

// Errors: invalid_argument (a placement that does not fit the model), corrupt (a tensor of another shape than the spec says, named),
// unsupported (a weight type other than F32, BF16 or MXFP4).
Result<Program> lower(const DecoderSpec& spec, const RankPlacement& placement);

}  // namespace althing::gpu
