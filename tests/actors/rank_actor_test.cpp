// The rank actor over an executor whose steps end when the test says so: two steps in flight, results from other threads, fencing by epoch.
#include "actors/rank_actor.hpp"

#include <caf/send.hpp>
#include <deque>
#include <thread>

#include "gpu/comm/solo_communicator.hpp"

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {
namespace {

class HeldExecutor final : public gpu::Executor {
 public:
  struct Step {
    StepPlan plan;
    Done done;
  };

  void submit(const StepPlan& plan, std::shared_ptr<gpu::Communicator>, Done done) override { steps.push_back({plan, std::move(done)}); }
  void observe(gpu::Observer observer) override { watcher = std::move(observer); }
  gpu::ExpertCounts expert_counts() const override { return {1, 2, {3, counted}}; }
  bool counts_steps() const override { return with_steps; }
  gpu::ExecutorMemory memory() const override { return {}; }
  std::vector<MirroredPage> take_mirror() override {
    ++mirror_taken;
    return {{DpGroup{}, MirrorSlot{mirror_taken}, {1, 2}}};
  }

  // Ends the oldest step, as a thread of the executor would.
  void finish() {
    Step step = take();
    std::thread([&] { step.done(StepResult{step.plan.step, step.plan.epoch, {{RowIndex{0}, RequestId{1}, 7, false}}}); }).join();
  }
  void fail(ErrorCode code) {
    Step step = take();
    std::thread([&] { step.done(Error{code, "no", {}}); }).join();
  }

  std::deque<Step> steps;
  gpu::Observer watcher;
  std::uint64_t counted = 4;
  std::uint32_t mirror_taken = 0;
  bool with_steps = false;

 private:
  Step take() {
    Step step = std::move(steps.front());
    steps.pop_front();
    return step;
  }
};

// What a scheduler heard from the rank.
struct Inbox {
  std::vector<RankReady> ready;
  std::vector<StepResult> results;
  std::vector<StepFailed> failures;
  std::vector<RankStatus> statuses;
};

caf::behavior inbox_actor(caf::event_based_actor*, std::shared_ptr<Inbox> inbox) {
  return {
      [=](const RankReady& ready) { inbox->ready.push_back(ready); },
      [=](const StepResult& result) { inbox->results.push_back(result); },
      [=](const StepFailed& failed) { inbox->failures.push_back(failed); },
      [=](const RankStatus& status) { inbox->statuses.push_back(status); },
  };
}

class RankActorTest : public testing::Test {
 protected:
  RankActorTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    scheduler_ = system_.spawn(inbox_actor, inbox_);
    spawn([this] { ++lost_; });
  }
  ~RankActorTest() override {
    for (const caf::actor& actor : {rank_, scheduler_}) caf::anon_send_exit(actor, caf::exit_reason::kill);
    settle();
  }

  void spawn(std::function<void()> on_lost) {
    rank_ = system_.spawn(rank_actor, std::shared_ptr<gpu::Executor>(executor_), RankHooks{std::move(on_lost), stamps_, nullptr});
    settle();
  }
  void settle() { coordinator_.run(); }
  void join(std::uint64_t epoch, std::shared_ptr<gpu::Executor> executor = nullptr) {
    std::shared_ptr<gpu::Communicator> communicator = gpu::solo_communicator(EpochId{epoch});
    caf::anon_send(rank_, JoinEpoch{std::move(communicator), scheduler_, Grid{}, std::move(executor)});
    settle();
  }
  void plan(std::uint64_t step, std::uint64_t epoch) {
    StepPlan plan;
    plan.step = StepId{step}, plan.epoch = EpochId{epoch};
    caf::anon_send(rank_, plan);
    settle();
  }
  RankStatus probe() {
    caf::send_as(scheduler_, inbox_->ready.back().pulse, Probe{9});
    settle();
    return inbox_->statuses.back();
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  std::shared_ptr<HeldExecutor> executor_ = std::make_shared<HeldExecutor>();
  std::shared_ptr<RankStamps> stamps_ = std::make_shared<RankStamps>();
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  caf::actor scheduler_, rank_;
  int lost_ = 0;
};

TEST_F(RankActorTest, hands_over_the_second_plan_while_the_first_runs) {
  join(1);
  plan(1, 1);
  plan(2, 1);
  ASSERT_EQ(executor_->steps.size(), 2U);
  EXPECT_TRUE(inbox_->results.empty());
  executor_->finish();
  executor_->finish();
  settle();
  ASSERT_EQ(inbox_->results.size(), 2U);
  EXPECT_EQ(inbox_->results[0].step, StepId{1});
  EXPECT_EQ(inbox_->results[1].step, StepId{2});
}

TEST_F(RankActorTest, is_busy_until_the_last_step_is_done) {
  join(1);
  EXPECT_FALSE(probe().busy);
  plan(1, 1);
  plan(2, 1);
  executor_->finish();
  const RankStatus between = probe();
  EXPECT_TRUE(between.busy);
  EXPECT_EQ(between.epoch, 1U);
  EXPECT_EQ(between.probe_sent_ms, 9U);
  executor_->watcher.progress();
  EXPECT_EQ(probe().progress, between.progress + 1);
  executor_->finish();
  EXPECT_FALSE(probe().busy);
}

TEST_F(RankActorTest, reads_expert_counts_when_asked) {
  join(1);
  executor_->counted = 11;
  EXPECT_EQ(probe().expert_tokens, (std::vector<std::uint64_t>{3, 11}));
  executor_->with_steps = true;
  EXPECT_TRUE(probe().expert_tokens.empty()) << "they come with results, and must not be counted twice";
}

TEST_F(RankActorTest, what_an_old_epoch_s_steps_bring_is_not_told) {
  join(1);
  plan(1, 1);
  plan(2, 1);
  join(2);
  executor_->finish();
  executor_->fail(ErrorCode::unavailable);
  settle();
  EXPECT_TRUE(inbox_->results.empty());
  EXPECT_TRUE(inbox_->failures.empty());
  EXPECT_FALSE(probe().busy);
  plan(3, 2);
  executor_->finish();
  settle();
  ASSERT_EQ(inbox_->results.size(), 1U);
  EXPECT_EQ(inbox_->results[0].epoch, EpochId{2});
}

TEST_F(RankActorTest, plans_of_another_epoch_are_fenced_off) {
  plan(1, 1);
  join(2);
  plan(1, 1);
  plan(1, 3);
  EXPECT_TRUE(executor_->steps.empty());
}

TEST_F(RankActorTest, a_failure_is_told_once_and_ends_the_epoch) {
  join(1);
  plan(1, 1);
  plan(2, 1);
  executor_->fail(ErrorCode::unavailable);
  executor_->fail(ErrorCode::invalid_argument);
  settle();
  ASSERT_EQ(inbox_->failures.size(), 1U);
  EXPECT_EQ(inbox_->failures[0].step, 1U);
  EXPECT_FALSE(inbox_->failures[0].refused);
  plan(3, 1);
  EXPECT_TRUE(executor_->steps.empty());
  EXPECT_FALSE(probe().busy);
}

TEST_F(RankActorTest, a_lost_device_ends_the_process_where_somebody_starts_it_again) {
  join(1);
  plan(1, 1);
  plan(2, 1);
  executor_->fail(ErrorCode::internal);
  executor_->fail(ErrorCode::internal);
  settle();
  EXPECT_EQ(lost_, 1);
  EXPECT_TRUE(inbox_->failures.empty()) << "its death tells the rest";
  caf::anon_send_exit(rank_, caf::exit_reason::kill);
  settle();
  spawn(nullptr);
  join(2);
  plan(3, 2);
  executor_->fail(ErrorCode::internal);
  settle();
  ASSERT_EQ(inbox_->failures.size(), 1U);
  EXPECT_FALSE(inbox_->failures[0].refused);
}

TEST_F(RankActorTest, a_step_may_end_after_its_actor) {
  join(1);
  plan(1, 1);
  caf::anon_send_exit(rank_, caf::exit_reason::kill);
  settle();
  executor_->finish();
  settle();
  EXPECT_EQ(inbox_->results.size(), 1U);
  EXPECT_EQ(executor_.use_count(), 1) << "the actor's state went with it";
}

TEST_F(RankActorTest, the_mirror_of_a_place_is_taken_with_each_epoch_that_gives_the_place_and_not_before) {
  EXPECT_EQ(executor_->mirror_taken, 0u) << "it may be another's, in another grid";
  join(1);
  EXPECT_EQ(executor_->mirror_taken, 1u);
  EXPECT_EQ(inbox_->ready.back().mirrored, (std::vector<MirroredPage>{{DpGroup{}, MirrorSlot{1}, {1, 2}}})) << "and reported as it is then";
  const auto spare = std::make_shared<HeldExecutor>();
  join(2);
  EXPECT_EQ(executor_->mirror_taken, 2u) << "another may have had it in between";
  join(3, spare);
  EXPECT_EQ(spare->mirror_taken, 1u);
  EXPECT_EQ(executor_->mirror_taken, 2u);
}

TEST_F(RankActorTest, another_place_brings_another_executor_and_the_old_one_is_gone_before) {
  join(1);
  plan(1, 1);
  ASSERT_EQ(executor_->steps.size(), 1u);
  executor_->finish();
  settle();
  const std::weak_ptr<HeldExecutor> old = executor_;
  executor_.reset();
  caf::scoped_actor self{system_};
  auto asked = self->request(rank_, caf::infinite, DropExecutor{});
  settle();
  bool answered = false;
  asked.receive([&] { answered = true; }, [](const caf::error&) {});
  EXPECT_TRUE(answered);
  EXPECT_TRUE(old.expired());
  const std::size_t results = inbox_->results.size();
  plan(2, 1);
  EXPECT_EQ(inbox_->results.size(), results) << "a plan for an executor that is gone";
  executor_ = std::make_shared<HeldExecutor>();
  executor_->counted = 44;
  join(2, executor_);
  EXPECT_EQ(inbox_->ready.back().epoch, 2u);
  plan(3, 2);
  ASSERT_EQ(executor_->steps.size(), 1u);
  executor_->finish();
  settle();
  EXPECT_EQ(inbox_->results.back().step, StepId{3});
  EXPECT_EQ(probe().expert_tokens.back(), 44u) << "the pulse watches the new one";
}

}  // namespace
}  // namespace althing::actors::tests
