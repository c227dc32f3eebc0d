// The core and its mirror by script: what is copied, what comes back, who makes room, and what happens when a copy is not there after all. The
// harness's model rank checks that whatever is restored is the very content that computing it would have given.
#include <set>
#include <utility>

#include "scheduler/token_chain.hpp"
#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

scheduler::CoreConfig mirror_config(std::uint32_t slots = 100) {
  auto config = easy_config();
  config.mirror_slots = slots;
  return config;
}

class CoreMirror : public CoreScript {
 protected:
  void copy_all() {
    while (harness().rank().copy_one()) {
    }
  }
  std::vector<Effect> ready_again(std::uint64_t epoch) {
    first_ = harness().plans().size();
    return on(Event(harness().ready(EpochId{epoch})));
  }
  // Of the membership: 0 is its first.
  const StepPlan& plan(std::size_t number) { return harness().plans().at(first_ + number); }
  // Copies are made as soon as they are ordered.
  void draw(std::uint64_t id, std::size_t tokens) {
    while (stream(id).tokens.size() < tokens) {
      copy_all();
      deliver();
    }
    copy_all();
  }
  // A request with a prompt of 32, computed, with `drawn` tokens; then its ranks are lost.
  void lose_one(std::uint32_t drawn = 3) {
    ready_again(1);
    on(request(1, 32, 12));
    while (stream(1).tokens.size() < drawn) deliver();
  }

 private:
  std::size_t first_ = 0;
};

TEST_F(CoreMirror, full_pages_are_copied_once_each) {
  start(mirror_config());
  lose_one(6);
  std::size_t copies = 0;
  std::set<std::pair<std::uint32_t, PageKey>> keys;
  for (const StepPlan& plan : harness().plans())
    for (const MirrorPage& page : plan.mirror) {
      ++copies;
      EXPECT_TRUE(keys.emplace(page.slot.value, page.key).second);
      EXPECT_EQ(page.dp_group, DpGroup{});
    }
  EXPECT_EQ(copies, harness().stats().pages_mirrored);
  EXPECT_EQ(harness().stats().mirror_slots_used, copies);
  EXPECT_GE(copies, 9u + 3u) << "9 pages of full attention, and the window's own";
  run_to_end();
  expect_baseline();
}

TEST_F(CoreMirror, without_a_mirror_nothing_is_copied_or_fetched) {
  start(easy_config());
  lose_one();
  copy_all();
  on(lost(1));
  ready_again(2);
  run_to_end();
  for (const StepPlan& plan : harness().plans()) EXPECT_TRUE(plan.mirror.empty() && plan.restore.empty() && plan.forget.empty());
  EXPECT_EQ(harness().stats().tokens_restored, 0u);
  EXPECT_GE(harness().stats().tokens_recomputed, 34u) << "the control: all of it is computed again";
}

TEST_F(CoreMirror, a_lost_sequence_comes_back_by_copy_and_computes_the_rest) {
  start(mirror_config());
  lose_one();
  copy_all();
  on(lost(1));
  ready_again(2);
  ASSERT_FALSE(plan(0).restore.empty());
  EXPECT_TRUE(plan(0).snapshot);
  EXPECT_TRUE(plan(0).work.empty()) << "nothing is computed before the pages are there";
  EXPECT_EQ(harness().awaited(), 1u);
  deliver();
  ASSERT_EQ(plan(1).work.size(), 1u);
  EXPECT_EQ(plan(1).work[0].start, 32u);
  EXPECT_LE(plan(1).work[0].count, 4u);
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  EXPECT_EQ(harness().stats().tokens_restored, 32u);
  EXPECT_LE(harness().stats().tokens_recomputed, 4u);
  expect_baseline();
}

TEST_F(CoreMirror, copies_that_were_never_made_cost_time_only) {
  start(mirror_config());
  lose_one();
  on(lost(1));  // nothing was copied: the report says so
  ready_again(2);
  EXPECT_TRUE(plan(0).restore.empty());
  EXPECT_EQ(plan(0).work.at(0).start, 0u);
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  EXPECT_EQ(harness().stats().tokens_restored, 0u);
}

TEST_F(CoreMirror, a_spoilt_page_is_forgotten_and_the_sequence_starts_before_it) {
  start(mirror_config());
  lose_one();
  copy_all();
  on(lost(1));
  harness().rank().mirror().damage(0, false);
  ready_again(2);
  ASSERT_FALSE(plan(0).restore.empty());
  const auto spoilt = harness().next_result().unrestored;
  ASSERT_EQ(spoilt.size(), 1u) << "the damage happened";
  deliver();
  EXPECT_EQ(harness().stats().pages_unrestored, 1u);
  EXPECT_EQ(plan(1).forget, spoilt);
  EXPECT_EQ(plan(1).cleared.size(), 1u);
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  expect_baseline();
}

TEST_F(CoreMirror, a_preempted_sequence_comes_back_by_copy) {
  auto config = mirror_config();
  config.kv.page_count = 22;
  start(config);
  ready_again(1);
  for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, static_cast<std::uint32_t>(10 + 2 * id), 20));
  while (harness().live() > 0) {
    copy_all();
    deliver();
  }
  EXPECT_GT(harness().stats().preemptions, 0u) << "nobody was preempted";
  EXPECT_GT(harness().stats().tokens_restored, 0u);
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(stream(id).tokens.size(), 20u);
  expect_baseline();
}

TEST_F(CoreMirror, cancelling_while_pages_come_back_gives_them_up_after_the_step) {
  start(mirror_config());
  lose_one();
  copy_all();
  on(lost(1));
  ready_again(2);
  ASSERT_FALSE(plan(0).restore.empty());
  on(cancelled(1));
  EXPECT_GT(harness().stats().pages_used, 0u) << "the step may still write them";
  deliver();
  expect_baseline();
}

TEST_F(CoreMirror, a_loss_while_pages_come_back_starts_again) {
  start(mirror_config());
  lose_one();
  copy_all();
  for (std::uint64_t epoch = 1; epoch <= 5; ++epoch) {
    on(lost(epoch));
    ready_again(epoch + 1);
    ASSERT_FALSE(plan(0).restore.empty());
  }
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  EXPECT_EQ(harness().stats().tokens_restored, 32u) << "once: the others were not answered";
  expect_baseline();
}

TEST_F(CoreMirror, finished_requests_make_room_and_live_ones_do_not) {
  start(mirror_config(17));
  ready_again(1);
  on(request(1, 20, 3));
  draw(1, 2);
  run_to_end();
  const auto before = harness().stats();
  EXPECT_GT(before.mirror_slots_used, 5u);
  auto other = request(2, 36, 20);
  for (TokenId& token : other.prompt) token += 100;
  on(other);
  draw(2, 6);
  EXPECT_EQ(harness().stats().mirror_slots_used, 17u) << "the finished one's pages gave way";
  EXPECT_EQ(harness().stats().pages_unmirrored, before.pages_unmirrored);
  auto third = request(3, 36, 8);
  for (TokenId& token : third.prompt) token += 200;
  on(third);
  draw(3, 2);
  EXPECT_GT(harness().stats().pages_unmirrored, 0u) << "all that is left is needed";
  on(lost(1));
  ready_again(2);
  run_to_end();
  EXPECT_GT(harness().stats().tokens_restored, 30u) << "what the live one had is still there";
  expect_baseline();
}

TEST_F(CoreMirror, two_sequences_with_one_beginning_share_its_copies) {
  start(mirror_config());
  ready_again(1);
  on(request(1, 32, 12));
  on(request(2, 32, 12));
  draw(1, 2);
  draw(2, 2);
  EXPECT_LT(harness().stats().pages_mirrored, 8u + 8u + 8u) << "the prompt's pages of either group are copied once";
  on(cancelled(1));
  on(lost(1));
  ready_again(2);
  EXPECT_FALSE(plan(0).restore.empty()) << "the first one's end took nothing from the second";
  run_to_end();
  EXPECT_GE(harness().stats().tokens_restored, 28u);
}

// A new request is not served from what others left: that would be a prefix cache, which this is not.
TEST_F(CoreMirror, a_new_request_computes_its_prompt) {
  start(mirror_config());
  ready_again(1);
  on(request(1, 32, 2));
  run_to_end();
  copy_all();
  on(request(2, 32, 2));
  run_to_end();
  EXPECT_EQ(harness().stats().tokens_restored, 0u);
  EXPECT_EQ(harness().stats().prompt_tokens, 64u);
}

TEST_F(CoreMirror, another_core_finds_the_pages_of_the_one_before) {
  start(mirror_config());
  lose_one(5);
  copy_all();
  Submitted again = stream(1).submitted;
  again.drawn = stream(1).tokens;
  harness().replace_core();
  on(lost(1));
  on(again);
  ready_again(2);
  ASSERT_FALSE(plan(0).restore.empty());
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 12u);
  EXPECT_GE(harness().stats().tokens_restored, 32u);
  EXPECT_LE(harness().stats().tokens_recomputed, 5u);
  expect_baseline();
}

// Seeds of the form 8n + 7 meet NaN in the pseudo model.
TEST_F(CoreMirror, pages_of_a_request_with_nan_leave_the_mirror) {
  start(mirror_config());
  ready_again(1);
  std::uint64_t id = 0;
  for (std::uint64_t seed = 7; id == 0 && seed < 800; seed += 8) {
    Submitted s = request(1, 32, 20);
    s.sampling.seed = seed;
    const LoneRun run = lone_run(s, easy_config().limits, 1000);
    if (run.reason != FinishReason::error || run.tokens.size() < 4) continue;
    id = 1;
    on(s);
  }
  ASSERT_EQ(id, 1u) << "no seed meets NaN after a few tokens";
  while (harness().awaited() > 0) {
    copy_all();
    deliver();
  }
  ASSERT_EQ(reason(1), FinishReason::error);
  EXPECT_GT(harness().stats().pages_mirrored, 8u);
  EXPECT_EQ(harness().stats().mirror_slots_used, 0u);
  std::size_t forgotten = 0;
  for (const StepPlan& plan : harness().plans()) forgotten += plan.forget.size();
  EXPECT_EQ(forgotten, harness().stats().pages_mirrored) << "and the ranks are told";
  EXPECT_TRUE(harness().rank().mirror().contents().empty());
  expect_baseline();
}

// The mirror of a group that is away for a while keeps what it holds, and its ranks may never have heard what must not be used.
TEST_F(CoreMirror, pages_with_nan_of_a_group_that_is_away_are_forgotten_when_it_is_back) {
  auto config = mirror_config();
  config.dp_groups = 2;
  auto core = std::move(*scheduler::Core::create(config));
  constexpr PageKey secret{1, 2};
  const auto feed = [&](const Event& event) {
    const auto effects = core->on(event);
    EXPECT_EQ(core->check_invariants(), "");
    return all<RunStep>({effects.begin(), effects.end()});
  };
  const auto ready_with = [&](std::uint64_t epoch, std::uint32_t groups, std::vector<MirroredPage> pages) {
    const KvShape shape{groups, config.kv, config.mirror_slots, config.mirror_identity};
    return feed(RanksReady{EpochId{epoch}, shape, secret, std::move(pages)});
  };
  ready_with(1, 2, {});
  std::vector<MirrorPage> copied;
  auto plans = feed(request(1, 8, 30));
  for (const RunStep& run : feed(request(2, 8, 30))) plans.push_back(run);
  // The second request is the only one of the second group; NaN is its second token.
  for (std::size_t i = 0; i < plans.size() && core->stats().running + core->stats().waiting == 2; ++i) {
    const StepPlan plan = plans[i].plan;
    copied.insert(copied.end(), plan.mirror.begin(), plan.mirror.end());
    StepResult result{plan.step, plan.epoch, {}};
    for (const RowWork& work : plan.work)
      if (work.sample) result.drawn.push_back({work.row, RequestId{work.row.value + 1}, 5, work.row.value == 1 && work.count == 1});
    for (RunStep& run : feed(StepDone{result})) plans.push_back(std::move(run));
  }
  std::erase_if(copied, [](const MirrorPage& page) { return page.dp_group != DpGroup{1}; });
  ASSERT_FALSE(copied.empty());
  ASSERT_EQ(core->stats().running + core->stats().waiting, 1u) << "the request with NaN has ended";
  feed(lost(1));
  for (const RunStep& run : ready_with(2, 1, {})) EXPECT_TRUE(run.plan.forget.empty()) << "there is nobody who could forget";
  feed(lost(2));
  std::vector<MirroredPage> still_there;
  for (const MirrorPage& page : copied) still_there.push_back({page.dp_group, page.slot, page.key});
  std::size_t forgotten = 0;
  for (const RunStep& run : ready_with(3, 2, still_there)) {
    forgotten += run.plan.forget.size();
    EXPECT_TRUE(run.plan.restore.empty());
  }
  EXPECT_EQ(forgotten, copied.size());
}

// A rank dies before every single event, with copies made late, and with a core that dies instead in every third run.
TEST_F(CoreMirror, a_loss_at_every_step_changes_no_stream) {
  std::uint64_t restored = 0;
  for (int kill_at = 0; kill_at < 60; ++kill_at) {
    auto config = mirror_config(kill_at % 2 == 0 ? 100 : 12);
    config.kv.page_count = 24;
    start(config);
    ready_again(1);
    for (std::uint64_t id = 1; id <= 4; ++id) on(request(id, static_cast<std::uint32_t>(3 + 6 * id), 15));
    for (int i = 0; i < kill_at && harness().awaited() > 0; ++i) {
      deliver();
      if (i % 3 != 0) harness().rank().copy_one();
    }
    on(lost(1));
    ready_again(2);
    run_to_end();
    for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(stream(id).tokens.size(), 15u) << "killed at " << kill_at;
    restored += harness().stats().tokens_restored;
    expect_baseline();
  }
  EXPECT_GT(restored, 100u);
}

TEST(TokenChain, the_key_is_siphash_of_seed_identity_tokens_group_and_length) {
  const auto key = [](PageKey seed, std::uint64_t identity, std::vector<TokenId> tokens, std::uint32_t group) {
    scheduler::TokenChain chain(seed, identity);
    for (const TokenId token : tokens) chain.add(token);
    return chain.key(group);
  };
  const PageKey one = key({1, 2}, 3, {4, 5, 6}, 0);
  EXPECT_EQ(one, key({1, 2}, 3, {4, 5, 6}, 0));
  EXPECT_NE(one, key({1, 3}, 3, {4, 5, 6}, 0));
  EXPECT_NE(one, key({2, 2}, 3, {4, 5, 6}, 0));
  EXPECT_NE(one, key({1, 2}, 4, {4, 5, 6}, 0)) << "another layout or model";
  EXPECT_NE(one, key({1, 2}, 3, {4, 5, 7}, 0));
  EXPECT_NE(one, key({1, 2}, 3, {4, 5, 6}, 1)) << "another group of layers";
  EXPECT_NE(one, key({1, 2}, 3, {5, 4, 6}, 0));
  EXPECT_NE(key({1, 2}, 3, {0}, 0), key({1, 2}, 3, {0, 0}, 0));
  scheduler::TokenChain chain({1, 2}, 3);
  for (const TokenId token : {4u, 5u}) chain.add(token);
  (void)chain.key(0);
  chain.add(6);
  EXPECT_EQ(chain.key(0), one) << "asking for a key on the way changes nothing";
}

}  // namespace
}  // namespace althing::tests
