// Draws by bounds against draws from all logits of the same head: the same tokens, whatever the weights, the state and the row are.
#include "gpu/cuda/head_screen.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/linear.hpp"
#include "gpu/cuda/pack.hpp"
#include "tests/gpu/cuda/device_array.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

constexpr std::uint32_t processors = 132;
constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

std::uint16_t bits_of(float value) { return std::isnan(value) ? 0x7FC0 : std::isinf(value) ? (value > 0 ? 0x7F80 : 0xFF80) : bf16_bits(value); }

// A head on the device, packed, with its screen.
struct Head {
  Head(std::vector<float> weights, std::uint32_t out, std::uint32_t in) : packed{WeightFormat::bf16, nullptr, out, in, 1} {
    std::vector<std::uint16_t> values(weights.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = bits_of(weights[i]);
    const DeviceArray<std::uint16_t> plain(values);
    tiles = std::make_unique<DeviceArray<std::byte>>(packed.bytes());
    tiles->fill(0);
    DeviceArray<PackReport> report(1);
    PackArgs args;
    args.source.data = reinterpret_cast<const std::byte*>(plain.get());
    args.source.format = gpu::MatrixFormat::bf16;
    args.source.out = out, args.source.in = in, args.source.row_stride = in;
    args.target = packed;
    args.data = tiles->get();
    args.report = report.get();
    must(pack_weights(args, nullptr));
    packed.data = tiles->get();
    codes = std::make_unique<DeviceArray<std::byte>>(screen_code_bytes(packed));
    facts = std::make_unique<DeviceArray<float>>(3 * screen_row_bytes(packed) / sizeof(float));
    const std::size_t rows = screen_row_bytes(packed) / sizeof(float);
    screen = {codes->get(), facts->get(), facts->get() + rows, facts->get() + 2 * rows};
    must(make_head_screen(packed, screen, nullptr));
    must(cudaDeviceSynchronize());
  }
  PackedMatrix packed;
  HeadScreen screen;
  std::unique_ptr<DeviceArray<std::byte>> tiles, codes;
  std::unique_ptr<DeviceArray<float>> facts;
};

struct Row {
  std::vector<float> state;
  SamplerRow sampler;
  std::vector<std::uint32_t> allowed{};  // empty: all
};

struct Outcome {
  std::vector<DrawnRow> drawn;
  std::vector<std::int32_t> last;
  std::vector<float> logits;  // all of them, or their bounds
  std::uint32_t rescored = 0;
};

class Both {
 public:
  Both(const Head& head, const std::vector<Row>& rows) : head_(head), count_(static_cast<std::uint32_t>(rows.size())), drawn_(rows.size()) {
    const std::uint32_t stride = k_padded(head.packed.in);
    std::vector<std::uint16_t> states(rows.size() * stride, 0);
    std::vector<std::uint32_t> masks;
    const std::uint32_t words = ceil_div(head.packed.out, 32);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t k = 0; k < rows[r].state.size(); ++k) states[r * stride + k] = bits_of(rows[r].state[k]);
      masks.insert(masks.end(), rows[r].allowed.begin(), rows[r].allowed.end());
      masks.resize((r + 1) * words);
    }
    states_ = std::make_unique<DeviceArray<std::uint16_t>>(states);
    masks_ = std::make_unique<DeviceArray<std::uint32_t>>(masks);
    std::vector<SamplerRow> samplers;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      samplers.push_back(rows[r].sampler);
      samplers[r].row = rows[r].sampler.row < 0 ? -1 : static_cast<std::int32_t>(r);
      samplers[r].allowed = rows[r].allowed.empty() ? nullptr : masks_->get() + r * words;
    }
    samplers_ = std::make_unique<DeviceArray<SamplerRow>>(samplers);
    logits_ = std::make_unique<DeviceArray<float>>(std::size_t{count_} * head.packed.out);
  }

  Outcome from_all() {
    clear();
    LinearArgs<PlainEpilogue> logits;
    logits.weights = head_.packed;
    logits.input = input();
    logits.input_stride = k_padded(head_.packed.in);
    logits.columns.count = logits.columns_max = logits.columns_expected = count_;
    logits.epilogue = {nullptr, logits_->get(), head_.packed.out};
    must(linear(logits, processors, nullptr));
    SamplerArgs args = sampler();
    args.scratch = scratch(sampler_scratch_bytes, 0);
    must(sample(args, nullptr));
    return outcome();
  }
  Outcome screened() {
    clear();
    static DeviceArray<std::uint32_t> rescored(1);
    rescored.fill(0);
    ScreenedDrawArgs args;
    args.sampler = sampler();
    args.head = head_.packed;
    args.screen = head_.screen;
    args.input = input();
    args.input_stride = k_padded(head_.packed.in);
    args.scratch = scratch(screen_scratch_bytes, 1);
    args.rescored = rescored.get();
    must(draw_screened(args, processors, nullptr));
    Outcome result = outcome();
    result.rescored = rescored.host()[0];
    return result;
  }

 private:
  const __nv_bfloat16* input() const { return reinterpret_cast<const __nv_bfloat16*>(states_->get()); }
  SamplerArgs sampler() {
    SamplerArgs args;
    args.logits = logits_->get();
    args.rows = samplers_->get();
    args.count = count_;
    args.vocabulary = head_.packed.out;
    args.with_adjustments = args.with_filters = false;
    args.drawn = drawn_.get();
    args.last_token = last_.get();
    return args;
  }
  // One of each kind for all calls, as a server has it: each call must leave it as it found it.
  static void* scratch(std::size_t bytes, int kind) {
    static DeviceArray<std::byte>* made[2] = {};
    if (made[kind] == nullptr) {
      made[kind] = new DeviceArray<std::byte>(bytes);
      made[kind]->fill(0);
    }
    return made[kind]->get();
  }
  void clear() {
    drawn_.fill(0xFF);
    last_.fill(0xFF);
  }
  Outcome outcome() const { return {drawn_.host(), last_.host(), logits_->host()}; }

  const Head& head_;
  std::uint32_t count_;
  std::unique_ptr<DeviceArray<std::uint16_t>> states_;
  std::unique_ptr<DeviceArray<std::uint32_t>> masks_;
  std::unique_ptr<DeviceArray<SamplerRow>> samplers_;
  std::unique_ptr<DeviceArray<float>> logits_;
  DeviceArray<DrawnRow> drawn_;
  DeviceArray<std::int32_t> last_{screen_rows_max};
};

// Returns how many logits were computed from the head.
std::uint32_t expect_same(const Head& head, const std::vector<Row>& rows, const std::string& about) {
  Both both(head, rows);
  const Outcome all = both.from_all(), few = both.screened();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(few.drawn[r].token, all.drawn[r].token) << about << ", row " << r << ", temperature " << rows[r].sampler.temperature;
    EXPECT_EQ(few.drawn[r].nonfinite, all.drawn[r].nonfinite) << about << ", row " << r;
    if (rows[r].sampler.row < 0 || rows[r].sampler.temperature != 0 || !rows[r].allowed.empty()) continue;
    for (std::size_t t = 0; t < head.packed.out; ++t) {
      const float bound = few.logits[r * head.packed.out + t], logit = all.logits[r * head.packed.out + t];
      if (!(bound >= logit) && !std::isnan(logit)) {
        ADD_FAILURE() << about << ", row " << r << ": token " << t << " has " << logit << ", above its bound " << bound;
        break;
      }
    }
  }
  EXPECT_EQ(few.last, all.last) << about;
  return few.rescored;
}

std::vector<float> normal(std::size_t size, float deviation, std::mt19937& random) {
  std::normal_distribution<float> distribution(0, deviation);
  std::vector<float> values(size);
  for (float& v : values) v = distribution(random);
  return values;
}
Row row_of(std::vector<float> state, float temperature, std::mt19937& random) {
  Row row{std::move(state), {}};
  row.sampler.row = 0;
  row.sampler.temperature = temperature;
  row.sampler.seed = random();
  row.sampler.choice = random() % 4;
  row.sampler.position = random() % 100'000;
  return row;
}
// One of many temperatures.
float some_temperature(std::mt19937& random) {
  constexpr float temperatures[] = {0, 0, 1, 1, 0.7F, 0.1F, 1e-3F, 2, 10, 1e-30F, 1e30F};
  return temperatures[random() % std::size(temperatures)];
}

TEST(HeadScreen, draws_what_all_logits_would) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(1);
  constexpr std::uint32_t sizes[][2] = {{4000, 2880}, {1003, 64}, {2049, 192}, {3001, 4096}, {17, 320}, {5, 2880}};
  for (const auto& [out, in] : sizes) {
    for (int style = 0; style < 4; ++style) {
      std::vector<float> weights = normal(std::size_t{out} * in, 0.05F, random);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        if (style == 1 && i / in % 29 == 3) weights[i] *= 40;                        // a few long rows
        if (style == 2 && random() % 500 == 0) weights[i] *= 100;                    // a few large weights, which make codes of all others coarse
        if (style == 3 && i >= in && i / in % 3 == 0) weights[i] = weights[i % in];  // ties
      }
      const Head head(weights, out, in);
      for (std::uint32_t count = 1; count <= screen_rows_max; ++count) {
        std::vector<Row> rows;
        for (std::uint32_t r = 0; r < count; ++r) {
          std::vector<float> state = normal(in, std::ldexp(1.0F, static_cast<int>(random() % 12) - 6), random);
          if (r % 3 == 2) state[random() % in] *= 300;
          rows.push_back(row_of(std::move(state), some_temperature(random), random));
          if (random() % 9 == 0) rows.back().sampler.row = -1;
        }
        expect_same(head, rows,
                    std::to_string(out) + " x " + std::to_string(in) + ", style " + std::to_string(style) + ", " + std::to_string(count) + " rows");
      }
    }
  }
}

TEST(HeadScreen, few_logits_are_computed_from_the_head) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(2);
  constexpr std::uint32_t out = 50'000, in = 2880;
  const Head head(normal(std::size_t{out} * in, 0.02F, random), out, in);
  for (const float temperature : {0.0F, 1.0F}) {
    std::uint32_t rescored = 0;
    for (int i = 0; i < 10; ++i) rescored += expect_same(head, {row_of(normal(in, 1, random), temperature, random)}, "one row");
    EXPECT_GE(rescored, 10u);
    EXPECT_LE(rescored, 10 * out / 200) << "at temperature " << temperature;
  }
}

TEST(HeadScreen, masks_hold) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(3);
  constexpr std::uint32_t out = 3000, in = 512;
  const Head head(normal(std::size_t{out} * in, 0.05F, random), out, in);
  for (int round = 0; round < 20; ++round) {
    std::vector<Row> rows;
    for (std::uint32_t r = 0; r < 6; ++r) {
      rows.push_back(row_of(normal(in, 1, random), some_temperature(random), random));
      std::vector<std::uint32_t>& allowed = rows.back().allowed;
      if (r == 5) continue;
      allowed.resize(ceil_div(out, 32), 0);
      if (r < 2)
        for (std::uint32_t& word : allowed) word = random() & random();
      if (r == 2) allowed[random() % (out / 32)] = 1u << random() % 32;  // one; r == 3: none
      if (r == 4) allowed[1] = 0xFFFFFFFF;
    }
    expect_same(head, rows, "masks, round " + std::to_string(round));
  }
}

TEST(HeadScreen, states_at_the_edges_of_floats) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(4);
  constexpr std::uint32_t out = 2000, in = 320;
  for (const float weight : {0.05F, 1e-13F, 1e-38F, 1e18F, 0.0F}) {
    const Head head(normal(std::size_t{out} * in, weight, random), out, in);
    for (const float size : {0.0F, 1e-38F, 1e-30F, 1e-20F, 1e-14F, 1e-6F, 1e10F, 1e20F, 1e38F})
      for (const float temperature : {0.0F, 1.0F}) {
        std::vector<float> state = normal(in, 1, random);
        for (float& x : state) x = std::min(std::max(x / 4, -1.0F), 1.0F) * size;
        expect_same(head, {row_of(state, temperature, random)}, "weights of " + std::to_string(weight) + ", state of " + std::to_string(size));
      }
  }
}

TEST(HeadScreen, what_is_not_finite_is_told) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(5);
  constexpr std::uint32_t out = 2000, in = 320;
  std::vector<float> weights = normal(std::size_t{out} * in, 0.05F, random);
  const Head sound(weights, out, in);
  for (const float value : {infinity, -infinity, nan})
    for (const float temperature : {0.0F, 1.0F}) {
      std::vector<Row> rows;
      for (int r = 0; r < 5; ++r) rows.push_back(row_of(normal(in, 1, random), temperature, random));
      rows[1].state[17] = value;
      rows[3].state[in - 1] = value;
      expect_same(sound, rows, "a state with " + std::to_string(value));
      std::vector<float> broken = weights;
      broken[1234 * in + 5] = value;
      rows.erase(rows.begin() + 3);
      rows[2].allowed.assign(ceil_div(out, 32), 0xF0F0F0F0);  // the token is not allowed, and still the row is void
      expect_same(Head(broken, out, in), rows, "weights with " + std::to_string(value));
    }
}

TEST(CudaSmall, head_screen) {
  ALTHING_NEEDS_GPU();
  std::mt19937 random(6);
  const Head head(normal(std::size_t{100} * 192, 0.05F, random), 100, 192);
  for (const std::uint32_t count : {1u, 5u}) {
    std::vector<Row> rows;
    for (std::uint32_t r = 0; r < count; ++r) rows.push_back(row_of(normal(192, 1, random), r % 2 == 0 ? 0 : 1.0F, random));
    expect_same(head, rows, std::to_string(count) + " rows");
  }
}

TEST(HeadScreen, refuses_what_it_does_not_take) {
  PackedMatrix head{WeightFormat::bf16, nullptr, 100, 2880, 1};
  EXPECT_TRUE(supports_screen(head));
  ScreenedDrawArgs args;
  args.head = head;
  args.sampler.vocabulary = 100;
  EXPECT_EQ(draw_screened(args, processors, nullptr), cudaErrorInvalidValue) << "without a screen";
  std::byte codes{};
  args.screen.codes = &codes;
  args.sampler.count = screen_rows_max + 1;
  EXPECT_EQ(draw_screened(args, processors, nullptr), cudaErrorInvalidValue) << "too many rows";
  args.sampler.count = 1;
  args.sampler.vocabulary = 101;
  EXPECT_EQ(draw_screened(args, processors, nullptr), cudaErrorInvalidValue) << "another vocabulary";
  head.format = WeightFormat::fp8;
  EXPECT_FALSE(supports_screen(head)) << "its bytes are as few";
  EXPECT_EQ(make_head_screen(head, {}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace althing::tests
