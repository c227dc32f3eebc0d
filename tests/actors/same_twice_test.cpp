// What counts as the same answer twice, and what as the fault by which the same prompt differs.
#include "actors/commands/same_twice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace althing::actors {
namespace {

using testing::HasSubstr;
namespace wire = protocol::wire;

// A prompt of three tokens in one step, then one token a step; one layer, two logits a token.
AnswerBits answer(const std::vector<TokenId>& drawn, float logit_of_last = 2.0F, std::uint32_t choice = 0) {
  AnswerBits bits;
  wire::Delta prompt;
  StepRouting part;
  part.layers = 1;
  part.top_m = 2;
  part.tokens = {1, 2, 3};
  part.logits = {{0, 1.0F}, {1, 0.5F}, {0, 1.0F}, {1, 0.5F}, {2, 1.0F}, {1, 0.5F}};
  prompt.routing.push_back(part);
  bits.take(prompt);
  for (std::uint32_t i = 0; i < drawn.size(); ++i) {
    wire::Delta delta;
    delta.choice = choice;
    delta.tokens = {drawn[i]};
    part.start = 3 + i;
    part.tokens = {drawn[i]};
    part.logits = {{4, i + 1 == drawn.size() ? logit_of_last : 2.0F}, {5, 1.0F}};
    delta.routing.push_back(part);
    bits.take(delta);
  }
  return bits;
}

TEST(SameTwice, equal_bits_are_the_same) {
  const auto difference = answer({7, 8, 9}).against(answer({7, 8, 9}));
  EXPECT_TRUE(difference.same());
  EXPECT_EQ(difference.drawn_alike, 3u);
  EXPECT_EQ(difference.routed, 6u);
  const TwiceFinding finding = judge(difference, {});
  EXPECT_EQ(finding.kind, TwiceFinding::Kind::same);
  EXPECT_THAT(finding.detail, HasSubstr("3 tokens and 6 router decisions"));
}

TEST(SameTwice, the_document_s_hundredth_is_where_a_difference_becomes_a_fault) {
  const AnswerBits base = answer({7, 8, 9});
  const auto small = base.against(answer({7, 8, 9}, 2.005F)), large = base.against(answer({7, 8, 9}, 2.02F));
  EXPECT_NEAR(small.router_logits, 0.005, 1e-6);
  EXPECT_EQ(small.position, 5u);
  EXPECT_EQ(judge(small, {}).kind, TwiceFinding::Kind::differs_slightly);
  EXPECT_EQ(judge(large, {}).kind, TwiceFinding::Kind::differs);
  EXPECT_THAT(judge(large, {}).detail, HasSubstr("position 5, layer 0"));
  EXPECT_EQ(judge(base.against(answer({7, 8, 9}, NAN)), {}).kind, TwiceFinding::Kind::differs);
}

TEST(SameTwice, positions_behind_a_token_that_differs_are_not_compared) {
  const auto difference = answer({7, 8, 9}).against(answer({7, 6, 9}, 50.0F));
  EXPECT_TRUE(difference.draws_differ);
  EXPECT_EQ(difference.drawn_alike, 1u);
  EXPECT_EQ(difference.router_logits, 0);
  EXPECT_EQ(judge(difference, {}).kind, TwiceFinding::Kind::differs);
  EXPECT_TRUE(answer({7, 8}).against(answer({7, 8, 9})).draws_differ) << "one that is cut short is not the same";
}

TEST(SameTwice, other_choices_are_company_and_limits_on_experts_are_named) {
  EXPECT_EQ(answer({7, 8, 9}, 2.0F, 1).against(answer({}, 2.0F)).drawn_alike, 0u);
  EXPECT_FALSE(answer({7, 8, 9}, 2.0F, 1).against(answer({}, 2.0F)).draws_differ);
  ServeSettings settings;
  settings.capacity_policy = "drop";
  EXPECT_THAT(judge(answer({7, 8}).against(answer({7, 9})), settings).detail, HasSubstr("--capacity-policy"));
}

}  // namespace
}  // namespace althing::actors
