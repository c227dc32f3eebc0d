// Short words for scripted scheduler tests: a config with easy numbers, requests, and what an event's effects hold.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/scheduler/core_harness.hpp"

namespace althing::tests {

// One full-attention group with 4 tokens a page and a window group (6 tokens, 4 a page); room for everything unless a test takes it away.
inline scheduler::CoreConfig easy_config() {
  scheduler::CoreConfig config;
  config.limits.rows_max = 4;
  config.limits.step_tokens_max = 16;
  config.limits.prefill_chunk_max = 8;
  config.limits.sequences_max = 8;
  config.limits.context_tokens_max = 64;
  config.limits.completion_tokens_max = 64;
  config.limits.stop_tokens_max = 2;
  config.vocabulary = 1000;
  config.kv.page_count = 200;
  config.kv.page_bytes = 1024;
  config.kv.groups = {KvGroup{0, 4, {1, 3}}, KvGroup{6, 4, {0, 2}}};
  return config;
}

// The prompt is 1, 2, 3 …; the seed is the request's number, so that streams differ.
inline Submitted request(std::uint64_t id, std::uint32_t prompt_tokens, std::uint32_t completion_tokens) {
  Submitted s;
  s.request = RequestId{id};
  s.prompt.resize(prompt_tokens);
  std::iota(s.prompt.begin(), s.prompt.end(), 1u);
  s.sampling.seed = id * 8;  // multiples of 8 never meet NaN in the pseudo model
  s.sampling.completion_tokens_max = completion_tokens;
  s.sampling.ignore_stop = true;
  return s;
}

inline Event ready(std::uint64_t epoch) { return RanksReady{EpochId{epoch}}; }
inline Event lost(std::uint64_t epoch) { return RanksLost{EpochId{epoch}}; }
inline Event cancelled(std::uint64_t id) { return Cancelled{RequestId{id}, Error{ErrorCode::cancelled, "the client asked", {}}}; }

template <class T>
std::vector<T> all(const std::vector<Effect>& effects) {
  std::vector<T> found;
  for (const Effect& effect : effects)
    if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
  return found;
}

// The fixture checks after each test that the judge found nothing wrong.
class CoreScript : public testing::Test {
 protected:
  void start(const scheduler::CoreConfig& config) { harness_ = std::make_unique<CoreHarness>(config); }
  void start() { start(easy_config()); }

  std::vector<Effect> on(const Event& event) {
    const auto& effects = harness_->on(event);
    EXPECT_EQ(harness_->broken(), "");
    return effects;
  }
  std::vector<Effect> deliver() {
    EXPECT_GT(harness_->awaited(), 0u);
    if (harness_->awaited() == 0) return {};
    return on(StepDone{StepResult(harness_->next_result())});
  }
  // Everything in flight and all that follows from it.
  void run_to_end() {
    harness_->deliver_all();
    EXPECT_EQ(harness_->broken(), "");
  }
  Error refusal(const Submitted& submitted) {
    const auto rejected = all<Rejected>(on(submitted));
    EXPECT_EQ(rejected.size(), 1u);
    return rejected.empty() ? Error{} : rejected[0].error;
  }
  const CoreHarness::Stream& stream(std::uint64_t id) const { return harness_->streams().at(RequestId{id}); }
  FinishReason reason(std::uint64_t id) const {
    EXPECT_TRUE(stream(id).finished.has_value()) << "request " << id;
    return stream(id).finished ? stream(id).finished->reason : FinishReason::error;
  }
  void expect_baseline() const {
    EXPECT_EQ(harness_->stats().pages_used, 0u);
    EXPECT_EQ(harness_->live(), 0u);
    EXPECT_EQ(harness_->stats().steps_in_flight, 0u);
  }
  CoreHarness& harness() { return *harness_; }

 private:
  std::unique_ptr<CoreHarness> harness_;
};

}  // namespace althing::tests
