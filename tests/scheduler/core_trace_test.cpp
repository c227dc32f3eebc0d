// Rows of requests that ask for a trace say so to the ranks, whenever they are set, and so many at a time that the server can bear it.
#include <gmock/gmock.h>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

class CoreTrace : public CoreScript {
 protected:
  static Submitted traced(std::uint64_t id, std::uint32_t top_m, std::uint32_t choices = 1) {
    Submitted s = request(id, 5, 4);
    s.trace_top_m = top_m;
    s.choices = choices;
    return s;
  }
  // By request, what its newest row was told.
  static std::map<std::uint64_t, std::uint32_t> told(const std::vector<Effect>& effects) {
    std::map<std::uint64_t, std::uint32_t> found;
    for (const RunStep& run : all<RunStep>(effects))
      for (const RowSetup& setup : run.plan.set) found[setup.request.value] = setup.trace_top_m;
    return found;
  }
  using Told = std::map<std::uint64_t, std::uint32_t>;
};

TEST_F(CoreTrace, a_row_is_set_with_what_its_request_asked_for) {
  start();
  on(ready(1));
  EXPECT_EQ(told(on(traced(1, 4))), (Told{{1, 4}}));
  deliver();
  on(request(5, 5, 4));
  EXPECT_THAT(told(deliver()), testing::Contains(std::pair(5, 0u))) << "a neighbour is not traced";
  run_to_end();
}

TEST_F(CoreTrace, each_choice_is_traced_and_so_is_what_comes_back_after_a_loss) {
  start();
  on(traced(1, 3, 2));
  EXPECT_EQ(told(on(ready(1))), (Told{{1, 3}, {2, 3}}));
  on(lost(1));
  EXPECT_EQ(told(on(ready(2))), (Told{{1, 3}, {2, 3}}));
  run_to_end();
}

TEST_F(CoreTrace, a_request_that_another_core_left_goes_on_traced) {
  start();
  on(ready(1));
  Submitted left = traced(1, 2);
  left.drawn = lone_run(left, easy_config().limits, easy_config().vocabulary).tokens;
  left.drawn.resize(2);
  EXPECT_EQ(told(on(left)), (Told{{1, 2}}));
  run_to_end();
}

TEST_F(CoreTrace, more_than_the_server_bears_are_refused_until_one_ends) {
  auto config = easy_config();
  config.limits.traces_max = 3;
  config.limits.trace_top_m_max = 8;
  start(config);
  on(ready(1));
  on(traced(1, 1, 2));
  const Error busy = refusal(traced(5, 1, 2));
  EXPECT_EQ(busy.code, ErrorCode::busy);
  EXPECT_THAT(busy.message, testing::AllOf(testing::HasSubstr("2 sequences are being traced"), testing::HasSubstr("3 is the most")));
  EXPECT_TRUE(all<Rejected>(on(request(7, 3, 2))).empty()) << "what is not traced is not meant";
  EXPECT_EQ(refusal(traced(9, 9)).code, ErrorCode::too_large);
  EXPECT_EQ(refusal(traced(9, 1, 4)).code, ErrorCode::too_large);
  run_to_end();
  EXPECT_TRUE(all<Rejected>(on(traced(20, 8, 3))).empty());
  run_to_end();
}

TEST_F(CoreTrace, a_server_may_trace_nothing) {
  auto config = easy_config();
  config.limits.traces_max = 0;
  start(config);
  on(ready(1));
  EXPECT_EQ(refusal(traced(1, 1)).code, ErrorCode::unsupported);
  EXPECT_TRUE(all<Rejected>(on(request(2, 3, 2))).empty());
  run_to_end();
}

}  // namespace
}  // namespace althing::tests
