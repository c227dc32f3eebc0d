// Rows with filters or logprobs: a cluster of 8 blocks holds the row in shared memory, finds where each filter cuts the order of tokens, and draws
// from what is left. Which threads hold which tokens depends on the vocabulary only, counts and masses are added as integers, and sums in double run
// in one order: a row gives the same bits whatever is beside it.
#pragma once

#include <cstdint>

#include "gpu/cuda/cluster.cuh"
#include "gpu/cuda/intrinsics.cuh"
#include "gpu/cuda/sampler_score.cuh"

namespace althing::gpu::cuda {

inline constexpr std::uint32_t filter_warps = filter_threads / 32;
inline constexpr std::uint32_t filter_bins = 512;  // one a thread
inline constexpr std::uint32_t filter_bin_bits = 9;
inline constexpr std::uint32_t mass_pieces = 4;  // 15 bits each
inline constexpr std::uint32_t gathered_max = 256;
static_assert(filter_bins == filter_threads && filter_bins == 1u << filter_bin_bits && gathered_max <= filter_threads &&
              logprobs_max <= gathered_max);

// What is known of a row, or of a part of it, after the first look.
struct RowFacts {
  std::uint64_t top;           // the first place
  std::uint32_t lowest;        // the smallest key
  std::uint32_t warp_floor;    // each warp has a token with this key or a larger one
  std::uint32_t thread_floor;  // each thread has
  std::uint32_t count;         // tokens that take part
  std::uint32_t nonfinite;
};

struct FilterShared {
  union {
    std::uint32_t counters[(1 + mass_pieces) * filter_bins];  // tokens; pieces of their mass
    struct {
      std::uint64_t gathered[gathered_max], sorted[gathered_max];
    } places;
  };
  RowFacts warp_facts[filter_warps], block_facts, facts;
  double warp_sums[filter_warps], sum;
  Scored warp_bests[filter_warps], best;
  struct {
    double above;
    std::uint32_t bin, count;
    std::uint64_t place;
  } outcome;                     // of a search, written by block 0
  std::uint32_t gathered_count;  // of block 0; 0 whenever no gathering is under way
  std::uint32_t crossing, last;
  std::uint32_t wanted[filter_warps];
};

template <class T>
__device__ __forceinline__ T& of_block(T& mine, std::uint32_t rank) {
  return *static_cast<T*>(__cluster_map_shared_rank(&mine, rank));
}

__device__ __forceinline__ RowFacts no_facts() { return {0, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0, 0}; }
__device__ __forceinline__ RowFacts warp_facts(const RowFacts& mine) {
  RowFacts all;
  const auto key = static_cast<std::uint32_t>(mine.top >> 32);
  const std::uint32_t best = __reduce_max_sync(whole_warp, key);
  all.top = (std::uint64_t{best} << 32) | __reduce_max_sync(whole_warp, key == best ? static_cast<std::uint32_t>(mine.top) : 0u);
  all.lowest = __reduce_min_sync(whole_warp, mine.lowest);
  all.warp_floor = __reduce_min_sync(whole_warp, mine.warp_floor);
  all.thread_floor = __reduce_min_sync(whole_warp, mine.thread_floor);
  all.count = __reduce_add_sync(whole_warp, mine.count);
  all.nonfinite = __reduce_or_sync(whole_warp, mine.nonfinite);
  return all;
}

// A token's weight in a softmax, relative to the most likely one's: exp((logit - highest) / temperature).
struct Weigher {
  double highest;
  double inverse;
  float highest_single;
  float inverse_single;
  __device__ double operator()(float logit) const { return exp((static_cast<double>(logit) - highest) * inverse); }
  // e^-50 of the most likely one: all tokens of a vocabulary together would not move a sum in double by more than its last bits.
  __device__ bool is_negligible(float logit) const { return (highest_single - logit) * inverse_single > 50.0F; }
};
__device__ __forceinline__ Weigher weigher(float highest, double temperature) {
  return {highest, 1.0 / temperature, highest, static_cast<float>(1.0 / temperature)};
}

// A part of the order, cut into bins; bin 0 comes first in the order. A search starts with bins of equal width in logits, which spread tokens well,
// and goes on with bins of equal numbers of places, which end at single places.
struct Bins {
  std::uint64_t low, high;  // both inside
  float top, scale;
  std::int32_t shift;  // negative: by logit

  __device__ std::uint32_t by_logit(float logit) const { return min(filter_bins - 1, __float2uint_rz((top - logit) * scale)); }
  // filter_bins: outside.
  __device__ std::uint32_t of(float logit, std::uint64_t place) const {
    if (place < low || place > high) return filter_bins;
    return shift < 0 ? by_logit(logit) : static_cast<std::uint32_t>((high - place) >> shift);
  }
  // The smallest key whose bin is at most `bin`. by_logit never rises with the key, because each of its steps is monotonic.
  __device__ std::uint32_t smallest_key(std::uint32_t bin) const {
    auto below = static_cast<std::uint32_t>(low >> 32), inside = static_cast<std::uint32_t>(high >> 32);
    while (below < inside) {
      const std::uint32_t middle = below + (inside - below) / 2;
      if (by_logit(logit_of(middle)) <= bin)
        inside = middle;
      else
        below = middle + 1;
    }
    return inside;
  }
  // The bin alone, cut anew. last_id: ~ of the largest token id, the least that the lower half of a place can be.
  __device__ Bins inside(std::uint32_t bin, std::uint32_t last_id) const {
    Bins next{low, high, 0, 0, 0};
    if (shift < 0) {
      next.low = max(low, (std::uint64_t{smallest_key(bin)} << 32) | last_id);
      if (bin > 0) next.high = (std::uint64_t{smallest_key(bin - 1)} << 32) - 1;
    } else {
      const std::uint64_t end = ((std::uint64_t{bin} + 1) << shift) - 1;
      next.high = high - (std::uint64_t{bin} << shift);
      next.low = end >= high - low ? low : high - end;
    }
    const int bits = 64 - __clzll(static_cast<long long>(next.high - next.low));
    next.shift = max(0, bits - static_cast<int>(filter_bin_bits));
    return next;
  }
};

__device__ __forceinline__ Bins bins_between(std::uint64_t low, std::uint64_t high) {
  const float top = logit_at(high);
  return {low, high, top, static_cast<float>(filter_bins) / (top - logit_at(low)), -1};
}

// One block's share of a row. Every function is called by all threads of all 8 blocks alike, unless it says otherwise.
struct FilterRow {
  FilterShared& shared;
  float* slice;  // tokens that take no part: -infinity
  std::uint32_t rank, first, length, last_id;
  const RowFacts& facts;  // in shared memory: registers are scarce

  __device__ void load(const RowView& view);
  __device__ double sum_of_weights(const Weigher& weigh, std::uint64_t from);
  template <bool Weighted>
  __device__ std::uint64_t find(Bins bins, double need, const Weigher& weigh);
  __device__ std::uint64_t find_count(std::uint32_t count);
  __device__ std::uint64_t first_kept(const SamplerRow& row);
  __device__ std::uint32_t draw(const SamplerRow& row);
  __device__ void report(const SamplerArgs& args, std::uint32_t index, std::uint32_t chosen);

 private:
  template <bool Weighted>
  __device__ void count_bins(const Bins& bins, const Weigher& weigh);
  template <bool Weighted>
  __device__ void choose_bin(double above, double need);
  template <bool Weighted>
  __device__ void settle(double above, double need, const Weigher& weigh);
  __device__ void gather(std::uint64_t place) {
    const std::uint32_t slot = atomicAdd(&of_block(shared.gathered_count, 0), 1u);
    if (slot < gathered_max) of_block(shared.places.gathered, 0)[slot] = place;
  }
  // Block 0 alone. Sorts what was gathered, first place first, and returns how many there are.
  __device__ std::uint32_t sort_gathered();
};

// The slice into shared memory, and the facts of the whole row.
__device__ __forceinline__ void FilterRow::load(const RowView& view) {
  const std::uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  // Each thread reads back only what it copied itself.
  for (std::uint32_t i = 4 * thread; i < length; i += 4 * filter_threads) {
    if (view.aligned)
      copy_async_16(shared_address(slice + i), view.logits + first + i);
    else
      *reinterpret_cast<float4*>(slice + i) = load_four(view, first + i);
  }
  copy_async_commit();
  copy_async_wait<0>();
  float highest = -INFINITY, lowest = INFINITY, poison = 0;
  std::uint32_t best = no_token, count = 0;
  for (std::uint32_t i = 4 * thread; i < length; i += 4 * filter_threads) {
    float4 four = *reinterpret_cast<const float4*>(slice + i);
    const std::uint32_t live = live_four(view, first + i);
    float* const values[4] = {&four.x, &four.y, &four.z, &four.w};
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      float& value = *values[j];
      poison = fmaf(value, 0.0F, poison);  // NaN from the first infinity or NaN on
      if ((live >> j & 1) == 0) {
        value = -INFINITY;
        continue;
      }
      if (value > highest) highest = value, best = first + i + j;
      lowest = fminf(lowest, value);
    }
    count += __popc(live);
    if (live != 0xF) *reinterpret_cast<float4*>(slice + i) = four;
  }
  RowFacts mine = no_facts();
  if (count != 0) mine.top = place_of(highest, best), mine.lowest = order_key(lowest);
  mine.thread_floor = static_cast<std::uint32_t>(mine.top >> 32);
  mine.count = count;
  mine.nonfinite = poison != poison;
  mine = warp_facts(mine);
  mine.warp_floor = static_cast<std::uint32_t>(mine.top >> 32);
  if (lane == 0) shared.warp_facts[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    mine = warp_facts(lane < filter_warps ? shared.warp_facts[lane] : no_facts());
    if (lane == 0) shared.block_facts = mine;
  }
  cluster_sync();
  if (warp == 0) {
    mine = warp_facts(lane < filter_blocks ? of_block(shared.block_facts, lane) : no_facts());
    if (lane == 0) shared.facts = mine;
  }
  __syncthreads();
}

// Of tokens at `from` or before it in the order. A later barrier of the cluster must come before the next call: searches and the end of a row have
// one.
__device__ __forceinline__ double FilterRow::sum_of_weights(const Weigher& weigh, std::uint64_t from) {
  const std::uint32_t thread = threadIdx.x;
  double sum = 0;
  for (std::uint32_t i = thread; i < length; i += filter_threads) {
    const float logit = slice[i];
    if (!weigh.is_negligible(logit) && place_of(logit, first + i) >= from) sum += weigh(logit);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(whole_warp, sum, distance);
  if (thread % 32 == 0) shared.warp_sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) {
    sum = 0;
    for (std::uint32_t w = 0; w < filter_warps; ++w) sum += shared.warp_sums[w];
    shared.sum = sum;
  }
  cluster_sync();
  sum = 0;
  for (std::uint32_t r = 0; r < filter_blocks; ++r) sum += of_block(shared.sum, r);
  return sum;
}

template <bool Weighted>
__device__ __forceinline__ void FilterRow::count_bins(const Bins& bins, const Weigher& weigh) {
  constexpr std::uint32_t words = Weighted ? (1 + mass_pieces) * filter_bins : filter_bins;
  for (std::uint32_t i = threadIdx.x; i < words; i += filter_threads) shared.counters[i] = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < length; i += filter_threads) {
    const float logit = slice[i];
    const std::uint32_t bin = bins.of(logit, place_of(logit, first + i));
    if (bin == filter_bins) continue;
    atomicAdd(shared.counters + bin, 1u);
    if constexpr (Weighted) {
      // Fixed point, 60 bits, in pieces whose sums over a slice (below 2^16 tokens) fit a word.
      const auto mass = static_cast<std::uint64_t>(weigh(logit) * 0x1p60);
#pragma unroll
      for (std::uint32_t p = 0; p < mass_pieces; ++p) {
        const auto piece = static_cast<std::uint32_t>(mass >> (45 - 15 * p)) & (p == 0 ? 0xFFFFu : 0x7FFFu);
        if (piece != 0) atomicAdd(shared.counters + (1 + p) * filter_bins + bin, piece);
      }
    }
  }
}

struct Prefix {
  double inclusive, exclusive;
};
// Of one value a thread, in the order of threads. Has one barrier.
__device__ __forceinline__ Prefix block_prefix(FilterShared& shared, double mine) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double sum = mine;
#pragma unroll
  for (std::uint32_t distance = 1; distance < 32; distance *= 2) {
    const double other = __shfl_up_sync(whole_warp, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) shared.warp_sums[warp] = sum;
  const double before_me = __shfl_up_sync(whole_warp, sum, 1);
  __syncthreads();
  double before = 0;
#pragma unroll 4
  for (std::uint32_t w = 0; w < warp; ++w) before += shared.warp_sums[w];
  return {before + sum, before + (lane == 0 ? 0.0 : before_me)};
}

// Block 0 alone: the first bin with which the mass above and in it reaches `need`; the last one with tokens where rounding lets none.
template <bool Weighted>
__device__ __forceinline__ void FilterRow::choose_bin(double above, double need) {
  const std::uint32_t bin = threadIdx.x;
  std::uint32_t count = 0;
  std::uint64_t pieces[mass_pieces] = {};
#pragma unroll 2
  for (std::uint32_t r = 0; r < filter_blocks; ++r) {
    const std::uint32_t* counters = of_block(shared.counters, r);
    count += counters[bin];
    if constexpr (Weighted)
#pragma unroll
      for (std::uint32_t p = 0; p < mass_pieces; ++p) pieces[p] += counters[(1 + p) * filter_bins + bin];
  }
  double mass = count;
  if constexpr (Weighted)
    mass = static_cast<double>((pieces[0] << 15) + pieces[1]) * 0x1p-30 + static_cast<double>((pieces[2] << 15) + pieces[3]) * 0x1p-60;
  if (bin == 0) shared.crossing = filter_bins, shared.last = 0;
  const Prefix prefix = block_prefix(shared, mass);
  if (count != 0) {
    atomicMax(&shared.last, bin);
    if (above + prefix.inclusive >= need) atomicMin(&shared.crossing, bin);
  }
  __syncthreads();
  if (bin != (shared.crossing < filter_bins ? shared.crossing : shared.last)) return;
#pragma unroll 1
  for (std::uint32_t r = 0; r < filter_blocks; ++r) {
    auto& outcome = of_block(shared.outcome, r);
    outcome.above = above + prefix.exclusive;
    outcome.bin = bin;
    outcome.count = count;
  }
}

__device__ __forceinline__ std::uint32_t FilterRow::sort_gathered() {
  const std::uint32_t thread = threadIdx.x, count = min(gathered_max, shared.gathered_count);
  if (thread < count) {
    const std::uint64_t mine = shared.places.gathered[thread];
    std::uint32_t before = 0;
#pragma unroll 4
    for (std::uint32_t i = 0; i < count; ++i) before += shared.places.gathered[i] > mine;
    shared.places.sorted[before] = mine;
  }
  __syncthreads();
  if (thread == 0) shared.gathered_count = 0;
  return count;
}

// Block 0 alone: the same among the gathered tokens, one by one.
template <bool Weighted>
__device__ __forceinline__ void FilterRow::settle(double above, double need, const Weigher& weigh) {
  const std::uint32_t thread = threadIdx.x;
  const std::uint32_t count = sort_gathered();
  if (thread == 0) shared.crossing = count - 1;
  double mass = 0;
  if (thread < count) mass = Weighted ? weigh(logit_at(shared.places.sorted[thread])) : 1.0;
  const Prefix prefix = block_prefix(shared, mass);
  if (thread < count && above + prefix.inclusive >= need) atomicMin(&shared.crossing, thread);
  __syncthreads();
  if (thread < filter_blocks) of_block(shared.outcome, thread).place = shared.places.sorted[shared.crossing];
}

// The first place with which the mass (weights, or 1 a token) of all places from bins.high down to it reaches `need`. REQUIRES: a token in the bins.
template <bool Weighted>
__device__ __forceinline__ std::uint64_t FilterRow::find(Bins bins, double need, const Weigher& weigh) {
  double above = 0;
  while (true) {
    count_bins<Weighted>(bins, weigh);
    cluster_sync();
    if (rank == 0) choose_bin<Weighted>(above, need);
    cluster_sync();
    above = shared.outcome.above;
    if (shared.outcome.count <= gathered_max) break;
    bins = bins.inside(shared.outcome.bin, last_id);
  }
  // Block 0 has read all counters; its own make room for the places.
  const std::uint32_t bin = shared.outcome.bin;
  for (std::uint32_t i = threadIdx.x; i < length; i += filter_threads) {
    const std::uint64_t place = place_of(slice[i], first + i);
    if (bins.of(slice[i], place) == bin) gather(place);
  }
  cluster_sync();
  if (rank == 0) settle<Weighted>(above, need, weigh);
  cluster_sync();
  return shared.outcome.place;
}

// The place of the count-th token, where the row has more. As many threads, or warps, have a token at their floor or above, so the search starts
// there.
__device__ __forceinline__ std::uint64_t FilterRow::find_count(std::uint32_t count) {
  std::uint32_t floor = facts.lowest;
  if (count <= filter_blocks * filter_threads) floor = max(floor, facts.thread_floor);
  if (count <= filter_blocks * filter_warps) floor = max(floor, facts.warp_floor);
  return find<false>(bins_between((std::uint64_t{floor} << 32) | last_id, facts.top), count, {});
}

// The last place that all filters of the row keep.
__device__ __forceinline__ std::uint64_t FilterRow::first_kept(const SamplerRow& row) {
  const float highest = logit_at(facts.top);
  const double temperature = row.temperature;
  std::uint64_t kept = (std::uint64_t{facts.lowest} << 32) | last_id;
  std::uint32_t count = facts.count;
  if (row.top_k != 0 && row.top_k < count) {
    count = row.top_k;
    kept = find_count(count);
  }
  if (row.top_p < 1.0F) {
    const Weigher weigh = weigher(highest, temperature);
    const double top_p = row.top_p;
    const double total = sum_of_weights(weigh, kept);
    // Tokens that are further below the most likely one than this cannot hold the missing 1 - top_p, not even all of them.
    const double distance = log(count / ((1.0 - top_p) * total)) + 0.01;
    const std::uint32_t floor = max(facts.lowest, order_key(__double2float_rd(highest - distance * temperature)));
    kept = find<true>(bins_between(max(kept, (std::uint64_t{floor} << 32) | last_id), facts.top), top_p * total, weigh);
  }
  if (row.min_p > 0.0F) {
    const double floor = __dadd_rn(highest, __dmul_rn(temperature, log(static_cast<double>(row.min_p))));
    kept = max(kept, std::uint64_t{order_key(__double2float_ru(floor))} << 32);
  }
  return kept;
}

// The drawn token; only in the first warp of block 0.
__device__ __forceinline__ std::uint32_t FilterRow::draw(const SamplerRow& row) {
  if (is_greedy(row)) return token_at(facts.top);
  const std::uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const std::uint64_t kept = first_kept(row);
  const Noise noise = noise_of(row);
  constexpr int share = 4;
  Scored best = nothing_scored();
  for (std::uint32_t start = 0; start < length; start += share * filter_threads) {
    float logits[share], bounds[share];
    std::uint32_t tokens[share];
#pragma unroll
    for (int j = 0; j < share; ++j) {
      const std::uint32_t i = start + j * filter_threads + thread;
      tokens[j] = first + i;
      logits[j] = i < length ? slice[i] : -INFINITY;
      bounds[j] = -INFINITY;
      if (place_of(logits[j], tokens[j]) >= kept) bounds[j] = score_bound(logits[j], noise_bits(noise.key, tokens[j]), noise.inverse_temperature);
    }
    contend(best, noise, logits, tokens, bounds);
  }
  if (lane == 0) shared.warp_bests[warp] = best;
  __syncthreads();
  if (warp == 0) {
    best = warp_best(lane < filter_warps ? shared.warp_bests[lane] : nothing_scored());
    if (lane == 0) shared.best = best;
  }
  cluster_sync();
  if (rank == 0 && warp == 0) best = warp_best(lane < filter_blocks ? of_block(shared.best, lane) : nothing_scored());
  return best.token;
}

__device__ __forceinline__ void FilterRow::report(const SamplerArgs& args, std::uint32_t index, std::uint32_t chosen) {
  const float highest = logit_at(facts.top);
  const double normaliser = highest + log(sum_of_weights(weigher(highest, 1.0), 0));
  const std::uint32_t asked = min(logprobs_max, args.rows[index].logprobs);
  const std::uint64_t last = asked < facts.count ? find_count(asked) : (std::uint64_t{facts.lowest} << 32) | last_id;
  for (std::uint32_t i = threadIdx.x; i < length; i += filter_threads) {
    const std::uint64_t place = place_of(slice[i], first + i);
    if (place >= last) gather(place);
  }
  cluster_sync();
  if (rank != 0) return;
  const std::uint32_t thread = threadIdx.x, count = sort_gathered();
  if (thread < asked) {
    const std::uint64_t at = std::uint64_t{index} * logprobs_max + thread;
    const bool is_there = thread < count;
    const std::uint64_t place = is_there ? shared.places.sorted[thread] : 0;
    if (args.top_tokens != nullptr) args.top_tokens[at] = is_there ? static_cast<std::int32_t>(token_at(place)) : -1;
    if (args.top_logprobs != nullptr) args.top_logprobs[at] = is_there ? static_cast<float>(logit_at(place) - normaliser) : -INFINITY;
  }
  if (thread == 0 && args.chosen_logprobs != nullptr)
    args.chosen_logprobs[index] = static_cast<float>(args.logits[std::uint64_t{index} * args.vocabulary + chosen] - normaliser);
}

}  // namespace althing::gpu::cuda
