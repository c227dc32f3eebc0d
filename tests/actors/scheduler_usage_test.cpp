// What the scheduler's shell tells the accountant: one record a request, once, with what its steps came to.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/actors/scheduler_fixture.hpp"

namespace althing::actors::tests {
namespace {

caf::behavior book_keeper(caf::event_based_actor*, std::shared_ptr<std::vector<UsageRecord>> records) {
  return {[=](const UsageRecord& record) { records->push_back(record); }};
}

// A frontend that minds nothing: choices come to it interleaved.
caf::behavior reader(caf::event_based_actor*) {
  return {[](const Accepted&) {}, [](const Rejected&) {}, [](const TokensDrawn&) {}, [](const Finished&) {}, [](const DrawnUnder&) {}};
}

class SchedulerUsageTest : public SchedulerActorTest {
 protected:
  void start_with_accountant() {
    options_.accountant = keep(system_.spawn(book_keeper, records_));
    options_.experts_of_a_token = 6;
    start();
  }
  SubmitRequest request(std::uint64_t id, std::uint32_t prompt, std::uint32_t completion, std::uint32_t choices = 1) {
    SubmitRequest request;
    request.submitted.request = RequestId{id};
    request.submitted.prompt.assign(prompt, 1);
    request.submitted.sampling.completion_tokens_max = completion;
    request.submitted.choices = choices;
    request.frontend = keep(system_.spawn(reader));
    request.label = label_of("r" + std::to_string(id), id % 2 == 0 ? "even" : "");
    return request;
  }
  void send(SubmitRequest submit) {
    caf::anon_send(scheduler_, std::move(submit));
    settle();
  }
  double recorded_seconds() const {
    double ns = 0;
    for (const UsageRecord& record : *records_) ns += static_cast<double>(record.tally.device_ns);
    return ns * 1e-9;
  }
  // Records hold all of the ranks' time but for what was nobody's. Only the sum of rounded seconds differs.
  void expect_all_time_recorded() const {
    EXPECT_NEAR(recorded_seconds() + count("althing_device_unattributed_seconds_total"), count("althing_device_seconds_total"), 1e-7);
    EXPECT_GT(count("althing_device_seconds_total"), 0.0);
  }

  std::shared_ptr<std::vector<UsageRecord>> records_ = std::make_shared<std::vector<UsageRecord>>();
};

TEST_F(SchedulerUsageTest, each_request_has_one_record_with_its_label_and_tokens) {
  start_with_accountant();
  join(1, std::make_shared<PretendRank>());
  send(request(1, 5, 4));
  send(request(2, 7, 3, 2));
  ASSERT_EQ(records_->size(), 2u);
  const UsageRecord &first = (*records_)[0], &second = (*records_)[1];
  EXPECT_EQ(first.label.request_id, "r1");
  EXPECT_EQ(first.label.tenant, "default");
  EXPECT_EQ(first.tally.prompt_tokens, 5u);
  EXPECT_EQ(first.tally.completion_tokens, 4u);
  // The last drawn token is never computed.
  EXPECT_EQ(first.tally.computed_tokens, 5u + 3u);
  EXPECT_EQ(first.expert_tokens, 8u * 6u);
  EXPECT_EQ(first.recomputed_expert_tokens, 0u);
  EXPECT_EQ(second.label.tenant, "even");
  EXPECT_EQ(second.tally.choices, 2u);
  EXPECT_EQ(second.tally.prompt_tokens, 7u);
  EXPECT_EQ(second.tally.completion_tokens, 6u);
  EXPECT_EQ(second.tally.computed_tokens, 2u * (7u + 2u));
  EXPECT_GT(second.tally.kv_byte_seconds, 0.0);
  EXPECT_EQ(count("althing_step_tokens_total"), static_cast<double>(first.tally.computed_tokens + second.tally.computed_tokens));
  expect_all_time_recorded();
}

TEST_F(SchedulerUsageTest, a_lost_membership_shows_as_recomputation_and_costs_no_record) {
  start_with_accountant();
  auto silent = std::make_shared<PretendRank>();
  join(1, silent);
  silent->answering = true;
  send(request(1, 40, 100));
  ASSERT_EQ(records_->size(), 1u);
  silent->answering = false;
  send(request(3, 40, 10));
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  join(2, std::make_shared<PretendRank>());
  ASSERT_EQ(records_->size(), 2u);
  EXPECT_EQ((*records_)[1].tally.completion_tokens, 10u);
  EXPECT_EQ((*records_)[1].tally.computed_tokens, 49u) << "steps that never ended count for nobody";
  expect_all_time_recorded();
}

TEST_F(SchedulerUsageTest, a_cancelled_request_has_a_record_and_a_refused_one_has_none) {
  start_with_accountant();
  send(request(1, 5, 4));
  caf::anon_send(scheduler_, CancelRequest{RequestId{1}, Error{ErrorCode::deadline, "too late", ""}});
  settle();
  ASSERT_EQ(records_->size(), 1u);
  EXPECT_EQ(records_->front().tally.reason, FinishReason::cancelled);
  EXPECT_EQ(records_->front().tally.code, ErrorCode::deadline);
  EXPECT_EQ(records_->front().tally.device_ns, 0u);
  send(request(3, 1000, 4));  // over the context
  send(request(4, 1000, 4, 2));
  EXPECT_EQ(records_->size(), 1u);
}

TEST_F(SchedulerUsageTest, choices_that_a_dead_core_left_are_one_record_that_says_so) {
  start_with_accountant();
  join(1, std::make_shared<PretendRank>());
  ResubmitRequest again;
  for (std::uint32_t choice = 0; choice < 2; ++choice) {
    SubmitRequest one = request(8 + choice, 5, 4);
    one.label = label_of("r8", "even");
    one.submitted.sampling.choice = choice;
    one.submitted.drawn = {token_at(5)};
    again.choices.push_back(std::move(one));
  }
  caf::anon_send(scheduler_, std::move(again));
  settle();
  ASSERT_EQ(records_->size(), 1u);
  const UsageRecord& record = records_->front();
  EXPECT_EQ(record.label.request_id, "r8");
  EXPECT_TRUE(record.tally.taken_over);
  EXPECT_EQ(record.tally.choices, 2u);
  EXPECT_EQ(record.tally.completion_tokens, 8u) << "with what the dead core drew";
  EXPECT_EQ(record.tally.computed_tokens, 2u * 8u) << "without what it computed";
  expect_all_time_recorded();
}

}  // namespace
}  // namespace althing::actors::tests
