// One stream's frontend, message by message under a virtual clock: numbering, credit, resume, coalescing and exactly one end, whatever comes.
#include "actors/frontend_actor.hpp"

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {
namespace {

namespace wire = protocol::wire;
using std::chrono::milliseconds;

// Stands where the scheduler stands and keeps what it is asked.
struct Asked {
  std::vector<Submitted> submitted;
  std::vector<CancelRequest> cancelled;
};

caf::behavior pretend_scheduler(caf::event_based_actor*, std::shared_ptr<Asked> asked) {
  return {
      [=](const SubmitRequest& request) { asked->submitted.push_back(request.submitted); },
      [=](const CancelRequest& request) { asked->cancelled.push_back(request); },
  };
}

class FrontendActorTest : public testing::Test {
 protected:
  FrontendActorTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    auto tokenizer = protocol::Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    shared_->format = *protocol::harmony::Format::of(*tokenizer);
    shared_->stop_tokens = shared_->format.sampling_stops();
    shared_->metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    shared_->linger = milliseconds(1000);
    scheduler_ = system_.spawn(pretend_scheduler, asked_);
    shared_->scheduler = scheduler_;
    gateway_ = system_.spawn(recorder, heard_);
  }
  ~FrontendActorTest() override {
    for (const caf::actor& actor : {frontend_, scheduler_, gateway_})
      if (actor) caf::anon_send_exit(actor, caf::exit_reason::kill);
    coordinator_.run();
  }

  void settle() {
    while (coordinator_.try_run_once()) {
    }
  }
  void pass(milliseconds time) {
    coordinator_.advance_time(time);
    settle();
  }
  template <class Message>
  void say(Message message) {
    caf::anon_send(frontend_, std::move(message));
    settle();
  }
  void start(std::uint32_t credit = 0, bool return_tokens = true) {
    wire::Submit submit;
    submit.request_id = "r";
    submit.messages = {{protocol::harmony::Role::user, {}, {}, {}, {}, {protocol::harmony::TextContent{"hello"}}}};
    submit.credit = credit;
    submit.return_tokens = return_tokens;
    frontend_ = system_.spawn(frontend_actor, std::shared_ptr<const FrontendShared>(shared_),
                              FrontendStart{RequestId{1}, "client", std::move(submit), gateway_, std::chrono::steady_clock::now()});
    settle();
  }
  void draw(std::string_view text) {
    const auto tokens = shared_->format.tokenizer->encode_with_special(text);
    say(TokensDrawn{RequestId{1}, drawn_, tokens});
    drawn_ += static_cast<std::uint32_t>(tokens.size());
  }
  void finish() { say(Finished{RequestId{1}, FinishReason::stop, {3, drawn_, 0}, {}}); }

  std::vector<wire::Delta> deltas() const {
    std::vector<wire::Delta> found;
    for (const auto& message : heard_->to_client)
      if (const auto* delta = std::get_if<wire::Delta>(&message)) found.push_back(*delta);
    return found;
  }
  std::string text() const {
    std::string all;
    for (const wire::Delta& delta : deltas())
      for (const wire::DeltaEvent& event : delta.events)
        if (const auto* piece = std::get_if<wire::Text>(&event)) all += piece->text;
    return all;
  }
  int ends() const {
    int count = 0;
    for (const auto& message : heard_->to_client)
      count += std::holds_alternative<wire::Done>(message) || std::holds_alternative<wire::ErrorReply>(message);
    return count;
  }
  ErrorCode error_code() const {
    const auto* error = std::get_if<wire::ErrorReply>(&heard_->to_client.back());
    return error == nullptr ? ErrorCode::internal : error->error.code;
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  std::shared_ptr<FrontendShared> shared_ = std::make_shared<FrontendShared>();
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  caf::actor scheduler_, gateway_, frontend_;
  std::uint32_t drawn_ = 0;
};

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

}  // namespace
}  // namespace althing::actors::tests
