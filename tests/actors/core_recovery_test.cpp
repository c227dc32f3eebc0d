// What a core that follows a dead one says of itself, before anything else of it runs.
#include "actors/core_recovery.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace althing::actors {
namespace {

// A scrape between the metrics' making and the monitor's first look once said `starting` after a core's death.
TEST(CoreRecoveryTest, the_first_scrape_after_a_cores_death_says_recovering) {
  auto metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
  const auto shown = [&](const std::string& line) { return metrics->scrape().find(line + "\n") != std::string::npos; };
  EXPECT_TRUE(shown("althing_state{state=\"starting\"} 1")) << "the control: " << metrics->scrape();
  CoreRecovery::Found found;
  found.deaths = 3;
  const CoreRecovery recovery(metrics, found);
  EXPECT_TRUE(shown("althing_state{state=\"recovering\"} 1"));
  EXPECT_TRUE(shown("althing_state{state=\"starting\"} 0"));
  EXPECT_TRUE(shown("althing_core_restarts_total 3")) << metrics->scrape();
}

}  // namespace
}  // namespace althing::actors
