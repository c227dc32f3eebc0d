// GoogleTest's main with the project's closing line.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>

#include "tests/support/usage.hpp"

int main(int argc, char** argv) {
  const bool help = althing::tests::asks_for_help(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  if (help) return 0;  // GoogleTest has printed its own
  std::signal(SIGPIPE, SIG_IGN);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::printf("%d passed, %d failed, %d skipped\n", all.successful_test_count(), all.failed_test_count(), all.skipped_test_count());
  return status;
}
