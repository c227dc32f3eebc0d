// One stream's frontend, message by message under a virtual clock: numbering, credit, resume, coalescing and exactly one end, whatever comes.
#include "actors/frontend_actor.hpp"

#include "tests/actors/frontend_fixture.hpp"

namespace althing::actors::tests {
namespace {

TEST_F(FrontendActorTest, a_stream_is_numbered_without_gaps_and_ends_once) {
  start();
  ASSERT_EQ(asked_->submitted.size(), 1U);
  EXPECT_FALSE(asked_->submitted[0].prompt.empty());
  say(Accepted{RequestId{1}});
  draw("<|channel|>final<|message|>Hi");
  draw(" there");
  pass(milliseconds(50));
  draw(".<|return|>");
  finish();
  finish();
  EXPECT_EQ(text(), "Hi there.");
  EXPECT_EQ(ends(), 1);
  std::uint64_t sequence = 0;
  for (const wire::Delta& delta : deltas()) EXPECT_EQ(delta.sequence, ++sequence);
  const auto* done = std::get_if<wire::Done>(&heard_->to_client.back());
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(done->sequence, sequence + 1);
}

TEST_F(FrontendActorTest, the_first_token_goes_at_once_and_the_next_ones_together) {
  start();
  draw("<|channel|>final<|message|>A");
  EXPECT_EQ(deltas().size(), 1U);
  draw(" b");
  draw(" c");
  EXPECT_EQ(deltas().size(), 1U);
  pass(milliseconds(shared_->limits.delta_interval_ms));
  EXPECT_EQ(deltas().size(), 2U);
  EXPECT_EQ(text(), "A b c");
}

TEST_F(FrontendActorTest, tokens_that_are_further_apart_than_deltas_wait_for_nothing) {
  start();
  draw("<|channel|>final<|message|>A");
  for (std::size_t i = 2; i < 6; ++i) {
    pass(milliseconds(shared_->limits.delta_interval_ms));
    draw(" b");
    EXPECT_EQ(deltas().size(), i);
  }
  // And what comes right behind one waits for the rest of the interval only.
  pass(milliseconds(shared_->limits.delta_interval_ms - 2));
  draw(" c");
  EXPECT_EQ(deltas().size(), 5U);
  pass(milliseconds(2));
  EXPECT_EQ(deltas().size(), 6U);
  EXPECT_EQ(text(), "A b b b b c");
}

TEST_F(FrontendActorTest, without_credit_text_waits_and_the_end_waits_behind_it) {
  start(1);
  draw("<|channel|>final<|message|>A");
  draw(" b<|return|>");
  pass(milliseconds(50));
  finish();
  EXPECT_EQ(deltas().size(), 1U);
  EXPECT_EQ(ends(), 0);
  say(ClientGrant{1});
  EXPECT_EQ(text(), "A b");
  EXPECT_EQ(ends(), 1);
}

TEST_F(FrontendActorTest, credit_that_never_comes_ends_the_stream_as_a_slow_reader) {
  start(1);
  draw("<|channel|>final<|message|>A");
  draw(" b");
  pass(milliseconds(50));
  EXPECT_EQ(ends(), 0);
  // The stall is measured on the real clock; with a limit of zero any time is enough.
  const_cast<Limits&>(shared_->limits).credit_stall_ms_max = 0;
  pass(milliseconds(60'000));
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::slow_reader);
  ASSERT_EQ(asked_->cancelled.size(), 1U);
}

TEST_F(FrontendActorTest, more_unread_text_than_the_buffer_holds_ends_the_stream) {
  const_cast<Limits&>(shared_->limits).session_buffer_bytes_max = 64;
  start(1);
  draw("<|channel|>final<|message|>A");
  for (int i = 0; i < 40; ++i) draw(" word");
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::slow_reader);
}

TEST_F(FrontendActorTest, a_resume_repeats_what_the_client_missed_and_nothing_else) {
  start();
  say(Accepted{RequestId{1}});
  draw("<|channel|>final<|message|>A");
  draw(" b");
  pass(milliseconds(50));
  draw("<|return|>");
  finish();
  const std::size_t before = heard_->to_client.size();
  say(ClientResume{1, 1});
  ASSERT_GT(heard_->to_client.size(), before);
  const auto* first = std::get_if<wire::Delta>(&heard_->to_client[before]);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->sequence, 2U);
  const std::size_t after = heard_->to_client.size();
  say(ClientResume{1'000'000, 2});
  // Whoever claims to have more than there is hears the end again.
  EXPECT_EQ(heard_->to_client.size(), after + 1);
  EXPECT_TRUE(std::holds_alternative<wire::Done>(heard_->to_client.back()));
}

TEST_F(FrontendActorTest, an_error_does_not_wait_for_credit) {
  start(1);
  draw("<|channel|>final<|message|>A");
  draw(" b");
  pass(milliseconds(50));
  say(Finished{RequestId{1}, FinishReason::cancelled, {}, Error{ErrorCode::deadline, "too late", ""}});
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::deadline);
}

TEST_F(FrontendActorTest, a_cancel_reaches_the_scheduler_and_its_answer_ends_the_stream) {
  start();
  draw("<|channel|>final<|message|>A");
  say(ClientCancel{Error{ErrorCode::cancelled, "enough", ""}});
  EXPECT_EQ(ends(), 0);
  ASSERT_EQ(asked_->cancelled.size(), 1U);
  say(Finished{RequestId{1}, FinishReason::cancelled, {}, asked_->cancelled[0].error});
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::cancelled);
}

TEST_F(FrontendActorTest, the_scheduler_s_end_ends_the_stream_with_an_error) {
  start();
  caf::anon_send_exit(scheduler_, caf::exit_reason::kill);
  settle();
  EXPECT_EQ(ends(), 1);
  EXPECT_EQ(error_code(), ErrorCode::internal);
}

TEST_F(FrontendActorTest, a_finished_stream_lingers_and_then_closes) {
  start();
  draw("<|channel|>final<|message|>A<|return|>");
  finish();
  EXPECT_EQ(heard_->closed, 0);
  pass(shared_->linger);
  EXPECT_EQ(heard_->closed, 1);
}

TEST_F(FrontendActorTest, a_rejection_is_the_only_thing_the_client_hears) {
  start();
  say(Rejected{RequestId{1}, Error{ErrorCode::busy, "full", ""}});
  EXPECT_EQ(heard_->to_client.size(), 1U);
  EXPECT_EQ(error_code(), ErrorCode::busy);
  // And its id can be used again at once.
  pass(milliseconds(1));
  EXPECT_EQ(heard_->closed, 1);
}

TEST_F(FrontendActorTest, an_acceptance_that_comes_after_the_end_is_heard_by_nobody) {
  start();
  say(Rejected{RequestId{1}, Error{ErrorCode::busy, "full", ""}});
  say(Accepted{RequestId{1}});
  ASSERT_EQ(heard_->to_client.size(), 1u);
  EXPECT_EQ(error_code(), ErrorCode::busy) << "the end is the last word";
}

TEST_F(FrontendActorTest, tokens_of_two_tp_degrees_mark_the_end_and_of_one_do_not) {
  for (const std::uint32_t second : {2u, 1u}) {
    heard_->to_client.clear();
    drawn_.clear();
    start();
    say(Accepted{RequestId{1}});
    say(DrawnUnder{2});
    draw("<|channel|>final<|message|>one");
    say(DrawnUnder{second});
    draw(" two");
    say(DrawnUnder{2});
    draw(" three<|return|>");
    finish();
    const auto* done = std::get_if<wire::Done>(&heard_->to_client.back());
    ASSERT_NE(done, nullptr);
    EXPECT_EQ(done->layout_changed, second != 2);
    caf::anon_send_exit(frontend_, caf::exit_reason::kill);
    settle();
  }
}

}  // namespace
}  // namespace althing::actors::tests
