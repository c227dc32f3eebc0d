// What the core lets in, and with which words it refuses the rest.
#include "scheduler/core.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using CoreAdmission = CoreScript;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST_F(CoreAdmission, a_good_request_is_accepted_before_ranks_exist_and_waits) {
  start();
  const auto effects = on(request(1, 3, 2));
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(std::get<Accepted>(effects[0]).request, RequestId{1});
  EXPECT_EQ(harness().stats().waiting, 1u);
  EXPECT_FALSE(harness().stats().ready);
  EXPECT_EQ(all<RunStep>(on(ready(1))).size(), 2u);
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreAdmission, an_empty_prompt_is_refused) {
  start();
  const Error error = refusal(request(1, 0, 2));
  EXPECT_EQ(error.code, ErrorCode::invalid_argument);
  EXPECT_EQ(error.field, "prompt");
}

TEST_F(CoreAdmission, an_id_outside_the_vocabulary_is_refused_with_its_place) {
  start();
  Submitted s = request(1, 5, 2);
  s.prompt[3] = 1000;
  const Error error = refusal(s);
  EXPECT_EQ(error.code, ErrorCode::invalid_argument);
  EXPECT_EQ(error.field, "prompt");
  EXPECT_THAT(error.message, AllOf(HasSubstr("token 3"), HasSubstr("1000"), HasSubstr("999")));
}

TEST_F(CoreAdmission, a_prompt_that_leaves_no_room_in_the_context_is_too_large_with_both_numbers) {
  start();
  const Error error = refusal(request(1, 64, 1));
  EXPECT_EQ(error.code, ErrorCode::too_large);
  EXPECT_EQ(error.field, "prompt");
  EXPECT_THAT(error.message, HasSubstr("64"));
  EXPECT_EQ(all<Accepted>(on(request(2, 63, 1))).size(), 1u);
}

TEST_F(CoreAdmission, a_completion_is_clipped_to_the_context) {
  start();
  on(ready(1));
  on(request(1, 60, 1000));
  run_to_end();
  EXPECT_EQ(reason(1), FinishReason::length);
  EXPECT_EQ(stream(1).tokens.size(), 4u);
}

TEST_F(CoreAdmission, a_completion_is_clipped_to_the_servers_limit) {
  auto config = easy_config();
  config.limits.completion_tokens_max = 7;
  start(config);
  on(ready(1));
  on(request(1, 3, 1000));
  run_to_end();
  EXPECT_EQ(stream(1).finished->usage, (Usage{3, 7, 0, 0, PrefixMiss::disabled}));
}

TEST_F(CoreAdmission, what_can_never_fit_the_pool_is_too_large_and_what_just_fits_finishes) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{0, 4, {0}}};
  config.kv.page_count = 5;  // 20 positions and a last draw that is never computed
  start(config);
  on(ready(1));
  EXPECT_EQ(harness().core().request_tokens_max(), 21u);
  const Error error = refusal(request(1, 10, 12));
  EXPECT_EQ(error.code, ErrorCode::too_large);
  EXPECT_THAT(error.message, AllOf(HasSubstr("22"), HasSubstr("21")));
  EXPECT_EQ(all<Accepted>(on(request(2, 10, 11))).size(), 1u);
  run_to_end();
  EXPECT_EQ(reason(2), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreAdmission, window_groups_need_only_their_windows_pages) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{6, 4, {0}}};
  config.kv.page_count = 3;  // a window of 6 touches 3 pages of 4 at most
  start(config);
  on(ready(1));
  EXPECT_EQ(harness().core().request_tokens_max(), 64u);
  on(request(1, 40, 24));
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 24u);
  config.kv.page_count = 2;
  start(config);
  EXPECT_LT(harness().core().request_tokens_max(), 64u);
}

TEST_F(CoreAdmission, bad_sampling_values_are_refused_by_name) {
  start();
  const auto field = [&](auto change) {
    Submitted s = request(1, 3, 2);
    change(s.sampling);
    const Error error = refusal(s);
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    return error.field;
  };
  for (const float bad : {nan, -0.1F, 2.5F, std::numeric_limits<float>::infinity()})
    EXPECT_EQ(field([&](auto& s) { s.temperature = bad; }), "temperature") << bad;
  for (const float bad : {nan, 0.0F, -1.0F, 1.1F}) EXPECT_EQ(field([&](auto& s) { s.top_p = bad; }), "top_p") << bad;
  for (const float bad : {nan, -0.1F, 1.1F}) EXPECT_EQ(field([&](auto& s) { s.min_p = bad; }), "min_p") << bad;
  EXPECT_EQ(field([](auto& s) { s.completion_tokens_max = 0; }), "completion_tokens_max");
  EXPECT_EQ(field([](auto& s) { s.stop_tokens = {1, 2, 3}; }), "stop_tokens");
  EXPECT_EQ(field([](auto& s) { s.stop_tokens = {1000}; }), "stop_tokens");
  for (const float bad : {nan, 0.0F, -1.0F, 10.1F}) EXPECT_EQ(field([&](auto& s) { s.repetition_penalty = bad; }), "repetition_penalty") << bad;
  for (const float bad : {nan, -2.1F, 2.1F}) {
    EXPECT_EQ(field([&](auto& s) { s.presence_penalty = bad; }), "presence_penalty") << bad;
    EXPECT_EQ(field([&](auto& s) { s.frequency_penalty = bad; }), "frequency_penalty") << bad;
  }
  for (const float bad : {nan, -100.1F, 100.1F}) EXPECT_EQ(field([&](auto& s) { s.logit_bias = {{1, 0.0F}, {5, bad}}; }), "logit_bias") << bad;
  EXPECT_EQ(field([](auto& s) { s.logit_bias = {{1000, 1.0F}}; }), "logit_bias");
  EXPECT_EQ(field([](auto& s) { s.logit_bias = {{5, 1.0F}, {5, 1.0F}}; }), "logit_bias");
  EXPECT_EQ(field([](auto& s) { s.logit_bias.assign(1025, {}); }), "logit_bias");
  EXPECT_EQ(field([](auto& s) { s.top_logprobs = 21; }), "logprobs");
}

TEST_F(CoreAdmission, sampling_values_at_their_bounds_are_taken) {
  start();
  Submitted s = request(1, 3, 2);
  s.sampling.temperature = 2.0F;
  s.sampling.min_p = 1.0F;
  s.sampling.top_p = std::numeric_limits<float>::min();
  s.sampling.stop_tokens = {1, 999};
  s.sampling.repetition_penalty = std::numeric_limits<float>::min();
  s.sampling.presence_penalty = -2.0F;
  s.sampling.frequency_penalty = 2.0F;
  s.sampling.logit_bias = {{0, -100.0F}, {999, 100.0F}};
  s.sampling.top_logprobs = 20;
  EXPECT_EQ(all<Accepted>(on(s)).size(), 1u);
  s.request = RequestId{2};
  s.sampling.repetition_penalty = 10.0F;
  s.sampling.presence_penalty = 2.0F;
  s.sampling.frequency_penalty = -2.0F;
  EXPECT_EQ(all<Accepted>(on(s)).size(), 1u);
}

TEST_F(CoreAdmission, boundaries_ascend_within_the_prompt) {
  start();
  Submitted s = request(1, 5, 2);
  s.boundaries = {4, 2};
  EXPECT_EQ(refusal(s).field, "boundaries");
  s.boundaries = {6};
  EXPECT_EQ(refusal(s).field, "boundaries");
  s.boundaries = {2, 5};
  EXPECT_EQ(all<Accepted>(on(s)).size(), 1u);
}

TEST_F(CoreAdmission, more_than_sequences_max_is_busy_until_one_ends) {
  start();
  for (std::uint64_t id = 1; id <= 8; ++id) EXPECT_EQ(all<Accepted>(on(request(id, 3, 2))).size(), 1u);
  const Error error = refusal(request(9, 3, 2));
  EXPECT_EQ(error.code, ErrorCode::busy);
  EXPECT_THAT(error.message, HasSubstr("8"));
  on(cancelled(4));
  EXPECT_EQ(all<Accepted>(on(request(9, 3, 2))).size(), 1u);
}

TEST_F(CoreAdmission, a_live_id_is_refused_and_its_first_request_goes_on) {
  start();
  on(ready(1));
  on(request(1, 3, 5));
  const Error error = refusal(request(1, 4, 4));
  EXPECT_EQ(error.code, ErrorCode::invalid_argument);
  EXPECT_EQ(error.field, "request");
  run_to_end();
  EXPECT_EQ(stream(1).tokens.size(), 5u);
}

TEST_F(CoreAdmission, draining_refuses_and_finishes_what_runs_and_waits) {
  start();
  on(ready(1));
  for (std::uint64_t id = 1; id <= 6; ++id) on(request(id, 3, 4));
  on(DrainStarted{});
  EXPECT_TRUE(harness().stats().draining);
  EXPECT_EQ(refusal(request(7, 3, 2)).code, ErrorCode::draining);
  on(lost(1));
  on(ready(2));
  run_to_end();
  for (std::uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(reason(id), FinishReason::length);
  expect_baseline();
}

TEST_F(CoreAdmission, a_deadline_that_passed_already_is_refused) {
  start();
  on(Ticked{100});
  Submitted s = request(1, 3, 2);
  s.deadline_ms = 100;
  EXPECT_EQ(refusal(s).code, ErrorCode::deadline);
  s.deadline_ms = 101;
  EXPECT_EQ(all<Accepted>(on(s)).size(), 1u);
}

TEST(CoreCreation, limits_and_layouts_that_contradict_themselves_are_refused) {
  const auto field = [](auto change) {
    auto config = easy_config();
    change(config);
    auto core = scheduler::Core::create(config);
    EXPECT_FALSE(core.ok());
    return core.ok() ? std::string{} : core.error().field;
  };
  EXPECT_EQ(field([](auto& c) { c.limits.rows_max = 0; }), "rows_max");
  EXPECT_EQ(field([](auto& c) { c.limits.steps_in_flight_max = 3; }), "steps_in_flight_max");
  EXPECT_EQ(field([](auto& c) { c.limits.rows_max = 17; }), "rows_max");
  EXPECT_EQ(field([](auto& c) { c.limits.context_tokens_max = 1; }), "context_tokens_max");
  EXPECT_EQ(field([](auto& c) { c.limits.completion_tokens_max = 0; }), "completion_tokens_max");
  EXPECT_EQ(field([](auto& c) { c.vocabulary = 0; }), "vocabulary");
  EXPECT_EQ(field([](auto& c) { c.kv.groups.clear(); }), "groups");
  EXPECT_EQ(field([](auto& c) { c.kv.groups[1].tokens_per_page = 0; }), "tokens_per_page");
  EXPECT_EQ(field([](auto& c) { c.kv.page_count = 1; }), "page_count");
}

}  // namespace
}  // namespace althing::tests
