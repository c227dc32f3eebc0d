// The bytes that carry a step's counts: what is written is read, and what another process garbled is refused and never believed.
#include "scheduler/vocabulary/expert_counts.hpp"

#include <gtest/gtest.h>

#include "tests/monitoring/expert_samples.hpp"

namespace althing {
namespace {

using tests::bytes_of;

StepCounts sample() {
  StepCounts step = tests::step_of({{3, 0, 2, 1}, {0, 6, 0, 0}}, 2);
  step.layers[0].experts[1].copy = 1;
  step.layers[0].experts.insert(step.layers[0].experts.begin() + 1, {2, 0, 4, 77});
  step.layers[0].experts[0].tokens = 1;
  step.layers[0].experts.back().tokens = 1;
  step.layers[0].experts[2].tokens = 0;
  step.layers[0].experts.erase(step.layers[0].experts.begin() + 2);
  step.layers[1].router = {2, 123456789, 987654321, 5};
  return step;
}

TEST(ExpertCounts, what_is_written_is_read) {
  const StepCounts step = sample();
  ASSERT_TRUE(read_step_counts(bytes_of(step)).has_value());
  EXPECT_EQ(*read_step_counts(bytes_of(step)), step);
  const StepCounts none{8, 2, 0, std::vector<LayerCounts>(3, LayerCounts{{}, {}, {0, 0}, {}})};
  EXPECT_EQ(*read_step_counts(bytes_of(none)), none) << "no tokens";
}

TEST(ExpertCounts, a_decode_step_of_120b_is_a_few_kilobytes) {
  std::mt19937 random(1);
  EXPECT_LT(bytes_of(tests::random_step(random, 36, 128, 4, 1)).size(), 6000u);
  EXPECT_LT(bytes_of(tests::random_step(random, 36, 128, 4, 512)).size(), 80'000u);
}

TEST(ExpertCounts, cut_or_lengthened_bytes_are_refused) {
  const std::string bytes = bytes_of(sample());
  for (std::size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(read_step_counts(std::string_view(bytes).substr(0, length))) << length;
  EXPECT_FALSE(read_step_counts(bytes + '\0'));
}

TEST(ExpertCounts, lies_are_refused) {
  const auto refused = [](auto spoil) {
    StepCounts step = sample();
    spoil(step);
    return !read_step_counts(bytes_of(step)).has_value();
  };
  EXPECT_FALSE(refused([](StepCounts&) {}));
  EXPECT_TRUE(refused([](StepCounts& s) { ++s.layers[0].experts[0].tokens; })) << "a token more than tokens x experts_per_token";
  EXPECT_TRUE(refused([](StepCounts& s) { ++s.tokens; }));
  EXPECT_TRUE(refused([](StepCounts& s) { s.layers[1].experts[0].expert = 4; })) << "an expert that does not exist";
  EXPECT_TRUE(refused([](StepCounts& s) { std::swap(s.layers[0].experts[0], s.layers[0].experts[1]); }));
  EXPECT_TRUE(refused([](StepCounts& s) { s.layers[0].experts[1] = s.layers[0].experts[0]; })) << "one cell twice";
  EXPECT_TRUE(refused([](StepCounts& s) { s.layers[1].router.tokens = 99; }));
  EXPECT_TRUE(refused([](StepCounts& s) { ++s.layers[1].diverted.dropped; })) << "a pair more than there were";
  EXPECT_TRUE(refused([](StepCounts& s) { s.layers[1].diverted = {0, 0, 7, 0 - std::uint64_t{7}}; })) << "a sum that wraps to 0";
  EXPECT_FALSE(refused([](StepCounts& s) { --s.layers[1].experts[0].tokens, ++s.layers[1].diverted.dropped; })) << "one that nobody computed";
  EXPECT_TRUE(refused([](StepCounts& s) { s.layers[1].experts.push_back({3, 0, 0, 0}); })) << "an entry without tokens";
}

TEST(ExpertCounts, no_garbage_is_believed_or_read_beyond_its_end) {
  std::mt19937 random(7);
  const std::string good = bytes_of(sample());
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (auto flips = 1 + random() % 3; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto step = read_step_counts(bytes);
    if (!step) continue;
    for (const LayerCounts& layer : step->layers) {
      std::uint64_t tokens = layer.diverted.dropped + layer.diverted.omitted;
      for (const ExpertCount& count : layer.experts) tokens += count.tokens;
      ASSERT_EQ(tokens, std::uint64_t{step->tokens} * step->experts_per_token);
    }
  }
}

}  // namespace
}  // namespace althing
