// See the header. Three kernels: penalties and biases; rows that need one pass over their logits; rows with filters (sampler_filter.cuh). The last
// two leave each other's rows alone. All of them end at once for rows that are not theirs.
#include "gpu/cuda/sampler.hpp"

#include <limits>

#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/sampler_filter.cuh"
#include "gpu/cuda/sampler_score.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t adjust_threads = 512;

// What a block of a plain row found.
struct Partial {
  double score;
  std::uint32_t token;
  std::uint32_t nonfinite;
};
// Arrivals of blocks at the end of each row, zero between launches; and their partial results.
struct Scratch {
  std::uint32_t arrived[sampler_rows_max];
  Partial partials[sampler_rows_max];
};
static_assert(sizeof(Scratch) == sampler_scratch_bytes && 528 <= sampler_rows_max);

// Finite logits stay finite: a penalty near 0 would divide them beyond what a float holds.
__device__ __forceinline__ void penalize(float& logit, const SamplerRow& row, std::uint32_t output_count) {
  const double repetition = row.repetition_penalty, presence = row.presence_penalty, frequency = row.frequency_penalty;
  double value = logit;
  value = value > 0 ? value / repetition : value * repetition;
  if (output_count > 0) value = __dsub_rn(__dsub_rn(value, __dmul_rn(frequency, output_count)), presence);
  constexpr double most = std::numeric_limits<float>::max();
  if (isfinite(logit)) value = value > most ? most : value < -most ? -most : value;
  logit = static_cast<float>(value);
}

// Penalties, then biases. One block a row.
__global__ void __launch_bounds__(adjust_threads) adjust_logits(SamplerArgs args) {
  trigger_next_kernel();
  wait_for_previous_kernel();
  const SamplerRow& row = args.rows[blockIdx.x];
  if (row.row < 0) return;
  float* logits = args.logits + std::uint64_t{blockIdx.x} * args.vocabulary;
  if (row.repetition_penalty != 1.0F || row.presence_penalty != 0.0F || row.frequency_penalty != 0.0F) {
    const std::int32_t pending = row.draw_pending != 0 ? args.last_token[row.row] : -1;
    const SeenToken* seen = row.seen;
    bool found = false;
    for (std::uint32_t i = threadIdx.x, count = row.seen_count; i < count; i += adjust_threads) {
      const SeenToken entry = seen[i];
      const auto token = static_cast<std::uint32_t>(entry.token);
      const bool is_pending = entry.token == pending;
      found |= is_pending;
      if (token < args.vocabulary) penalize(logits[token], row, entry.output_count + (is_pending ? 1 : 0));
    }
    const bool is_new = __syncthreads_or(found) == 0;
    if (is_new && threadIdx.x == 0 && static_cast<std::uint32_t>(pending) < args.vocabulary) penalize(logits[pending], row, 1);
  }
  if (row.bias_count == 0) return;
  __syncthreads();  // a token may be in both lists
  const LogitBias* bias = row.bias;
  for (std::uint32_t i = threadIdx.x, count = row.bias_count; i < count; i += adjust_threads) {
    const LogitBias entry = bias[i];
    const auto token = static_cast<std::uint32_t>(entry.token);
    if (token < args.vocabulary) logits[token] += entry.bias;
  }
}

// A thread's part of a tile: two groups of four neighbours, so that a warp's loads are whole lines.
constexpr std::uint32_t share = 8;
constexpr std::uint32_t second_group = 4 * plain_threads;
struct Share {
  float4 low, high;
};
__device__ __forceinline__ Share load_share(const RowView& view, std::uint32_t first) {
  return {load_four(view, first), load_four(view, first + second_group)};
}

// The block's tiles of a row. Returns its best token so far in each lane (greedy: the lane's own, else the warp's).
template <bool Greedy>
__device__ __forceinline__ Scored scan_row(const RowView& view, const Noise& noise, bool& nonfinite) {
  Scored best = nothing_scored();
  float highest = -INFINITY, poison = 0;
  std::uint32_t first = blockIdx.x * plain_tile + 4 * threadIdx.x;
  const std::uint32_t stride = gridDim.x * plain_tile;
  Share next = load_share(view, first);
  for (std::uint32_t tile = blockIdx.x * plain_tile; tile < view.vocabulary; tile += stride, first += stride) {
    const Share now = next;
    if (tile + stride < view.vocabulary) next = load_share(view, first + stride);
    const float logits[share] = {now.low.x, now.low.y, now.low.z, now.low.w, now.high.x, now.high.y, now.high.z, now.high.w};
    const std::uint32_t live = live_four(view, first) | (live_four(view, first + second_group) << 4);
    std::uint32_t tokens[share];
#pragma unroll
    for (std::uint32_t i = 0; i < share; ++i) {
      tokens[i] = first + (i < 4 ? i : second_group + i - 4);
      poison = fmaf(logits[i], 0.0F, poison);  // NaN from the first infinity or NaN on
    }
    if constexpr (Greedy) {
#pragma unroll
      for (std::uint32_t i = 0; i < share; ++i)
        if ((live >> i & 1) != 0 && logits[i] > highest) highest = logits[i], best.token = tokens[i];
    } else {
      const std::uint64_t counter = noise.key + noise_step * (std::uint64_t{first} + 1);
      float bounds[share];
#pragma unroll
      for (std::uint32_t i = 0; i < share; ++i) {
        const std::uint64_t bits = mix_bits(counter + noise_step * (i < 4 ? i : second_group + i - 4));
        bounds[i] = (live >> i & 1) != 0 ? score_bound(logits[i], bits, noise.inverse_temperature) : -INFINITY;
      }
      contend(best, noise, logits, tokens, bounds);
    }
  }
  if constexpr (Greedy) best.score = highest;
  nonfinite = poison != poison;
  return best;
}

// Grid (plain_blocks, rows). The block that arrives last at the end of a row puts the parts together.
__global__ void __launch_bounds__(plain_threads, 4) draw_plain(SamplerArgs args) {
  trigger_next_kernel();
  wait_for_previous_kernel();
  const std::uint32_t index = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SamplerRow& row = args.rows[index];
  if (row.row < 0 || has_filters(row, args.vocabulary)) return;
  const RowView view = view_of(args, index);
  bool bad = false;
  Scored best = is_greedy(row) ? scan_row<true>(view, {}, bad) : scan_row<false>(view, noise_of(row), bad);

  __shared__ Scored warp_bests[plain_threads / 32];
  best = warp_best(best);
  if (lane == 0) warp_bests[warp] = best;
  bad = __syncthreads_or(bad) != 0;
  if (warp != 0) return;
  best = warp_best(lane < plain_threads / 32 ? warp_bests[lane] : nothing_scored());

  if (gridDim.x > 1) {
    Scratch& scratch = *static_cast<Scratch*>(args.scratch);
    Partial* partials = scratch.partials + index * gridDim.x;
    std::uint32_t before = 0;
    if (lane == 0) {
      partials[blockIdx.x] = {best.score, best.token, bad};
      __threadfence();
      before = atomicAdd(scratch.arrived + index, 1u);
    }
    before = __shfl_sync(whole_warp, before, 0);
    if (before != gridDim.x - 1) return;
    __threadfence();
    __syncwarp();
    best = nothing_scored();
    bad = false;
    for (std::uint32_t i = lane; i < gridDim.x; i += 32) {
      const volatile Partial& partial = partials[i];
      const Scored theirs{partial.score, partial.token};
      if (beats(theirs, best)) best = theirs;
      bad |= partial.nonfinite != 0;
    }
    best = warp_best(best);
    bad = __any_sync(whole_warp, bad) != 0;
    if (lane == 0) scratch.arrived[index] = 0;
  }
  if (lane == 0) publish(args, index, best.token, bad);
}

// One row by one cluster.
__device__ __forceinline__ void draw_filtered_row(const SamplerArgs& args, std::uint32_t index, std::uint32_t size, FilterShared& shared,
                                                  float* slice) {
  const SamplerRow& row = args.rows[index];
  const std::uint32_t first = blockIdx.x * size;
  const std::uint32_t length = first < args.vocabulary ? min(size, args.vocabulary - first) : 0;
  FilterRow work{shared, slice, blockIdx.x, first, length, ~(args.vocabulary - 1), shared.facts};
  work.load(view_of(args, index));
  const bool drawable = work.facts.nonfinite == 0 && work.facts.count != 0;
  const std::uint32_t token = drawable ? work.draw(row) : no_token;
  if (blockIdx.x == 0 && threadIdx.x == 0) publish(args, index, token, !drawable);
  if (drawable && row.logprobs != 0) work.report(args, index, token);
  cluster_sync();  // nobody leaves, or begins the next row, while others may still look into its memory
}

// Grid (filter_blocks, clusters), a cluster along x. Clusters take the rows with filters in turn. slice_size: filter_slice.
__global__ void __launch_bounds__(filter_threads, 2) draw_filtered(SamplerArgs args, std::uint32_t slice_size) {
  __shared__ FilterShared shared;
  extern __shared__ float4 slices[];
  trigger_next_kernel();
  wait_for_previous_kernel();
  const std::uint32_t thread = threadIdx.x;
  if (thread == 0) shared.gathered_count = 0;
  std::uint32_t ordinal = 0;
  for (std::uint32_t start = 0; start < args.count; start += filter_threads) {
    const std::uint32_t mine = start + thread;
    const bool wanted = mine < args.count && args.rows[mine].row >= 0 && has_filters(args.rows[mine], args.vocabulary);
    const std::uint32_t ballot = __ballot_sync(whole_warp, wanted);
    if (thread % 32 == 0) shared.wanted[thread / 32] = ballot;
    __syncthreads();
    for (std::uint32_t w = 0; w < filter_warps; ++w)
      for (std::uint32_t rest = shared.wanted[w]; rest != 0; rest &= rest - 1)
        if (ordinal++ % gridDim.y == blockIdx.y) {
          const std::uint32_t index = start + 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest))) - 1;
          draw_filtered_row(args, index, slice_size, shared, reinterpret_cast<float*>(slices));
        }
    __syncthreads();
  }
}

// The same whatever the vocabulary, so that one call never narrows what a graph captured by another relies on.
cudaError_t prepare_filters() {
  const cudaError_t error = allow_shared_memory(draw_filtered, filter_slice(sampler_vocabulary_max) * sizeof(float));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(draw_filtered, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

}  // namespace

cudaError_t sample(const SamplerArgs& args, cudaStream_t stream) {
  if (args.count > sampler_rows_max || args.vocabulary == 0 || args.vocabulary > sampler_vocabulary_max) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  if (args.with_adjustments) {
    const cudaError_t error = launch(adjust_logits, {.grid = args.count, .block = adjust_threads}, stream, args);
    if (error != cudaSuccess) return error;
  }
  const LaunchShape plain{.grid = dim3(plain_blocks(args.count, args.vocabulary), args.count), .block = plain_threads};
  if (const cudaError_t error = launch(draw_plain, plain, stream, args); error != cudaSuccess) return error;
  if (!args.with_filters) return cudaSuccess;
  const std::uint32_t slice_size = filter_slice(args.vocabulary);
  const LaunchShape filtered{.grid = dim3(filter_blocks, args.count < filter_clusters_max ? args.count : filter_clusters_max),
                             .block = filter_threads,
                             .shared_bytes = slice_size * sizeof(float),
                             .cluster = filter_blocks};
  if (const cudaError_t error = prepare_filters(); error != cudaSuccess) return error;
  return launch(draw_filtered, filtered, stream, args, slice_size);
}

}  // namespace althing::gpu::cuda
