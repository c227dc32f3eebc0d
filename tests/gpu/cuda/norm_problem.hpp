// Random steps for the tests of norm.hpp, on the host, and runs of them on the device for any choice of their tokens. A result belongs to a token
// wherever it stood in its batch, so results of two runs can be compared token by token. Everything that a run may write is poisoned first, with room
// behind it, and comes back whole.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "gpu/cuda/norm.hpp"
#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/cuda/host_packing.hpp"

namespace althing::tests {

inline constexpr float norm_epsilon = 1e-2F;   // large enough that leaving it out shows
inline constexpr unsigned char poison = 0x7F;  // of integers, where -1 means something; 0x7F7F7F7F is no index of any test
inline constexpr std::uint32_t poison_word = 0x7F7F7F7Fu;
inline constexpr std::uint32_t stride_beyond = 8;  // elements of a normed row that nobody writes

using Picked = std::vector<std::uint32_t>;  // tokens of a problem, in the order of a batch

inline Picked first_tokens(std::uint32_t count) {
  Picked all(count);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}
// `count` different tokens of `of`, in random order.
inline Picked some_tokens(std::uint32_t count, std::uint32_t of, std::mt19937& random) {
  Picked all = first_tokens(of);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

template <class T>
std::vector<T> rows_of(const std::vector<T>& all, const Picked& picked, std::size_t width = 1) {
  std::vector<T> rows;
  for (const std::uint32_t t : picked) rows.insert(rows.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
  return rows;
}

// Whether row i of `some` is row picked[i] of `all`, to the bit.
template <class T>
bool same_rows(const std::vector<T>& some, const std::vector<T>& all, const Picked& picked, std::size_t width) {
  for (std::size_t i = 0; i < picked.size(); ++i)
    if (std::memcmp(some.data() + i * width, all.data() + picked[i] * width, width * sizeof(T)) != 0) return false;
  return true;
}

inline std::vector<float> normal_floats(std::size_t size, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(size);
  for (float& v : values) v = normal(random);
  return values;
}

// Rows of tokens; every `padding_every`-th is -1 (0: none).
inline std::vector<std::int32_t> token_rows(std::uint32_t tokens, std::uint32_t padding_every) {
  std::vector<std::int32_t> rows(tokens);
  for (std::uint32_t t = 0; t < tokens; ++t)
    rows[t] = padding_every != 0 && t % padding_every == padding_every - 1 ? -1 : static_cast<std::int32_t>(t % 64);
  return rows;
}

// -- the begin of a step

struct BeginProblem {
  std::uint32_t hidden, tokens, vocabulary = 97, half = 32;
  float attention_factor = 1.25F;
  std::vector<std::uint16_t> table;
  std::vector<float> norm, frequencies;
  std::vector<std::int32_t> rows, positions, ids, last_drawn;
};

inline BeginProblem begin_problem(std::uint32_t hidden, std::uint32_t tokens, std::mt19937& random) {
  BeginProblem p{hidden, tokens};
  p.table = random_bf16(std::size_t{p.vocabulary} * hidden, random);
  p.norm = normal_floats(hidden, 1.0F, random);
  for (std::uint32_t i = 0; i < p.half; ++i) p.frequencies.push_back(std::pow(150000.0F, -static_cast<float>(i) / static_cast<float>(p.half)));
  p.rows = token_rows(tokens, 8);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    p.positions.push_back(static_cast<std::int32_t>(random() % 131072));
    p.ids.push_back(random() % 3 == 0 ? -1 : static_cast<std::int32_t>(random() % p.vocabulary));
  }
  for (std::uint32_t row = 0; row < 64; ++row) p.last_drawn.push_back(static_cast<std::int32_t>(random() % p.vocabulary));
  return p;
}

inline constexpr std::uint32_t begin_experts = 128, begin_updates = 700, begin_entries = 1000;

struct BeginResult {
  std::vector<float> residual, cosine, sine;
  std::vector<std::uint16_t> normed;
  std::vector<std::uint32_t> counts;
  std::vector<std::int32_t> entries;  // of a page table: entry 999 - i gets page i, for the first begin_updates
};

inline BeginResult run_begin(const BeginProblem& p, const Picked& picked) {
  const std::uint32_t count = static_cast<std::uint32_t>(picked.size()), stride = gpu::cuda::k_padded(p.hidden) + stride_beyond;
  const DeviceArray<std::uint16_t> table(p.table);
  const DeviceArray<float> norm(p.norm), frequencies(p.frequencies);
  const DeviceArray<std::int32_t> rows(rows_of(p.rows, picked)), positions(rows_of(p.positions, picked)), ids(rows_of(p.ids, picked));
  const DeviceArray<std::int32_t> last_drawn(p.last_drawn);
  DeviceArray<std::int32_t> entries(begin_entries);
  DeviceArray<std::uint32_t> counts(begin_experts + 4);
  entries.fill(poison), counts.fill(poison);
  std::vector<gpu::cuda::TableUpdate> list;
  for (std::uint32_t i = 0; i < begin_entries; ++i) list.push_back({entries.get() + begin_entries - 1 - i, static_cast<std::int32_t>(i)});
  const DeviceArray<gpu::cuda::TableUpdate> updates(list);
  const DeviceArray<std::uint32_t> update_count(std::vector<std::uint32_t>{begin_updates});
  const DeviceArray<float> residual((count + 1) * std::size_t{p.hidden}), cosine((count + 1) * p.half), sine((count + 1) * p.half);
  const DeviceArray<std::uint16_t> normed((count + 1) * std::size_t{stride});
  gpu::cuda::BeginArgs a;
  a.tokens = {rows.get(), positions.get(), count};
  a.ids = ids.get(), a.last_drawn = last_drawn.get();
  a.table = reinterpret_cast<const __nv_bfloat16*>(table.get());
  a.norm = norm.get(), a.epsilon = norm_epsilon, a.hidden = p.hidden, a.half = p.half;
  a.inverse_frequencies = frequencies.get(), a.attention_factor = p.attention_factor;
  a.updates = updates.get(), a.update_count = update_count.get();
  a.counts = counts.get(), a.experts = begin_experts;
  a.residual = residual.get(), a.normed = reinterpret_cast<__nv_bfloat16*>(normed.get()), a.stride = stride;
  a.cosine = cosine.get(), a.sine = sine.get();
  must(begin_step(a, nullptr));
  return {residual.host(), cosine.host(), sine.host(), normed.host(), counts.host(), entries.host()};
}

// -- the sum of the experts' outputs

struct CombineProblem {
  std::uint32_t hidden, tokens, choices, experts = 128;
  std::vector<float> residual, norm, weights, outputs;  // weights (tokens, choices); outputs (tokens, choices, hidden)
  std::vector<std::int32_t> rows;
};

// Outputs of tokens without a row are NaN: nobody computed them.
inline CombineProblem combine_problem(std::uint32_t hidden, std::uint32_t tokens, std::uint32_t choices, std::mt19937& random) {
  CombineProblem p{hidden, tokens, choices};
  p.residual = normal_floats(std::size_t{tokens} * hidden, 3.0F, random);
  p.norm = normal_floats(hidden, 1.0F, random);
  p.outputs = normal_floats(std::size_t{tokens} * choices * hidden, 2.0F, random);
  std::uniform_real_distribution<float> share(0.01F, 1.0F);
  for (std::uint32_t i = 0; i < tokens * choices; ++i) p.weights.push_back(share(random));
  p.rows = token_rows(tokens, 8);
  for (std::uint32_t t = 0; t < tokens; ++t)
    if (p.rows[t] < 0) std::fill_n(p.outputs.begin() + std::size_t{t} * choices * hidden, std::size_t{choices} * hidden, NAN);
  return p;
}

struct CombineResult {
  std::vector<float> residual;
  std::vector<std::uint16_t> normed;
  std::vector<std::uint32_t> counts;
};

inline CombineResult run_combine(const CombineProblem& p, const Picked& picked) {
  const std::uint32_t count = static_cast<std::uint32_t>(picked.size()), stride = gpu::cuda::k_padded(p.hidden) + stride_beyond;
  const DeviceArray<std::int32_t> rows(rows_of(p.rows, picked));
  auto with_room = rows_of(p.residual, picked, p.hidden);
  with_room.resize(with_room.size() + p.hidden, 7.0F);
  const DeviceArray<float> residual(with_room), norm(p.norm), weights(rows_of(p.weights, picked, p.choices));
  const DeviceArray<float> outputs(rows_of(p.outputs, picked, std::size_t{p.choices} * p.hidden));
  DeviceArray<std::uint32_t> counts(p.experts + 4);
  counts.fill(poison);
  const DeviceArray<std::uint16_t> normed((count + 1) * std::size_t{stride});
  gpu::cuda::CombineNormArgs a;
  a.tokens = {rows.get(), nullptr, count};
  a.routing.weights = weights.get(), a.routing.counts = counts.get();
  a.experts = p.experts, a.experts_per_token = p.choices, a.outputs = outputs.get();
  a.norm = norm.get(), a.epsilon = norm_epsilon, a.hidden = p.hidden;
  a.residual = residual.get(), a.normed = reinterpret_cast<__nv_bfloat16*>(normed.get()), a.stride = stride;
  must(combine_norm(a, nullptr));
  return {residual.host(), normed.host(), counts.host()};
}

// -- the router

struct RouteProblem {
  std::uint32_t hidden, tokens, experts, choices;
  std::vector<float> residual, norm, bias;
  HostMatrix weights;
  std::vector<std::int32_t> rows;
};

inline RouteProblem route_problem(std::uint32_t hidden, std::uint32_t tokens, std::uint32_t experts, std::uint32_t choices, std::mt19937& random) {
  RouteProblem p{hidden, tokens, experts, choices, {}, {}, {}, {}, {}};
  p.residual = normal_floats(std::size_t{tokens} * hidden, 3.0F, random);
  p.norm = normal_floats(hidden, 1.0F, random);
  p.bias = normal_floats(experts, 1.0F, random);
  p.weights = random_matrix(gpu::cuda::WeightFormat::bf16, gpu::cuda::RowOrder::natural, 0, experts, hidden, random);
  p.rows = token_rows(tokens, 8);
  return p;
}

// What may be left out.
struct RouteOptions {
  bool biased = true, watched = true;
};

struct RouteResult {
  std::uint32_t capacity = 0;
  std::vector<std::uint16_t> normed;
  std::vector<float> logits, weights;
  std::vector<std::int32_t> chosen, pairs;
  std::vector<std::uint32_t> counts;
  std::vector<unsigned long long> tallies;  // of two layers, the second of which is the step's; word i began at 1000 + i
  gpu::cuda::TallyLayout layout;
};

inline RouteResult run_route(const RouteProblem& p, const Picked& picked, RouteOptions options = {}) {
  const std::uint32_t count = static_cast<std::uint32_t>(picked.size()), stride = gpu::cuda::k_padded(p.hidden) + stride_beyond, capacity = count + 3;
  const DeviceArray<std::int32_t> rows(rows_of(p.rows, picked));
  const DeviceArray<float> residual(rows_of(p.residual, picked, p.hidden)), norm(p.norm), bias(p.bias);
  const DeviceArray<std::byte> tiles(p.weights.tiles);
  const DeviceArray<std::uint16_t> normed((count + 1) * std::size_t{stride});
  const DeviceArray<float> logits((count + 1) * std::size_t{p.experts}), weights((count + 1) * std::size_t{p.choices});
  DeviceArray<std::int32_t> chosen((count + 1) * std::size_t{p.choices}), pairs(std::size_t{p.experts + 1} * capacity);
  chosen.fill(poison), pairs.fill(poison);
  std::vector<std::uint32_t> zeros(p.experts + 4, 0);
  std::fill(zeros.begin() + p.experts, zeros.end(), poison_word);
  const DeviceArray<std::uint32_t> counts(zeros);
  const gpu::cuda::TallyLayout layout{2, p.experts, p.choices};
  std::vector<unsigned long long> before(layout.words() + 4);
  std::iota(before.begin(), before.end(), 1000ull);
  const DeviceArray<unsigned long long> tallies(before);
  gpu::cuda::NormRouteArgs a;
  a.tokens = {rows.get(), nullptr, count};
  a.residual = residual.get(), a.norm = norm.get(), a.epsilon = norm_epsilon, a.hidden = p.hidden;
  a.normed = reinterpret_cast<__nv_bfloat16*>(normed.get()), a.stride = stride;
  a.weights = {gpu::cuda::WeightFormat::bf16, tiles.get(), p.experts, p.hidden, 1};
  a.bias = options.biased ? bias.get() : nullptr;
  a.experts_per_token = p.choices;
  a.routing = {chosen.get(), weights.get(), counts.get(), pairs.get(), capacity};
  a.logits = options.watched ? logits.get() : nullptr;
  if (options.watched) a.tallies = layout.of(tallies.get(), 1);
  must(norm_route(a, nullptr));
  return {capacity, normed.host(), logits.host(), weights.host(), chosen.host(), pairs.host(), counts.host(), tallies.host(), layout};
}

}  // namespace althing::tests
