// Ranks in a grid: what they tell each other before the first step and what of it is refused, on every rank alike; and what copies and groups
// compute.
#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <functional>
#include <thread>

#include "gpu/executor.hpp"
#include "gpu/introduction.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using testing::HasSubstr;
using tests::small_prompt;
using tests::SmallModel;

constexpr ModelShape shape{8, 2, 6, 101};

// What each rank makes of everybody's words; `spoil` changes some before they are spoken.
std::vector<std::string> verdicts(const Grid& grid, const std::function<void(std::vector<RankPlacement>&)>& spoil) {
  const auto honest = scheduler::place(grid, shape).value();
  auto placements = honest;
  spoil(placements);
  std::vector<std::int64_t> sum;
  for (const RankPlacement& placement : placements) {
    const auto told = introduce(placement, shape);
    sum.resize(told.size());
    for (std::size_t i = 0; i < told.size(); ++i) sum[i] += told[i];
  }
  std::vector<std::string> said;
  for (const RankPlacement& placement : honest) {
    const auto parts = vocabulary_parts(sum, placement, shape);
    said.push_back(parts ? "" : parts.error().message);
    if (parts) {
      EXPECT_EQ(parts->at(placement.rank.value), placement.vocabulary.size());
    }
  }
  return said;
}

void expect_heard(const Grid& grid, const std::function<void(std::vector<RankPlacement>&)>& spoil, const char* why) {
  for (const std::string& said : verdicts(grid, spoil)) EXPECT_THAT(said, HasSubstr(why));
}

TEST(Introduction, every_grid_is_one_model) {
  for (const Grid& grid : {Grid{1, 1, 1, 1, {}}, Grid{4, 1, 4, 4, {}}, Grid{4, 2, 2, 2, {ExpertId{1}, ExpertId{5}}}, Grid{6, 3, 2, 3, {ExpertId{0}}},
                           Grid{64, 64, 1, 1, {}}})
    for (const std::string& said : verdicts(grid, [](auto&) {})) EXPECT_EQ(said, "");
}

TEST(Introduction, what_does_not_fit_together_is_heard_by_every_rank) {
  const Grid grid{4, 2, 2, 2, {ExpertId{1}}};
  const char* copies = "which do not agree on who computes it";
  expect_heard(
      grid, [](auto& p) { p[0].experts.erase(p[0].experts.begin()); }, copies);
  expect_heard(
      grid,
      [](auto& p) {
        p[1].experts.push_back({ExpertId{0}, 0, 2});
      },
      "expert 0 is held by 3 ranks");
  expect_heard(
      grid, [](auto& p) { p[2].experts[0].copy = 0; }, copies);
  expect_heard(
      grid, [](auto& p) { p[2].experts[0].copies = 3; }, copies);
  expect_heard(
      grid, [](auto& p) { p[0].experts[0].copies = 1, p[2].experts[0].copies = 3; }, copies);
  expect_heard(
      grid,
      [](auto& p) {
        for (auto& rank : p) rank.experts.clear();
      },
      "expert 0 is held by 0 ranks");
  expect_heard(
      grid, [](auto& p) { p[1].dp_group = DpGroup{1}; }, "rank 1 is in group 1 of 2, and must be in 0 of 2");
  expect_heard(
      grid, [](auto& p) { p[3].dp = 4; }, "rank 3 is in group 1 of 4, and must be in 1 of 2");
  expect_heard(
      grid, [](auto& p) { p[3].query_heads.begin = 5; }, "the query heads of rank 3 do not join at 4");
  expect_heard(
      grid, [](auto& p) { p[3].query_heads.end = 7; }, "group 1 has the query heads up to 7");
  expect_heard(
      grid, [](auto& p) { p[2].vocabulary.begin += 1; }, "parts of the vocabulary do not join at");
  expect_heard(
      grid, [](auto& p) { p[3].vocabulary.end = 100; }, "they hold the vocabulary up to 100 of 101");
}

// One rank was started with other flags: both refuse the first step, and nobody waits for anybody.
TEST(Layout, ranks_of_two_layouts_refuse_the_first_step) {
  const auto model = SmallModel::make();
  auto placements = scheduler::place(Grid{2, 1, 2, 2, {}}, shape).value();
  placements[1] = scheduler::place(Grid{2, 2, 1, 2, {}}, shape).value()[1];
  const KvLayout kv = kv_layout(model->spec, placements, kv_format(Device::cpu), 1 << 22, 64).value();
  auto segment = SharedSegment::create(2, EpochId{1}).value();
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      ExecutorConfig config;
      config.placement = placements[r];
      config.kv = kv;
      auto executor = Executor::create(model, config).value();
      StepPlan plan;
      plan.step = StepId{1}, plan.epoch = EpochId{1}, plan.snapshot = true;
      auto communicator = segment.join(RankId{r}, std::chrono::seconds{300});
      const auto result = executor->run(plan, *communicator);
      EXPECT_FALSE(result.ok());
      if (!result.ok()) {
        EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
        EXPECT_THAT(result.error().message, HasSubstr("the ranks do not make one model"));
      }
    });
  for (auto& thread : threads) thread.join();
}

// Copies take turns, and together they count each token of each expert once.
TEST(Layout, copies_of_an_expert_share_its_tokens) {
  const auto model = SmallModel::make();
  const auto counts = [&](const Grid& grid) {
    tests::EngineOptions options;
    options.grid = grid;
    auto engine = tests::Engine::create(model, options).value();
    StepPlan plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 2; ++row) {
      engine->admit(plan, row, row + 1, {}, 80);
      plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 60), true));
    }
    EXPECT_TRUE(engine->run(plan).ok());
    std::vector<std::vector<std::uint64_t>> by_rank;
    for (std::size_t rank = 0; rank < engine->ranks(); ++rank) by_rank.push_back(engine->executor(rank).expert_counts().tokens);
    return by_rank;
  };
  const auto whole = counts({1, 1, 1, 1, {}})[0];
  for (const Grid& grid : {Grid{2, 2, 1, 1, {}}, Grid{2, 2, 1, 2, {ExpertId{0}}}, Grid{4, 4, 1, 2, {}}}) {
    const auto by_rank = counts(grid);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::uint64_t sum = 0, most = 0;
      for (const auto& rank : by_rank) sum += rank[i], most = std::max(most, rank[i]);
      EXPECT_EQ(sum, whole[i]) << i;
      const bool copied = grid.ep < grid.world || i % 6 == 0;
      if (copied && whole[i] > 20) {
        EXPECT_LT(most, whole[i]) << i;
      } else if (!copied) {
        EXPECT_EQ(most, whole[i]) << i;
      }
    }
  }
}

TEST(Layout, nan_in_one_group_leaves_the_other_s_rows_alone) {
  auto model = SmallModel::make();
  // Token 7 alone has a NaN embedding.
  std::vector<std::byte> table(std::size_t{101} * 160 * 2);
  std::memcpy(table.data(), model->spec.embedding.data, table.size());
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(table.data() + 7 * 160 * 2, &nan, 2);
  model->spec.embedding.data = table.data();
  tests::EngineOptions options;
  options.grid = Grid{2, 2, 1, 2, {}};
  auto engine = tests::Engine::create(model, options).value();
  StepPlan plan = engine->next_plan();
  for (std::uint32_t row = 0; row < 3; ++row) {
    engine->admit(plan, row, row + 1, {}, 20);
    std::vector<TokenId> tokens{1, 2, 3};
    if (row == 1) tokens.push_back(7);  // the only row of the second group
    plan.work.push_back(tests::prompt_work(row, 0, tokens, true));
  }
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok());
  for (std::uint32_t row = 0; row < 3; ++row) EXPECT_EQ(result->drawn[row].nonfinite, row == 1) << row;
  EXPECT_EQ(result->drawn[0].token, result->drawn[2].token) << "the same text in the same group";
}

// Two groups with a row each, one page of each KV group a row, after their prompts.
struct TwoGroups {
  std::unique_ptr<tests::Engine> engine;
  std::vector<std::vector<PageId>> pages;  // by row
  std::vector<float> seen;                 // logits of a step

  TwoGroups() {
    tests::EngineOptions options;
    options.grid = Grid{2, 2, 1, 2, {}};
    engine = tests::Engine::create(SmallModel::make(), options).value();
    // Both ranks, since they gather together what is to be seen; one of them shows it.
    for (const std::size_t rank : {0u, 1u}) {
      Observer observer;
      observer.logits = [this, rank](std::span<const float> values) {
        if (rank == 0) seen.insert(seen.end(), values.begin(), values.end());
      };
      engine->executor(rank).observe(std::move(observer));
    }
    StepPlan plan = engine->next_plan();
    for (std::uint32_t row = 0; row < 2; ++row) {
      engine->admit(plan, row, row + 1, {}, 20);
      plan.work.push_back(tests::prompt_work(row, 0, small_prompt(row, 5), true));
    }
    pages.resize(2);
    for (const PageGrant& grant : plan.pages) pages[grant.row.value].insert(pages[grant.row.value].end(), grant.pages.begin(), grant.pages.end());
    EXPECT_TRUE(engine->run(plan).ok());
  }

  // A token more for each row. The logits of each.
  std::array<std::vector<float>, 2> decode(const std::vector<LeftPage>& scrub = {}) {
    seen.clear();
    StepPlan plan = engine->next_plan();
    plan.scrub = scrub;
    for (std::uint32_t row = 0; row < 2; ++row) plan.work.push_back(tests::prompt_work(row, 5, small_prompt(row + 9, 1), true));
    result = engine->run(plan).value();
    EXPECT_EQ(seen.size(), 2 * 101u);
    return {std::vector<float>(seen.begin(), seen.begin() + 101), std::vector<float>(seen.begin() + 101, seen.end())};
  }
  StepResult result;
};

// A page that is scrubbed under its row, which no core would do, shows whose memory it was.
TEST(Layout, a_page_is_scrubbed_in_its_own_group_only) {
  const auto whole = TwoGroups().decode();
  for (const std::uint32_t group : {0u, 1u}) {
    TwoGroups two;
    std::vector<LeftPage> scrub;
    for (const PageId page : two.pages[1]) scrub.push_back({DpGroup{group}, page});
    const auto logits = two.decode(scrub);
    EXPECT_EQ(logits[0], whole[0]) << "scrubbed in group " << group;
    EXPECT_EQ(logits[1] == whole[1], group == 0) << "scrubbed in group " << group;
  }
}

TEST(Layout, only_ranks_of_a_row_s_group_can_damage_its_keys) {
  TwoGroups two;
  const Status refused = two.engine->executor(0).damage(RowIndex{1}, Damage::kv_page);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("row 1 has its keys in DP group 1, this rank is of group 0"));
  ASSERT_TRUE(two.engine->executor(1).damage(RowIndex{1}, Damage::kv_page).ok());
  const auto logits = two.decode();
  EXPECT_EQ(logits[0], TwoGroups().decode()[0]);
  EXPECT_FALSE(two.result.drawn[0].nonfinite);
  EXPECT_TRUE(two.result.drawn[1].nonfinite);
}

TEST(Layout, a_plan_for_a_group_that_does_not_exist_is_refused_by_every_rank) {
  tests::EngineOptions options;
  options.grid = Grid{2, 2, 1, 2, {}};
  auto engine = tests::Engine::create(SmallModel::make(), options).value();
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 20);
  plan.set[0].dp_group = DpGroup{2};
  plan.work = {tests::prompt_work(0, 0, small_prompt(1, 5), true)};
  const auto result = engine->run(plan);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("row 0 is of DP group 2, there are 2"));
}

}  // namespace
}  // namespace althing::gpu
