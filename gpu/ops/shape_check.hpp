// One check of shapes an op, shared by all backends: a backend may rely on every relation that is checked here and checks none of them again.
// Errors are `corrupt` and name the op, the tensor's role, and the expected and actual sizes.
#pragma once

#include "gpu/ops/ops.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

// The sizes that ops must agree on.
struct Sizes {
  std::uint32_t hidden = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t query_heads = 0;  // of this rank
  std::uint32_t kv_heads = 0;     // of this rank
  std::uint32_t experts = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t vocabulary = 0;
};

Status check(const EmbedOp& op, const Sizes& sizes);
Status check(const NormOp& op, const Sizes& sizes);
Status check(const QkvOp& op, const Sizes& sizes);
Status check(const AttentionOp& op, const Sizes& sizes);
Status check(const AttnOutOp& op, const Sizes& sizes);
Status check(const ReduceAddNormOp& op, const Sizes& sizes);
Status check(const RouteOp& op, const Sizes& sizes);
Status check(const GatherOp& op, const Sizes& sizes);
Status check(const ExpertsOp& op, const Sizes& sizes);
Status check(const CombineOp& op, const Sizes& sizes);
Status check(const LogitsOp& op, const Sizes& sizes);
Status check(const SampleOp& op, const Sizes& sizes);

}  // namespace althing::gpu
