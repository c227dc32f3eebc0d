// An executor with a draft model beside its own: after each step the draft model reads what the rows went on with, and guesses, where the plan asks,
// what comes next. The guesses are in the step's result.
//
// A guess changes no draw, so the draft model's keys need no care: they lie in a pool of their own, in pages of the same names and of as many tokens
// as the model's, so that the plan's page tables serve both, and what is not there (after a page came back from a mirror, or where a beginning was
// shared) makes guesses worse and nothing else. What fails in the draft model ends its guessing until the next snapshot, never the step.
#pragma once

#include <memory>

#include "gpu/executor.hpp"

namespace althing::gpu {

// The draft model's pool: as many pages as the model's `kv` in each of `dp_groups`, one behind the other; a page holds the same positions of a row.
// unsupported: a layer whose window none of the model's groups has.
Result<KvLayout> draft_layout(const DecoderSpec& draft, const KvLayout& kv, std::uint32_t dp_groups, const KvFormat& format);

// Those of the draft model's executor, where the model's has `limits`: what it lets come together it reads in one step.
Limits draft_limits(const DecoderSpec& draft, const Limits& limits);

// `target` is of config.placement and without a draft model. REQUIRES: config.draft. Errors: invalid_argument (another vocabulary), those of
// draft_layout and Executor::create.
Result<std::unique_ptr<Executor>> drafting_executor(std::unique_ptr<Executor> target, const DecoderSpec& spec, const ExecutorConfig& config);

}  // namespace althing::gpu
