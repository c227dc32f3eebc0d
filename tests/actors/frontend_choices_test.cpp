// Several choices in one stream, message by message: one row of numbers, one credit, one end; each choice with its own messages, reason and usage.
#include "tests/actors/frontend_fixture.hpp"

namespace althing::actors::tests {
namespace {

const std::string begin = "<|channel|>final<|message|>";
const Error nan_error{ErrorCode::nonfinite, "NaN", ""};

class FrontendChoicesTest : public FrontendActorTest {
 protected:
  void start_three(std::uint32_t credit = 0) {
    start(credit, true, 3);
    say(Accepted{RequestId{1}});
  }
  const wire::Done* done() const { return std::get_if<wire::Done>(&heard_->to_client.back()); }
  std::set<std::uint64_t> cancelled() const {
    std::set<std::uint64_t> ids;
    for (const CancelRequest& request : asked_->cancelled) ids.insert(request.request.value);
    return ids;
  }
};

TEST_F(FrontendChoicesTest, one_submission_asks_for_all_of_them) {
  start_three();
  ASSERT_EQ(asked_->submitted.size(), 1u);
  EXPECT_EQ(asked_->submitted[0].choices, 3u);
  EXPECT_EQ(asked_->submitted[0].request, RequestId{1});
  EXPECT_EQ(asked_->submitted[0].sampling.choice, 0u);
}

TEST_F(FrontendChoicesTest, each_has_its_own_messages_and_all_share_the_numbers) {
  start_three();
  // Choice 1 is in the middle of its header when the others already speak.
  draw("<|channel|>analy", 1);
  draw(begin + "A", 0);
  draw(begin + "X", 2);
  draw("sis<|message|>hm<|end|><|start|>assistant" + begin + "M", 1);
  draw(" b", 0);
  pass(milliseconds(50));
  draw("<|return|>", 0);
  for (const std::uint32_t choice : {2u, 0u, 1u}) finish(choice);
  EXPECT_EQ(text(0), "A b");
  EXPECT_EQ(text(1), "hmM");
  EXPECT_EQ(text(2), "X");
  std::uint64_t sequence = 0;
  for (const wire::Delta& delta : deltas()) EXPECT_EQ(delta.sequence, ++sequence);
  EXPECT_EQ(ends(), 1);
  ASSERT_NE(done(), nullptr);
  EXPECT_EQ(done()->sequence, sequence + 1);
}

TEST_F(FrontendChoicesTest, the_first_token_of_each_goes_at_once) {
  start_three();
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(begin + "A", choice);
  EXPECT_EQ(deltas().size(), 3u);
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(" b", choice);
  EXPECT_EQ(deltas().size(), 3u) << "the next ones are coalesced";
  pass(milliseconds(shared_->limits.delta_interval_ms));
  EXPECT_EQ(deltas().size(), 6u);
}

TEST_F(FrontendChoicesTest, the_end_comes_when_all_have_ended_with_the_sum_and_each_reason) {
  start_three();
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(begin + "A", choice);
  draw(" b", 1);
  finish(0);
  finish(1, FinishReason::length);
  EXPECT_EQ(ends(), 0);
  finish(2);
  ASSERT_NE(done(), nullptr);
  EXPECT_EQ(done()->reason, FinishReason::length);
  EXPECT_EQ(done()->usage.prompt_tokens, 3u) << "of the prompt, once";
  EXPECT_EQ(done()->usage.completion_tokens, drawn_[0] + drawn_[1] + drawn_[2]);
  EXPECT_EQ(done()->usage.preemptions, 0u + 1u + 2u);
  ASSERT_EQ(done()->choices.size(), 3u);
  EXPECT_EQ(done()->choices[1].reason, FinishReason::length);
  EXPECT_EQ(done()->choices[1].completion_tokens, drawn_[1]);
  EXPECT_EQ(done()->choices[2].reason, FinishReason::stop);
}

TEST_F(FrontendChoicesTest, a_stream_of_one_names_no_choices) {
  start();
  draw(begin + "A");
  finish();
  ASSERT_NE(done(), nullptr);
  EXPECT_TRUE(done()->choices.empty());
}

TEST_F(FrontendChoicesTest, nan_ends_one_choice_and_not_the_others) {
  start_three();
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(begin + "A", choice);
  finish(1, FinishReason::error, nan_error);
  EXPECT_EQ(ends(), 0);
  EXPECT_TRUE(asked_->cancelled.empty());
  draw(" b", 0);
  finish(0);
  finish(2);
  EXPECT_EQ(text(0), "A b");
  ASSERT_NE(done(), nullptr);
  EXPECT_EQ(done()->reason, FinishReason::error);
  ASSERT_TRUE(done()->choices[1].error.has_value());
  EXPECT_EQ(done()->choices[1].error->code, ErrorCode::nonfinite);
  EXPECT_FALSE(done()->choices[0].error.has_value());
}

TEST_F(FrontendChoicesTest, when_all_of_them_fail_the_stream_does) {
  start_three();
  for (const std::uint32_t choice : {0u, 1u, 2u}) finish(choice, FinishReason::error, nan_error);
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::nonfinite);
}

TEST_F(FrontendChoicesTest, any_other_failure_is_the_stream_s_and_ends_the_rest) {
  start_three();
  draw(begin + "A", 0);
  finish(2);
  finish(1, FinishReason::error, Error{ErrorCode::deadline, "late", ""});
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::deadline);
  EXPECT_EQ(cancelled(), (std::set<std::uint64_t>{1})) << "2 and 3 have ended already";
  finish(0, FinishReason::cancelled, Error{ErrorCode::deadline, "late", ""});
  EXPECT_EQ(ends(), 1);
}

TEST_F(FrontendChoicesTest, a_cancel_is_about_all_that_still_run) {
  start_three();
  finish(0);
  say(ClientCancel{Error{ErrorCode::cancelled, "enough", ""}});
  EXPECT_EQ(cancelled(), (std::set<std::uint64_t>{2, 3}));
  finish(1, FinishReason::cancelled, Error{ErrorCode::cancelled, "enough", ""});
  finish(2, FinishReason::cancelled, Error{ErrorCode::cancelled, "enough", ""});
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::cancelled);
}

TEST_F(FrontendChoicesTest, credit_is_the_stream_s_and_choices_take_turns) {
  start_three(3);
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(begin + "A", choice);
  EXPECT_EQ(deltas().size(), 3u);
  for (int round = 0; round < 3; ++round) {
    for (const std::uint32_t choice : {0u, 1u, 2u}) draw(" b", choice);
    pass(milliseconds(50));
    EXPECT_EQ(deltas().size(), 3u + static_cast<std::size_t>(round));
    say(ClientGrant{1});
  }
  std::set<std::uint32_t> served;
  for (std::size_t i = 3; i < 6; ++i) served.insert(deltas()[i].choice);
  EXPECT_EQ(served, (std::set<std::uint32_t>{0, 1, 2})) << "none starves";
  for (const std::uint32_t choice : {0u, 1u, 2u}) finish(choice);
  EXPECT_EQ(ends(), 0) << "text is owed before the end";
  say(ClientGrant{100});
  EXPECT_EQ(ends(), 1);
  for (const std::uint32_t choice : {0u, 1u, 2u}) EXPECT_EQ(text(choice), "A b b b");
}

TEST_F(FrontendChoicesTest, what_waits_for_a_slow_reader_is_counted_over_all_choices) {
  const_cast<Limits&>(shared_->limits).session_buffer_bytes_max = 96;
  start_three(3);
  for (const std::uint32_t choice : {0u, 1u, 2u}) draw(begin + "A", choice);
  for (int i = 0; i < 6 && ends() == 0; ++i)
    for (const std::uint32_t choice : {0u, 1u, 2u}) draw(" word", choice);
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::slow_reader);
  EXPECT_EQ(cancelled(), (std::set<std::uint64_t>{1, 2, 3}));
}

TEST_F(FrontendChoicesTest, a_resume_from_any_number_brings_the_rest_of_all_choices) {
  start_three();
  for (const char* piece : {"A", " b", " c"}) {
    for (const std::uint32_t choice : {0u, 1u, 2u}) draw(std::string(piece) == "A" ? begin + piece : piece, choice);
    pass(milliseconds(50));
  }
  for (const std::uint32_t choice : {0u, 1u, 2u}) finish(choice);
  const std::vector<wire::ServerMessage> whole(heard_->to_client.begin() + 1, heard_->to_client.end());
  ASSERT_EQ(whole.size(), 13u) << "four deltas of each, the last of which says that its message is over, and the end";
  for (std::uint64_t last = 0; last < whole.size(); ++last) {
    heard_->to_client.clear();
    say(ClientResume{last, static_cast<std::uint32_t>(last + 1)});
    std::size_t numbered = 0;
    for (const auto& message : heard_->to_client) numbered += !std::holds_alternative<wire::Accepted>(message);
    EXPECT_EQ(numbered, whole.size() - last);
  }
}

TEST_F(FrontendChoicesTest, a_rejection_is_one_error) {
  start(0, true, 3);
  say(Rejected{RequestId{1}, Error{ErrorCode::busy, "full", ""}});
  EXPECT_EQ(heard_->to_client.size(), 1u);
  EXPECT_EQ(error_code(), ErrorCode::busy);
}

}  // namespace
}  // namespace althing::actors::tests
