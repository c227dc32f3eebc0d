// Streams that end because of what they say, and tokens that come with their logprobs: message by message.
#include <gmock/gmock.h>

#include "tests/actors/frontend_fixture.hpp"

namespace althing::actors::tests {
namespace {

using testing::HasSubstr;

class FrontendStopTest : public FrontendActorTest {
 protected:
  static wire::Sampling stopping(std::vector<std::string> stop) {
    wire::Sampling sampling;
    sampling.stop = std::move(stop);
    return sampling;
  }
  const wire::Done& done() const { return std::get<wire::Done>(heard_->to_client.back()); }
  std::size_t tokens_in(std::string_view text) const { return shared_->format.tokenizer()->encode_with_special(text).size(); }
};

const std::string answer = "<|channel|>final<|message|>";

TEST_F(FrontendStopTest, the_stream_ends_at_once_and_the_scheduler_is_told) {
  start(0, true, 1, 0, stopping({"xyz", "two"}));
  say(Accepted{RequestId{1}});
  draw(answer + "one ");
  preemptions_ = 3;
  draw("two three");
  EXPECT_EQ(text(), "one ");
  ASSERT_EQ(ends(), 1);
  EXPECT_EQ(done().reason, FinishReason::stop);
  EXPECT_EQ(done().stop_string, 1u);
  EXPECT_EQ(done().usage.completion_tokens, tokens_in(answer + "one ") + tokens_in("two")) << "up to the token that completed it";
  EXPECT_EQ(done().usage.preemptions, 3u);
  ASSERT_EQ(asked_->stopped.size(), 1u);
  EXPECT_EQ(asked_->stopped[0].request, RequestId{1});
  EXPECT_EQ(asked_->stopped[0].completion_tokens, done().usage.completion_tokens);
  EXPECT_TRUE(asked_->cancelled.empty());
  // What was in flight, and the core's own end, change nothing.
  draw(" four");
  finish();
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(text(), "one ");
}

TEST_F(FrontendStopTest, held_text_comes_when_the_stream_ends_otherwise) {
  start(0, true, 1, 0, stopping({"two three"}));
  draw(answer + "one two");
  pass(milliseconds(20));
  EXPECT_EQ(text(), "one ");
  finish(0, FinishReason::length);
  EXPECT_EQ(text(), "one two");
  EXPECT_EQ(done().reason, FinishReason::length);
  EXPECT_FALSE(done().stop_string);
  EXPECT_TRUE(asked_->stopped.empty());
}

TEST_F(FrontendStopTest, choices_stop_one_by_one) {
  start(0, true, 3, 0, stopping({"two"}));
  draw(answer + "one two", 1);
  EXPECT_EQ(ends(), 0);
  draw(answer + "three", 0);
  draw(answer + "four two", 2);
  draw(" more", 1);
  EXPECT_EQ(ends(), 0);
  finish(1);  // the core has heard of it
  EXPECT_EQ(ends(), 0);
  finish(0, FinishReason::length);
  ASSERT_EQ(ends(), 1);
  ASSERT_EQ(done().choices.size(), 3u);
  EXPECT_EQ(done().choices[0].reason, FinishReason::length);
  EXPECT_FALSE(done().choices[0].stop_string);
  EXPECT_EQ(done().choices[1].stop_string, 0u);
  EXPECT_EQ(done().choices[1].completion_tokens, tokens_in(answer + "one two"));
  EXPECT_EQ(done().choices[2].stop_string, 0u);
  EXPECT_FALSE(done().stop_string) << "it is a choice's";
  EXPECT_EQ(text(1), "one ");
  EXPECT_EQ(text(2), "four ");
}

TEST_F(FrontendStopTest, text_in_front_of_the_match_waits_for_credit_as_any) {
  start(1, true, 1, 0, stopping({"two"}));
  draw(answer + "one");
  draw(" and two");
  EXPECT_EQ(ends(), 0);
  EXPECT_EQ(text(), "one");
  say(ClientGrant{1});
  EXPECT_EQ(text(), "one and ");
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(done().stop_string, 0u);
}

TEST_F(FrontendStopTest, what_was_held_is_no_delta_and_takes_no_credit) {
  start(2, true, 1, 0, stopping({"two three"}));
  draw(answer + "one ");
  draw("two");
  pass(milliseconds(20));
  EXPECT_EQ(deltas().size(), 1u);
}

TEST_F(FrontendStopTest, a_trace_goes_on_until_the_core_has_ended_it) {
  start(0, true, 1, 1, stopping({"two"}));
  draw(answer + "one two");
  ASSERT_EQ(asked_->stopped.size(), 1u);
  EXPECT_EQ(ends(), 0) << "a step in flight computes something for it";
  finish();
  ASSERT_EQ(ends(), 1);
  EXPECT_EQ(done().usage.completion_tokens, asked_->stopped[0].completion_tokens);
}

TEST_F(FrontendStopTest, an_error_that_comes_after_the_match_is_nobodys) {
  start(0, true, 1, 1, stopping({"two"}));
  draw(answer + "one two");
  finish(0, FinishReason::error, Error{ErrorCode::nonfinite, "NaN behind the end", ""});
  ASSERT_EQ(ends(), 1);
  EXPECT_EQ(done().reason, FinishReason::stop);
}

TEST_F(FrontendStopTest, the_scheduler_gets_what_the_client_asked_for) {
  wire::Sampling sampling;
  sampling.repetition_penalty = 1.5F;
  sampling.presence_penalty = 0.25F;
  sampling.frequency_penalty = -0.5F;
  sampling.logit_bias = {{9, 1.0F}, {2, -1.0F}};
  sampling.stop_tokens = {77};
  sampling.logprobs = 4;
  start(0, true, 1, 0, sampling);
  ASSERT_EQ(asked_->submitted.size(), 1u);
  const SamplingParameters& p = asked_->submitted[0].sampling;
  EXPECT_EQ(p.repetition_penalty, 1.5F);
  EXPECT_EQ(p.presence_penalty, 0.25F);
  EXPECT_EQ(p.frequency_penalty, -0.5F);
  EXPECT_EQ(p.logit_bias, (std::vector<TokenBias>{{2, -1.0F}, {9, 1.0F}})) << "ascending";
  EXPECT_TRUE(p.logprobs);
  EXPECT_EQ(p.top_logprobs, 4u);
  std::vector<TokenId> stops = shared_->stop_tokens;
  stops.push_back(77);
  EXPECT_EQ(p.stop_tokens, stops);
  EXPECT_FALSE(p.ignore_stop);
}

TEST_F(FrontendStopTest, ignoring_the_end_of_a_turn_does_not_ignore_what_the_client_names) {
  wire::Sampling sampling;
  sampling.ignore_stop = true;
  sampling.stop_tokens = {77};
  start(0, true, 1, 0, sampling);
  EXPECT_EQ(asked_->submitted.at(0).sampling.stop_tokens, (std::vector<TokenId>{77}));
  EXPECT_FALSE(asked_->submitted[0].sampling.ignore_stop);
}

TEST_F(FrontendStopTest, absent_parameters_are_neutral) {
  start();
  const SamplingParameters& p = asked_->submitted.at(0).sampling;
  EXPECT_FALSE(p.penalizes() || p.logprobs);
  EXPECT_TRUE(p.logit_bias.empty());
  draw(answer + "one");
  EXPECT_TRUE(deltas().at(0).logprobs.empty());
}

TEST_F(FrontendStopTest, deltas_tell_the_logprobs_of_their_tokens) {
  wire::Sampling sampling;
  sampling.logprobs = 2;
  start(0, false, 2, 0, sampling);
  tells_logprobs_ = true;
  std::vector<std::vector<TokenLogprobs>> expected(2);
  for (const std::uint32_t choice : {0u, 1u, 0u}) {
    const std::string said = drawn_[choice] == 0 ? answer + "one" : " two three";
    const auto tokens = shared_->format.tokenizer()->encode_with_special(said);
    for (std::size_t i = 0; i < tokens.size(); ++i) expected[choice].push_back(logprobs_of(tokens[i], drawn_[choice] + i));
    draw(said, choice);
  }
  pass(milliseconds(20));
  std::vector<std::vector<TokenLogprobs>> told(2);
  for (const wire::Delta& delta : deltas()) {
    EXPECT_TRUE(delta.tokens.empty());
    told[delta.choice].insert(told[delta.choice].end(), delta.logprobs.begin(), delta.logprobs.end());
  }
  EXPECT_EQ(told, expected);
}

TEST_F(FrontendStopTest, a_token_without_logprobs_that_were_asked_for_ends_the_stream) {
  wire::Sampling sampling;
  sampling.logprobs = 0;
  start(0, true, 1, 0, sampling);
  draw(answer);
  ASSERT_EQ(asked_->cancelled.size(), 1u);
  EXPECT_EQ(asked_->cancelled[0].error.code, ErrorCode::internal);
  EXPECT_THAT(asked_->cancelled[0].error.message, HasSubstr("how likely"));
  EXPECT_EQ(ends(), 1) << "what came behind a token that was left out would make no sense";
  EXPECT_EQ(error_code(), ErrorCode::internal);
}

}  // namespace
}  // namespace althing::actors::tests
