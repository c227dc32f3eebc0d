// The pages about experts: valid text, exact numbers, planted dead and hot experts by name, bounded series and a bounded time.
#include "monitoring/expert_monitor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <thread>

#include "tests/monitoring/expert_samples.hpp"
#include "tests/monitoring/text_format.hpp"

namespace althing::monitoring {
namespace {

using testing::HasSubstr;
using tests::bytes_of;
using tests::Page;
using tests::PageReader;

// Expert e is on rank e % ranks.
ExpertPlaces spread(std::uint32_t experts, std::uint32_t ranks) {
  ExpertPlaces places;
  for (std::uint32_t e = 0; e < experts; ++e) places.push_back({{e % ranks, e / ranks}});
  return places;
}

Page read(const ExpertPage& text) {
  const Page page = PageReader::read(text.text);
  EXPECT_TRUE(page.problems.empty()) << page.problems.front();
  EXPECT_EQ(page.samples.size(), text.series);
  return page;
}

TEST(ExpertMonitor, a_matrix_of_two_layers_and_four_experts_by_hand) {
  ExpertMonitor monitor({{2, 2, 4, 1}, 1.25, true, 20'000, {10, 500}});
  ASSERT_TRUE(monitor.layout(3, spread(4, 2)));
  ASSERT_TRUE(monitor.step(bytes_of(tests::step_of({{400, 100, 300, 200}, {0, 0, 900, 100}}, 1)), 0));
  const Page page = read(monitor.summary(0));
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"0\",rank=\"0\"}"), 700);
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"1\",rank=\"1\"}"), 100);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_imbalance_ratio{layer=\"0\"}"), 1.6);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_imbalance_ratio{layer=\"1\"}"), 3.6);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_load_cv{layer=\"0\"}"), std::sqrt(125.0) / 25);
  EXPECT_DOUBLE_EQ(page.at("althing_rank_imbalance_ratio{layer=\"0\"}"), 1.4);
  EXPECT_DOUBLE_EQ(page.at("althing_rank_imbalance_ratio{layer=\"1\"}"), 1.8);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_top_share_ratio{layer=\"1\",k=\"1\"}"), 0.9);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_top_share_ratio{layer=\"1\",k=\"8\"}"), 1);
  EXPECT_EQ(page.at("althing_expert_idle{layer=\"1\"}"), 2);
  EXPECT_EQ(page.at("althing_expert_hot{layer=\"1\"}"), 1);
  EXPECT_EQ(page.at("althing_expert_active{layer=\"1\"}"), 2);
  EXPECT_EQ(page.at("althing_expert_replicas{layer=\"all\",rank=\"0\"}"), 2);
  EXPECT_EQ(page.at("althing_expert_weight_bytes_total"), 6 * 10);
  EXPECT_EQ(page.at("althing_weight_bytes_total"), 6 * 10 + 500);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_padding_ratio"), 1 - 2000.0 / (4 * 400 + 4 * 900));
  EXPECT_EQ(page.at("althing_router_gate_weight{layer=\"0\",place=\"0\"}"), 1);
  EXPECT_TRUE(std::isinf(page.at("althing_expert_saturation_minutes{layer=\"0\"}")));
  EXPECT_EQ(monitor.json(0),
            "{\"layers\":2,\"experts\":4,\"top_k\":1,\"epoch\":3,\"first_epoch\":3,\"steps\":1,\"tokens\":1000,\"window_whole\":true,"
            "\"window\":[[400,100,300,200],[0,0,900,100]],\"total\":[[400,100,300,200],[0,0,900,100]],\"per_rank\":[[700,900],[300,100]],"
            "\"imbalance\":[1.6,3.6],\"active\":[4,2],\"saturation_minutes\":[null,null],\"hot\":[[1,2,0.9]],\"dead\":[[1,0],[1,1]]}\n");
}

TEST(ExpertMonitor, a_planted_dead_expert_and_a_planted_hot_one_are_named) {
  ExpertMonitor monitor({{1, 3, 16, 2}, 1.25, false, 20'000});
  monitor.layout(1, spread(16, 1));
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    StepCounts step = tests::random_step(random, 3, 16, 2, 16);
    // In layer 1 expert 6 gives all its tokens to expert 3, which gets three times its own beside.
    std::vector<std::uint32_t> load(16);
    for (const ExpertCount& count : step.layers[1].experts) load[count.expert] = count.tokens;
    load[3] += load[6], load[6] = 0;
    for (const std::uint32_t from : {0u, 9u, 12u}) load[3] += load[from] / 2, load[from] -= load[from] / 2;
    step.layers[1] = tests::step_of({load}, 2).layers[0];
    ASSERT_TRUE(monitor.step(bytes_of(step), 0));
  }
  const std::string json = monitor.json(0);
  EXPECT_THAT(json, HasSubstr("\"dead\":[[1,6]]"));
  EXPECT_THAT(json, HasSubstr("\"hot\":[[1,3,0."));
  EXPECT_EQ(json.find("],[", json.find("\"hot\"")), std::string::npos) << "nobody else is hot or dead";
  const Page page = read(monitor.summary(0));
  EXPECT_EQ(page.at("althing_expert_idle{layer=\"1\"}"), 1);
  EXPECT_EQ(page.at("althing_expert_hot{layer=\"1\"}"), 1);
  EXPECT_EQ(page.at("althing_expert_idle{layer=\"0\"}") + page.at("althing_expert_hot{layer=\"2\"}"), 0);
}

TEST(ExpertMonitor, silence_is_no_sign_before_the_window_is_whole) {
  ExpertMonitor monitor({{1, 1, 4, 1}, 1.25, false, 20'000});
  monitor.layout(1, spread(4, 1));
  monitor.step(bytes_of(tests::step_of({{5, 0, 0, 0}}, 1)), 0);
  const Page page = read(monitor.summary(0));
  EXPECT_EQ(page.at("althing_expert_idle{layer=\"0\"}"), 0);
  EXPECT_EQ(page.at("althing_expert_hot{layer=\"0\"}"), 0);
  EXPECT_THAT(monitor.json(0), HasSubstr("\"hot\":[],\"dead\":[]"));
}

TEST(ExpertMonitor, the_page_of_all_experts_is_off_until_asked_for) {
  ExpertMonitor monitor({{1, 1, 4, 1}, 1.25, false, 20'000});
  const ExpertPage page = monitor.all(0);
  EXPECT_FALSE(page.found);
  EXPECT_THAT(page.text, HasSubstr("--expert-metrics"));
}

TEST(ExpertMonitor, all_experts_have_exact_counters) {
  ExpertMonitor monitor({{2, 1, 4, 2}, 1.25, true, 20'000});
  monitor.layout(1, {{{0, 0}, {1, 2}}, {{0, 1}}, {{1, 0}}, {{1, 1}}});
  StepCounts step = tests::step_of({{3, 1, 0, 0}}, 2);
  step.layers[0].experts[0].tokens = 2;
  step.layers[0].experts[0].gate_weight = 3u << 30;  // 0.75
  step.layers[0].experts.insert(step.layers[0].experts.begin() + 1, {0, 1, 1, 1u << 31});
  ASSERT_TRUE(monitor.step(bytes_of(step), 0));
  const Page page = read(monitor.all(0));
  EXPECT_EQ(page.at("althing_expert_tier_disabled"), 0);
  EXPECT_EQ(page.at("althing_expert_tokens_total{layer=\"0\",expert=\"0\"}"), 3);
  EXPECT_EQ(page.at("althing_expert_gate_weight_total{layer=\"0\",expert=\"0\"}"), 1.25);
  EXPECT_EQ(page.at("althing_expert_slot_tokens_total{layer=\"0\",expert=\"0\",rank=\"0\",slot=\"0\"}"), 2);
  EXPECT_EQ(page.at("althing_expert_slot_tokens_total{layer=\"0\",expert=\"0\",rank=\"1\",slot=\"2\"}"), 1);
}

TEST(ExpertMonitor, over_the_cap_slots_go_first_and_then_the_tier_and_both_are_told) {
  const auto page_with = [](std::uint32_t cap) {
    ExpertMonitor monitor({{1, 2, 4, 1}, 1.25, true, cap});
    monitor.layout(1, spread(4, 1));
    return monitor.all(0);
  };
  EXPECT_EQ(page_with(25).series, 25u) << "1 + 8 experts + 8 weights + 8 slots";
  const ExpertPage without_slots = page_with(24);
  EXPECT_EQ(without_slots.series, 17u);
  EXPECT_THAT(without_slots.text, HasSubstr("# tokens by slot are left out"));
  const ExpertPage off = page_with(16);
  EXPECT_TRUE(off.found);
  EXPECT_EQ(off.series, 1u);
  EXPECT_THAT(off.text, HasSubstr("althing_expert_tier_disabled 1\n"));
  EXPECT_THAT(off.text, HasSubstr("make 17 series, and --expert-series-max is 16"));
}

TEST(ExpertMonitor, what_cannot_be_read_changes_nothing) {
  ExpertMonitor monitor({{1, 1, 4, 1}, 1.25, true, 20'000});
  const std::string good = bytes_of(tests::step_of({{1, 1, 1, 1}}, 1));
  EXPECT_FALSE(monitor.step(good, 0)) << "no layout yet";
  EXPECT_FALSE(monitor.layout(1, {}));
  ASSERT_TRUE(monitor.layout(1, spread(4, 1)));
  const std::string before = monitor.json(0);
  EXPECT_FALSE(monitor.step("", 0));
  EXPECT_FALSE(monitor.step(good.substr(1), 0));
  EXPECT_FALSE(monitor.step(bytes_of(tests::step_of({{1, 1, 1}}, 1)), 0)) << "three experts";
  EXPECT_EQ(monitor.json(0), before);
  EXPECT_TRUE(monitor.step(good, 0));
  EXPECT_NE(monitor.json(0), before);
}

TEST(ExpertMonitor, polled_reports_wait_for_every_member_before_they_are_a_window) {
  ExpertMonitor monitor({{2, 1, 2, 1}, 1.25, false, 20'000});
  const auto imbalance = [&] { return read(monitor.summary(0)).at("althing_expert_imbalance_ratio{layer=\"0\"}"); };
  monitor.rank_up(0, true);
  monitor.rank_up(1, true);
  using Counts = std::vector<std::uint64_t>;
  EXPECT_TRUE(monitor.report(0, Counts{8, 0}, 0));
  EXPECT_EQ(imbalance(), 0) << "expert 1 lives on rank 1, which has not spoken";
  EXPECT_TRUE(monitor.report(1, Counts{0, 24}, 0));
  EXPECT_DOUBLE_EQ(imbalance(), 1.5);
  EXPECT_FALSE(monitor.report(2, Counts{1, 1}, 0));
  EXPECT_FALSE(monitor.report(0, Counts{1}, 0));
}

TEST(ExpertMonitor, the_full_page_of_120b_is_made_in_time) {
  ExpertMonitor monitor({{8, 36, 128, 4}, 1.25, true, 20'000});
  monitor.layout(1, spread(128, 8));
  std::mt19937 random(2);
  for (int i = 0; i < 20; ++i) monitor.step(bytes_of(tests::random_step(random, 36, 128, 4, 512)), i);
  double best = 1e9;
  std::size_t series = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const ExpertPage page = monitor.all(20);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    series = page.series;
  }
  EXPECT_EQ(series, 1u + 3 * 36 * 128);
  EXPECT_LT(best, 0.05) << "seconds; the best of five, for machines that do other things too";
}

TEST(ExpertMonitor, pages_and_steps_at_once_lose_nothing) {
  ExpertMonitor monitor({{2, 2, 4, 2}, 1.25, true, 20'000});
  monitor.layout(1, spread(4, 2));
  const std::string bytes = bytes_of(tests::step_of({{2, 0, 1, 1}, {1, 1, 1, 1}}, 2));
  std::jthread reader([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const Page page = PageReader::read(monitor.all(0).text);
      double sum = 0;
      for (const char* expert : {"0", "1", "2", "3"})
        sum += page.samples.at("althing_expert_tokens_total{layer=\"0\",expert=\"" + std::string(expert) + "\"}");
      EXPECT_EQ(std::fmod(sum, 4), 0) << "a step was seen in part";
    }
  });
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(monitor.step(bytes, i));
  reader.request_stop();
  reader.join();
  ASSERT_TRUE(monitor.layout(5, spread(4, 2)));
  EXPECT_THAT(monitor.json(0), HasSubstr("\"epoch\":5,\"first_epoch\":1,")) << "what came before it is counted still";
  EXPECT_THAT(monitor.json(0), HasSubstr("\"total\":[[10000,0,5000,5000],[5000,5000,5000,5000]]"));
}

}  // namespace
}  // namespace althing::monitoring
