// The GPU's draws against the CPU's, token for token; penalties, biases, masks and logprobs against plain sums in double; and the promise that a
// row's result does not depend on the rows beside it.
#include "gpu/cuda/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gpu/sampling.hpp"
#include "tests/gpu/cuda/device_array.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

// A row as a test writes it: lists live on the host.
struct HostRow {
  std::vector<float> logits;
  SamplerRow row;
  std::vector<SeenToken> seen;
  std::vector<LogitBias> bias;
  std::vector<std::uint32_t> allowed;  // empty: all

  bool allows(std::uint32_t token) const { return allowed.empty() || (allowed[token / 32] >> (token % 32) & 1) != 0; }
};

struct Drawn {
  std::vector<DrawnRow> rows;
  std::vector<float> logits;  // after adjustments
  std::vector<std::int32_t> last_token;
  std::vector<float> chosen;
  std::vector<std::int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

constexpr std::int32_t rows_total = 1024;  // places of last_token
constexpr std::int32_t untouched = -1;     // what a poisoned integer reads

// One for all calls, as a server has it: each call must leave it as it found it.
void* scratch() {
  static DeviceArray<std::byte>* memory = [] {
    auto* made = new DeviceArray<std::byte>(sampler_scratch_bytes);
    made->fill(0);
    return made;
  }();
  return memory->get();
}

// A concatenation of lists on the device, and where each begins.
template <class T>
struct Lists {
  std::vector<T> all;
  std::vector<std::size_t> begins;
  std::optional<DeviceArray<T>> device;
  void add(const std::vector<T>& list) {
    begins.push_back(all.size());
    all.insert(all.end(), list.begin(), list.end());
  }
  void upload() { device.emplace(all); }
  const T* at(std::size_t index) const { return device->get() + begins[index]; }
};

struct DeviceBatch {
  explicit DeviceBatch(const std::vector<HostRow>& rows) : count(rows.size()), vocabulary(rows[0].logits.size()), outputs(count) {
    std::vector<float> all;
    for (const HostRow& r : rows) {
      all.insert(all.end(), r.logits.begin(), r.logits.end());
      seen.add(r.seen), bias.add(r.bias), allowed.add(r.allowed);
    }
    seen.upload(), bias.upload(), allowed.upload();
    std::vector<SamplerRow> device_rows;
    for (std::size_t i = 0; i < count; ++i) {
      SamplerRow row = rows[i].row;
      row.seen = seen.at(i), row.seen_count = static_cast<std::uint32_t>(rows[i].seen.size());
      row.bias = bias.at(i), row.bias_count = static_cast<std::uint32_t>(rows[i].bias.size());
      row.allowed = rows[i].allowed.empty() ? nullptr : allowed.at(i);
      device_rows.push_back(row);
    }
    logits.emplace(all);
    parameters.emplace(device_rows);
  }

  SamplerArgs args() const {
    SamplerArgs a;
    a.logits = logits->get(), a.rows = parameters->get();
    a.count = static_cast<std::uint32_t>(count), a.vocabulary = static_cast<std::uint32_t>(vocabulary);
    a.scratch = scratch();
    a.drawn = outputs.drawn.get(), a.last_token = outputs.last_token.get();
    a.chosen_logprobs = outputs.chosen.get(), a.top_tokens = outputs.top_tokens.get(), a.top_logprobs = outputs.top_logprobs.get();
    return a;
  }
  Drawn result() const {
    return {outputs.drawn.host(),       logits->host(), outputs.last_token.host(), outputs.chosen.host(), outputs.top_tokens.host(),
            outputs.top_logprobs.host()};
  }

  struct Outputs {
    explicit Outputs(std::size_t count)
        : drawn(count), last_token(rows_total), chosen(count), top_tokens(count * logprobs_max), top_logprobs(count * logprobs_max) {}
    DeviceArray<DrawnRow> drawn;
    DeviceArray<std::int32_t> last_token;
    DeviceArray<float> chosen;
    DeviceArray<std::int32_t> top_tokens;
    DeviceArray<float> top_logprobs;
  };
  std::size_t count, vocabulary;
  Lists<SeenToken> seen;
  Lists<LogitBias> bias;
  Lists<std::uint32_t> allowed;
  std::optional<DeviceArray<float>> logits;
  std::optional<DeviceArray<SamplerRow>> parameters;
  Outputs outputs;
};

Drawn run(const std::vector<HostRow>& rows) {
  const DeviceBatch batch(rows);
  must(sample(batch.args(), nullptr));
  return batch.result();
}

SamplingParameters host_parameters(const SamplerRow& row) {
  SamplingParameters p;
  p.temperature = row.temperature, p.top_p = row.top_p, p.top_k = row.top_k, p.min_p = row.min_p, p.seed = row.seed, p.choice = row.choice;
  return p;
}

// A token that is not allowed: so unlikely that it weighs nothing in any sum and never wins.
std::vector<float> masked(const HostRow& row, const float* logits) {
  std::vector<float> result(logits, logits + row.logits.size());
  for (std::uint32_t t = 0; t < result.size(); ++t)
    if (!row.allows(t)) result[t] = -1e30F;
  return result;
}

// Whether some prefix of the order holds top_p of the probability but for rounding: the one place where the two may differ.
bool is_on_the_edge(std::vector<float> logits, const SamplerRow& row) {
  std::sort(logits.begin(), logits.end(), std::greater<>());
  if (row.top_k != 0 && row.top_k < logits.size()) logits.resize(row.top_k);
  long double total = 0, sum = 0;
  for (const float l : logits) total += std::exp((static_cast<long double>(l) - logits[0]) / row.temperature);
  for (const float l : logits) {
    sum += std::exp((static_cast<long double>(l) - logits[0]) / row.temperature);
    if (std::fabs(sum / total - row.top_p) < 1e-12L) return true;
  }
  return false;
}

std::string text(const SamplerRow& r) {
  return "temperature " + std::to_string(r.temperature) + " top_k " + std::to_string(r.top_k) + " top_p " + std::to_string(r.top_p) + " min_p " +
         std::to_string(r.min_p) + " logprobs " + std::to_string(r.logprobs) + " seed " + std::to_string(r.seed);
}

// Every row's draw, from the logits that the device saw last. Returns how many were on the edge and differed.
int expect_cpu_draws(const std::vector<HostRow>& rows, const Drawn& drawn, const std::string& about) {
  int edges = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SamplerRow& row = rows[i].row;
    if (row.row < 0) continue;
    const auto logits = masked(rows[i], drawn.logits.data() + i * rows[i].logits.size());
    const auto expected = gpu::draw(logits, host_parameters(row), row.position);
    const DrawnRow got = drawn.rows[i];
    EXPECT_EQ(got.nonfinite, expected ? 0 : 1) << about << ", row " << i << ": " << text(row);
    EXPECT_EQ(drawn.last_token[static_cast<std::size_t>(row.row)], got.token);
    const auto token = static_cast<std::int32_t>(expected.value_or(0));
    if (got.token != token && row.top_p < 1 && is_on_the_edge(logits, row))
      ++edges;
    else
      EXPECT_EQ(got.token, token) << about << ", row " << i << ": " << text(row);
  }
  return edges;
}

enum class Style { normal, peaked, steps, equal, two_levels, wild, bf16, slope };
constexpr int styles = 8;

std::vector<float> random_logits(Style style, std::uint32_t vocabulary, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocabulary);
  for (std::uint32_t t = 0; t < vocabulary; ++t) {
    float& l = logits[t];
    l = normal(random);
    if (style == Style::peaked && random() % 97 == 0) l += 15;
    if (style == Style::steps) l = std::round(2 * l) / 2 + 0.0F * l;
    if (style == Style::equal) l = -2.5F;
    if (style == Style::two_levels) l = random() % 10 == 0 ? 7.0F : 5.0F;
    if (style == Style::wild) l = std::ldexp(l, static_cast<int>(random() % 200) - 120) * (random() % 2 == 0 ? 1.0F : -1.0F);
    if (style == Style::bf16) l = bf16_value(bf16_bits(l));
    if (style == Style::slope) l = -0.01F * static_cast<float>(t);
  }
  return logits;
}

template <class T>
T pick(const std::vector<T>& from, std::mt19937& random) {
  return from[random() % from.size()];
}

HostRow random_row(Style style, std::uint32_t vocabulary, std::int32_t place, std::mt19937& random) {
  HostRow r;
  r.logits = random_logits(style, vocabulary, random);
  r.row.row = place;
  r.row.position = random() % 100'000;
  r.row.seed = (std::uint64_t{random()} << 32) | random();
  r.row.choice = random() % 3;
  r.row.temperature = pick<float>({0, 1e-30F, 0.1F, 0.7F, 1, 1, 1, 2}, random);
  if (random() % 2 == 0) r.row.top_k = pick<std::uint32_t>({1, 2, 50, 128, 129, 300, 5000, vocabulary, vocabulary + 1}, random);
  if (random() % 2 == 0) r.row.top_p = pick<float>({0.1F, 0.5F, 0.9F, 0.999F, 0.9999999F}, random);
  if (random() % 3 == 0) r.row.min_p = pick<float>({1e-6F, 0.05F, 0.5F, 1}, random);
  return r;
}

void allow_some(HostRow& row, double share, std::mt19937& random) {
  std::bernoulli_distribution is_allowed(share);
  row.allowed.assign((row.logits.size() + 31) / 32, 0);
  for (std::uint32_t t = 0; t < row.logits.size(); ++t)
    if (is_allowed(random)) row.allowed[t / 32] |= 1u << (t % 32);
  const auto kept = static_cast<std::uint32_t>(random() % row.logits.size());
  row.allowed[kept / 32] |= 1u << (kept % 32);
}

void draws_equal_the_cpu(std::uint32_t vocabulary, std::uint32_t count, int rounds) {
  int edges = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(vocabulary + 1000 * round);
    std::vector<HostRow> rows;
    for (std::uint32_t i = 0; i < count; ++i) {
      rows.push_back(random_row(static_cast<Style>((i + round) % styles), vocabulary, static_cast<std::int32_t>((i * 37 + 5) % rows_total), random));
      if (i % 5 == 4) allow_some(rows.back(), i % 2 == 0 ? 0.5 : 0.01, random);
      if (i % 7 == 6) rows.back().row.logprobs = 1 + i % 20;
    }
    edges += expect_cpu_draws(rows, run(rows), "round " + std::to_string(round));
  }
  EXPECT_LT(edges * 50, rounds * static_cast<int>(count) + 50) << "too many draws differ, even though each is on the edge of top-p";
}

TEST(CudaSampler, draws_equal_the_cpu_in_tiny_vocabularies) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {1u, 2u, 33u, 1000u}) draws_equal_the_cpu(vocabulary, 64, 6);
}
TEST(CudaSampler, draws_equal_the_cpu_in_small_vocabularies) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {2304u, 4099u, 50'257u}) draws_equal_the_cpu(vocabulary, 48, 5);
}
TEST(CudaSampler, draws_equal_the_cpu_in_full_and_large_vocabularies) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t count : {1u, 3u, 40u}) draws_equal_the_cpu(201'088, count, count == 40 ? 3 : 6);
  draws_equal_the_cpu(262'144, 8, 2);
}

// Every combination of the named settings, on logits as a model makes them.
TEST(CudaSampler, every_combination_of_filters) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t vocabulary = 2304;
  std::mt19937 random(3);
  for (const Style style : {Style::bf16, Style::peaked}) {
    std::vector<HostRow> rows;
    for (const float temperature : {0.0F, 0.6F, 1.0F})
      for (const std::uint32_t top_k : {0u, 1u, 2u, 50u, vocabulary + 1})
        for (const float top_p : {0.1F, 0.9F, 0.999F, 1.0F})
          for (const float min_p : {0.0F, 0.1F}) {
            HostRow r = random_row(style, vocabulary, static_cast<std::int32_t>(rows.size()), random);
            r.row.temperature = temperature, r.row.top_k = top_k, r.row.top_p = top_p, r.row.min_p = min_p;
            rows.push_back(r);
          }
    EXPECT_EQ(expect_cpu_draws(rows, run(rows), "combination"), 0);
  }
}

TEST(CudaSampler, a_nonfinite_logit_voids_the_draw) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {33u, 201'088u}) {
    std::mt19937 random(vocabulary);
    std::vector<HostRow> rows;
    for (int i = 0; i < 24; ++i) {
      rows.push_back(random_row(Style::normal, vocabulary, i, random));
      if (i % 3 == 1) allow_some(rows.back(), 0.3, random);
      rows.back().row.logprobs = i % 2;
      const float bad = pick<float>({NAN, INFINITY, -INFINITY}, random);
      if (i % 4 != 0) rows.back().logits[random() % vocabulary] = bad;
      if (i == 5) std::fill(rows.back().logits.begin(), rows.back().logits.end(), NAN);
    }
    const Drawn drawn = run(rows);
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(drawn.rows[i].nonfinite, i % 4 != 0) << vocabulary << ", row " << i << ": " << text(rows[i].row);
      if (i % 4 != 0) EXPECT_EQ(drawn.rows[i].token, 0);
    }
  }
}

TEST(CudaSampler, masks_of_one_token_and_of_none) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t vocabulary = 1000;
  std::mt19937 random(11);
  std::vector<HostRow> rows;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(random_row(Style::normal, vocabulary, i, random));
    rows.back().allowed.assign((vocabulary + 31) / 32, 0);
    rows.back().row.logprobs = i % 3;
    if (i % 2 == 0) rows.back().allowed[(25 * i) / 32] = 1u << (25 * i % 32);
    if (i % 4 == 3) rows.back().allowed.back() = 0xFFFFFF00u;  // only tokens beyond the vocabulary
  }
  const Drawn drawn = run(rows);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(drawn.rows[i].nonfinite, i % 2) << i;
    EXPECT_EQ(drawn.rows[i].token, i % 2 == 0 ? 25 * i : 0) << i;
  }
}

TEST(CudaSampler, penalties_and_biases_change_the_logits_first) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {33u, 2304u, 201'088u}) {
    std::mt19937 random(vocabulary);
    std::uniform_real_distribution<float> near(-2, 2);
    std::vector<HostRow> rows;
    for (int i = 0; i < 16; ++i) {
      HostRow r = random_row(Style::normal, vocabulary, i, random);
      std::vector<std::int32_t> tokens(vocabulary);
      std::iota(tokens.begin(), tokens.end(), 0);
      std::shuffle(tokens.begin(), tokens.end(), random);
      for (std::uint32_t t = 0; t < std::min(vocabulary / 2, 3000u); ++t) r.seen.push_back({tokens[t], static_cast<std::uint32_t>(random() % 4)});
      for (std::uint32_t t = 0; t < std::min(vocabulary, 700u) && i % 2 == 0; ++t) r.bias.push_back({tokens[vocabulary - 1 - t], 20 * near(random)});
      if (i % 2 == 0) r.bias.push_back({static_cast<std::int32_t>(vocabulary), 5}), r.seen.push_back({-1, 1});
      if (i % 4 != 1) r.row.repetition_penalty = 1.3F;
      if (i % 4 != 2) r.row.presence_penalty = near(random);
      if (i % 4 != 3) r.row.frequency_penalty = near(random);
      rows.push_back(r);
    }
    const Drawn drawn = run(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const HostRow& r = rows[i];
      std::vector<double> expected(r.logits.begin(), r.logits.end());
      for (const SeenToken& s : r.seen) {
        if (s.token < 0) continue;
        double& l = expected[static_cast<std::size_t>(s.token)];
        l = l > 0 ? l / r.row.repetition_penalty : l * r.row.repetition_penalty;
        l -= s.output_count * double{r.row.frequency_penalty} + (s.output_count > 0 ? r.row.presence_penalty : 0.0);
      }
      for (const LogitBias& b : r.bias)
        if (b.token < static_cast<std::int32_t>(vocabulary)) expected[static_cast<std::size_t>(b.token)] += b.bias;
      double error = 0;
      for (std::uint32_t t = 0; t < vocabulary; ++t) error = std::max(error, std::fabs(expected[t] - drawn.logits[i * vocabulary + t]));
      EXPECT_LT(error, 1e-5) << vocabulary << ", row " << i;
    }
    expect_cpu_draws(rows, drawn, "adjusted");
  }
}

void expect_logprobs(const HostRow& r, const Drawn& drawn, std::size_t i) {
  const std::uint32_t asked = std::min(r.row.logprobs, logprobs_max);
  std::vector<std::uint32_t> order;
  for (std::uint32_t t = 0; t < r.logits.size(); ++t)
    if (r.allows(t)) order.push_back(t);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return r.logits[a] > r.logits[b]; });
  double total = 0;
  for (const std::uint32_t t : order) total += std::exp(double{r.logits[t]} - r.logits[order[0]]);
  const auto expected = [&](std::uint32_t t) { return double{r.logits[t]} - r.logits[order[0]] - std::log(total); };
  const auto near = [](double value) { return 1e-6 + 2e-7 * std::fabs(value); };
  if (asked > 0) {
    const double chosen = expected(static_cast<std::uint32_t>(drawn.rows[i].token));
    EXPECT_NEAR(drawn.chosen[i], chosen, near(chosen)) << i;
  } else {
    EXPECT_TRUE(std::isnan(drawn.chosen[i]));
  }
  for (std::uint32_t n = 0; n < logprobs_max; ++n) {
    const std::size_t at = i * logprobs_max + n;
    if (n < asked && n < order.size()) {
      EXPECT_EQ(drawn.top_tokens[at], static_cast<std::int32_t>(order[n])) << "row " << i << ", " << n;
      EXPECT_NEAR(drawn.top_logprobs[at], expected(order[n]), near(expected(order[n])));
    } else {
      EXPECT_EQ(drawn.top_tokens[at], -1);
      if (n < asked)
        EXPECT_EQ(drawn.top_logprobs[at], -INFINITY);
      else
        EXPECT_TRUE(std::isnan(drawn.top_logprobs[at]));
    }
  }
}

TEST(CudaSampler, logprobs_are_of_the_distribution_before_the_filters) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {5u, 1000u, 201'088u}) {
    std::mt19937 random(vocabulary + 1);
    std::vector<HostRow> rows;
    for (int i = 0; i < 40; ++i) {
      rows.push_back(random_row(static_cast<Style>(i % 5), vocabulary, i, random));
      rows.back().row.logprobs = pick<std::uint32_t>({0, 1, 2, 5, 19, 20, 33}, random);
      if (i % 3 == 1) allow_some(rows.back(), i % 2 == 0 ? 0.5 : 1e-4, random);
    }
    const Drawn drawn = run(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) expect_logprobs(rows[i], drawn, i);
    expect_cpu_draws(rows, drawn, "logprobs");
  }
}

TEST(CudaSampler, bits_do_not_depend_on_the_rows_beside) {
  ALTHING_NEEDS_GPU();
  constexpr std::uint32_t vocabulary = 50'257;
  std::mt19937 random(17);
  std::vector<HostRow> rows;
  for (int i = 0; i < 200; ++i) {
    rows.push_back(random_row(static_cast<Style>(i % styles), vocabulary, i, random));
    rows.back().row.logprobs = i % 3 == 0 ? 7 : 0;
    if (i % 9 == 0) rows.back().row.row = -1;
  }
  const Drawn all = run(rows);
  for (const std::size_t count : {1u, 2u, 5u, 16u, 70u}) {
    std::vector<HostRow> some;
    std::vector<std::size_t> from;
    for (std::size_t i = 0; i < count; ++i) from.push_back(random() % rows.size());
    std::sort(from.begin(), from.end());
    from.erase(std::unique(from.begin(), from.end()), from.end());
    for (const std::size_t i : from) some.push_back(rows[i]);
    const Drawn few = run(some);
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(few.rows[i].token, all.rows[from[i]].token) << text(some[i].row);
      EXPECT_EQ(std::memcmp(&few.chosen[i], &all.chosen[from[i]], sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(&few.top_tokens[i * logprobs_max], &all.top_tokens[from[i] * logprobs_max], logprobs_max * 4), 0);
      EXPECT_EQ(std::memcmp(&few.top_logprobs[i * logprobs_max], &all.top_logprobs[from[i] * logprobs_max], logprobs_max * 4), 0);
    }
  }
}

TEST(CudaSampler, padding_writes_nothing) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(23);
  std::vector<HostRow> rows;
  for (int i = 0; i < 12; ++i) {
    rows.push_back(random_row(Style::normal, 1000, i % 3 == 0 ? 3 * i : -1, random));
    rows.back().row.logprobs = i % 2;
    rows.back().row.repetition_penalty = 2;
    rows.back().seen = {{i, 1}};
  }
  const Drawn drawn = run(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].row.row >= 0) continue;
    EXPECT_EQ(drawn.rows[i].token, untouched);
    EXPECT_TRUE(std::isnan(drawn.chosen[i]));
    EXPECT_EQ(std::memcmp(&drawn.logits[i * 1000], rows[i].logits.data(), 4000), 0);
  }
  for (std::int32_t place = 0; place < rows_total; ++place)
    if (place % 9 != 0 || place >= 36) EXPECT_EQ(drawn.last_token[static_cast<std::size_t>(place)], untouched) << place;
}

TEST(CudaSampler, a_captured_graph_draws_the_same_each_time) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(29);
  std::vector<HostRow> rows;
  for (int i = 0; i < 20; ++i) rows.push_back(random_row(static_cast<Style>(i % styles), 201'088, i, random));
  const DeviceBatch batch(rows);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(sample(batch.args(), stream));
  CUDA_OK(sample(batch.args(), stream));  // its tickets follow right after those of the first
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int repeat = 0; repeat < 3; ++repeat) {
    must(cudaMemset(batch.outputs.drawn.get(), 0xFF, rows.size() * sizeof(DrawnRow)));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    expect_cpu_draws(rows, batch.result(), "replay " + std::to_string(repeat));
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaSampler, shapes_fit_what_they_are_made_for) {
  for (std::uint32_t count = 1; count <= sampler_rows_max; ++count) EXPECT_LE(plain_blocks(count, 201'088) * count, std::max(528u, count));
  EXPECT_EQ(plain_blocks(1, 201'088), 99u);
  EXPECT_EQ(plain_blocks(256, 201'088), 2u);
  for (const std::uint32_t vocabulary : {1u, 33u, 201'088u, sampler_vocabulary_max}) {
    EXPECT_EQ(filter_slice(vocabulary) % 4, 0u);
    EXPECT_GE(filter_slice(vocabulary) * filter_blocks, vocabulary);
  }
  EXPECT_LT(2 * (filter_slice(201'088) * 4 + 12'288), 228u << 10);  // two blocks on a multiprocessor
  SamplerArgs args;
  args.count = 1, args.vocabulary = sampler_vocabulary_max + 1;
  EXPECT_EQ(sample(args, nullptr), cudaErrorInvalidValue);
  args.count = sampler_rows_max + 1, args.vocabulary = 10;
  EXPECT_EQ(sample(args, nullptr), cudaErrorInvalidValue);
}

// For sanitizers, which are slow. (Penalties: padding_writes_nothing.)
TEST(CudaSmall, sampler) {
  ALTHING_NEEDS_GPU();
  for (const std::uint32_t vocabulary : {700u, 4099u}) draws_equal_the_cpu(vocabulary, 7, 1);
}

}  // namespace
}  // namespace althing::tests
