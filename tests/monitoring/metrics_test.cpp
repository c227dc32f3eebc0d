// The page as Prometheus reads it: valid text, exact counts, bounded labels, and truth across restarts and threads.
#include "monitoring/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/monitoring/expert_samples.hpp"
#include "tests/monitoring/text_format.hpp"

namespace althing::monitoring {
namespace {

using tests::Page;
using tests::PageReader;
using Counts = std::vector<std::uint64_t>;

MetricsConfig small() { return {.version = "0.1.0", .model = "tiny", .ranks = 2, .layers = 2, .experts = 2}; }

Page page_of(const Metrics& metrics) {
  Page page = PageReader::read(metrics.scrape());
  EXPECT_TRUE(page.problems.empty()) << page.problems.front();
  return page;
}

TEST(Metrics, the_page_of_a_fresh_server_is_valid_and_complete) {
  const Metrics metrics(small());
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_build_info{model=\"tiny\",version=\"0.1.0\"}"), 1);
  EXPECT_EQ(page.at("althing_state{state=\"starting\"}"), 1);
  EXPECT_EQ(page.at("althing_requests_accepted_total"), 0);
  EXPECT_EQ(page.at("althing_rank_up{rank=\"1\"}"), 0);
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"1\",rank=\"1\"}"), 0);
  EXPECT_EQ(page.at("althing_series{path=\"/metrics\"}"), static_cast<double>(page.samples.size()));
}

// Of eleven ranks, so that an order of texts (10 before 2) is another than that of numbers.
TEST(Metrics, the_page_has_families_by_name_and_series_by_labels_each_with_one_heading) {
  Metrics metrics({.version = "0.1.0", .model = "tiny", .ranks = 11, .layers = 11, .experts = 2});
  const auto lines_of = [](const std::string& text, const std::string& prefix) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(prefix)) found.push_back(line.substr(prefix.size(), line.find_first_of(" }", prefix.size()) - prefix.size()));
    return found;
  };
  const std::string page = metrics.scrape();
  const auto helped = lines_of(page, "# HELP "), typed = lines_of(page, "# TYPE ");
  EXPECT_GT(helped.size(), 30u);
  EXPECT_EQ(helped, typed);
  EXPECT_TRUE(std::is_sorted(helped.begin(), helped.end()));
  EXPECT_EQ(std::adjacent_find(helped.begin(), helped.end()), helped.end());
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 11; ++rank) ranks.push_back("{rank=\"" + std::to_string(rank) + "\"");
  EXPECT_EQ(lines_of(page, "althing_rank_up"), ranks);
  const auto pairs = lines_of(page, "althing_layer_rank_tokens_total");
  ASSERT_EQ(pairs.size(), 121u);
  EXPECT_EQ(pairs[10], "{layer=\"0\",rank=\"10\"");
  EXPECT_EQ(pairs[11], "{layer=\"1\",rank=\"0\"");
  EXPECT_EQ(lines_of(page, "althing_state"), (std::vector<std::string>{"{state=\"draining\"", "{state=\"ready\"", "{state=\"recovering\"",
                                                                       "{state=\"silent\"", "{state=\"starting\""}));
  metrics.rank_up(10, true);
  EXPECT_EQ(lines_of(metrics.scrape(), "althing_"), lines_of(page, "althing_")) << "numbers may change, lines may not";
}

TEST(Metrics, requests_are_counted_exactly) {
  Metrics metrics(small());
  for (int i = 0; i < 5; ++i) metrics.request_accepted(10);
  metrics.request_rejected(ErrorCode::busy);
  metrics.request_finished(FinishReason::stop, ErrorCode::internal, 0.2);
  metrics.request_finished(FinishReason::stop, ErrorCode::internal, 0.2);
  metrics.request_finished(FinishReason::length, ErrorCode::internal, 0.2);
  metrics.request_finished(FinishReason::cancelled, ErrorCode::slow_reader, 0.2);
  metrics.request_finished(FinishReason::error, ErrorCode::nonfinite, 400);
  metrics.generated(7);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_requests_accepted_total"), 5);
  EXPECT_EQ(page.at("althing_prompt_tokens_total"), 50);
  EXPECT_EQ(page.at("althing_generation_tokens_total"), 7);
  EXPECT_EQ(page.at("althing_requests_rejected_total{reason=\"busy\"}"), 1);
  double ended = 0;
  for (const char* outcome : {"stop", "length", "cancelled", "error"})
    ended += page.at(std::string("althing_requests_total{outcome=\"") + outcome + "\"}");
  EXPECT_EQ(ended, 5);
  EXPECT_EQ(page.at("althing_request_errors_total{class=\"slow_reader\"}"), 1);
  EXPECT_EQ(page.at("althing_request_errors_total{class=\"nonfinite\"}"), 1);
  EXPECT_EQ(page.at("althing_request_errors_total{class=\"internal\"}"), 0) << "a clean stop has no error class";
  EXPECT_EQ(page.at("althing_request_seconds_count"), 5);
  EXPECT_EQ(page.at("althing_request_seconds_bucket{le=\"300\"}"), 4);
  EXPECT_NEAR(page.at("althing_request_seconds_sum"), 400.8, 1e-9);
}

TEST(Metrics, the_engine_and_the_pool_are_shown) {
  MetricsConfig config = small();
  config.repair_kinds = {"stray_stop", "doubled_role"};
  Metrics metrics(config);
  metrics.step(0.004, 12);
  metrics.step(0.004, 3);
  metrics.scheduler_step(3e-6);
  metrics.scheduler(3, 4, 50, 60, 2);
  metrics.scheduler(2, 1, 40, 60, 2);
  metrics.scheduler(2, 1, 40, 60, 5);
  metrics.preempted_for_share();
  metrics.progress(1, 1.7e9);
  metrics.epoch(9);
  metrics.sessions(11);
  metrics.frame_refused(ErrorCode::corrupt);
  metrics.repaired(0, 2);
  metrics.repaired(0, 1);
  metrics.repaired(2, 1);  // there is no such kind
  metrics.first_token(0.01);
  metrics.inter_token(0.002);
  metrics.queue_wait(0.001);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_step_seconds_count"), 2);
  EXPECT_EQ(page.at("althing_step_tokens_total"), 15);
  EXPECT_EQ(page.at("althing_scheduler_event_seconds_count"), 1);
  EXPECT_EQ(page.at("althing_requests_running"), 2);
  EXPECT_EQ(page.at("althing_requests_waiting"), 1);
  EXPECT_EQ(page.at("althing_kv_blocks_used"), 40);
  EXPECT_EQ(page.at("althing_kv_blocks"), 60);
  EXPECT_EQ(page.at("althing_preemptions_total"), 5);
  EXPECT_EQ(page.at("althing_preemptions_for_share_total"), 1);
  EXPECT_EQ(page.at("althing_last_step_timestamp_seconds{rank=\"1\"}"), 1.7e9);
  EXPECT_EQ(page.at("althing_membership_epoch"), 9);
  EXPECT_EQ(page.at("althing_sessions"), 11);
  EXPECT_EQ(page.at("althing_frames_refused_total{reason=\"corrupt\"}"), 1);
  EXPECT_EQ(page.at("althing_harmony_repairs_total{kind=\"stray_stop\"}"), 3);
  EXPECT_EQ(page.at("althing_harmony_repairs_total{kind=\"doubled_role\"}"), 0);
  EXPECT_EQ(page.at("althing_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(page.at("althing_inter_token_seconds_count"), 1);
  EXPECT_EQ(page.at("althing_queue_seconds_count"), 1);
}

TEST(Metrics, deaths_of_the_core_are_counted_since_the_server_s_start_and_timed) {
  Metrics metrics(small());
  EXPECT_EQ(page_of(metrics).at("althing_core_restarts_total"), 0);
  metrics.core_restarts(3);  // this process follows three that died
  metrics.core_restarts(2);  // a counter never goes back
  metrics.core_recovered(0.25);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_core_restarts_total"), 3);
  EXPECT_EQ(page.at("althing_core_recovery_seconds_count"), 1);
  EXPECT_EQ(page.at("althing_core_recovery_seconds_sum"), 0.25);
}

TEST(Metrics, exactly_one_state_is_set_and_recoveries_are_timed) {
  Metrics metrics(small());
  for (const ServerState state : {ServerState::ready, ServerState::recovering, ServerState::recovering, ServerState::ready, ServerState::draining})
    metrics.state(state);
  const Page page = page_of(metrics);
  double set = 0;
  for (const auto& [series, value] : page.samples)
    if (series.rfind("althing_state{", 0) == 0) set += value;
  EXPECT_EQ(set, 1);
  EXPECT_EQ(page.at("althing_state{state=\"draining\"}"), 1);
  EXPECT_EQ(page.at("althing_recoveries_total"), 1);
  EXPECT_EQ(page.at("althing_recovery_seconds_count"), 1);
}

TEST(Metrics, a_membership_that_has_only_grown_is_no_recovery) {
  Metrics metrics(small());
  for (const bool grown : {true, false}) {
    metrics.state(ServerState::ready, grown);
    metrics.state(ServerState::recovering, grown);
    metrics.state(ServerState::ready, grown);
    EXPECT_EQ(page_of(metrics).at("althing_recoveries_total"), grown ? 0 : 1);
  }
}

TEST(Metrics, expert_counters_stay_exact_across_a_rank_restart) {
  Metrics metrics(small());
  metrics.expert_tokens(0, Counts{1, 2, 3, 4});
  metrics.expert_tokens(1, Counts{5, 5, 5, 5});
  metrics.rank_up(1, false);
  metrics.rank_failed(1, "exit");
  metrics.expert_tokens(1, Counts{6, 6, 6, 6});  // a new process, already past the old counts
  metrics.expert_tokens(0, Counts{1, 2, 3, 0});  // a restart that nobody announced
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"0\",rank=\"0\"}"), 3 + 3);
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"1\",rank=\"0\"}"), 7 + 3);
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"0\",rank=\"1\"}"), 10 + 12);
  EXPECT_EQ(page.at("althing_rank_failures_total{cause=\"exit\"}"), 1);
}

TEST(Metrics, spares_quarantine_and_degraded_service_are_told) {
  Metrics metrics(small());
  metrics.membership(2, 1, true);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_spares"), 2);
  EXPECT_EQ(page.at("althing_quarantined"), 1);
  EXPECT_EQ(page.at("althing_degraded"), 1);
  metrics.membership(0, 0, false);
  EXPECT_EQ(page_of(metrics).at("althing_degraded"), 0);
}

TEST(Metrics, a_fault_is_counted_by_its_cause_with_the_times_of_its_phases) {
  Metrics metrics(small());
  const std::vector<double> seconds{0.3, 0.001, 0.02, 0.03, 0.2, 0.0};
  metrics.fault("frozen", "spare", seconds);
  metrics.fault("of a kind that nobody defined", "a miracle", seconds);
  metrics.fault("exit", "respawn", std::vector<double>{1.0});  // phases are missing
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_faults_total{cause=\"frozen\",recovered_by=\"spare\"}"), 1);
  EXPECT_EQ(page.at("althing_faults_total{cause=\"other\",recovered_by=\"other\"}"), 1);
  EXPECT_EQ(page.at("althing_faults_total{cause=\"exit\",recovered_by=\"respawn\"}"), 0);
  EXPECT_EQ(page.at("althing_recovery_phase_seconds_count{phase=\"weights\"}"), 2);
  EXPECT_NEAR(page.at("althing_recovery_phase_seconds_sum{phase=\"detect\"}"), 0.6, 1e-9);
  EXPECT_EQ(page.at("althing_reports_refused_total"), 1);
}

TEST(Metrics, pages_of_the_mirror_are_summed_over_ranks_and_their_restarts) {
  Metrics metrics(small());
  const auto fate = [&](const char* name) { return page_of(metrics).at(std::string("althing_kv_mirror_pages_total{fate=\"") + name + "\"}"); };
  metrics.mirror_pages(0, Counts{10, 1, 2, 3, 4});
  metrics.mirror_pages(1, Counts{20, 0, 0, 0, 0});
  metrics.mirror_pages(0, Counts{15, 1, 2, 3, 4});
  EXPECT_EQ(fate("copied"), 35);
  EXPECT_EQ(fate("skipped"), 1);
  EXPECT_EQ(fate("restored"), 2);
  EXPECT_EQ(fate("missing"), 3);
  EXPECT_EQ(fate("corrupt"), 4);
  metrics.rank_failed(0, "exit");
  metrics.mirror_pages(0, Counts{15, 0, 0, 0, 0});
  EXPECT_EQ(fate("copied"), 50) << "a new process counts from 0";
  metrics.mirror({4096, 7, 100, 30});
  metrics.mirror({2048, 7, 90, 31});
  EXPECT_EQ(fate("no_room"), 7);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_kv_mirror_bytes"), 2048);
  EXPECT_EQ(page.at("althing_kv_restored_tokens_total"), 100) << "a total never falls";
  EXPECT_EQ(page.at("althing_kv_recomputed_tokens_total"), 31);
  EXPECT_EQ(page.at("althing_reports_refused_total"), 0);
  metrics.mirror_pages(2, Counts{1, 0, 0, 0, 0});
  metrics.mirror_pages(0, Counts{1, 2});
  EXPECT_EQ(page_of(metrics).at("althing_reports_refused_total"), 2);
}

TEST(Metrics, imbalance_waits_for_every_member) {
  Metrics metrics(small());
  metrics.rank_up(0, true);
  metrics.rank_up(1, true);
  metrics.expert_tokens(0, Counts{8, 0, 8, 0});
  EXPECT_EQ(page_of(metrics).at("althing_expert_imbalance_ratio{layer=\"0\"}"), 0) << "expert 1 lives on rank 1, which has not spoken";
  metrics.expert_tokens(1, Counts{0, 8, 0, 24});
  const Page page = page_of(metrics);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_imbalance_ratio{layer=\"0\"}"), 1);
  EXPECT_DOUBLE_EQ(page.at("althing_expert_imbalance_ratio{layer=\"1\"}"), 1.5);
  EXPECT_EQ(page.at("althing_expert_idle{layer=\"0\"}"), 0);
}

TEST(Metrics, impossible_numbers_are_refused_and_counted) {
  Metrics metrics(small());
  metrics.first_token(std::numeric_limits<double>::quiet_NaN());
  metrics.step(-1, 0);
  metrics.inter_token(std::numeric_limits<double>::infinity());
  metrics.progress(0, -1);
  metrics.progress(2, 1);
  metrics.rank_up(2, true);
  metrics.rank_failed(99, "exit");
  metrics.expert_tokens(2, Counts{1, 1, 1, 1});
  metrics.expert_tokens(0, Counts{1});
  metrics.rank_failed(0, "a cause\" that{ nobody=\n defined");
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_reports_refused_total"), 9);
  EXPECT_EQ(page.at("althing_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(page.at("althing_rank_failures_total{cause=\"other\"}"), 1);
}

TEST(Metrics, labels_and_series_are_bounded_whatever_is_said) {
  MetricsConfig config = small();
  config.model.assign(300, 'm').append("\"\n\\");
  Metrics metrics(config);
  const std::size_t before = page_of(metrics).samples.size();
  for (int code = 0; code < error_code_count; ++code) {
    metrics.frame_refused(static_cast<ErrorCode>(code));
    metrics.request_rejected(static_cast<ErrorCode>(code));
    metrics.request_finished(FinishReason::error, static_cast<ErrorCode>(code), 1);
    metrics.rank_failed(0, std::string(code, 'x'));
  }
  const Page page = page_of(metrics);
  EXPECT_EQ(page.samples.size(), before) << "no call may add a series";
  for (const auto& [label, values] : page.label_values) {
    EXPECT_LE(values.size(), 32u) << label;
    for (const auto& value : values) EXPECT_LE(value.size(), 64u) << label;
  }
}

TEST(Metrics, counts_of_steps_are_on_all_pages) {
  MetricsConfig config = small();
  config.expert_metrics = true;
  Metrics metrics(config);
  metrics.expert_layout(4, {{{0, 0}}, {{1, 0}}});
  metrics.step_counts(tests::bytes_of(tests::step_of({{5, 1}, {2, 4}}, 1)));
  EXPECT_EQ(page_of(metrics).at("althing_layer_rank_tokens_total{layer=\"1\",rank=\"1\"}"), 4);
  const ExpertPage experts = metrics.scrape_experts();
  EXPECT_NE(experts.text.find("althing_expert_tokens_total{layer=\"0\",expert=\"0\"} 5\n"), std::string::npos);
  EXPECT_NE(metrics.experts_json().find("\"epoch\":4,\"first_epoch\":4,\"steps\":1,\"tokens\":6,"), std::string::npos);
  EXPECT_EQ(page_of(metrics).at("althing_series{path=\"/metrics/experts\"}"), static_cast<double>(experts.series));
  EXPECT_EQ(page_of(metrics).at("althing_reports_refused_total"), 0);
  metrics.step_counts("these are no counts");
  metrics.expert_layout(5, {});
  EXPECT_EQ(page_of(metrics).at("althing_reports_refused_total"), 2);
}

TEST(Metrics, the_largest_default_page_stays_small) {
  const Metrics metrics({.version = "0", .model = "gpt-oss-120b", .ranks = 8, .layers = 36, .experts = 128, .experts_per_token = 4});
  EXPECT_LE(page_of(metrics).samples.size(), 1500u);
}

TEST(Metrics, concurrent_use_loses_nothing) {
  Metrics metrics(small());
  constexpr int threads = 4, rounds = 2000;
  std::atomic<bool> done{false};
  std::thread scraper([&] {
    while (!done) {
      const Page page = PageReader::read(metrics.scrape());
      double states = 0;
      for (const auto& [series, value] : page.samples)
        if (series.rfind("althing_state{", 0) == 0) states += value;
      EXPECT_EQ(states, 1) << "a scrape saw a state change half done";
    }
  });
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= rounds; ++i) {
        metrics.request_accepted(1);
        metrics.generated(2);
        metrics.inter_token(0.001);
        metrics.request_finished(FinishReason::stop, ErrorCode::internal, 0.1);
        metrics.scheduler(1, 1, 1, 1, i);
        if (t < 2 && i % 20 == 0) metrics.expert_tokens(static_cast<std::uint32_t>(t), Counts{i, i, i, i});
        if (t == 2 && i % 20 == 0) metrics.state(i % 40 == 0 ? ServerState::ready : ServerState::recovering);
      }
    });
  for (auto& worker : workers) worker.join();
  done = true;
  scraper.join();
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_requests_accepted_total"), threads * rounds);
  EXPECT_EQ(page.at("althing_requests_total{outcome=\"stop\"}"), threads * rounds);
  EXPECT_EQ(page.at("althing_generation_tokens_total"), 2 * threads * rounds);
  EXPECT_EQ(page.at("althing_inter_token_seconds_count"), threads * rounds);
  EXPECT_EQ(page.at("althing_preemptions_total"), rounds) << "four callers saw the same preemptions";
  EXPECT_EQ(page.at("althing_layer_rank_tokens_total{layer=\"1\",rank=\"1\"}"), 2 * rounds);
}

TEST(PageReader, rejects_what_prometheus_would) {
  const char* head = "# HELP althing_a_total a\n# TYPE althing_a_total counter\n";
  const char* histogram = "# HELP althing_h h\n# TYPE althing_h histogram\n";
  EXPECT_TRUE(PageReader::read(std::string(head) + "althing_a_total{x=\"1\"} 3\n").problems.empty());
  for (const std::string& bad : {std::string(head) + "althing_a_total 3", std::string(head) + "althing_a_total -3\n",
                                 std::string(head) + "althing_a_total Nan\n", std::string(head) + "althing_a_total{x=1} 3\n",
                                 std::string(head) + "althing_a_total 3\nalthing_a_total 4\n", std::string(head) + "althing_b_total 3\n",
                                 std::string(head) + head, std::string(histogram) + "althing_h_bucket{le=\"1\"} 2\nalthing_h_count 2\n",
                                 std::string(histogram) + "althing_h_bucket{le=\"1\"} 3\nalthing_h_bucket{le=\"+Inf\"} 2\nalthing_h_count 2\n"})
    EXPECT_FALSE(PageReader::read(bad).problems.empty()) << bad;
}

}  // namespace
}  // namespace althing::monitoring
