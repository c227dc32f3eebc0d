// Streams that are held to a grammar: what the scheduler hears of their draws, message by message.
#include <gmock/gmock.h>

#include "scheduler/vocabulary/token_mask.hpp"
#include "tests/actors/frontend_fixture.hpp"

namespace althing::actors::tests {
namespace {

using testing::HasSubstr;

class FrontendGrammarTest : public FrontendActorTest {
 protected:
  FrontendGrammarTest() { shared_->grammars = std::make_shared<protocol::grammar::GrammarLibrary>(shared_->format.tokenizer(), vocabulary()); }
  std::uint32_t vocabulary() const { return shared_->format.tokenizer()->vocabulary_size(); }
  void begin(const std::string& expression, std::uint32_t choices = 1, const wire::Sampling& sampling = {}) {
    start(0, true, choices, 0, sampling, wire::Grammar{wire::GrammarKind::regex, expression});
  }
  bool ends_with_done() const { return std::holds_alternative<wire::Done>(heard_->to_client.back()); }
  std::vector<TokenId> legal(const std::shared_ptr<const std::string>& mask) const {
    std::vector<TokenId> tokens;
    const auto words = decode_mask(*mask, vocabulary());
    for (TokenId token = 0; words && token < vocabulary(); ++token)
      if (is_legal(*words, token)) tokens.push_back(token);
    return tokens;
  }
};

const std::string answer = "<|channel|>final<|message|>";

TEST_F(FrontendGrammarTest, each_draw_is_allowed_before_it_is_made_and_those_of_the_answer_have_masks) {
  begin("yes|no");
  ASSERT_EQ(asked_->submitted.size(), 1u);
  EXPECT_TRUE(asked_->submitted[0].constrained);
  EXPECT_EQ(asked_->submitted[0].draws_ready, 1u);
  ASSERT_TRUE(asked_->masks[0]);
  EXPECT_EQ(legal(asked_->masks[0]), std::vector<TokenId>{shared_->format.harmony()->channel}) << "a reply begins with a header";
  say(Accepted{RequestId{1}});
  EXPECT_TRUE(asked_->allowed.empty()) << "the submit said so already";
  draw("<|channel|>");
  ASSERT_EQ(asked_->allowed.size(), 1u);
  EXPECT_EQ(asked_->allowed[0].until, 2u);
  for (const TokenId token : legal(asked_->allowed[0].mask))
    EXPECT_TRUE(std::string("analysis").starts_with(*shared_->format.tokenizer()->bytes_of(token)) ||
                std::string("commentary").starts_with(*shared_->format.tokenizer()->bytes_of(token)) ||
                std::string("final").starts_with(*shared_->format.tokenizer()->bytes_of(token)));
  draw("final");
  ASSERT_TRUE(asked_->allowed.back().mask);
  EXPECT_EQ(legal(asked_->allowed.back().mask), std::vector<TokenId>{shared_->format.harmony()->message});
  draw("<|message|>");
  EXPECT_EQ(asked_->allowed.back().until, drawn_[0] + 1);
  for (const TokenId token : legal(asked_->allowed.back().mask))
    EXPECT_THAT((std::vector<std::string>{"y", "ye", "yes", "n", "no"}),
                testing::Contains(std::string(*shared_->format.tokenizer()->bytes_of(token))));
  draw("no");
  const auto ends = legal(asked_->allowed.back().mask);
  EXPECT_THAT(ends, testing::UnorderedElementsAre(shared_->format.harmony()->return_, shared_->format.harmony()->end));
  const std::size_t allowed = asked_->allowed.size();
  draw("<|return|>");
  finish();
  EXPECT_EQ(text(), "no");
  EXPECT_EQ(ends_with_done(), true);
  EXPECT_LE(asked_->allowed.size(), allowed + 1);
}

TEST_F(FrontendGrammarTest, reasoning_is_free_draw_by_draw) {
  begin("yes|no");
  say(Accepted{RequestId{1}});
  draw("<|channel|>analysis<|message|>");
  EXPECT_EQ(asked_->allowed.back().until, drawn_[0] + 1);
  EXPECT_FALSE(asked_->allowed.back().mask);
  draw("some reasoning, {free}<|end|>");
  EXPECT_THAT(legal(asked_->allowed.back().mask),
              testing::UnorderedElementsAre(shared_->format.harmony()->start, shared_->format.harmony()->return_));
}

TEST_F(FrontendGrammarTest, an_answer_that_ends_its_message_ends_its_choice) {
  begin("yes|no", 2);
  say(Accepted{RequestId{1}});
  draw(answer + "yes<|end|>", 1);
  ASSERT_EQ(asked_->stopped.size(), 1u);
  EXPECT_EQ(asked_->stopped[0].request, RequestId{2});
  EXPECT_EQ(asked_->stopped[0].completion_tokens, drawn_[1]);
  EXPECT_EQ(ends(), 0) << "the other one goes on";
  draw(answer + "no<|return|>");
  finish();
  EXPECT_EQ(text(0), "no");
  EXPECT_EQ(text(1), "yes");
  EXPECT_EQ(ends(), 1);
  const auto& done = std::get<wire::Done>(heard_->to_client.back());
  ASSERT_EQ(done.choices.size(), 2u);
  EXPECT_EQ(done.choices[1].reason, FinishReason::stop);
  EXPECT_FALSE(done.choices[1].stop_string);
}

TEST_F(FrontendGrammarTest, a_grammar_that_cannot_be_held_is_refused_before_anything_is_submitted) {
  begin("(?=x)y");
  EXPECT_TRUE(asked_->submitted.empty());
  EXPECT_EQ(error_code(), ErrorCode::unsupported);
  EXPECT_THAT(std::get<wire::ErrorReply>(heard_->to_client.back()).error.message, HasSubstr("lookahead"));
}

TEST_F(FrontendGrammarTest, a_grammar_and_no_end_contradict_each_other) {
  wire::Sampling sampling;
  sampling.ignore_stop = true;
  begin("yes", 1, sampling);
  EXPECT_TRUE(asked_->submitted.empty());
  EXPECT_EQ(error_code(), ErrorCode::invalid_argument);
}

TEST_F(FrontendGrammarTest, an_engine_without_a_model_holds_nothing) {
  shared_->grammars = nullptr;
  begin("yes");
  EXPECT_EQ(error_code(), ErrorCode::unsupported);
}

TEST_F(FrontendGrammarTest, tokens_that_no_mask_would_have_let_through_end_the_request) {
  begin("yes|no");
  say(Accepted{RequestId{1}});
  draw(answer + "maybe");
  EXPECT_EQ(error_code(), ErrorCode::internal);
  EXPECT_EQ(asked_->cancelled.size(), 1u);
}

}  // namespace
}  // namespace althing::actors::tests
