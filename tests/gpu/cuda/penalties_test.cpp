// Penalties, biases and logprobs through the GPU's executor: the same with two steps in flight, where the host has not heard of the newest draw, as
// one by one, and as for a row that is set anew; and logprobs are those of what the observer sees, adjusted.
#include <deque>
#include <future>
#include <set>

#include "gpu/models/gpt_oss_dummy.hpp"
#include "gpu/sampling.hpp"
#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/engine.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t row_count = 3, prompt_length = 24, drawn_count = 20;

SamplingParameters parameters_of(std::uint32_t row) {
  SamplingParameters p;
  p.temperature = row == 0 ? 0.0F : 0.9F;
  p.seed = row;
  p.repetition_penalty = 1.4F;
  p.presence_penalty = 0.5F;
  p.frequency_penalty = 0.3F;
  p.logit_bias = {{5, 1.0F}, {700 + row, 3.0F}};
  p.logprobs = true;
  p.top_logprobs = row == 2 ? 0 : 7;
  return p;
}

std::vector<TokenId> prompt_of(std::uint32_t row) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < prompt_length; ++i) tokens.push_back((row * 131 + i * 17) % 997);
  return tokens;
}

struct Told {
  std::vector<std::vector<TokenId>> tokens = std::vector<std::vector<TokenId>>(row_count);
  std::vector<std::vector<TokenLogprobs>> logprobs = std::vector<std::vector<TokenLogprobs>>(row_count);

  void add(const StepResult& result) {
    const auto told = read_logprobs(result.logprobs);
    ASSERT_TRUE(told.ok());
    ASSERT_EQ(told->size(), result.drawn.size());
    for (std::size_t i = 0; i < result.drawn.size(); ++i) {
      ASSERT_FALSE(result.drawn[i].nonfinite);
      ASSERT_EQ((*told)[i].told.token, result.drawn[i].token);
      tokens[result.drawn[i].row.value].push_back(result.drawn[i].token);
      logprobs[result.drawn[i].row.value].push_back((*told)[i].told);
    }
  }
  friend bool operator==(const Told&, const Told&) = default;
};

StepPlan first_plan(Engine& engine, const Told& so_far) {
  StepPlan plan = engine.next_plan();
  for (std::uint32_t row = 0; row < row_count; ++row) {
    std::vector<TokenId> known = prompt_of(row);
    known.insert(known.end(), so_far.tokens[row].begin(), so_far.tokens[row].end());
    engine.admit(plan, row, row + 1, parameters_of(row), prompt_length + drawn_count + 1, 0, known, prompt_length);
    plan.work.push_back(prompt_work(row, 0, known, true));
  }
  return plan;
}

// `in_flight` steps at a time; set anew after `interrupted_at` draws.
Told generate(const std::shared_ptr<const gpu::Model>& model, std::size_t in_flight, std::size_t interrupted_at = drawn_count) {
  EngineOptions options;
  options.device = gpu::Device::cuda;
  auto engine = Engine::create(model, options).value();
  std::shared_ptr<gpu::Communicator> communicator(&engine->communicator(0), [](gpu::Communicator*) {});
  Told told;
  StepPlan plan = first_plan(*engine, told);
  std::deque<std::future<Result<StepResult>>> flights;
  const auto land = [&] {
    auto result = flights.front().get();
    flights.pop_front();
    ASSERT_TRUE(result.ok()) << result.error().message;
    told.add(*result);
  };
  std::uint32_t position = prompt_length;
  for (std::size_t draws = 0; draws < drawn_count; ++draws, ++position) {
    if (draws > 0 && draws == interrupted_at) {
      while (!flights.empty()) land();
      StepPlan anew = first_plan(*engine, told);
      anew.step = StepId{plan.step.value + 1};
      anew.base = plan.step;
      anew.snapshot = false;
      for (std::uint32_t row = 0; row < row_count; ++row) anew.cleared.push_back(RowIndex{row});
      plan = anew;
    } else if (draws > 0) {
      StepPlan next;
      next.epoch = plan.epoch;
      next.step = StepId{plan.step.value + 1};
      next.base = plan.step;
      for (std::uint32_t row = 0; row < row_count; ++row) next.work.push_back(decode_work(row, position - 1));
      plan = next;
    }
    auto promise = std::make_shared<std::promise<Result<StepResult>>>();
    flights.push_back(promise->get_future());
    engine->executor(0).submit(plan, communicator, [promise](Result<StepResult> result) { promise->set_value(std::move(result)); });
    if (flights.size() == in_flight) land();
  }
  while (!flights.empty()) land();
  return told;
}

TEST(CudaPenalties, steps_in_flight_and_rows_set_anew_change_nothing) {
  ALTHING_NEEDS_GPU();
  const auto model = gpu::dummy_model("20b").value();
  const Told one_by_one = generate(model, 1);
  for (const auto& tokens : one_by_one.tokens) {
    ASSERT_EQ(tokens.size(), drawn_count);
    EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), drawn_count / 2) << "penalties make for variety";
  }
  EXPECT_EQ(generate(model, 2), one_by_one) << "two in flight";
  EXPECT_EQ(generate(model, 2, 7), one_by_one) << "set anew";
}

TEST(CudaPenalties, draws_and_logprobs_are_those_of_the_adjusted_logits) {
  ALTHING_NEEDS_GPU();
  const auto model = gpu::dummy_model("20b").value();
  const Told told = generate(model, 2);
  EngineOptions options;
  options.device = gpu::Device::cuda;
  auto engine = Engine::create(model, options).value();
  for (std::uint32_t row = 0; row < row_count; ++row) {
    std::vector<float> logits;
    gpu::Observer observer;
    observer.logits = [&](std::span<const float> values) { logits.insert(logits.end(), values.begin(), values.end()); };
    engine->executor(0).observe(observer);
    std::vector<TokenId> all = prompt_of(row);
    all.insert(all.end(), told.tokens[row].begin(), told.tokens[row].end());
    StepPlan plan = engine->next_plan();
    engine->admit(plan, row, 100 + row, {}, static_cast<std::uint32_t>(all.size()));
    plan.work = {prompt_work(row, 0, all, false)};
    ASSERT_TRUE(engine->run(plan).ok());
    const std::size_t vocabulary = logits.size() / all.size();
    const SamplingParameters p = parameters_of(row);
    for (std::size_t i = 0; i < drawn_count; ++i) {
      const std::size_t position = prompt_length + i;
      std::vector<float> mine(logits.begin() + static_cast<std::ptrdiff_t>((position - 1) * vocabulary),
                              logits.begin() + static_cast<std::ptrdiff_t>(position * vocabulary));
      gpu::adjust(mine, p, gpu::SeenTokens(std::span<const TokenId>(all).first(position), prompt_length).list());
      EXPECT_EQ(gpu::draw(mine, p, static_cast<std::uint32_t>(position)), told.tokens[row][i]) << "row " << row << ", token " << i;
      const TokenLogprobs expected = gpu::logprobs_of(mine, told.tokens[row][i], p.top_logprobs);
      const TokenLogprobs& got = told.logprobs[row][i];
      EXPECT_NEAR(got.logprob, expected.logprob, 1e-5);
      ASSERT_EQ(got.top.size(), expected.top.size());
      for (std::size_t k = 0; k < got.top.size(); ++k) {
        EXPECT_EQ(got.top[k].token, expected.top[k].token);
        EXPECT_NEAR(got.top[k].logprob, expected.top[k].logprob, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace althing::tests
