// The scheduler's shell, message by message: streams end once, lost ranks do not lose tokens, failures reach whoever can repair them.
#include "actors/scheduler_actor.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "scheduler/journal.hpp"

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {
namespace {

class SchedulerActorTest : public testing::Test {
 protected:
  SchedulerActorTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    options_.core.limits.context_tokens_max = 256;
    options_.core.kv = {64, 4096, {{0, 16, {1}}, {32, 16, {0}}}};
    options_.core.vocabulary = 100;
    options_.metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    options_.report_failure = [this](std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string&) {
      failures_.emplace_back(epoch, ranks);
    };
    options_.on_ready = [this](std::uint64_t) { ++ready_; };
    options_.on_drained = [this] { ++drained_; };
  }
  ~SchedulerActorTest() override {
    for (const caf::actor& actor : actors_) caf::anon_send_exit(actor, caf::exit_reason::kill);
    coordinator_.run();
  }

  void start() {
    scheduler_ = keep(system_.spawn(scheduler_actor, options_));
    settle();
  }
  caf::actor keep(caf::actor actor) {
    actors_.push_back(actor);
    return actor;
  }
  // Beats are for ever, so run() alone would not end: deliver what is due now only.
  void settle() {
    while (coordinator_.try_run_once()) {
    }
  }
  void pass(std::chrono::milliseconds time) {
    coordinator_.advance_time(time);
    settle();
  }
  caf::actor join(std::uint64_t epoch, std::shared_ptr<PretendRank> rank) {
    caf::actor actor = keep(system_.spawn(pretend_rank, std::move(rank), scheduler_));
    caf::anon_send(scheduler_, RankReady{0, epoch, actor, actor});
    settle();
    return actor;
  }
  std::shared_ptr<Heard> submit(std::uint64_t id, std::uint32_t prompt, std::uint32_t completion, caf::actor* frontend = nullptr) {
    auto heard = std::make_shared<Heard>();
    caf::actor actor = keep(system_.spawn(recorder, heard));
    if (frontend != nullptr) *frontend = actor;
    Submitted submitted;
    submitted.request = RequestId{id};
    submitted.prompt.assign(prompt, 1);
    submitted.sampling.completion_tokens_max = completion;
    caf::anon_send(scheduler_, SubmitRequest{submitted, 0, actor});
    settle();
    return heard;
  }
  static std::vector<TokenId> expected(std::uint32_t prompt, std::uint32_t completion) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < completion; ++i) tokens.push_back(token_at(prompt + i));
    return tokens;
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  SchedulerOptions options_;
  caf::actor scheduler_;
  std::vector<caf::actor> actors_;
  std::vector<std::pair<std::uint64_t, std::vector<std::uint32_t>>> failures_;
  int ready_ = 0, drained_ = 0;
};

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

TEST_F(SchedulerActorTest, the_supervisor_s_word_alone_ends_an_epoch) {
  start();
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  rank->answering = false;
  const auto heard = submit(1, 8, 4);
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  EXPECT_TRUE(failures_.empty());
  rank->answering = true;
  caf::anon_send(scheduler_, RankReady{0, 2, actor, actor});
  settle();
  EXPECT_EQ(heard->tokens, expected(8, 4));
}

TEST_F(SchedulerActorTest, a_rank_of_an_old_epoch_is_refused) {
  start();
  join(5, std::make_shared<PretendRank>());
  auto zombie = std::make_shared<PretendRank>();
  join(4, zombie);
  const auto heard = submit(1, 8, 4);
  EXPECT_EQ(zombie->plans, 0);
  EXPECT_EQ(heard->tokens, expected(8, 4));
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
