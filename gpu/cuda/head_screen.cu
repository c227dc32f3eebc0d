// See the header. The first kernel streams the codes: a warp takes whole row tiles, with several steps on their way in registers, and leaves an upper
// bound of each token's score and the row's highest lower bound. The second gathers who reaches it, sixteen at a time into one row tile, and draws.
#include "gpu/cuda/head_screen.hpp"

#include <algorithm>
#include <cmath>

#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/pack.hpp"
#include "gpu/cuda/sampler_score.cuh"
#include "gpu/cuda/weight_stream.cuh"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t code_max = 127, input_max = 127 * 256;
constexpr float sums_error = 0x1p-13F;                                        // of |w| |x|
constexpr float weight_min = 1e-12F, state_min = 1e-15F, reach_min = 1e-37F;  // no product of these is lost below what a float holds
constexpr std::uint32_t making_warps = 8;
constexpr std::uint32_t screen_warps = 16, screen_depth = 10;
constexpr std::uint32_t columns_of_tile = 4;  // rows in one operand B: two columns each, the high and the low byte of x
constexpr std::uint32_t listed_max = 1024;

struct Scratch {
  struct Part {
    double score;
    std::uint32_t token, bad;
  };
  std::uint32_t bars[screen_rows_max];     // order_key of the highest lower bound so far; 0 between calls
  std::uint32_t arrived[screen_rows_max];  // blocks at the end of a row; 0 between calls
  std::uint32_t bad[screen_rows_max];      // the state is not finite
  std::uint32_t unused[screen_rows_max];
  Part parts[screen_rows_max * screen_blocks_max];
};
static_assert(sizeof(Scratch) == screen_scratch_bytes);

__device__ __forceinline__ float low_value(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_value(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
// Bits of the larger magnitude, as a float; above infinity's where one is NaN.
__device__ __forceinline__ std::uint32_t larger_size(std::uint32_t pair) { return max((pair & 0x7FFFu) << 16, pair & 0x7FFF0000u); }

// c += a b in integers. a: 16 x 32, b: 32 x 8.
__device__ __forceinline__ void mma_codes(std::int32_t (&c)[4], const uint4& a, const uint2& b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// One warp a row tile; the row of register pairs x and z, or of y and w, is `half` 0 or 1 of lane / 4.
__global__ void make_screen_kernel(PackedMatrix head, HeadScreen screen) {
  const std::uint32_t tile = blockIdx.x * making_warps + threadIdx.x / 32, lane = threadIdx.x % 32, steps = screen_steps(head.in);
  if (tile >= head.row_tiles()) return;
  const uint4* const from = reinterpret_cast<const uint4*>(head.data + tile_offset(head, tile, 0)) + lane;
  std::uint32_t largest[2] = {};
  for (std::uint32_t s = 0; s < 2 * steps; ++s) {
    const uint4 v = from[32 * s];
    largest[0] = max(largest[0], max(larger_size(v.x), larger_size(v.z)));
    largest[1] = max(largest[1], max(larger_size(v.y), larger_size(v.w)));
  }
  float factor[2], inverse[2];
  bool finite[2];
  for (int h = 0; h < 2; ++h) {
    for (int distance = 1; distance <= 2; distance *= 2) largest[h] = max(largest[h], __shfl_xor_sync(whole_warp, largest[h], distance));
    const float most = __uint_as_float(largest[h]);
    finite[h] = largest[h] < 0x7F800000u;
    // Rows of next to nothing, or of no numbers, keep no codes: then everything is error.
    const bool coded = finite[h] && most >= weight_min;
    factor[h] = coded ? most / code_max : 0;
    inverse[h] = coded ? code_max / most : 0;
  }
  double errors[2] = {}, squares[2] = {};
  const auto code = [&](float w, int h) {
    const int c = max(-static_cast<int>(code_max), min(static_cast<int>(code_max), __float2int_rn(w * inverse[h])));
    const double e = static_cast<double>(w) - static_cast<double>(factor[h]) * c;
    errors[h] += e * e;
    squares[h] += static_cast<double>(w) * w;
    return static_cast<std::uint32_t>(c) & 0xFFu;
  };
  const auto four = [&](std::uint32_t a, std::uint32_t b, int h) {
    if (!finite[h]) return 0u;
    return code(low_value(a), h) | code(high_value(a), h) << 8 | code(low_value(b), h) << 16 | code(high_value(b), h) << 24;
  };
  uint4* const to = reinterpret_cast<uint4*>(screen.codes + std::uint64_t{tile} * steps * 512) + lane;
  for (std::uint32_t s = 0; s < steps; ++s) {
    const uint4 first = from[64 * s], second = from[64 * s + 32];
    to[32 * s] = make_uint4(four(first.x, first.z, 0), four(first.y, first.w, 1), four(second.x, second.z, 0), four(second.y, second.w, 1));
  }
  for (int h = 0; h < 2; ++h) {
    for (int distance = 1; distance <= 2; distance *= 2) {
      errors[h] += __shfl_xor_sync(whole_warp, errors[h], distance);
      squares[h] += __shfl_xor_sync(whole_warp, squares[h], distance);
    }
    if (lane % 4 != 0) continue;
    const std::uint32_t row = tile * row_tile + 8 * h + lane / 4;
    screen.factors[row] = factor[h];
    screen.errors[row] = finite[h] ? __double2float_ru(sqrt(errors[h]) * (1 + 1e-6)) : INFINITY;
    screen.norms[row] = finite[h] ? __double2float_ru((sqrt(squares[h]) + sqrt(errors[h])) * (1 + 1e-6)) : INFINITY;
  }
}

// What the first kernel knows of one sampled row.
struct Drawing {
  Noise noise;
  const std::uint32_t* allowed;
  float scale;        // of x'
  float length;       // at least |x|
  float slack;        // at least |d| + sums_error |x|
  std::uint32_t bar;  // order_key of the block's highest lower bound so far
  bool greedy, wanted;
};

// One warp: x in 16 bits, as bytes of operand B. `b`: (steps, column tiles, 32 lanes).
template <int Tiles>
__device__ __forceinline__ void put_state(const ScreenedDrawArgs& args, std::uint32_t index, std::uint32_t lane, uint2* b, Drawing& row) {
  const std::uint32_t steps = screen_steps(args.head.in), words = 16 * steps;
  const std::uint32_t* const x = reinterpret_cast<const std::uint32_t*>(args.input + std::uint64_t{index} * args.input_stride);
  std::uint32_t largest = 0;
  for (std::uint32_t i = lane; i < words; i += 32) largest = max(largest, larger_size(__ldcg(x + i)));
  largest = __reduce_max_sync(whole_warp, largest);
  const float most = __uint_as_float(largest);
  const bool finite = largest < 0x7F800000u, coded = finite && most >= state_min;
  const float scale = coded ? most / input_max : 0, inverse = coded ? input_max / most : 0;
  float squares = 0, errors = 0;  // in units of the scale
  const std::uint32_t column = 2 * (index % columns_of_tile), tile = index / columns_of_tile, q = lane % 4;
  for (std::uint32_t s = lane / 4; s < steps; s += 8) {
    std::uint32_t high[2] = {}, low[2] = {};
    const auto put = [&](float value, int at, int byte) {
      const float scaled = value * inverse;
      const int code = __float2int_rn(scaled), upper = (code + 128) >> 8;
      const float rest = scaled - static_cast<float>(code);
      squares = fmaf(scaled, scaled, squares);
      errors = fmaf(rest, rest, errors);
      high[at] |= (static_cast<std::uint32_t>(upper) & 0xFFu) << (8 * byte);
      low[at] |= (static_cast<std::uint32_t>(code - 256 * upper) & 0xFFu) << (8 * byte);
    };
    for (int at = 0; at < 2; ++at)
      for (int part = 0; part < 2; ++part) {
        const std::uint32_t pair = __ldcg(x + 16 * s + 8 * at + 4 * part + q);
        put(low_value(pair), at, 2 * part);
        put(high_value(pair), at, 2 * part + 1);
      }
    uint2* const to = b + (s * Tiles + tile) * 32;
    to[4 * column + q] = make_uint2(high[0], high[1]);
    to[4 * column + 4 + q] = make_uint2(low[0], low[1]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    squares += __shfl_xor_sync(whole_warp, squares, distance);
    errors += __shfl_xor_sync(whole_warp, errors, distance);
  }
  if (lane != 0) return;
  const SamplerRow& sampler = args.sampler.rows[index];
  constexpr float up = 1 + 0x1p-12F;  // what the two sums may have lost
  row.greedy = is_greedy(sampler);
  row.wanted = sampler.row >= 0;
  row.allowed = sampler.allowed;
  row.noise = row.greedy ? Noise{} : noise_of(sampler);
  row.scale = scale;
  row.length = coded ? scale * sqrtf(squares) * up : finite ? most * sqrtf(2.0F * words) * up : INFINITY;
  row.slack = coded ? scale * sqrtf(errors) * up + sums_error * row.length : 2 * row.length;
  row.bar = order_key(-INFINITY);
  if (blockIdx.x == 0) static_cast<Scratch*>(args.scratch)->bad[index] = finite ? 0 : 1;
}

// A token's upper bound; its lower one may raise the bar.
__device__ __forceinline__ float bound_of(Drawing& row, float logit, float error, float norm, std::uint32_t token) {
  const float most = norm * row.length, reach = fmaf(error, row.length, norm * row.slack) + reach_min;
  if (!(most < 1e37F)) return INFINITY;
  if (row.allowed != nullptr && (row.allowed[token / 32] >> (token % 32) & 1) == 0) return -INFINITY;
  const float upper = logit + reach, lower = logit - reach, bar = logit_of(*static_cast<volatile std::uint32_t*>(&row.bar));
  if (row.greedy) {
    if (lower > bar) atomicMax(&row.bar, order_key(lower));
    return upper;
  }
  const float bound = score_bound(upper, noise_bits(row.noise.key, token), row.noise.inverse_temperature);
  if (bound > bar) atomicMax(&row.bar, order_key(__double2float_rd(exact_score(row.noise, lower, token))));
  return bound;
}

template <int Tiles>
__global__ void __launch_bounds__(32 * screen_warps, 1) screen_kernel(const __grid_constant__ ScreenedDrawArgs args) {
  extern __shared__ uint2 states[];  // (steps, Tiles, 32)
  __shared__ Drawing rows[screen_rows_max];
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = screen_steps(args.head.in), tiles = args.head.row_tiles();
  trigger_next_kernel();
  const std::uint32_t first = static_cast<std::uint32_t>(std::uint64_t{tiles} * blockIdx.x / gridDim.x) + warp;
  const std::uint32_t end = static_cast<std::uint32_t>(std::uint64_t{tiles} * (blockIdx.x + 1) / gridDim.x);
  const std::uint32_t units = first < end ? ceil_div(end - first, screen_warps) * steps : 0;
  const std::byte* next = args.screen.codes + std::uint64_t{first} * steps * 512 + 16 * lane;
  std::uint32_t asked = 0, step_asked = 0;
  uint4 ring[screen_depth] = {};
  const auto request = [&](uint4& to) {
    load_weights_16_if(to, next, asked < units);
    ++asked;
    next += 512;
    if (++step_asked == steps) step_asked = 0, next += std::uint64_t{screen_warps - 1} * steps * 512;
  };
#pragma unroll
  for (std::uint32_t i = 0; i < screen_depth; ++i) request(ring[i]);

  std::uint32_t tile = first;
  float factors[2], errors[2], norms[2];
  const auto load_facts = [&] {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t row = tile * row_tile + 8 * h + lane / 4;
      factors[h] = __ldg(args.screen.factors + row), errors[h] = __ldg(args.screen.errors + row), norms[h] = __ldg(args.screen.norms + row);
    }
  };
  if (units > 0) load_facts();
  for (std::uint32_t i = threadIdx.x; i < steps * Tiles * 32; i += 32 * screen_warps) states[i] = make_uint2(0, 0);
  wait_for_previous_kernel();
  __syncthreads();
  if (warp < args.sampler.count) put_state<Tiles>(args, warp, lane, states, rows[warp]);
  __syncthreads();

  std::int32_t sums[Tiles][4] = {};
  const auto finish_tile = [&] {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      const std::uint32_t index = n * columns_of_tile + lane % 4;
      if (index < args.sampler.count && rows[index].wanted) {
        Drawing& row = rows[index];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const std::uint32_t token = tile * row_tile + 8 * h + lane / 4;
          const float logit = fmaf(256.0F, static_cast<float>(sums[n][2 * h]), static_cast<float>(sums[n][2 * h + 1])) * (row.scale * factors[h]);
          if (token < args.sampler.vocabulary)
            args.sampler.logits[std::uint64_t{index} * args.sampler.vocabulary + token] = bound_of(row, logit, errors[h], norms[h], token);
        }
      }
      sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
    }
    tile += screen_warps;
    if (tile < end) load_facts();
  };
  std::uint32_t step = 0;
  for (std::uint32_t base = 0; base < units; base += screen_depth) {
#pragma unroll
    for (std::uint32_t i = 0; i < screen_depth; ++i) {
      if (base + i >= units) break;
      const uint2* const b = states + step * Tiles * 32 + lane;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) mma_codes(sums[n], ring[i], b[32 * n]);
      request(ring[i]);
      if (++step == steps) step = 0, finish_tile();
    }
  }
  __syncthreads();
  if (threadIdx.x < args.sampler.count && rows[threadIdx.x].wanted)
    atomicMax(static_cast<Scratch*>(args.scratch)->bars + threadIdx.x, rows[threadIdx.x].bar);
}

struct SettleShared {
  std::uint32_t listed;
  std::uint32_t tokens[listed_max];
  float sums[screen_segments_max][row_tile];
};

// Canonical logits (numerics.hpp) of 16 tokens of the list, places beyond its end repeat the first. A warp a segment; the result in lanes 0 to 15 of
// warp 0.
__device__ __forceinline__ float logits_of(const ScreenedDrawArgs& args, std::uint32_t index, std::uint32_t base, SettleShared& shared) {
  const std::uint32_t lane = threadIdx.x % 32, segment = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const std::uint32_t size = k_segment_tiles(args.head.in), first = segment * size, end = min(first + size, k_tiles(args.head.in));
  const auto token = [&](std::uint32_t place) { return shared.tokens[base + place < shared.listed ? base + place : base]; };
  const std::uint32_t low = token(g), high = token(g + 8);
  const auto share = [&](std::uint32_t row) {
    return reinterpret_cast<const uint4*>(args.head.data + tile_offset(args.head, row / row_tile, first)) + 4 * (row % 8) + q;
  };
  const uint4 *const lows = share(low), *const highs = share(high);
  const bool low_upper = low % row_tile >= 8, high_upper = high % row_tile >= 8;
  // Column 0 alone has a state.
  const std::uint32_t* const x = reinterpret_cast<const std::uint32_t*>(args.input + std::uint64_t{index} * args.input_stride) + 32 * first + q;
  float chain[4] = {};
  for (std::uint32_t t = 0; t < end - first; ++t) {
    uint4 l[4], h[4];
    std::uint32_t b[4][2] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      l[s] = __ldg(lows + 128 * t + 32 * s), h[s] = __ldg(highs + 128 * t + 32 * s);
      if (g == 0) b[s][0] = __ldcg(x + 32 * t + 8 * s), b[s][1] = __ldcg(x + 32 * t + 8 * s + 4);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t a[4] = {low_upper ? l[s].y : l[s].x, high_upper ? h[s].y : h[s].x, low_upper ? l[s].w : l[s].z,
                                  high_upper ? h[s].w : h[s].z};
      mma_bf16(chain, a, b[s][0], b[s][1]);
    }
  }
  if (q == 0) shared.sums[segment][g] = chain[0], shared.sums[segment][g + 8] = chain[2];
  __syncthreads();
  if (threadIdx.x >= row_tile) return 0;
  float total = shared.sums[0][lane];
  for (std::uint32_t s = 1; s < blockDim.x / 32; ++s) total += shared.sums[s][lane];
  return total;
}

// Grid (blocks, rows), a warp a segment of the head. The block that arrives last at the end of a row publishes it.
__global__ void __launch_bounds__(32 * screen_segments_max) settle_kernel(const __grid_constant__ ScreenedDrawArgs args) {
  __shared__ SettleShared shared;
  trigger_next_kernel();
  wait_for_previous_kernel();
  const std::uint32_t index = blockIdx.y, lane = threadIdx.x % 32, vocabulary = args.sampler.vocabulary;
  const SamplerRow& row = args.sampler.rows[index];
  if (row.row < 0) return;
  Scratch& scratch = *static_cast<Scratch*>(args.scratch);
  const bool greedy = is_greedy(row);
  const Noise noise = greedy ? Noise{} : noise_of(row);
  const std::uint32_t key = __ldcg(scratch.bars + index);
  const float bar = key == 0 ? -INFINITY : logit_of(key);
  bool bad = __ldcg(scratch.bad + index) != 0;
  const std::uint32_t first = static_cast<std::uint32_t>(std::uint64_t{vocabulary} * blockIdx.x / gridDim.x);
  const std::uint32_t end = bad ? first : static_cast<std::uint32_t>(std::uint64_t{vocabulary} * (blockIdx.x + 1) / gridDim.x);
  const float* const bounds = args.sampler.logits + std::uint64_t{index} * vocabulary;
  Scored best = nothing_scored();
  for (std::uint32_t chunk = first; chunk < end; chunk += listed_max) {
    if (threadIdx.x == 0) shared.listed = 0;
    __syncthreads();
    for (std::uint32_t token = chunk + threadIdx.x; token < min(end, chunk + listed_max); token += blockDim.x)
      if (const float bound = __ldcg(bounds + token); bound >= bar && bound > -INFINITY) shared.tokens[atomicAdd(&shared.listed, 1u)] = token;
    __syncthreads();
    for (std::uint32_t base = 0; base < shared.listed; base += row_tile) {
      const float logit = logits_of(args, index, base, shared);
      if (threadIdx.x < row_tile && base + threadIdx.x < shared.listed) {
        const std::uint32_t token = shared.tokens[base + threadIdx.x];
        const bool allowed = row.allowed == nullptr || (row.allowed[token / 32] >> (token % 32) & 1) != 0;
        bad = bad || !isfinite(logit);
        const Scored mine{greedy ? static_cast<double>(logit) : exact_score(noise, logit, token), token};
        if (allowed && beats(mine, best)) best = mine;
      }
      __syncthreads();  // the sums are read
    }
    if (args.rescored != nullptr && threadIdx.x == 0) atomicAdd(args.rescored, shared.listed);
    __syncthreads();  // the list is read
  }
  if (threadIdx.x >= 32) return;
  best = warp_best(best);
  bad = __any_sync(whole_warp, bad) != 0;
  std::uint32_t before = 0;
  if (lane == 0) {
    scratch.parts[index * screen_blocks_max + blockIdx.x] = {best.score, best.token, bad ? 1u : 0u};
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
    const volatile Scratch::Part& part = scratch.parts[index * screen_blocks_max + i];
    const Scored theirs{part.score, part.token};
    if (beats(theirs, best)) best = theirs;
    bad |= part.bad != 0;
  }
  best = warp_best(best);
  bad = __any_sync(whole_warp, bad) != 0;
  if (lane != 0) return;
  scratch.arrived[index] = 0;
  scratch.bars[index] = 0;
  publish(args.sampler, index, best.token, bad);
}

template <int Tiles>
cudaError_t screen(const ScreenedDrawArgs& args, std::uint32_t processors, cudaStream_t stream) {
  const std::size_t bytes = std::size_t{screen_steps(args.head.in)} * Tiles * 32 * sizeof(uint2);
  if (const cudaError_t error = allow_shared_memory(screen_kernel<Tiles>, bytes); error != cudaSuccess) return error;
  return launch(screen_kernel<Tiles>, {.grid = processors, .block = 32 * screen_warps, .shared_bytes = bytes}, stream, args);
}

}  // namespace

cudaError_t make_head_screen(const PackedMatrix& head, const HeadScreen& screen, cudaStream_t stream) {
  if (!supports_screen(head)) return cudaErrorInvalidValue;
  make_screen_kernel<<<ceil_div(head.row_tiles(), making_warps), 32 * making_warps, 0, stream>>>(head, screen);
  return cudaGetLastError();
}

cudaError_t draw_screened(const ScreenedDrawArgs& args, std::uint32_t processors, cudaStream_t stream) {
  const std::uint32_t count = args.sampler.count;
  if (count > screen_rows_max || !supports_screen(args.head) || args.screen.codes == nullptr || args.sampler.vocabulary != args.head.out)
    return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const cudaError_t error = count <= columns_of_tile ? screen<1>(args, processors, stream) : screen<2>(args, processors, stream);
  if (error != cudaSuccess) return error;
  const std::uint32_t blocks = std::min(std::max(2 * processors / count, 1u), screen_blocks_max);
  return launch(settle_kernel, {.grid = dim3(blocks, count), .block = 32 * k_segments(args.head.in)}, stream, args);
}

}  // namespace althing::gpu::cuda
