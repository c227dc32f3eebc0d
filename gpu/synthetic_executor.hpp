// An engine that computes nothing and says what its script says, so that everything around a model can be put under load and every byte of every
// stream can be checked. It holds rows and page tables to the same rules as the others, and takes as long for a step as it is told.
#pragma once

#include <memory>

#include "gpu/executor.hpp"
#include "gpu/synthetic_script.hpp"

namespace althing::gpu {

// Of the sampling parameters it obeys seed and choice only (choice i says what choice 0 of seed + i would); it is always sure (a logprob is 0). It
// counts no experts, traces nothing, and mirrors no pages. Ranks need not meet: all of them say the same. Errors: invalid_argument (no script).
Result<std::unique_ptr<Executor>> create_synthetic_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config);

}  // namespace althing::gpu
