// What crosses processes arrives as it was sent, down to the last bit of every float.
#include "actors/messages.hpp"

#include <gtest/gtest.h>

#include <caf/actor_system.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <limits>

#include "actors/actor_system.hpp"

namespace althing::actors {
namespace {

StepPlan through_the_wire(caf::actor_system& system, StepPlan plan) {
  std::vector<char> bytes;
  caf::binary_serializer sink{system, bytes};
  EXPECT_FALSE(sink(plan));
  StepPlan arrived;
  caf::binary_deserializer source{system, bytes};
  EXPECT_FALSE(source(arrived));
  return arrived;
}

TEST(messages, a_plan_arrives_as_it_was_sent) {
  LocalSystemConfig config;
  caf::actor_system system{config};
  StepPlan plan;
  plan.step = StepId{7};
  plan.epoch = EpochId{3};
  plan.base = StepId{6};
  plan.cleared = {RowIndex{2}};
  plan.set = {{RowIndex{1}, RequestId{9}, {0.7F, 0.9F, 40, 0.05F, ~0ULL, 1, 12, {5, 6}, true}}};
  plan.set[0].sampling.repetition_penalty = 1.1F;
  plan.set[0].sampling.presence_penalty = std::numeric_limits<float>::denorm_min();
  plan.set[0].sampling.frequency_penalty = -2.0F;
  plan.set[0].sampling.logit_bias = {{3, -100.0F}, {4'000'000'000u, 1e-42F}};
  plan.set[0].sampling.logprobs = true;
  plan.set[0].sampling.top_logprobs = 20;
  plan.set[0].tokens = {1, 2, 3};
  plan.set[0].prompt_count = 2;
  plan.pages = {{RowIndex{1}, 1, 4, {PageId{8}, PageId{9}}}};
  plan.work = {{RowIndex{1}, 100, 2, {11, 12}, true}};
  EXPECT_EQ(through_the_wire(system, plan), plan);
}

TEST(messages, what_a_step_drew_arrives_as_it_was_sent) {
  LocalSystemConfig config;
  caf::actor_system system{config};
  const StepResult result{StepId{7}, EpochId{3}, {{RowIndex{1}, RequestId{9}, 5, false}}, {}, "counts", "routing", std::string("log\0probs", 9)};
  std::vector<char> bytes;
  caf::binary_serializer sink{system, bytes};
  StepResult sent = result, arrived;
  EXPECT_FALSE(sink(sent));
  caf::binary_deserializer source{system, bytes};
  EXPECT_FALSE(source(arrived));
  EXPECT_EQ(arrived, result);
}

// A temperature below the smallest normal float once arrived as garbage, and every rank refused the plan for ever.
TEST(messages, subnormal_floats_arrive) {
  LocalSystemConfig config;
  caf::actor_system system{config};
  for (const float value : {std::numeric_limits<float>::denorm_min(), 1e-39F, std::numeric_limits<float>::min(), 2.0F, -0.0F}) {
    StepPlan plan;
    plan.set = {{RowIndex{0}, RequestId{1}, {value, value, 0, value, 0, 0, 1, {}, false}}};
    EXPECT_EQ(through_the_wire(system, plan), plan) << value;
  }
}

}  // namespace
}  // namespace althing::actors
