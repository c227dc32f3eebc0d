// The gateway's numbers: what is counted where, and that no name from outside makes a series.
#include "monitoring/gateway_metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace althing::monitoring {
namespace {

TEST(GatewayMetrics, everything_is_counted_under_names_that_were_there_at_start) {
  GatewayMetrics metrics({{"chat", "models"}, {"key", "quota"}, {"connections"}});
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const auto before = lines(metrics.scrape());
  metrics.answered("chat", 200, 100, false);
  metrics.answered("chat", 429, 10, false);
  metrics.answered("/etc/passwd", 503, 1, true);
  metrics.answered("chat", 100, 0, false);
  metrics.rejected("key");
  metrics.rejected("made up");
  metrics.refused_connection("connections");
  metrics.open_requests(3);
  metrics.first_event(0.2);
  metrics.tokens(5, 7, 2);
  const std::string text = metrics.scrape();
  for (const char* line :
       {"althing_gateway_responses_total{route=\"chat\",status=\"2xx\"} 1", "althing_gateway_responses_total{route=\"chat\",status=\"4xx\"} 1",
        "althing_gateway_responses_total{route=\"chat\",status=\"other\"} 1", "althing_gateway_responses_total{route=\"other\",status=\"5xx\"} 1",
        "althing_gateway_sent_bytes_total{route=\"chat\"} 110", "althing_gateway_broken_off_total 1",
        "althing_gateway_rejected_total{reason=\"key\"} 1", "althing_gateway_rejected_total{reason=\"other\"} 1",
        "althing_gateway_refused_connections_total{reason=\"connections\"} 1", "althing_gateway_open_requests 3",
        "althing_gateway_first_event_seconds_count 1", "althing_gateway_tokens_total{kind=\"prompt\"} 5",
        "althing_gateway_tokens_total{kind=\"completion\"} 7", "althing_gateway_tokens_total{kind=\"reasoning\"} 2"})
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << "\n" << text;
  EXPECT_EQ(lines(text), before) << "no series came";
  EXPECT_EQ(metrics.scrape(), text) << "in the same order each time";
}

}  // namespace
}  // namespace althing::monitoring
