// A trace on its way through the core process: the scheduler's shell passes on what accepted steps computed and nothing else, before what it led to
// and before the end; the frontend puts it into deltas that a frame can hold, and a core that takes over a traced stream numbers it as before.
#include <gmock/gmock.h>

#include "actors/engine_setup.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/actors/frontend_fixture.hpp"
#include "tests/actors/scheduler_fixture.hpp"
#include "tests/actors/token_log_fixture.hpp"

namespace althing::actors::tests {
namespace {

using testing::ElementsAre;

// Made so that every number of it can be told apart.
StepRouting routing_of(std::uint32_t start, std::uint32_t count, std::uint32_t layers = 2) {
  StepRouting routing;
  routing.start = start;
  routing.layers = layers;
  routing.top_m = 1;
  routing.experts_per_token = 2;
  routing.nanoseconds.resize(layers, {1, 2, 3, 4, 5});
  for (std::uint32_t t = 0; t < count; ++t) {
    routing.tokens.push_back(start + t);
    for (std::uint32_t l = 0; l < layers; ++l) {
      routing.logits.push_back({l, static_cast<float>(start + t)});
      for (std::uint16_t k = 0; k < 2; ++k) routing.experts.push_back({k, k, 0, 0, k, PairFate::chosen, 0, 0.5F});
    }
  }
  return routing;
}

class SchedulerTrace : public SchedulerActorTest {
 protected:
  // A rank that answers when it is told to.
  void SetUp() override {
    start();
    rank_->answering = false;
    join(1, rank_);
  }
  std::shared_ptr<Heard> submit_traced(std::uint64_t id, std::uint32_t prompt, std::uint32_t completion, std::vector<TokenId> stops = {},
                                       std::vector<TokenId> drawn = {}) {
    auto heard = std::make_shared<Heard>();
    if (!drawn.empty()) heard->tokens = drawn;
    caf::actor actor = keep(system_.spawn(recorder, heard));
    Submitted submitted;
    submitted.request = RequestId{id};
    submitted.prompt.assign(prompt, 1);
    submitted.sampling.completion_tokens_max = completion;
    submitted.sampling.stop_tokens = std::move(stops);
    submitted.trace_top_m = 1;
    submitted.drawn = std::move(drawn);
    caf::anon_send(scheduler_, SubmitRequest{submitted, 0, actor});
    settle();
    return heard;
  }
  // The next plan's result, with a trace of all rows of traced requests.
  void answer(std::uint64_t epoch = 1) {
    ASSERT_LT(answered_, rank_->seen.size());
    const StepPlan& plan = rank_->seen[answered_++];
    StepResult result{plan.step, EpochId{epoch}, {}};
    for (const RowSetup& setup : plan.set) rows_[setup.row] = setup;
    for (const RowWork& work : plan.work) {
      const RowSetup& row = rows_[work.row];
      if (work.sample) result.drawn.push_back({work.row, row.request, token_at(work.start + work.count), false});
      if (row.trace_top_m > 0) append_routing(result.routing, row.request, routing_of(work.start, work.count));
    }
    caf::anon_send(scheduler_, result);
    settle();
  }
  // (start, count, recomputed) of what was told.
  static std::vector<std::vector<std::uint32_t>> parts(const Heard& heard) {
    std::vector<std::vector<std::uint32_t>> found;
    for (const Routed& routed : heard.routed) found.push_back({routed.start, routed.count, routed.recomputed});
    return found;
  }
  using Parts = std::vector<std::vector<std::uint32_t>>;

  std::shared_ptr<PretendRank> rank_ = std::make_shared<PretendRank>();
  std::map<RowIndex, RowSetup> rows_;
  std::size_t answered_ = 0;
};

TEST_F(SchedulerTrace, comes_before_the_tokens_that_it_led_to_and_to_nobody_else) {
  const auto traced = submit_traced(1, 4, 3);
  const auto quiet = submit(2, 4, 3);
  while (answered_ < rank_->seen.size()) answer();
  EXPECT_EQ(parts(*traced), (Parts{{0, 4, 0}, {4, 1, 0}, {5, 1, 0}}));
  EXPECT_THAT(traced->order, ElementsAre("routed", "tokens", "routed", "tokens", "routed", "tokens", "finished"));
  EXPECT_TRUE(quiet->routed.empty());
  EXPECT_EQ(traced->routed[1].step, StepId{2});
  EXPECT_EQ(traced->routed[1].epoch, EpochId{1});
  const auto routing = read_routing({1, traced->routed[0].start, traced->routed[0].count, traced->routed[0].body});
  ASSERT_TRUE(routing.has_value());
  EXPECT_EQ(*routing, routing_of(0, 4));
}

// The step behind the one that draws a stop token is on its way already. Its work is counted, so the trace holds it, and the end waits for it.
TEST_F(SchedulerTrace, the_end_waits_for_a_step_that_computes_something_still) {
  const auto traced = submit_traced(1, 4, 20, {token_at(5)});
  answer();
  ASSERT_EQ(rank_->seen.size() - answered_, 2u) << "two steps are in flight";
  answer();  // draws the stop token
  EXPECT_TRUE(traced->finished.empty());
  answer();
  ASSERT_EQ(traced->finished.size(), 1u);
  EXPECT_EQ(traced->finished[0].reason, FinishReason::stop);
  EXPECT_EQ(parts(*traced), (Parts{{0, 4, 0}, {4, 1, 0}, {5, 1, 0}}));
  EXPECT_EQ(traced->order.back(), "finished");
}

TEST_F(SchedulerTrace, the_end_does_not_wait_for_a_step_that_never_ends_or_when_the_server_stops) {
  auto traced = submit_traced(1, 4, 20, {token_at(5)});
  answer();
  answer();
  EXPECT_TRUE(traced->finished.empty());
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  EXPECT_EQ(traced->finished.size(), 1u);
  answered_ = rank_->seen.size();
  join(2, rank_);
  traced = submit_traced(10, 4, 20);
  answer(2);
  caf::anon_send(scheduler_, CancelRequest{RequestId{10}, {ErrorCode::cancelled, "", ""}});
  settle();
  EXPECT_TRUE(traced->finished.empty()) << "steps are on their way";
  caf::anon_send(scheduler_, stop_atom_v);
  settle();
  EXPECT_EQ(traced->finished.size(), 1u);
}

TEST_F(SchedulerTrace, a_step_that_was_not_accepted_is_in_no_trace_and_what_is_computed_again_says_so) {
  const auto traced = submit_traced(1, 4, 20);
  answer();
  answer();
  EXPECT_EQ(parts(*traced), (Parts{{0, 4, 0}, {4, 1, 0}}));
  const std::size_t lost = answered_;
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  answered_ = lost;
  answer(1);  // a result of the epoch that is over
  EXPECT_EQ(traced->routed.size(), 2u);
  answered_ = rank_->seen.size();
  join(2, rank_);
  answer(2);
  EXPECT_EQ(parts(*traced).back(), (std::vector<std::uint32_t>{0, 6, 5})) << "the last token had not been computed before";
  EXPECT_EQ(traced->routed.back().epoch, EpochId{2});
  // A result without the one before it is not accepted either.
  answered_ += 1;
  const std::size_t told = traced->routed.size();
  answer(2);
  EXPECT_EQ(traced->routed.size(), told);
}

TEST_F(SchedulerTrace, what_a_dead_core_had_computed_is_computed_again) {
  const auto traced = submit_traced(1, 4, 20, {}, {token_at(4), token_at(5)});
  answer();
  EXPECT_EQ(parts(*traced), (Parts{{0, 6, 5}}));
}

using FrontendTrace = FrontendActorTest;

Routed routed(std::uint32_t start, std::uint32_t count, std::uint32_t layers = 2, std::uint64_t request = 1) {
  std::string bytes;
  append_routing(bytes, RequestId{request}, routing_of(start, count, layers));
  std::string_view left = bytes;
  return {RequestId{request}, StepId{start + 1}, EpochId{3}, start, count, 0, std::string(next_section(left)->body)};
}

std::vector<std::pair<std::uint32_t, std::size_t>> told(const wire::Delta& delta) {
  std::vector<std::pair<std::uint32_t, std::size_t>> found;
  for (const StepRouting& part : delta.routing) found.emplace_back(part.start, part.tokens.size());
  return found;
}

TEST_F(FrontendTrace, goes_with_the_delta_of_its_tokens) {
  start(0, true, 1, 1);
  EXPECT_EQ(asked_->submitted[0].trace_top_m, 1u);
  say(Accepted{RequestId{1}});
  say(routed(0, 5));
  EXPECT_TRUE(deltas().empty()) << "there is nothing to read yet";
  draw("<|channel|>final<|message|>a");
  ASSERT_EQ(deltas().size(), 1u);
  EXPECT_THAT(told(deltas()[0]), ElementsAre(std::pair(0u, std::size_t{5})));
  EXPECT_EQ(deltas()[0].routing[0].epoch, EpochId{3});
  StepRouting expected = routing_of(0, 5);
  expected.step = StepId{1};
  expected.epoch = EpochId{3};
  EXPECT_EQ(deltas()[0].routing[0], expected);
}

TEST_F(FrontendTrace, what_is_left_at_the_end_comes_before_it) {
  start(0, true, 1, 1);
  say(Accepted{RequestId{1}});
  draw("<|channel|>final<|message|>a<|return|>");
  pass(milliseconds(20));
  say(routed(9, 1));
  const std::size_t before = deltas().size();
  finish();
  ASSERT_EQ(deltas().size(), before + 1);
  EXPECT_THAT(told(deltas().back()), ElementsAre(std::pair(9u, std::size_t{1})));
  EXPECT_EQ(ends(), 1);
  EXPECT_TRUE(std::holds_alternative<wire::Done>(heard_->to_client.back()));
}

TEST_F(FrontendTrace, a_large_one_is_cut_into_frames_and_none_of_it_is_missing) {
  start(0, true, 1, 1);
  say(Accepted{RequestId{1}});
  say(routed(0, 2000, 24));
  draw("<|channel|>final<|message|>a<|return|>");
  finish();
  std::uint32_t next = 0;
  for (const wire::Delta& delta : deltas()) {
    std::size_t bytes = 0;
    for (const StepRouting& part : delta.routing) {
      EXPECT_EQ(part.start, next);
      next += static_cast<std::uint32_t>(part.tokens.size());
      bytes += bytes_of(part);
    }
    EXPECT_LT(bytes, wire::DeltaLog::routing_bytes_max + 4096);
  }
  EXPECT_EQ(next, 2000u);
  EXPECT_GT(deltas().size(), 5u);
}

TEST_F(FrontendTrace, waits_for_credit_as_text_does) {
  start(1, true, 1, 1);
  say(Accepted{RequestId{1}});
  say(routed(0, 2000, 24));
  EXPECT_EQ(deltas().size(), 1u);
  say(ClientGrant{2});
  EXPECT_EQ(deltas().size(), 3u);
  draw("<|channel|>final<|message|>a<|return|>");
  finish();
  EXPECT_EQ(ends(), 0);
  say(ClientGrant{1000});
  EXPECT_EQ(ends(), 1);
}

TEST_F(FrontendTrace, one_that_grows_without_end_ends_the_request) {
  shared_->limits.trace_bytes_max = 200'000;
  start(0, true, 1, 1);
  say(Accepted{RequestId{1}});
  say(routed(0, 100, 24));
  EXPECT_TRUE(asked_->cancelled.empty());
  say(routed(100, 2000, 24));
  ASSERT_EQ(asked_->cancelled.size(), 1u);
  EXPECT_EQ(asked_->cancelled[0].error.code, ErrorCode::too_large);
  EXPECT_EQ(asked_->cancelled[0].error.field, "trace_top_m");
}

TEST_F(FrontendTrace, bytes_that_cannot_be_read_end_the_request) {
  start(0, true, 1, 1);
  say(Accepted{RequestId{1}});
  Routed wrong = routed(0, 5);
  wrong.count = 6;
  say(wrong);
  ASSERT_EQ(asked_->cancelled.size(), 1u);
  EXPECT_EQ(asked_->cancelled[0].error.code, ErrorCode::internal);
}

// Whatever moment the core dies in, the next one gives every delta the number that it had, and goes on traced. What a trace said is not kept.
TEST_F(FrontendTrace, a_stream_that_another_core_left_has_the_same_numbers) {
  TokenLogFixture f;
  shared_->token_log = f.log;
  start(0, true, 1, 1);
  say(Accepted{RequestId{1}});
  say(routed(0, 2000, 24));  // several deltas that hold nothing else
  draw("<|channel|>final<|message|>a");
  pass(milliseconds(20));
  draw("b<|return|>");
  say(routed(2000, 1));
  finish();
  const auto first = deltas();
  ASSERT_GT(first.size(), 5u);
  auto taken = TokenLogFixture::next_core(f.image());
  ASSERT_EQ(taken.streams.size(), 1u);
  const token_log::Read& read = taken.streams[0].read;
  EXPECT_EQ(read.submit.trace_top_m, 1u);
  wire::DeltaLog again("r", shared_->format, true);
  replay(read.story, again, true);
  ASSERT_EQ(again.messages().size(), first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    wire::Delta without = first[i];
    without.routing.clear();
    EXPECT_EQ(wire::encode(again.messages()[i], wire::Encoding::json), wire::encode(wire::ServerMessage(without), wire::Encoding::json));
  }
}

TEST_F(FrontendTrace, a_request_that_another_core_left_is_submitted_traced) {
  TokenLogFixture f;
  shared_->token_log = f.log;
  start(0, true, 1, 3);
  say(Accepted{RequestId{1}});
  draw("<|channel|>final<|message|>a");
  const auto taken = TokenLogFixture::next_core(f.image());
  ASSERT_EQ(taken.streams.size(), 1u);
  const ResubmitRequest again = resubmission_of(taken.streams[0].read, RequestId{9});
  ASSERT_EQ(again.choices.size(), 1u);
  EXPECT_EQ(again.choices[0].submitted.trace_top_m, 3u);
}

}  // namespace
}  // namespace althing::actors::tests
