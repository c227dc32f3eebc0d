// Children: the right descriptors at the right numbers, an exit that is told apart from a signal, nothing left behind. The child is this test program
// itself, started again by /proc/self/exe, so it needs arguments that make it end: GoogleTest's own.
#include "actors/child_process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include "actors/actor_system.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace {

TEST(child_process, a_normal_end_is_reported_with_its_status) {
  auto child = ChildProcess::start({"actors_tests", "--gtest_list_tests", "--gtest_filter=none"}, {});
  ASSERT_TRUE(child) << child.error().message;
  pollfd item{child->pidfd(), POLLIN, 0};
  ASSERT_GT(::poll(&item, 1, 20'000), 0);
  const ChildExit exit = child->reap();
  EXPECT_FALSE(exit.signalled);
  EXPECT_EQ(exit.code, 0);
  EXPECT_FALSE(child->running());
}

TEST(child_process, a_kill_is_reported_as_the_signal) {
  auto child = ChildProcess::start({"actors_tests", "--gtest_list_tests"}, {});
  ASSERT_TRUE(child);
  child->signal(SIGKILL);
  const ChildExit exit = child->reap();
  // The child may have ended by itself first; then there was nothing to kill.
  EXPECT_EQ(exit.code, exit.signalled ? SIGKILL : 0);
  EXPECT_NE(to_string(ChildExit{true, SIGKILL}).find("signal 9"), std::string::npos);
}

TEST(child_process, dropping_the_handle_kills_and_reaps) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::start({"actors_tests", "--gtest_list_tests"}, {});
    ASSERT_TRUE(child);
    pid = child->pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(actor_system, empty_certificate_settings_are_refused) {
  EXPECT_THROW(ClusterSystemConfig({"", "/c", "/k"}), std::invalid_argument);
  EXPECT_THROW(ClusterSystemConfig({"/a", "", "/k"}), std::invalid_argument);
  EXPECT_THROW(ClusterSystemConfig({"/a", "/c", ""}), std::invalid_argument);
}

TEST(log_level, unknown_names_are_refused) {
  EXPECT_TRUE(log_level_of("warning"));
  EXPECT_FALSE(log_level_of("loud"));
}

}  // namespace
}  // namespace althing::actors
