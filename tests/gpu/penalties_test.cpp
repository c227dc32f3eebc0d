// Penalties, biases and logprobs through the executor: what is drawn is what the row's own logits and tokens say, on every rank, however often the
// row was taken away meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "gpu/sampling.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::decode_work;
using tests::Engine;
using tests::EngineOptions;
using tests::prompt_work;
using tests::small_prompt;
using tests::SmallModel;

constexpr std::uint32_t vocabulary = 101;  // of the small model

SamplingParameters adjusting(float temperature) {
  SamplingParameters p;
  p.temperature = temperature;
  p.top_p = 0.9F;
  p.seed = 5;
  p.repetition_penalty = 1.3F;
  p.presence_penalty = 0.7F;
  p.frequency_penalty = 0.4F;
  p.logit_bias = {{3, 2.0F}, {50, -100.0F}, {77, 0.5F}};
  p.logprobs = true;
  p.top_logprobs = 5;
  return p;
}

std::unique_ptr<Engine> engine_of(const EngineOptions& options = {}) {
  auto engine = Engine::create(SmallModel::make(), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

struct Drawn {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;

  friend bool operator==(const Drawn&, const Drawn&) = default;
};

// One request alone in row 1, set anew with all that is known after each draw whose number is in `interruptions`.
Drawn generate(Engine& engine, const std::vector<TokenId>& prompt, const SamplingParameters& sampling, std::uint32_t count,
               const std::vector<std::size_t>& interruptions = {}, std::uint32_t chunk = 1000) {
  Drawn drawn;
  std::vector<TokenId> known = prompt;
  bool is_set = false, fresh = true, drew = false;  // drew: in this stay, in the step before
  std::uint32_t computed = 0;
  while (drawn.tokens.size() < count) {
    StepPlan plan = engine.next_plan();
    if (fresh) {
      if (is_set) engine.clear(plan, 1);
      engine.admit(plan, 1, 9, sampling, static_cast<std::uint32_t>(prompt.size()) + count, 0, sampling.penalizes() ? known : std::vector<TokenId>(),
                   static_cast<std::uint32_t>(prompt.size()));
      is_set = true;
      fresh = drew = false;
      computed = 0;
    }
    const auto left = static_cast<std::uint32_t>(known.size()) - computed, take = std::min(left, chunk);
    plan.work.push_back(drew ? decode_work(1, computed) : prompt_work(1, computed, std::span(known).subspan(computed, take), take == left));
    computed += take;
    drew = take == left;
    const auto result = engine.run(plan);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    if (!result) return drawn;
    const auto told = read_logprobs(result->logprobs);
    EXPECT_TRUE(told.ok());
    EXPECT_EQ(told->size(), sampling.logprobs ? result->drawn.size() : 0);
    for (const DrawnToken& one : result->drawn) {
      drawn.tokens.push_back(one.token);
      known.push_back(one.token);
      fresh = std::count(interruptions.begin(), interruptions.end(), drawn.tokens.size()) > 0;
      if (!sampling.logprobs) continue;
      EXPECT_EQ(told->at(0).request, RequestId{9});
      EXPECT_EQ(told->at(0).told.token, one.token);
      drawn.logprobs.push_back(told->at(0).told);
    }
  }
  return drawn;
}

// Logits of every position, as an observer sees them: before anything is added to them.
std::vector<float> logits_of(const std::vector<TokenId>& tokens) {
  auto engine = engine_of();
  std::vector<float> logits;
  Observer observer;
  observer.logits = [&](std::span<const float> values) { logits.insert(logits.end(), values.begin(), values.end()); };
  engine->executor(0).observe(observer);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, static_cast<std::uint32_t>(tokens.size()));
  plan.work = {prompt_work(0, 0, tokens, false)};
  EXPECT_TRUE(engine->run(plan).ok());
  return logits;
}

TEST(Penalties, draws_and_logprobs_are_those_of_the_adjusted_logits) {
  const auto prompt = small_prompt(2, 20);
  for (const float temperature : {0.0F, 0.8F}) {
    const SamplingParameters p = adjusting(temperature);
    auto engine = engine_of();
    const Drawn drawn = generate(*engine, prompt, p, 30);
    std::vector<TokenId> all = prompt;
    all.insert(all.end(), drawn.tokens.begin(), drawn.tokens.end());
    const std::vector<float> logits = logits_of(all);
    ASSERT_EQ(logits.size(), all.size() * vocabulary);
    for (std::size_t i = 0; i < drawn.tokens.size(); ++i) {
      const std::size_t position = prompt.size() + i;
      std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>((position - 1) * vocabulary),
                             logits.begin() + static_cast<std::ptrdiff_t>(position * vocabulary));
      adjust(row, p, SeenTokens(std::span(all).first(position), static_cast<std::uint32_t>(prompt.size())).list());
      EXPECT_EQ(draw(row, p, static_cast<std::uint32_t>(position)), drawn.tokens[i]) << "token " << i;
      EXPECT_EQ(logprobs_of(row, drawn.tokens[i], 5), drawn.logprobs[i]) << "token " << i;
    }
  }
}

TEST(Penalties, a_row_that_was_taken_away_goes_on_with_the_same_tokens_and_logprobs) {
  const auto prompt = small_prompt(2, 20);
  const SamplingParameters p = adjusting(0.8F);
  auto lone = engine_of();
  const Drawn whole = generate(*lone, prompt, p, 30);
  EXPECT_GT(std::set<TokenId>(whole.tokens.begin(), whole.tokens.end()).size(), 5u);
  for (const std::vector<std::size_t>& interruptions : {std::vector<std::size_t>{1}, {7, 8}, {3, 11, 29}}) {
    auto engine = engine_of();
    EXPECT_EQ(generate(*engine, prompt, p, 30, interruptions, 4), whole);
  }
}

TEST(Penalties, all_layouts_and_threads_draw_the_same) {
  const auto prompt = small_prompt(2, 20);
  const SamplingParameters p = adjusting(0.8F);
  auto lone = engine_of();
  const Drawn whole = generate(*lone, prompt, p, 20);
  EngineOptions threads;
  threads.threads = 3;
  auto threaded = engine_of(threads);
  EXPECT_EQ(generate(*threaded, prompt, p, 20), whole);
  // Run() refuses answers that differ between ranks. Bits are those of the TP degree, which is 1 here.
  EngineOptions ranks;
  ranks.grid = Grid{2, 2, 1, 2, {}};
  auto two = engine_of(ranks);
  EXPECT_EQ(generate(*two, prompt, p, 20), whole);
}

TEST(Penalties, a_bias_of_100_forces_a_token_and_one_of_minus_100_forbids_it) {
  const auto prompt = small_prompt(2, 20);
  SamplingParameters p;
  auto engine = engine_of();
  const TokenId likely = generate(*engine, prompt, p, 1).tokens[0];
  p.logit_bias = {{likely, -100.0F}};
  EXPECT_NE(generate(*engine_of(), prompt, p, 1).tokens[0], likely);
  p.logit_bias = {{42, 100.0F}};
  EXPECT_EQ(generate(*engine_of(), prompt, p, 5).tokens, (std::vector<TokenId>(5, 42)));
}

TEST(Penalties, rows_without_logprobs_have_no_bytes) {
  SamplingParameters p;
  auto engine = engine_of();
  EXPECT_TRUE(generate(*engine, small_prompt(2, 20), p, 3).logprobs.empty());
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 2, 3, p, 30);
  plan.work = {prompt_work(2, 0, small_prompt(1, 4), true)};
  EXPECT_EQ(engine->run(plan)->logprobs, "");
}

TEST(Penalties, plans_without_the_tokens_are_refused_and_nothing_is_computed) {
  const auto prompt = small_prompt(2, 20);
  auto engine = engine_of();
  const auto field = [&](auto change) {
    StepPlan plan = engine->next_plan();
    SamplingParameters p = adjusting(0.5F);
    engine->admit(plan, 1, 9, p, 40, 0, prompt, 20);
    plan.work = {prompt_work(1, 0, prompt, true)};
    change(plan);
    const auto result = engine->run(plan);
    engine->clear(plan, 1);
    EXPECT_FALSE(result.ok());
    return result.ok() ? std::string() : result.error().field;
  };
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].tokens.clear(); }), "set");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].tokens[3] = vocabulary; }), "set");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].prompt_count = 21; }), "set");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].tokens.assign(1000, 1); }), "set");
  EXPECT_EQ(field([](StepPlan& p) {
              p.set[0].tokens.pop_back();
              p.set[0].prompt_count = 19;
            }),
            "sample")
      << "it draws behind a token that penalties do not know";
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].sampling.repetition_penalty = 0.0F; }), "repetition_penalty");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].sampling.presence_penalty = NAN; }), "presence_penalty");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].sampling.frequency_penalty = INFINITY; }), "frequency_penalty");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].sampling.logit_bias[0].bias = 101; }), "logit_bias");
  EXPECT_EQ(field([](StepPlan& p) { p.set[0].sampling.top_logprobs = 21; }), "top_logprobs");
  EXPECT_EQ(generate(*engine, prompt, adjusting(0.8F), 3), generate(*engine_of(), prompt, adjusting(0.8F), 3)) << "the refused left no trace";
}

}  // namespace
}  // namespace althing::gpu
