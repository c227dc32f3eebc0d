// The KV layout (one pool, tokens a page by group), the cache's refusals, and the row table's check of every kind of bad plan.
#include "gpu/row_table.hpp"

#include <gtest/gtest.h>

#include "gpu/cpu/kv_cache.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::SmallModel;

std::vector<RankPlacement> placements(const DecoderSpec& spec, std::uint32_t world) { return scheduler::place(world, tests::shape_of(spec)).value(); }

TEST(KvLayout, groups_share_pages_of_equal_bytes) {
  const auto model = SmallModel::make();  // windows 20, 0, 20
  const auto layout = kv_layout(model->spec, placements(model->spec, 1), kv_format(Device::cpu), 10'000'000, 512);
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout->groups.size(), 2u);
  EXPECT_EQ(layout->groups[0], (KvGroup{0, 32, {1}}));
  EXPECT_EQ(layout->groups[1], (KvGroup{20, 16, {0, 2}}));
  EXPECT_EQ(layout->page_bytes, 16u * 2 * (2 * 16 * 2 * 4));
  EXPECT_EQ(layout->page_count, 10'000'000u / layout->page_bytes);
}

// GPUs keep bf16, and pages of a power of two of tokens.
TEST(KvLayout, a_backend_s_format_decides_bytes_and_rounding) {
  auto model = SmallModel::make();
  for (int i = 0; i < 2; ++i) model->spec.layers.push_back(model->spec.layers[0]);  // windows 20, 0, 20, 20, 20: four to one
  model->spec.layers[4].attention.window = 0;                                       // three to two
  const auto floats = kv_layout(model->spec, placements(model->spec, 1), kv_format(Device::cpu), 10'000'000, 512);
  const auto halves = kv_layout(model->spec, placements(model->spec, 1), kv_format(Device::cuda), 10'000'000, 512);
  ASSERT_TRUE(floats.ok() && halves.ok());
  EXPECT_EQ(floats->groups[0], (KvGroup{0, 24, {1, 4}}));
  EXPECT_EQ(halves->groups[0], (KvGroup{0, 16, {1, 4}}));
  EXPECT_EQ(halves->groups[1], (KvGroup{20, 16, {0, 2, 3}}));
  EXPECT_EQ(halves->page_bytes, 16u * 3 * (2 * 16 * 2 * 2));
  EXPECT_EQ(halves->page_bytes * 2, floats->page_bytes);
  EXPECT_EQ(halves->page_count, 10'000'000u / halves->page_bytes);
  model->spec.layers[4].attention.window = 20;  // one to four: four times the tokens
  EXPECT_EQ(kv_layout(model->spec, placements(model->spec, 1), kv_format(Device::cuda), 10'000'000, 512)->groups[0].tokens_per_page, 64u);
}

TEST(KvLayout, the_largest_shard_decides_and_is_the_same_for_all) {
  const auto model = SmallModel::make();
  const auto one = kv_layout(model->spec, placements(model->spec, 1), kv_format(Device::cpu), 1'000'000, 64),
             two = kv_layout(model->spec, placements(model->spec, 2), kv_format(Device::cpu), 1'000'000, 64);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(two->page_bytes * 2, one->page_bytes);
  // Four ranks on two KV heads hold one each, as two ranks do.
  EXPECT_EQ(kv_layout(model->spec, placements(model->spec, 4), kv_format(Device::cpu), 1'000'000, 64)->page_bytes, two->page_bytes);
}

TEST(KvLayout, refuses_a_pool_that_cannot_hold_one_sequence) {
  const auto model = SmallModel::make();
  const auto place = placements(model->spec, 1);
  const std::uint64_t page = kv_layout(model->spec, place, kv_format(Device::cpu), 1'000'000, 1)->page_bytes;
  // 512 tokens: 16 full pages of 32, and the window's 20 tokens in any position: 3 pages of 16.
  EXPECT_TRUE(kv_layout(model->spec, place, kv_format(Device::cpu), 19 * page, 512).ok());
  const auto refused = kv_layout(model->spec, place, kv_format(Device::cpu), 19 * page - 1, 512);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::too_large);
  EXPECT_NE(refused.error().message.find(std::to_string(19 * page)), std::string::npos) << refused.error().message;
}

TEST(KvCache, refuses_layouts_that_do_not_fit_the_model) {
  KvLayout good;
  good.page_count = 4;
  good.page_bytes = 2 * 8 * 2 * 16 * 2 * 4;
  good.groups = {{0, 8, {0, 1}}};
  const cpu::KvCache::Shape shape{2, 16};
  EXPECT_TRUE(cpu::KvCache::create(good, shape, 2).ok());
  const auto refused = [&](const KvLayout& layout, std::uint32_t layers, const char* why) {
    const auto result = cpu::KvCache::create(layout, shape, layers);
    ASSERT_FALSE(result.ok()) << why;
    EXPECT_NE(result.error().message.find(why), std::string::npos) << result.error().message;
  };
  refused(good, 3, "layer 2 is in no group");
  KvLayout bad = good;
  bad.groups[0].layers = {0, 0};
  refused(bad, 2, "named twice");
  bad = good;
  bad.groups[0].tokens_per_page = 4;
  refused(bad, 2, "4 tokens a page");
  bad = good;
  bad.page_bytes -= 32;
  refused(bad, 2, "needs pages of");
  bad = good;
  bad.page_count = 0;
  refused(bad, 2, "0 pages");
}

// A table with one full and one window group; row 1 holds request 11 with 20 computed positions after step 1.
struct Table {
  RowTable rows;
  explicit Table(std::uint32_t dp_groups = 1) : rows({{64, 4096, {{0, 8, {0}}, {16, 8, {1}}}}, 4, 32, 100, 50, dp_groups}) {
    StepPlan plan = snapshot(1);
    plan.set = {{RowIndex{1}, RequestId{11}, {}}};
    plan.pages = {{RowIndex{1}, 0, 0, {PageId{0}, PageId{1}, PageId{2}}}, {RowIndex{1}, 1, 0, {PageId{3}, PageId{4}, PageId{5}}}};
    plan.work = {work(1, 0, 20)};
    apply(plan);
    RowState& row = rows.at(RowIndex{1});
    row.started = true, row.length = 20, row.drawn = true, row.drawn_position = 20, row.drawn_token = 7;
  }
  static StepPlan snapshot(std::uint64_t step) {
    StepPlan plan;
    plan.epoch = EpochId{5};
    plan.step = StepId{step};
    plan.snapshot = true;
    return plan;
  }
  static StepPlan difference() {
    StepPlan plan = snapshot(2);
    plan.snapshot = false;
    plan.base = StepId{1};
    return plan;
  }
  static RowWork work(std::uint32_t row, std::uint32_t start, std::uint32_t count) {
    return {RowIndex{row}, start, count, std::vector<TokenId>(count, 9), true};
  }
  void apply(const StepPlan& plan) {
    auto staged = rows.check(plan);
    ASSERT_TRUE(staged.ok()) << staged.error().message;
    rows.commit(plan, std::move(*staged));
  }
  void refuses(const StepPlan& plan, const char* why) {
    const auto result = rows.check(plan);
    ASSERT_FALSE(result.ok()) << why;
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message.find(why), std::string::npos) << "'" << result.error().message << "' should hold '" << why << "'";
  }
};

TEST(RowTable, decodes_from_its_own_draw_and_appends_pages) {
  Table t;
  StepPlan plan = Table::difference();
  plan.work = {{RowIndex{1}, 20, 1, {}, true}};
  EXPECT_TRUE(t.rows.check(plan).ok());
  plan.pages = {{RowIndex{1}, 0, 3, {PageId{9}}}, {RowIndex{1}, 1, 3, {PageId{10}}}};
  plan.work = {Table::work(1, 20, 12)};
  t.apply(plan);
  EXPECT_EQ(t.rows.at(RowIndex{1}).pages[0].back(), PageId{9});
}

TEST(RowTable, base_step_and_epoch) {
  Table t;
  StepPlan plan = Table::difference();
  plan.base = StepId{0};
  t.refuses(plan, "against step 0, the rows stand after 1");
  plan = Table::difference();
  plan.step = StepId{1};
  t.refuses(plan, "step 1 is not after step 1");
  plan = Table::difference();
  plan.epoch = EpochId{6};
  t.refuses(plan, "difference in epoch 6");
  plan = Table::snapshot(2);
  plan.epoch = EpochId{4};
  t.refuses(plan, "epoch is 4, this rank is already in 5");
  plan.epoch = EpochId{6};
  plan.step = StepId{1};
  EXPECT_TRUE(t.rows.check(plan).ok());  // steps start again with the epoch
  t.rows.lose();
  t.refuses(Table::difference(), "send a snapshot");
  EXPECT_TRUE(t.rows.check(Table::snapshot(2)).ok());
}

TEST(RowTable, rows_and_setups) {
  Table t;
  StepPlan plan = Table::difference();
  plan.cleared = {RowIndex{4}};
  t.refuses(plan, "row 4 does not exist");
  plan = Table::difference();
  plan.set = {{RowIndex{9}, RequestId{1}, {}}};
  t.refuses(plan, "row 9 does not exist");
  plan.set = {{RowIndex{1}, RequestId{12}, {}}};
  t.refuses(plan, "row 1 is still held by request 11");
  plan.set = {{RowIndex{2}, RequestId{12}, {}}, {RowIndex{2}, RequestId{13}, {}}};
  t.refuses(plan, "row 2 is still held by request 12");
  plan.set = {{RowIndex{2}, RequestId{12}, {}}};
  plan.set[0].sampling.temperature = -1;
  t.refuses(plan, "temperature");
  plan.set[0].sampling = {};
  plan.set[0].sampling.top_p = 0;
  t.refuses(plan, "top_p");
  plan.set[0].sampling = {};
  plan.set[0].sampling.min_p = 1.5F;
  t.refuses(plan, "min_p");
}

TEST(RowTable, clearing_frees_a_row_for_the_same_plan) {
  Table t;
  StepPlan plan = Table::difference();
  plan.cleared = {RowIndex{1}};
  plan.set = {{RowIndex{1}, RequestId{12}, {}}};
  plan.pages = {{RowIndex{1}, 0, 0, {PageId{7}}}, {RowIndex{1}, 1, 0, {PageId{8}}}};
  plan.work = {Table::work(1, 0, 5)};
  t.apply(plan);
  EXPECT_EQ(t.rows.at(RowIndex{1}).request, RequestId{12});
  EXPECT_EQ(t.rows.at(RowIndex{1}).pages[0].size(), 1u);
  EXPECT_FALSE(t.rows.at(RowIndex{1}).drawn);
}

TEST(RowTable, a_snapshot_forgets_every_row) {
  Table t;
  t.apply(Table::snapshot(2));
  EXPECT_FALSE(t.rows.at(RowIndex{1}).occupied);
}

TEST(RowTable, page_grants) {
  Table t;
  StepPlan plan = Table::difference();
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{9}}}};
  t.refuses(plan, "row 2, which nobody holds");
  plan.pages = {{RowIndex{1}, 2, 0, {PageId{9}}}};
  t.refuses(plan, "group 2 does not exist");
  plan.pages = {{RowIndex{1}, 0, 2, {PageId{9}}}};
  t.refuses(plan, "appended at 2, the table ends at 3");
  plan.pages = {{RowIndex{1}, 0, 4, {PageId{9}}}};
  t.refuses(plan, "appended at 4, the table ends at 3");
  plan.pages = {{RowIndex{1}, 0, 3, {PageId{64}}}};
  t.refuses(plan, "page 64 does not exist, there are 64");
  plan.pages = {{RowIndex{1}, 0, 3, std::vector<PageId>(12, PageId{9})}};
  t.refuses(plan, "would have 15 pages");
  plan.pages = {{RowIndex{1}, 1, 0xffff'ffff, {PageId{9}}}};
  t.refuses(plan, "pages in group 1");
}

TEST(RowTable, a_window_group_may_begin_behind_its_end) {
  Table t;
  StepPlan plan = Table::difference();
  plan.set = {{RowIndex{2}, RequestId{12}, {}}};
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{10}, PageId{11}, PageId{12}, PageId{13}, PageId{14}}},
                {RowIndex{2}, 1, 2, {PageId{15}, PageId{16}, PageId{17}}}};
  plan.work = {Table::work(2, 32, 4)};  // sees positions from 17: page 2 on
  EXPECT_TRUE(t.rows.check(plan).ok());
  plan.work = {Table::work(2, 30, 4)};  // would see position 15, page 1
  t.refuses(plan, "group 1 has no page for position 8");
}

TEST(RowTable, a_row_begins_behind_pages_that_others_have) {
  StepPlan plan = Table::difference();
  plan.set = {{RowIndex{2}, RequestId{12}, {}}};
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{1}}, true},
                {RowIndex{2}, 1, 0, {PageId{4}}, true},
                {RowIndex{2}, 0, 1, {PageId{40}}},
                {RowIndex{2}, 1, 1, {PageId{50}}}};
  plan.work = {Table::work(2, 7, 1)};
  Table{}.refuses(plan, "row 2 is granted pages that others have up to position 8, and it starts at 7");
  plan.work = {Table::work(2, 8, 1)};
  Table t;
  t.apply(plan);
  StepPlan late = Table::difference();
  late.pages = {{RowIndex{1}, 0, 3, {PageId{60}}, true}};
  Table{}.refuses(late, "after it was set");
}

TEST(RowTable, work) {
  Table t;
  StepPlan plan = Table::difference();
  const auto refuses = [&](std::vector<RowWork> work, const char* why) {
    plan.work = std::move(work);
    t.refuses(plan, why);
  };
  refuses({Table::work(0, 0, 1)}, "row 0 has work, and nobody holds it");
  refuses({Table::work(1, 20, 1), Table::work(1, 21, 1)}, "ascending by row");
  refuses({Table::work(1, 20, 0)}, "work of 0 tokens");
  refuses({Table::work(1, 21, 1)}, "starts at 21, only 20 positions");
  refuses({Table::work(1, 20, 5)}, "group 0 has no page for position 24");
  refuses({Table::work(1, 0, 90)}, "group 0 has no page");
  refuses({Table::work(1, 20, 81)}, "end at 101, the context has 100");
  refuses({{RowIndex{1}, 20, 2, {}, true}}, "no tokens are given for 2");
  refuses({{RowIndex{1}, 19, 1, {}, true}}, "which was for 20");
  refuses({{RowIndex{1}, 20, 2, {1}, true}}, "1 tokens are given for 2");
  refuses({{RowIndex{1}, 20, 1, {50}, true}}, "token 50 is not in the vocabulary of 50");
  refuses({{RowIndex{1}, 0xffff'ffff, 2, {1, 2}, true}}, "the context has 100");
  plan.set = {{RowIndex{2}, RequestId{12}, {}}};
  refuses({{RowIndex{2}, 0, 1, {}, true}}, "does not exist");
}

TEST(RowTable, groups_write_pages_of_the_same_number_beside_each_other) {
  Table t;
  StepPlan plan = Table::difference();
  plan.set = {{RowIndex{2}, RequestId{12}, {}, DpGroup{1}}};
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{2}}}, {RowIndex{2}, 1, 0, {PageId{5}}}};
  plan.work = {Table::work(1, 20, 1), Table::work(2, 0, 1)};
  t.refuses(plan, "row 2 is of DP group 1, there are 1");
  Table two{2};
  two.apply(plan);
  EXPECT_EQ(two.rows.at(RowIndex{2}).dp_group, DpGroup{1});
}

TEST(RowTable, what_is_to_be_scrubbed_must_exist_in_its_group) {
  StepPlan plan = Table::difference();
  plan.scrub = {{DpGroup{1}, PageId{63}}};
  Table{1}.refuses(plan, "a page of DP group 1 is to be scrubbed, there are 1");
  Table two{2};
  plan.scrub[0].page = PageId{64};
  two.refuses(plan, "page 64 is to be scrubbed, there are 64");
  plan.scrub[0].page = PageId{63};
  two.apply(plan);
}

TEST(RowTable, two_writers_of_one_page_and_too_many_tokens) {
  Table t;
  StepPlan plan = Table::difference();
  plan.set = {{RowIndex{2}, RequestId{12}, {}}};
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{2}}}, {RowIndex{2}, 1, 0, {PageId{30}}}};
  plan.work = {Table::work(1, 20, 1), Table::work(2, 0, 1)};
  t.refuses(plan, "page 2 is written twice, by row 1 and row 2");
  plan.pages = {{RowIndex{2}, 0, 0, {PageId{20}, PageId{21}, PageId{22}, PageId{23}}},
                {RowIndex{2}, 1, 0, {PageId{30}, PageId{31}, PageId{32}, PageId{33}}}};
  plan.work = {Table::work(1, 20, 1), Table::work(2, 0, 32)};
  t.refuses(plan, "33 tokens, a step takes at most 32");
}

}  // namespace
}  // namespace althing::gpu
