// Memberships as the scheduler's shell sees them: which ranks make one, in whatever order news of them come; what a change of grid does to streams;
// and that growth is told from loss.
#include "actors/monitor_actor.hpp"

#include "tests/actors/scheduler_fixture.hpp"

namespace althing::actors::tests {
namespace {

// The two come by different ways: by the control line, and over the network.
TEST_F(SchedulerActorTest, a_membership_that_was_lost_before_its_ranks_came_is_never_ready) {
  start();
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  rank->answering = false;
  const auto heard = submit(1, 8, 4);
  caf::anon_send(scheduler_, MembershipLost{2, 0, "exit"});
  settle();
  const int before = rank->plans;
  submit(2, 8, 4);
  EXPECT_EQ(rank->plans, before) << "the one before it is over as well";
  auto early = std::make_shared<PretendRank>();
  join(2, early);
  EXPECT_EQ(ready_, 1) << "it is not called ready";
  EXPECT_EQ(early->plans, 0) << "and nothing is planned for it";
  auto next = std::make_shared<PretendRank>();
  join(3, next);
  EXPECT_EQ(ready_, 2) << "the control: the next one is";
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

// Growth waits for this word, so it must come for every membership: at once where nothing was interrupted, else with the last stream's next token.
TEST_F(SchedulerActorTest, every_membership_is_told_to_have_resumed_and_not_before_its_streams_have_gone_on) {
  std::vector<std::pair<std::uint64_t, std::size_t>> resumed;
  options_.on_resumed = [&](std::uint64_t epoch, const ResumeWatch::Resumed& told) { resumed.emplace_back(epoch, told.streams); };
  using Told = std::vector<std::pair<std::uint64_t, std::size_t>>;
  start();
  auto rank = std::make_shared<PretendRank>();
  const caf::actor actor = join(1, rank);
  EXPECT_EQ(resumed, (Told{{1, 0}})) << "nothing was interrupted";
  caf::anon_send(scheduler_, RankReady{0, 2, actor, actor});
  settle();
  EXPECT_EQ(resumed, (Told{{1, 0}, {2, 0}})) << "nor by a new membership of an idle server";
  rank->answering = false;
  submit(1, 8, 4);
  caf::anon_send(scheduler_, MembershipLost{2, 0, "exit"});
  caf::anon_send(scheduler_, RankReady{0, 3, actor, actor});
  settle();
  pass(std::chrono::milliseconds(1100));
  EXPECT_EQ(resumed.size(), 2u) << "the stream has no token yet, however long it waits";
  const StepPlan& plan = rank->seen.back();
  ASSERT_EQ(plan.epoch, EpochId{3});
  for (const StepPlan& seen : rank->seen)
    if (seen.epoch == EpochId{3} && seen.snapshot)
      caf::anon_send(scheduler_, StepResult{seen.step, seen.epoch, {{RowIndex{0}, RequestId{1}, token_at(8), false}}});
  settle();
  EXPECT_EQ(resumed, (Told{{1, 0}, {2, 0}, {3, 1}}));
}

// What the monitor judges and the metric counts: recoveries, and not growth.
TEST_F(SchedulerActorTest, growth_is_no_recovery_and_a_loss_is_one) {
  options_.monitor = keep(system_.spawn(monitor_actor, MonitorOptions{options_.metrics}));
  start();
  auto rank = std::make_shared<PretendRank>();
  rank->answering = false;
  const caf::actor actor = join(1, rank);
  submit(1, 8, 4);
  const auto again = [&](std::uint64_t epoch) {
    caf::anon_send(scheduler_, RankReady{0, epoch, actor, actor});
    settle();
    EXPECT_EQ(count("althing_state{state=\"ready\"}"), 1);
  };
  EXPECT_EQ(count("althing_recoveries_total"), 0) << "a start is none";
  caf::anon_send(scheduler_, MembershipGrows{1});
  caf::anon_send(scheduler_, StepFailed{0, 1, 1, false, "aborted"});  // what the ranks see of it
  settle();
  EXPECT_EQ(count("althing_state{state=\"recovering\"}"), 1);
  EXPECT_TRUE(failures_.empty()) << "nobody is asked to repair it";
  again(2);
  EXPECT_EQ(count("althing_recoveries_total"), 0) << "growth";
  caf::anon_send(scheduler_, StepFailed{0, 2, 1, false, "aborted"});
  caf::anon_send(scheduler_, MembershipGrows{2});  // the ranks' word came first
  settle();
  again(3);
  EXPECT_EQ(count("althing_recoveries_total"), 0) << "growth, in whatever order it is heard of";
  caf::anon_send(scheduler_, MembershipLost{3, 0, "exit"});
  settle();
  again(4);
  EXPECT_EQ(count("althing_recoveries_total"), 1) << "a loss";
  caf::anon_send(scheduler_, MembershipGrows{4});
  caf::anon_send(scheduler_, MembershipLost{5, 0, "exit"});
  settle();
  again(6);
  EXPECT_EQ(count("althing_recoveries_total"), 2) << "a death while it grows";
  caf::anon_send(scheduler_, MembershipGrows{4});
  settle();
  EXPECT_EQ(count("althing_state{state=\"ready\"}"), 1) << "news of an old one change nothing";
}

// Two ranks as one TP group, or one rank: pages of half as many heads each, or of all.
class SchedulerGridTest : public SchedulerActorTest {
 protected:
  SchedulerGridTest() {
    options_.ranks = 2;
    options_.metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 2, 1, 1});
    options_.kv_of = [this](const Grid& grid) -> Result<KvShape> {
      if (grid.tp > 2) return Error{ErrorCode::too_large, "no such pages", "kv"};
      KvLayout kv = options_.core.kv;
      if (grid.tp == 1) kv.page_count = 16;
      return KvShape{grid.dp, kv};
    };
  }
  caf::actor join_as(std::uint32_t rank, std::uint64_t epoch, const Grid& grid, std::shared_ptr<PretendRank> state) {
    caf::actor actor = keep(system_.spawn(pretend_rank, std::move(state), scheduler_));
    caf::anon_send(scheduler_, RankReady{rank, epoch, actor, actor, grid});
    settle();
    return actor;
  }
  // Only rank 0 answers, as in earnest.
  std::shared_ptr<PretendRank> join_all(std::uint64_t epoch, const Grid& grid) {
    auto first = std::make_shared<PretendRank>();
    join_as(0, epoch, grid, first);
    for (std::uint32_t rank = 1; rank < grid.world; ++rank) {
      auto silent = std::make_shared<PretendRank>();
      silent->answering = false;
      join_as(rank, epoch, grid, silent);
    }
    return first;
  }

  const Grid pair_{2, 1, 2, 2, {}}, alone_{1, 1, 1, 1, {}};
};

TEST_F(SchedulerGridTest, an_epoch_brings_its_grid_and_streams_hear_of_another_tp) {
  start();
  auto rank = join_all(1, pair_);
  EXPECT_EQ(ready_, 1);
  const auto before = submit(1, 20, 4);
  EXPECT_EQ(before->tps, (std::vector<std::uint32_t>{2}));
  rank->answering = false;
  const auto across = submit(2, 20, 12);
  caf::anon_send(scheduler_, StepResult{rank->seen.at(rank->seen.size() - 2).step, EpochId{1}, {{RowIndex{0}, RequestId{2}, token_at(20), false}}});
  settle();
  ASSERT_EQ(across->tokens.size(), 1u);
  caf::anon_send(scheduler_, MembershipLost{1, 1, "exit"});
  settle();
  const auto waiting = submit(3, 20, 4);
  join_all(2, alone_);
  EXPECT_EQ(ready_, 2) << "one rank is the whole membership now";
  EXPECT_EQ(across->tokens, expected(20, 12));
  EXPECT_EQ(across->tps, (std::vector<std::uint32_t>{2, 1}));
  EXPECT_EQ(waiting->tps, (std::vector<std::uint32_t>{1})) << "all its tokens are of one layout";
  join_all(3, pair_);
  EXPECT_EQ(submit(4, 20, 4)->tps, (std::vector<std::uint32_t>{2}));
}

TEST_F(SchedulerGridTest, a_membership_that_is_lost_half_way_is_never_complete) {
  start();
  join_as(0, 1, pair_, std::make_shared<PretendRank>());
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  join_as(1, 1, pair_, std::make_shared<PretendRank>());
  EXPECT_EQ(ready_, 0);
  join_all(2, pair_);
  EXPECT_EQ(ready_, 1);
}

TEST_F(SchedulerGridTest, what_the_smaller_pool_cannot_hold_ends_with_a_typed_error) {
  start();
  auto rank = join_all(1, pair_);
  rank->answering = false;
  const auto large = submit(1, 150, 100);
  const auto small = submit(2, 20, 12);
  caf::anon_send(scheduler_, MembershipLost{1, 1, "exit"});
  settle();
  join_all(2, alone_);
  ASSERT_EQ(large->finished.size(), 1u);
  EXPECT_EQ(large->finished[0].error.code, ErrorCode::too_large);
  EXPECT_EQ(small->tokens, expected(20, 12));
}

TEST_F(SchedulerGridTest, ranks_of_two_grids_are_never_one_membership) {
  start();
  join_as(0, 1, pair_, std::make_shared<PretendRank>());
  join_as(1, 1, Grid{2, 2, 1, 2, {}}, std::make_shared<PretendRank>());
  EXPECT_EQ(ready_, 0);
  join_as(2, 1, pair_, std::make_shared<PretendRank>());
  EXPECT_EQ(ready_, 0) << "there is no such rank in the grid";
  join_as(0, 2, Grid{4, 1, 4, 4, {}}, std::make_shared<PretendRank>());
  join_as(1, 1, pair_, std::make_shared<PretendRank>());
  EXPECT_EQ(ready_, 1) << "a grid that cannot be is none, and the older one goes on";
}

}  // namespace
}  // namespace althing::actors::tests
