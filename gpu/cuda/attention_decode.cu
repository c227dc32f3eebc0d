// Attention of single tokens. Contract: attention.hpp; the work of a block, which has one (list entry, KV head, split): attention_split.cuh.
#include "gpu/cuda/attention.hpp"

#include <cuda_runtime.h>

#include "gpu/cuda/attention_split.cuh"
#include "gpu/cuda/launch.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t decode_stages = 3;
constexpr std::uint32_t decode_shared_bytes = decode_stages * staged_bytes;

__global__ void __launch_bounds__(split_threads, 2) attention_decode_kernel(const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(1024) std::byte staged[];  // (decode_stages, {keys, values}, kv_segment, 64)
  __shared__ SplitShared shared;
  trigger_next_kernel();
  wait_for_previous_kernel();

  const AttentionArgs& a = args.attention;
  const std::uint32_t split = blockIdx.x;
  const std::int32_t listed = args.list[blockIdx.z];
  if (listed < 0) return;
  DecodeUnit unit{blockIdx.z * a.kv_heads + blockIdx.y, static_cast<std::uint32_t>(listed), blockIdx.y, 0};
  const std::int32_t row = a.tokens.rows[unit.token];
  if (row < 0) {
    const std::uint32_t heads = a.query_heads / a.kv_heads;
    if (split == 0)
      for (std::uint32_t i = threadIdx.x; i < heads * attention_head_dim / 2; i += split_threads)
        reinterpret_cast<std::uint32_t*>(output_row(a, unit.token, unit.kv_head * heads))[i] = 0;
    return;
  }

  // The block's share of the visible segments.
  const Visible visible = visible_from(a.tokens.positions[unit.token], a.window);
  const std::uint32_t first = visible.first / kv_segment;
  unit.segments = (visible.end - 1) / kv_segment - first + 1;
  const std::uint32_t splits = unit.segments > args.segments_max ? 1 : min(args.splits, unit.segments);
  if (split >= splits) return;
  const std::uint32_t mine = (unit.segments - split + splits - 1) / splits;
  SplitAttention<decode_stages> attention(a.kv, unit.kv_head, row, visible, first + split, splits, mine, staged, visible);
  attention.stage();
  std::uint32_t queries[4][4];
  load_queries(a, unit, a.query_heads / a.kv_heads, queries);
  attend_split(args, unit, split, splits, attention, queries, {}, staged, shared, AttendedRow{a, unit.token});
}

}  // namespace

cudaError_t attention_decode(const AttentionDecodeArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const AttentionArgs& a = args.attention;
  if (const cudaError_t error = check_attention(a); error != cudaSuccess) return error;
  if (args.splits == 0 || args.list == nullptr) return cudaErrorInvalidValue;
  if (args.splits > 1 && (args.scratch == nullptr || std::uint64_t{args.count} * a.kv_heads > attention_tickets_max)) return cudaErrorInvalidValue;
  if (const cudaError_t error = allow_shared_memory(attention_decode_kernel, decode_shared_bytes); error != cudaSuccess) return error;
  return launch(attention_decode_kernel, {dim3(args.splits, a.kv_heads, args.count), dim3(split_threads), decode_shared_bytes}, stream, args);
}

}  // namespace althing::gpu::cuda
