// Rates and quantiles from samples, and the JSON that the live page reads.
#include "monitoring/live_figures.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace althing::monitoring {
namespace {

using nlohmann::json;

TEST(Quantile, is_linear_inside_a_bucket) {
  const std::vector<double> bounds{1, 2, 4};
  EXPECT_FALSE(quantile(bounds, {0, 0, 0, 0}, 0.5).has_value());
  EXPECT_DOUBLE_EQ(*quantile(bounds, {10, 10, 10, 10}, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(*quantile(bounds, {0, 10, 10, 10}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(*quantile(bounds, {5, 10, 20, 20}, 0.75), 3);
  EXPECT_DOUBLE_EQ(*quantile(bounds, {0, 0, 0, 10}, 0.5), 4) << "over every bound: the largest";
  EXPECT_DOUBLE_EQ(*quantile(bounds, {0, 3, 3, 10}, 0.99), 4);
}

Traffic traffic(std::uint64_t generated, std::vector<std::uint64_t> buckets) {
  Traffic traffic;
  traffic.prompt_tokens = generated / 2;
  traffic.generated_tokens = generated;
  traffic.first_token = {{0.1, 1}, std::move(buckets)};
  return traffic;
}

TEST(TrafficWindow, one_sample_says_nothing) {
  TrafficWindow window;
  window.add(5, traffic(100, {1, 2, 3}));
  EXPECT_EQ(window.generated_rate(), 0);
  EXPECT_EQ(window.first_token().count, 0u);
}

TEST(TrafficWindow, rates_are_of_the_last_seconds) {
  TrafficWindow window;
  for (int t = 0; t <= 20; ++t) window.add(t, traffic(t < 10 ? 0 : 100u * static_cast<unsigned>(t - 10), {}));
  EXPECT_DOUBLE_EQ(window.generated_rate(), 100);
  EXPECT_DOUBLE_EQ(window.prompt_rate(), 50);
  for (int t = 21; t <= 26; ++t) window.add(t, traffic(1000, {}));
  EXPECT_DOUBLE_EQ(window.generated_rate(), 0) << "what was before the window is forgotten";
}

TEST(TrafficWindow, latencies_are_of_the_last_minute) {
  TrafficWindow window;
  window.add(0, traffic(0, {100, 100, 100}));  // before anybody looked
  window.add(1, traffic(0, {100, 110, 110}));
  Latency latency = window.first_token();
  EXPECT_EQ(latency.count, 10u);
  EXPECT_NEAR(*latency.p50, 0.55, 1e-9);
  EXPECT_EQ(latency.bound, 1);
  for (int t = 2; t <= 62; ++t) window.add(t, traffic(0, {100, 110, 110}));
  latency = window.first_token();
  EXPECT_EQ(latency.count, 0u);
  EXPECT_FALSE(latency.p99.has_value());
}

TEST(LiveFigures, ranges) {
  EXPECT_EQ(ranges_of({}), "");
  EXPECT_EQ(ranges_of({4}), "4");
  EXPECT_EQ(ranges_of({0, 1, 2, 3, 7, 9, 10}), "0-3,7,9-10");
}

TEST(LiveFigures, are_one_json_object) {
  LiveFigures figures;
  figures.model = "ti\"ny";
  figures.state = "ready";
  figures.ranks = {{"serving", 2, 0, {0, 1}, 5, 64, 12}, {"absent", 0, 1, {}, 0, 64, 999}};
  figures.ranks_wanted = 2;
  figures.newest_event = 7;
  TrafficWindow window;
  window.add(0, traffic(10, {0, 0, 0}));
  window.add(1, traffic(30, {0, 4, 4}));
  const std::string text = to_json(figures, window);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
  const json live = json::parse(text);
  EXPECT_EQ(live["model"], "ti\"ny");
  EXPECT_EQ(live["ranks"][0], json::parse(R"({"rank":0,"state":"serving","epoch":2,"dp_group":0,"experts":2,"expert_ids":"0-1","kv_pages_used":5,
                                             "kv_pages":64,"progress_age_ms":12})"));
  EXPECT_TRUE(live["ranks"][1]["progress_age_ms"].is_null()) << "nobody is there whose progress could have an age";
  EXPECT_EQ(live["tokens_out_per_second"], 20);
  EXPECT_EQ(live["first_token_ms"], json::parse(R"({"count":4,"p50":550,"p95":955,"p99":991,"bound":1000})"));
  EXPECT_TRUE(live["inter_token_ms"]["p50"].is_null());
  EXPECT_EQ(live["newest_event"], 7);
}

}  // namespace
}  // namespace althing::monitoring
