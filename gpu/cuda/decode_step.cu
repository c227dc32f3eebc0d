// Contract: decode_step.hpp. A block's step is a row of phases: q, k and v | attention output | gate and up | down, in every layer, then the head.
// Each begins when all blocks have ended what it needs:
//
//   q k v     the sum of the experts before and its norm, computed by every block for itself
//   output    attention: four warps of a block have one (KV head, split); keys and values, all but the token's own, are fetched before q k v begins
//   gate, up  the norm, by every block; the router, shared out; the choice of experts, by every block
//   down      the activations of the block's experts
//
// One warp requests weights (decode_requests.cuh), the others multiply (decode_items.cuh). The code of all phases is one loop, so that it stays
// small.
#include "gpu/cuda/decode_step.hpp"

#include "gpu/cuda/decode_items.cuh"
#include "gpu/cuda/decode_requests.cuh"
#include "gpu/cuda/launch.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr int norm_elements = 6;  // of a thread
static_assert(norm_elements * decode_threads == decode_hidden_max);

template <WeightFormat Dense, int Stages>
class DecodeBlock : private DecodeItems<Dense> {
  using Base = DecodeItems<Dense>;
  using Base::a_, Base::shared_, Base::memory_, Base::warp_, Base::lane_;
  using Base::tag, Base::value_of, Base::probe, Base::counter_of, Base::run_items;

 public:
  __device__ __forceinline__ DecodeBlock(const DecodeStepArgs& args, DecodeShared& shared) : Base(args, shared) {}

  // The threads that multiply.
  __device__ __forceinline__ void run() {
    for (std::uint32_t i = threadIdx.x; i < a_.sizes.hidden; i += decode_threads) memory_.residual()[i] = a_.scratch.residual[i];
    load_inputs(a_.scratch.normed, k_padded(a_.sizes.hidden));
    if (threadIdx.x < attention_head_dim / 2) shared_.cosine[threadIdx.x] = a_.cosine[threadIdx.x], shared_.sine[threadIdx.x] = a_.sine[threadIdx.x];
    std::uint32_t phase = phase_qkv, layer = 0;
#pragma unroll 1
    while (true) {
      if (phase == phase_out) {
        attend(layer);
      } else if (phase == phase_gate_up) {
        norm_and_route(layer);
      }
      if (phase == phase_out) {
        probe(a_.scratch.words.attended, a_.sizes.query_heads * a_.sizes.head_dim / 2, tag(layer, phase_qkv));
        sync_multipliers();  // everybody is done with the inputs before
        load_words(a_.scratch.words.attended, a_.sizes.query_heads * a_.sizes.head_dim, tag(layer, phase_qkv));
      } else if (phase == phase_gate_up) {
        choose(layer);
      } else if (phase == phase_down) {
        load_activations(layer);
      } else if (layer != 0) {
        combine(layer - 1);
      }
      if (phase == phase_qkv) stage_attention(layer);
      prepare(phase);
      sync_multipliers();
      if (shared_.stop) return;
      if (phase == phase_down && threadIdx.x == 0 && shared_.remaining == 0) add_release(counter_of(layer, counter_down));
      stamp(layer, phase == phase_qkv ? 0 : phase == phase_out ? 3 : phase == phase_gate_up ? 6 : 8);
      run_items(layer, phase);
      if (phase == phase_head) return;
      stamp(layer, phase == phase_qkv ? 1 : phase == phase_out ? 4 : phase == phase_gate_up ? 7 : 9);
      phase = phase == phase_qkv ? phase_out : phase == phase_out ? phase_gate_up : phase_down + (phase == phase_down ? 1 : 0);
      if (phase > phase_down) phase = ++layer == a_.sizes.layers ? phase_head : phase_qkv;
    }
  }

 private:
  // ---- between phases

  // Between two barriers: nobody runs a phase.
  __device__ __forceinline__ void prepare(std::uint32_t phase) {
    if (threadIdx.x < decode_sum_tiles) shared_.arrived[threadIdx.x] = shared_.finished[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      shared_.remaining = shared_.phases[phase].owned;
      shared_.next = 0;
      shared_.stop = shared_.has_failed();
    }
  }

  __device__ __forceinline__ void stamp(std::uint32_t layer, std::uint32_t index) const {
    if (a_.stamps == nullptr || threadIdx.x != 0 || layer >= a_.sizes.layers) return;
    unsigned long long now;
    asm volatile("mov.u64 %0,%%clock64;" : "=l"(now));
    a_.stamps[(std::uint64_t(blockIdx.x) * a_.sizes.layers + layer) * decode_stamps + index] = now;
  }

  // From device memory, past L1; a multiple of 8.
  __device__ __forceinline__ void load_inputs(const __nv_bfloat16* from, std::uint32_t count, std::uint32_t to = 0) {
    for (std::uint32_t k = threadIdx.x * 8; k < count; k += decode_threads * 8) {
      const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + k));
      std::byte* const at = memory_.inputs() + to * 2 + input_offset(k);
      *reinterpret_cast<std::uint32_t*>(at) = v.x;
      *reinterpret_cast<std::uint32_t*>(at + 16) = v.y;
      *reinterpret_cast<std::uint32_t*>(at + 32) = v.z;
      *reinterpret_cast<std::uint32_t*>(at + 48) = v.w;
    }
  }
  // Pairs of inputs, from words; a multiple of 8 inputs.
  __device__ __forceinline__ void load_words(const unsigned long long* from, std::uint32_t count, std::uint32_t expected, std::uint32_t to = 0) {
    const std::uint32_t pairs = count / 2;
    for (std::uint32_t first = threadIdx.x; first < pairs; first += 4 * decode_threads) {
      uint2 seen[4];
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i)
        if (first + i * decode_threads < pairs) seen[i] = load_tagged(from + first + i * decode_threads);
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t pair = first + i * decode_threads;
        if (pair < pairs)
          *reinterpret_cast<std::uint32_t*>(memory_.inputs() + to * 2 + input_offset(2 * pair)) = value_of(from + pair, seen[i], expected);
      }
    }
  }
  // A thread's elements threadIdx.x + i * decode_threads of a vector of `hidden`.
  __device__ __forceinline__ void load_elements(float (&values)[norm_elements], const float* from) const {
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      values[i] = at < a_.sizes.hidden ? __ldcg(from + at) : 0.0F;
    }
  }
  __device__ __forceinline__ void store_normed(const float (&x)[norm_elements], const float (&weights)[norm_elements], float inverse) {
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      if (at < k_padded(a_.sizes.hidden))
        *reinterpret_cast<__nv_bfloat16*>(memory_.inputs() + input_offset(at)) =
            __float2bfloat16_rn(at < a_.sizes.hidden ? x[i] * inverse * weights[i] : 0.0F);
    }
  }

  // The block's (KV head, split), if it has one.
  struct Attention {
    Visible visible;
    std::uint32_t first, segments, splits, split, count;  // segments that the token sees; those of the split: first + split, + splits, …
    DecodeUnit unit;
    bool mine;
  };
  __device__ __forceinline__ Attention attention_of(std::uint32_t layer) const {
    const DecodeSizes& z = a_.sizes;
    Attention t;
    t.visible = visible_from(shared_.position, a_.layers[layer].window);
    t.first = t.visible.first / kv_segment;
    t.segments = (t.visible.end - 1) / kv_segment - t.first + 1;
    t.splits = t.segments > a_.scratch.attention_segments_max ? 1 : min(t.segments, max(1u, gridDim.x / z.kv_heads));
    t.split = blockIdx.x / z.kv_heads;
    t.mine = t.split < t.splits;
    t.count = t.mine ? (t.segments - t.split + t.splits - 1) / t.splits : 0;
    t.unit = {blockIdx.x % z.kv_heads, 0, blockIdx.x % z.kv_heads, t.segments};
    return t;
  }
  __device__ __forceinline__ SplitAttention<Stages> split_of(std::uint32_t layer, const Attention& t) const {
    return {a_.layers[layer].kv,
            t.unit.kv_head,
            max(shared_.row, 0),
            t.visible,
            t.first + t.split,
            t.splits,
            t.count,
            memory_.staged(),
            Visible{t.visible.first, shared_.position}};
  }

  // Keys and values of all positions but the token's own.
  __device__ __forceinline__ void stage_attention(std::uint32_t layer) {
    const Attention t = attention_of(layer);
    if (threadIdx.x == 0) shared_.kv_slot = a_.layers[layer].kv.slots[0];
    if (t.mine && shared_.row >= 0 && threadIdx.x < split_threads) split_of(layer, t).stage();
  }

  // Attention, by the blocks and threads that have a part in it.
  __device__ __forceinline__ void attend(std::uint32_t layer) {
    const DecodeLayer& l = a_.layers[layer];
    const DecodeSizes& z = a_.sizes;
    const Attention t = attention_of(layer);
    if (t.mine && threadIdx.x < split_threads) {
      AttentionDecodeArgs args;
      args.attention = {a_.tokens, nullptr, l.kv, z.query_heads, z.kv_heads, l.window, l.sinks, nullptr, 0};
      args.count = 1;
      args.segments_max = a_.scratch.attention_segments_max;
      args.scratch = a_.scratch.attention;
      constexpr std::uint32_t pairs = attention_head_dim / 2;
      const std::uint32_t own_tag = tag(layer, phase_qkv), heads = z.query_heads / z.kv_heads, g = lane_ / 4, last = t.segments - 1;
      typename SplitAttention<Stages>::OwnPair own;
      if (last % t.splits == t.split) own.segment = last / t.splits, own.row = shared_.position % kv_segment;
      const unsigned long long* const pair =
          a_.scratch.words.qkv + (z.query_heads + threadIdx.x / 32 % 2 * z.kv_heads + t.unit.kv_head) * pairs + threadIdx.x % 32;
      const unsigned long long* const from = a_.scratch.words.qkv + (t.unit.kv_head * heads + g) * pairs + lane_ % 4;
      const bool has_pair = own.segment != ~0u && threadIdx.x < 64;
      if (has_pair) own.pair = value_of(pair, load_tagged(pair), own_tag);
      // One warp looks for the queries, for all four.
      if (warp_ == 0) {
        auto* const to = reinterpret_cast<std::uint32_t*>(shared_.attention.weights) + 2 * lane_;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          uint2 seen[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) seen[i] = g < heads ? load_tagged(from + 16 * half + 4 * i) : make_uint2(0, own_tag);
#pragma unroll
          for (int i = 0; i < 4; ++i) to[(2 * half + i / 2) * 64 + i % 2] = value_of(from + 16 * half + 4 * i, seen[i], own_tag);
        }
      }
      sync_split();
      std::uint32_t queries[4][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 two = shared_.attention.weights[i][lane_];
        queries[i][0] = two.x, queries[i][2] = two.y;
      }
      SplitAttention<Stages> work = split_of(layer, t);
      work.resume();
      attend_split(args, t.unit, t.split, t.splits, work, queries, own, memory_.staged(), shared_.attention,
                   [&](std::uint32_t head, std::uint32_t d, std::uint32_t value) {
                     store_tagged(a_.scratch.words.attended + (head * attention_head_dim + d) / 2, value, own_tag);
                   });
    }
    stamp(layer, 2);
  }

  // The norm, and the block's part of the router.
  __device__ __forceinline__ void norm_and_route(std::uint32_t layer) {
    const DecodeLayer& l = a_.layers[layer];
    const DecodeSizes& z = a_.sizes;
    float weights[norm_elements], x[norm_elements];
    load_elements(weights, l.moe_norm);
    probe(a_.scratch.words.residual, z.hidden, tag(layer, phase_out));
    sync_multipliers();  // everybody is done with the inputs and the residual before
    uint2 seen[norm_elements];
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      if (at < z.hidden) seen[i] = load_tagged(a_.scratch.words.residual + at);
    }
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      if (at >= z.hidden) break;
      x[i] = __uint_as_float(value_of(a_.scratch.words.residual + at, seen[i], tag(layer, phase_out)));
      memory_.residual()[at] = x[i];
    }
    sync_multipliers();
    if (warp_ == 0) {
      float squares = 0.0F;
#pragma unroll 8
      for (std::uint32_t i = lane_; i < z.hidden / 4; i += 32) squares = add_squares(squares, reinterpret_cast<const float4*>(memory_.residual())[i]);
      const float inverse = inverse_root(sum_of_warp(squares), z.hidden, l.moe_epsilon);
      if (lane_ == 0) shared_.inverse = inverse;
    }
    sync_multipliers();
    store_normed(x, weights, shared_.inverse);
    sync_multipliers();
    stamp(layer, 5);

    const PhaseShare& s = shared_.phases[phase_router];
    const std::uint32_t padded = s.row_tiles * row_tile;
    const std::uint32_t own_tag = tag(layer, phase_router);
#pragma unroll 1
    for (std::uint32_t i = warp_; i < s.items; i += decode_warps) {
      const ItemPlace item = item_place(s, s.first_item + i);
      float chain[4] = {};
      multiply_item<WeightFormat::bf16>(chain, shared_, memory_.ring(), a_.slots, s, item, memory_.inputs(),
                                        layer * s.layer_units + s.first_unit + unit_index(s, i), group_width(s, i));
      unsigned long long* const to = a_.scratch.words.router + item.segment * padded + item.tile * row_tile + lane_ / 4;
      if (lane_ % 4 == 0) {
        store_tagged(to, __float_as_uint(chain[0]), own_tag);
        store_tagged(to + 8, __float_as_uint(chain[2]), own_tag);
      }
    }
  }

  // The token's experts, from all blocks' parts.
  __device__ __forceinline__ void choose(std::uint32_t layer) {
    const DecodeLayer& l = a_.layers[layer];
    const DecodeSizes& z = a_.sizes;
    const PhaseShare& s = shared_.phases[phase_router];
    const std::uint32_t padded = s.row_tiles * row_tile, own_tag = tag(layer, phase_router);
    probe(a_.scratch.words.router, s.segments * padded, own_tag);
    sync_multipliers();
    // Each sum to its place, then each expert's, segments ascending.
    static_assert(decode_sum_tiles * row_tile >= 128);
    uint2 seen_sums[4];
    const std::uint32_t all = s.segments * padded;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i)
      if (threadIdx.x + i * decode_threads < all) seen_sums[i] = load_tagged(a_.scratch.words.router + threadIdx.x + i * decode_threads);
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      if (at < all) memory_.sums()[at] = __uint_as_float(value_of(a_.scratch.words.router + at, seen_sums[i], own_tag));
    }
    sync_multipliers();
    if (threadIdx.x < z.experts) {
      float logit = memory_.sums()[threadIdx.x];
      for (std::uint32_t segment = 1; segment < s.segments; ++segment) logit += memory_.sums()[segment * padded + threadIdx.x];
      shared_.router[threadIdx.x] = logit + (l.biases[phase_router] != nullptr ? l.biases[phase_router][threadIdx.x] : -0.0F);
    }
    sync_multipliers();
    if (warp_ == 0) {
      const ExpertChoice own = choose_experts(shared_.router, z.experts, z.experts_per_token);
      if (lane_ < z.experts_per_token) {
        shared_.chosen[lane_] = static_cast<std::uint32_t>(own.expert);
        shared_.weights[lane_] = shared_.row >= 0 ? own.weight : 0.0F;
        if (blockIdx.x == 0 && shared_.row >= 0) atomicAdd(a_.scratch.counted + std::uint64_t(layer) * z.experts + own.expert, 1ull);
      }
      __syncwarp();
      if (lane_ == 0) store_release_shared(&shared_.routed, layer + 1);
    }
    // The experts' sums of the next layer: since blocks last met, nobody reads what was summed there two layers ago.
    for (std::uint32_t i = blockIdx.x * decode_threads + threadIdx.x; i < z.hidden; i += gridDim.x * decode_threads)
      a_.scratch.sums[(layer + 1) % 3][i] = 0;
  }

  __device__ __forceinline__ void load_activations(std::uint32_t layer) {
    const PhaseShare& s = shared_.phases[phase_down];
    const std::uint32_t wide = a_.sizes.intermediate, stride = k_padded(wide), first = divide(s.first_tile(), s.inverse_row_tiles);
    const std::uint32_t end = s.items == 0 ? first : divide(divide(s.first_item + s.items - 1, s.inverse_segments), s.inverse_row_tiles) + 1;
    probe(a_.scratch.words.inner + first * wide / 2, (end - first) * wide / 2, tag(layer, phase_gate_up));
    sync_multipliers();  // everybody is done with the inputs before
    for (std::uint32_t piece = first; piece < end; ++piece) {
      load_words(a_.scratch.words.inner + piece * wide / 2, wide, tag(layer, phase_gate_up), (piece - first) * stride);
      for (std::uint32_t k = wide + threadIdx.x; k < stride; k += decode_threads)
        *reinterpret_cast<__nv_bfloat16*>(memory_.inputs() + (piece - first) * stride * 2 + input_offset(k)) = __float2bfloat16_rn(0.0F);
    }
  }

  // Adds the experts' outputs to the residual and norms it for what follows.
  __device__ __forceinline__ void combine(std::uint32_t layer) {
    const DecodeLayer& l = a_.layers[layer];
    const DecodeSizes& z = a_.sizes;
    float weights[norm_elements], x[norm_elements], squares = 0.0F;
    load_elements(weights, l.next_norm);
    if (threadIdx.x == 0) wait_at_least(counter_of(layer, counter_down), gridDim.x, shared_.limits, shared_.failed);
    sync_multipliers();
    // What does not fit makes the whole token NaN, as one NaN does by way of the norm.
    const bool misfit = __ldcg(counter_of(layer, counter_misfit)) != 0;
    long long sums[norm_elements];
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      sums[i] = at < z.hidden ? static_cast<long long>(__ldcg(a_.scratch.sums[layer % 3] + at)) : 0;
    }
#pragma unroll
    for (int i = 0; i < norm_elements; ++i) {
      const std::uint32_t at = threadIdx.x + i * decode_threads;
      if (at >= z.hidden) break;
      x[i] = memory_.residual()[at] + (misfit ? __int_as_float(0x7FC00000) : static_cast<float>(static_cast<double>(sums[i]) * fixed_point_unit));
      memory_.residual()[at] = x[i];
      squares = __fmaf_rn(x[i], x[i], squares);
    }
    leave_part(squares, shared_.parts);
    sync_multipliers();
    store_normed(x, weights, inverse_root(sum_of_parts(shared_.parts), z.hidden, l.next_epsilon));
  }
};

template <WeightFormat Dense, int Stages>
__global__ void __launch_bounds__(decode_block_threads, 1) decode_step_kernel(const __grid_constant__ DecodeStepArgs args) {
  __shared__ DecodeShared shared;
  constexpr std::uint32_t words = sizeof(PhaseShare) * decode_phases / sizeof(std::uint32_t);
  const auto* const shares = reinterpret_cast<const std::uint32_t*>(args.shares + blockIdx.x * decode_phases);
  for (std::uint32_t i = threadIdx.x; i < words; i += blockDim.x) reinterpret_cast<std::uint32_t*>(shared.phases)[i] = shares[i];
  if (threadIdx.x < args.slots) {
    mbarrier_init(shared_address(&shared.full[threadIdx.x]), 1);
    mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 1);
    fence_barrier_init();
    shared.requested[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) {
    shared.failed = false;
    shared.routed = 0;
    shared.limits = {nanoseconds() + args.deadline_ns, args.abort, args.status};
    shared.row = args.tokens.rows[0];
    shared.position = args.tokens.positions[0];
    shared.step = *args.scratch.step;
  }
  __syncthreads();
  // Registers are handed over by groups of four warps.
  if (threadIdx.x >= decode_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    DecodeRequests(args, shared, decode_dynamic).run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    DecodeBlock<Dense, Stages>(args, shared).run();
  }
  // Copies that are on their way must land before the block may end, also when it gives up.
  copy_async_wait<0>();
  __syncthreads();
  if (threadIdx.x < args.slots && shared.requested[threadIdx.x] != 0)
    mbarrier_wait(shared_address(&shared.full[threadIdx.x]), (shared.requested[threadIdx.x] - 1) & 1u);
}

template <WeightFormat Dense, int Stages>
cudaError_t launch_step(const DecodeStepArgs& args, std::uint32_t blocks, cudaStream_t stream) {
  auto* kernel = decode_step_kernel<Dense, Stages>;
  DecodeStepArgs placed = args;
  placed.parts = decode_parts(args.sizes, Stages, args.slots);
  if (const cudaError_t error = allow_shared_memory(kernel, placed.parts.end); error != cudaSuccess) return error;
  // Blocks wait for each other, so all of them must run at once, or none.
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(decode_block_threads);
  config.dynamicSmemBytes = placed.parts.end;
  config.stream = stream;
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, placed);
}

template <WeightFormat Dense>
cudaError_t launch_stages(const DecodeStepArgs& args, std::uint32_t blocks, cudaStream_t stream) {
  return args.attention_stages == 1 ? launch_step<Dense, 1>(args, blocks, stream) : launch_step<Dense, 3>(args, blocks, stream);
}

}  // namespace

cudaError_t decode_step(const DecodeStepArgs& args, std::uint32_t blocks, cudaStream_t stream) {
  if (decode_step_refuses(args.sizes, blocks) != nullptr || (args.attention_stages != 1 && args.attention_stages != 3)) return cudaErrorInvalidValue;
  if (args.slots == 0 || args.slots > decode_slots(args.sizes, args.attention_stages)) return cudaErrorInvalidValue;
  return args.sizes.dense == WeightFormat::fp8 ? launch_stages<WeightFormat::fp8>(args, blocks, stream)
                                               : launch_stages<WeightFormat::bf16>(args, blocks, stream);
}

}  // namespace althing::gpu::cuda
