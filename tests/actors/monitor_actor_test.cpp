// What /ready says of ranks: an age of those that are there, and no number at all of those that are not.
#include "actors/monitor_actor.hpp"

#include <gtest/gtest.h>

#include <caf/scoped_actor.hpp>

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors {
namespace {

class MonitorActorTest : public testing::Test {
 protected:
  ReadinessAnswer after(StatusReport report) {
    caf::scoped_actor self{system_};
    self->send(monitor_, std::move(report));
    ReadinessAnswer answer;
    auto asked = self->request(monitor_, caf::infinite, ReadinessQuery{});
    while (coordinator_.try_run_once()) {
    }
    asked.receive([&](ReadinessAnswer& said) { answer = std::move(said); }, [](const caf::error&) { ADD_FAILURE(); });
    return answer;
  }
  void TearDown() override {
    caf::anon_send_exit(monitor_, caf::exit_reason::kill);
    while (coordinator_.try_run_once()) {
    }
  }

  tests::TestSystemConfig config_;
  caf::actor_system system_{config_};
  caf::scheduler::test_coordinator& coordinator_ = dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  std::shared_ptr<monitoring::Metrics> metrics_ = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 2, 1, 1});
  caf::actor monitor_ = system_.spawn(monitor_actor, MonitorOptions{metrics_});
};

TEST_F(MonitorActorTest, a_rank_that_is_absent_has_no_age) {
  const ReadinessAnswer answer = after({false, false, 3, 4, 0, {12, std::nullopt}});
  EXPECT_FALSE(answer.ready);
  EXPECT_NE(answer.json.find(R"({"rank":1,"state":"absent","progress_age_ms":null})"), std::string::npos) << answer.json;
  EXPECT_NE(answer.json.find(R"({"rank":0,"state":"present","progress_age_ms":)"), std::string::npos) << answer.json;
  EXPECT_EQ(answer.json.find("1000"), std::string::npos) << answer.json;
}

TEST_F(MonitorActorTest, ranks_without_progress_make_a_server_silent_not_degraded) {
  EXPECT_TRUE(after({true, false, 1, 0, 0, {10, 20}}).ready) << "the control";
  const ReadinessAnswer late = after({true, false, 1, 0, 0, {10, 2000}}), missing = after({true, false, 1, 0, 0, {10, std::nullopt}});
  for (const ReadinessAnswer& answer : {late, missing}) {
    EXPECT_FALSE(answer.ready);
    EXPECT_NE(answer.json.find(R"("state":"silent")"), std::string::npos) << answer.json;
  }
  const std::string page = metrics_->scrape();
  EXPECT_NE(page.find("althing_state{state=\"silent\"} 1"), std::string::npos);
  EXPECT_EQ(page.find("state=\"degraded\""), std::string::npos);
  EXPECT_NE(page.find("althing_degraded 0"), std::string::npos);
}

}  // namespace
}  // namespace althing::actors
