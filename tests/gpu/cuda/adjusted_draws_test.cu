// Penalties while the newest draw is on the device only: the same logits as when the host has counted it already; and penalties near 0.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gpu/cuda/sampler.hpp"
#include "gpu/sampling.hpp"
#include "tests/gpu/cuda/device_array.hpp"

namespace althing::tests {
namespace {

using namespace gpu::cuda;

constexpr std::uint32_t vocabulary = 5'003;

// Adjusted logits of one row whose last token, as the device has it, is `last`; pending or not.
std::vector<float> adjusted(const std::vector<float>& logits, const std::vector<gpu::cuda::SeenToken>& seen, std::int32_t last, bool pending,
                            float repetition = 1.3F) {
  DeviceArray<float> device_logits(logits);
  DeviceArray<gpu::cuda::SeenToken> device_seen(seen);
  SamplerRow row;
  row.row = 1;
  row.repetition_penalty = repetition;
  row.presence_penalty = 0.75F;
  row.frequency_penalty = -0.5F;
  row.seen = device_seen.get();
  row.seen_count = static_cast<std::uint32_t>(seen.size());
  row.draw_pending = pending ? 1 : 0;
  DeviceArray<SamplerRow> rows(std::vector<SamplerRow>{row});
  DeviceArray<std::int32_t> last_token(std::vector<std::int32_t>{-1, last});
  DeviceArray<DrawnRow> drawn(1);
  DeviceArray<std::byte> scratch(sampler_scratch_bytes);
  scratch.fill(0);
  SamplerArgs args;
  args.logits = device_logits.get();
  args.rows = rows.get();
  args.count = 1;
  args.vocabulary = vocabulary;
  args.with_filters = false;
  args.scratch = scratch.get();
  args.drawn = drawn.get();
  args.last_token = last_token.get();
  must(sample(args, nullptr));
  return device_logits.host();
}

std::vector<float> random_logits() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(CudaAdjustedDraws, a_pending_draw_counts_as_if_it_were_in_the_list) {
  ALTHING_NEEDS_GPU();
  const std::vector<float> logits = random_logits();
  std::vector<gpu::cuda::SeenToken> seen;
  for (std::int32_t token = 0; token < 3'000; token += 2) seen.push_back({token, static_cast<std::uint32_t>(token) % 5});
  struct Case {
    const char* name;
    std::int32_t last;
  };
  for (const Case& c : {Case{"one of the completion", 4}, {"one of the prompt", 10}, {"one that is new", 4'001}, {"the last of the list", 2'998}}) {
    auto counted = seen;
    if (c.last < 3'000)
      ++counted[static_cast<std::size_t>(c.last) / 2].output_count;
    else
      counted.push_back({c.last, 1});
    const std::vector<float> expected = adjusted(logits, counted, c.last, false);
    EXPECT_EQ(adjusted(logits, seen, c.last, true), expected) << c.name;
    EXPECT_NE(adjusted(logits, seen, c.last, false), expected) << c.name << ": the control";
  }
  EXPECT_EQ(adjusted(logits, {}, 17, true), adjusted(logits, {{17, 1}}, 17, false)) << "nothing else was seen";
}

// The CPU's own function, bit for bit, also where a penalty near 0 would make a logit infinite.
TEST(CudaAdjustedDraws, are_those_of_the_cpu) {
  ALTHING_NEEDS_GPU();
  const std::vector<float> logits = random_logits();
  std::vector<TokenId> text;
  for (TokenId token = 0; token < 400; ++token) text.push_back(token * 31 % 997);
  const gpu::SeenTokens counts(text, 150);
  std::vector<gpu::cuda::SeenToken> seen;
  for (const gpu::SeenToken& entry : counts.list()) seen.push_back({static_cast<std::int32_t>(entry.token), entry.output_count});
  for (const float repetition : {1.3F, 0.4F, std::numeric_limits<float>::min(), 10.0F}) {
    SamplingParameters p;
    p.repetition_penalty = repetition;
    p.presence_penalty = 0.75F;
    p.frequency_penalty = -0.5F;
    std::vector<float> expected = logits;
    gpu::adjust(expected, p, counts.list());
    EXPECT_EQ(adjusted(logits, seen, 0, false, repetition), expected) << repetition;
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
  }
}

}  // namespace
}  // namespace althing::tests
