// The scheduler's shell, message by message: streams end once, lost ranks do not lose tokens, failures reach whoever can repair them, and requests
// are counted once. Memberships have a file of their own.
#include "actors/scheduler_actor.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "scheduler/journal.hpp"

#include "tests/actors/scheduler_fixture.hpp"

namespace althing::actors::tests {
namespace {

TEST_F(SchedulerActorTest, a_request_is_accepted_streamed_and_finished_once) {
  start();
  join(1, std::make_shared<PretendRank>());
  EXPECT_EQ(ready_, 1);
  const auto heard = submit(1, 20, 12);
  EXPECT_EQ(heard->accepted, 1);
  EXPECT_EQ(heard->tokens, expected(20, 12));
  ASSERT_EQ(heard->finished.size(), 1U);
  EXPECT_EQ(heard->finished[0].reason, FinishReason::length);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(SchedulerActorTest, the_next_plan_is_on_its_way_before_the_first_is_done) {
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  join(1, rank);
  submit(1, 20, 12);
  ASSERT_EQ(rank->seen.size(), 2U);
  EXPECT_EQ(rank->seen[0].work.at(0).tokens.size(), 20U);
  EXPECT_EQ(rank->seen[1].base, rank->seen[0].step);
  EXPECT_TRUE(rank->seen[1].work.at(0).tokens.empty()) << "the token of a draw that nobody has seen yet";
  EXPECT_EQ(rank->seen[1].work.at(0).start, 20U);
  caf::anon_send(scheduler_, StepResult{rank->seen[0].step, rank->seen[0].epoch, {{RowIndex{0}, RequestId{1}, token_at(20), false}}});
  settle();
  EXPECT_EQ(rank->seen.size(), 3U) << "two in flight again";
}

// The monitor hears what each accepted step did, once, under the membership that computed it. Not of a result that came twice, before the one of the
// step before it (the core cannot take it: that one may be lost), or too late: what these computed is computed again.
TEST_F(SchedulerActorTest, counts_of_accepted_steps_are_told_once) {
  auto told = std::make_shared<std::vector<std::string>>();
  options_.monitor = keep(system_.spawn([told](caf::event_based_actor*) -> caf::behavior {
    return {[](const StatusReport&) {}, [told](const StepCounted& step) { told->push_back(step.counts); },
            [told](const CountingUnder& under) { told->push_back("epoch " + std::to_string(under.epoch)); }};
  }));
  start();
  const auto join_silent = [this](std::uint64_t epoch) {
    auto rank = std::make_shared<PretendRank>();
    rank->answering = false;
    join(epoch, rank);
    return rank;
  };
  const auto answer = [this](const StepPlan& plan, TokenId token, const char* counts) {
    caf::anon_send(scheduler_, StepResult{plan.step, plan.epoch, {{RowIndex{0}, RequestId{1}, token, false}}, {}, counts});
    settle();
  };
  const auto rank = join_silent(1);
  submit(1, 20, 12);
  ASSERT_EQ(rank->seen.size(), 2U);
  answer(rank->seen[1], token_at(21), "out of turn");
  answer(rank->seen[0], token_at(20), "first");
  answer(rank->seen[0], token_at(20), "first");
  EXPECT_EQ(*told, (std::vector<std::string>{"epoch 1", "first"}));
  EXPECT_NE(options_.metrics->scrape().find("\nalthing_step_tokens_total 20\n"), std::string::npos) << "both counters count the same steps";
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  answer(rank->seen.back(), token_at(21), "too late");
  const auto next = join_silent(2);
  answer(rank->seen.back(), token_at(21), "too late");
  ASSERT_FALSE(next->seen.empty());
  answer(next->seen[0], token_at(21), "computed again");
  EXPECT_EQ(*told, (std::vector<std::string>{"epoch 1", "first", "epoch 2", "computed again"}));
}

// Logprobs of a step go with the tokens that the core takes from it; those of a step that it does not take go nowhere.
TEST_F(SchedulerActorTest, logprobs_reach_the_reader_with_their_tokens) {
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  join(1, rank);
  const auto heard = submit(1, 20, 12);
  const auto answer = [&](const StepPlan& plan, TokenId token, const std::string& logprobs) {
    StepResult result{plan.step, plan.epoch, {{RowIndex{0}, RequestId{1}, token, false}}};
    result.logprobs = logprobs;
    caf::anon_send(scheduler_, std::move(result));
    settle();
  };
  const auto bytes_of = [](TokenId token) {
    std::string bytes;
    append_logprobs(bytes, {RequestId{99}, {token, -9.0F, {}}});  // somebody else's
    append_logprobs(bytes, {RequestId{1}, {token, -0.5F, {{token, -0.5F}, {1, -2.0F}}}});
    return bytes;
  };
  answer(rank->seen[1], token_at(21), bytes_of(token_at(21)));  // out of turn
  answer(rank->seen[0], token_at(20), bytes_of(token_at(20)));
  ASSERT_EQ(heard->drawn.size(), 1U);
  EXPECT_EQ(heard->drawn[0].logprobs, (std::vector<TokenLogprobs>{{token_at(20), -0.5F, {{token_at(20), -0.5F}, {1, -2.0F}}}}));
  // Damaged bytes, and those of another token, are left out: the frontend notices.
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  auto next = std::make_shared<PretendRank>();
  next->answering = false;
  join(2, next);
  answer(next->seen.at(0), token_at(21), "nonsense");
  answer(next->seen.at(1), token_at(22), bytes_of(token_at(23)));
  ASSERT_EQ(heard->drawn.size(), 3U);
  EXPECT_TRUE(heard->drawn[1].logprobs.empty());
  EXPECT_TRUE(heard->drawn[2].logprobs.empty());
}

TEST_F(SchedulerActorTest, a_request_that_its_text_ended_finishes_as_stop_with_the_tokens_up_to_there) {
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  rank->answering = false;
  const auto heard = submit(1, 20, 12);
  for (std::size_t step = 0; heard->tokens.size() < 3; ++step) {
    const StepPlan plan = rank->seen.at(step);
    caf::anon_send(scheduler_,
                   StepResult{plan.step, plan.epoch, {{RowIndex{0}, RequestId{1}, token_at(static_cast<std::uint32_t>(20 + step)), false}}});
    settle();
  }
  caf::anon_send(scheduler_, StopRequest{RequestId{1}, 2});
  settle();
  ASSERT_EQ(heard->finished.size(), 1U);
  EXPECT_EQ(heard->finished[0].reason, FinishReason::stop);
  EXPECT_EQ(heard->finished[0].usage.completion_tokens, 2U);
  EXPECT_EQ(count("althing_requests_total"), 1);
}

TEST_F(SchedulerActorTest, requests_wait_while_there_is_no_membership) {
  start();
  const auto heard = submit(1, 20, 4);
  EXPECT_EQ(heard->accepted, 1);
  EXPECT_TRUE(heard->finished.empty());
  join(1, std::make_shared<PretendRank>());
  EXPECT_EQ(heard->tokens, expected(20, 4));
}

TEST_F(SchedulerActorTest, a_rank_that_dies_in_mid_stream_costs_no_token) {
  start();
  auto first = std::make_shared<PretendRank>();
  const caf::actor rank = join(1, first);
  first->answering = false;
  const auto heard = submit(1, 20, 12);
  EXPECT_TRUE(heard->tokens.empty());
  caf::anon_send_exit(rank, caf::exit_reason::kill);
  settle();
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].first, 1U);
  join(2, std::make_shared<PretendRank>());
  EXPECT_EQ(heard->tokens, expected(20, 12));
  ASSERT_EQ(heard->finished.size(), 1U);
}

// An age was made up once for a rank that was not there, and a time of its last step from it.
TEST_F(SchedulerActorTest, a_rank_that_is_not_there_has_no_age_and_its_last_step_stays) {
  auto reports = std::make_shared<std::vector<StatusReport>>();
  options_.monitor = keep(system_.spawn(
      [reports](caf::event_based_actor*) -> caf::behavior { return {[reports](const StatusReport& report) { reports->push_back(report); }}; }));
  start();
  const auto last = [&] {
    reports->clear();
    pass(std::chrono::milliseconds(500));
    return reports->empty() ? StatusReport{} : reports->back();
  };
  const auto last_step = [&] {
    const std::string page = options_.metrics->scrape(), series = "\nalthing_last_step_timestamp_seconds{rank=\"0\"} ";
    return std::stod(page.substr(page.find(series) + series.size()));
  };
  ASSERT_EQ(last().rank_age_ms.size(), 1U);
  EXPECT_FALSE(last().rank_age_ms[0]);
  EXPECT_EQ(last_step(), 0);
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  ASSERT_TRUE(last().rank_age_ms[0]) << "the control";
  const double stepped = last_step();
  EXPECT_GT(stepped, 1e9);
  caf::anon_send_exit(actor, caf::exit_reason::kill);
  settle();
  EXPECT_FALSE(last().rank_age_ms[0]);
  EXPECT_EQ(last_step(), stepped);
}

TEST_F(SchedulerActorTest, a_step_that_a_rank_cannot_run_is_reported_once) {
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  rank->answering = false;
  submit(1, 8, 4);
  caf::anon_send(scheduler_, StepFailed{0, 1, 1, false, "aborted"});
  caf::anon_send(scheduler_, StepFailed{0, 1, 2, false, "aborted"});
  settle();
  EXPECT_EQ(failures_.size(), 1U);
}

TEST_F(SchedulerActorTest, a_plan_that_ranks_refuse_twice_ends_its_requests_and_nobody_else_s) {
  start();
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  rank->answering = false;
  const auto guilty = submit(1, 8, 4);
  for (std::uint64_t epoch = 1; epoch <= 2; ++epoch) {
    caf::anon_send(scheduler_, StepFailed{0, epoch, epoch, true, "no such temperature"});
    caf::anon_send(scheduler_, RankReady{0, epoch + 1, actor, actor});
    settle();
  }
  ASSERT_EQ(guilty->finished.size(), 1U);
  EXPECT_EQ(guilty->finished[0].error.code, ErrorCode::internal);
  rank->answering = true;
  EXPECT_EQ(submit(2, 8, 4)->tokens, expected(8, 4));
}

TEST_F(SchedulerActorTest, without_a_supervisor_a_failure_ends_streams_with_a_typed_error) {
  options_.report_failure = nullptr;
  start();
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  rank->answering = false;
  const auto heard = submit(1, 8, 4);
  caf::anon_send_exit(actor, caf::exit_reason::kill);
  settle();
  ASSERT_EQ(heard->finished.size(), 1U);
  EXPECT_EQ(heard->finished[0].error.code, ErrorCode::rank_lost);
}

// The recorder of such a test hears several sequences, so it must not check for gaps: it hears no token here.
TEST_F(SchedulerActorTest, choices_are_one_request_for_whoever_counts) {
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  join(1, rank);
  const auto heard = submit(1, 8, 200, nullptr, 3);
  EXPECT_EQ(heard->accepted, 1);
  EXPECT_EQ(count("althing_requests_accepted_total"), 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    EXPECT_EQ(count("althing_requests_total{outcome=\"cancelled\"}"), 0);
    caf::anon_send(scheduler_, CancelRequest{RequestId{id}, Error{ErrorCode::cancelled, "enough", ""}});
    settle();
  }
  EXPECT_EQ(heard->finished.size(), 3u);
  EXPECT_EQ(count("althing_requests_total{outcome=\"cancelled\"}"), 1);
}

// The recorder hears of the choices whether they were accepted; what counts is the metrics.
TEST_F(SchedulerActorTest, choices_that_a_dead_core_left_are_one_request_for_whoever_counts) {
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  join(1, rank);
  auto heard = std::make_shared<Heard>();
  const caf::actor frontend = keep(system_.spawn(recorder, heard));
  ResubmitRequest left{{}, FinishReason::error, ErrorCode::nonfinite};  // choice 1 had ended so
  for (const std::uint32_t choice : {0u, 2u, 3u}) {
    Submitted submitted;
    submitted.request = RequestId{7 + choice};
    submitted.prompt.assign(8, 1);
    submitted.sampling.completion_tokens_max = 200;
    submitted.sampling.choice = choice;
    submitted.drawn.assign(choice, 5);
    left.choices.push_back({submitted, 0, frontend});
  }
  caf::anon_send(scheduler_, left);
  settle();
  const auto other = submit(20, 8, 200);  // the control: a request of its own
  EXPECT_EQ(heard->accepted, 3);
  EXPECT_EQ(count("althing_requests_accepted_total"), 2);
  EXPECT_EQ(count("althing_prompt_tokens_total"), 16);
  for (const std::uint64_t id : {7u, 9u, 10u}) {
    EXPECT_EQ(count("althing_requests_total{outcome=\"error\"}"), 0);
    caf::anon_send(scheduler_, CancelRequest{RequestId{id}, Error{ErrorCode::cancelled, "enough", ""}});
    settle();
  }
  EXPECT_EQ(heard->finished.size(), 3u);
  EXPECT_EQ(count("althing_requests_total{outcome=\"error\"}"), 1) << "the gravest end of all, also of those that the dead core saw";
  EXPECT_EQ(count("althing_requests_total"), 1) << "in all its outcomes";
}

TEST_F(SchedulerActorTest, of_choices_that_a_dead_core_left_one_that_is_refused_fails_the_request) {
  start();
  auto heard = std::make_shared<Heard>();
  const caf::actor frontend = keep(system_.spawn(recorder, heard));
  ResubmitRequest left;
  for (const std::uint32_t prompt : {8u, 500u, 600u}) {  // two are longer than the context
    Submitted submitted;
    submitted.request = RequestId{1 + left.choices.size()};
    submitted.prompt.assign(prompt, 1);
    left.choices.push_back({submitted, 0, frontend});
  }
  caf::anon_send(scheduler_, left);
  settle();
  EXPECT_EQ(heard->rejected.size(), 2u);
  caf::anon_send(scheduler_, CancelRequest{RequestId{1}, Error{ErrorCode::cancelled, "its frontend ends the others", ""}});
  settle();
  EXPECT_EQ(heard->finished.size(), 1u) << "which lives until it is told";
  EXPECT_EQ(count("althing_requests_accepted_total"), 1);
  EXPECT_EQ(count("althing_requests_total{outcome=\"error\"}"), 1) << "one outcome, the gravest";
  EXPECT_EQ(count("althing_requests_rejected_total"), 0) << "as it was accepted";
}

TEST_F(SchedulerActorTest, of_choices_that_a_dead_core_left_all_may_be_refused_as_one_request) {
  start();
  auto heard = std::make_shared<Heard>();
  const caf::actor frontend = keep(system_.spawn(recorder, heard));
  caf::anon_send(scheduler_, drain_atom_v);
  ResubmitRequest left;
  for (std::uint32_t choice = 0; choice < 3; ++choice) {
    Submitted submitted;
    submitted.request = RequestId{1 + choice};
    submitted.prompt.assign(8, 1);
    left.choices.push_back({submitted, 0, frontend});
  }
  caf::anon_send(scheduler_, left);
  settle();
  EXPECT_EQ(heard->rejected.size(), 3u);
  EXPECT_EQ(count("althing_requests_rejected_total"), 1);
  EXPECT_EQ(count("althing_requests_accepted_total"), 0);
  EXPECT_EQ(count("althing_requests_total"), 0);
}

TEST_F(SchedulerActorTest, a_frontend_that_ends_takes_all_its_choices_with_it) {
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  join(1, rank);
  caf::actor frontend;
  submit(1, 8, 200, &frontend, 3);
  const auto neighbour = submit(4, 8, 200);
  caf::anon_send_exit(frontend, caf::exit_reason::kill);
  settle();
  caf::anon_send(scheduler_, drain_atom_v);
  settle();
  EXPECT_EQ(drained_, 0) << "the neighbour lives";
  caf::anon_send(scheduler_, CancelRequest{RequestId{4}, Error{ErrorCode::cancelled, "enough", ""}});
  pass(std::chrono::milliseconds(50));
  EXPECT_EQ(neighbour->finished.size(), 1u);
  EXPECT_EQ(drained_, 1) << "and nothing of the other is left";
}

TEST_F(SchedulerActorTest, a_rejection_forgets_all_choices) {
  start();
  const auto heard = submit(1, 8, 200, nullptr, 17);
  EXPECT_EQ(heard->rejected.size(), 1u);
  const auto again = submit(1, 8, 200, nullptr, 2);
  EXPECT_EQ(again->accepted, 1) << "the ids are free";
}

TEST_F(SchedulerActorTest, a_frontend_that_ends_takes_its_request_with_it) {
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  rank->answering = false;
  caf::actor frontend;
  submit(1, 8, 200, &frontend);
  caf::anon_send_exit(frontend, caf::exit_reason::kill);
  settle();
  rank->answering = true;
  const auto next = submit(2, 8, 4);
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  auto fresh = std::make_shared<PretendRank>();
  join(2, fresh);
  EXPECT_EQ(next->tokens, expected(8, 4));
  EXPECT_LT(fresh->plans, 20);  // the dead request's 200 tokens were not computed
}

TEST_F(SchedulerActorTest, a_cancelled_request_hears_its_error) {
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  rank->answering = false;
  const auto heard = submit(1, 8, 4);
  caf::anon_send(scheduler_, CancelRequest{RequestId{1}, Error{ErrorCode::cancelled, "enough", ""}});
  settle();
  ASSERT_EQ(heard->finished.size(), 1U);
  EXPECT_EQ(heard->finished[0].error.message, "enough");
}

TEST_F(SchedulerActorTest, a_drain_refuses_new_requests_and_tells_when_it_is_over) {
  start();
  join(1, std::make_shared<PretendRank>());
  caf::anon_send(scheduler_, drain_atom_v);
  settle();
  const auto heard = submit(1, 8, 4);
  ASSERT_EQ(heard->rejected.size(), 1U);
  EXPECT_EQ(heard->rejected[0].error.code, ErrorCode::draining);
  pass(std::chrono::milliseconds(100));
  EXPECT_EQ(drained_, 1);
}

TEST_F(SchedulerActorTest, an_unexpected_message_changes_nothing) {
  start();
  join(1, std::make_shared<PretendRank>());
  caf::anon_send(scheduler_, std::string("nonsense"), 42);
  settle();
  EXPECT_EQ(submit(1, 8, 4)->tokens, expected(8, 4));
}

TEST_F(SchedulerActorTest, the_journal_is_for_its_owner_only_and_holds_the_events) {
  char directory[] = "/tmp/althing-journal-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/journal";
  options_.journal = *JournalFile::open(path, scheduler::journal_header() + "\n" + scheduler::to_config_line(options_.core) + "\n");
  start();
  join(1, std::make_shared<PretendRank>());
  submit(1, 8, 4);
  pass(std::chrono::milliseconds(100));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_GT(std::count(text.begin(), text.end(), '\n'), 5);
  ::unlink(path.c_str());
  ::rmdir(directory);
}

}  // namespace
}  // namespace althing::actors::tests
