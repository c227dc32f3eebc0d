// What a synthetic engine says depends on the row's tokens and the seed, and on nothing else.
#include "gpu/synthetic_executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/vocabulary/logprobs.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::decode_work;
using tests::Engine;
using tests::EngineOptions;
using tests::prompt_work;
using tests::SmallModel;

constexpr TokenId start = 90, channel = 91, end = 92, stop = 93, message = 94, assistant = 80, user = 81;

std::shared_ptr<const SyntheticScript> script() {
  SyntheticScript::Ids ids{start, channel, end, stop, {assistant}, {channel, 82, message}, {channel, 83, message}, {}};
  for (TokenId word = 1; word < 60; ++word) ids.words.push_back(word);
  return std::make_shared<const SyntheticScript>(std::move(ids));
}

std::unique_ptr<Engine> engine_of(const std::shared_ptr<const SyntheticScript>& said) {
  EngineOptions options;
  options.device = Device::synthetic;
  options.script = said;
  options.ranks = 2;
  auto engine = Engine::create(SmallModel::make(), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

SamplingParameters with(std::uint64_t seed) {
  SamplingParameters sampling;
  sampling.seed = seed;
  return sampling;
}

// One earlier turn, and the question: what a thought and an answer look like in a prompt must not be taken for the reply's.
const std::vector<TokenId> prompt{start,   user, message, 5,     6,    end,     start, assistant, channel, 83,
                                  message, 7,    end,     start, user, message, 8,     end,       start,   assistant};

// Draws `count` tokens behind `known`, which is computed in chunks.
std::vector<TokenId> draws(Engine& engine, std::uint32_t row, const std::vector<TokenId>& known, std::size_t chunk, std::size_t count,
                           const SamplingParameters& sampling) {
  std::vector<TokenId> drawn;
  for (std::size_t at = 0; drawn.size() < count;) {
    StepPlan plan = engine.next_plan();
    if (at == 0) engine.admit(plan, row, 100 + row, sampling, static_cast<std::uint32_t>(known.size() + count));
    if (at < known.size()) {
      const std::size_t size = std::min(chunk, known.size() - at);
      plan.work.push_back(prompt_work(row, static_cast<std::uint32_t>(at), std::span(known).subspan(at, size), at + size == known.size()));
      at += size;
    } else {
      plan.work.push_back(decode_work(row, static_cast<std::uint32_t>(at++)));
    }
    const auto result = engine.run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result) return drawn;
    for (const DrawnToken& token : result->drawn) drawn.push_back(token.token);
  }
  return drawn;
}

TEST(SyntheticScript, a_reply_is_a_thought_and_an_answer_of_as_many_words_as_the_seed_says) {
  const auto said = script();
  const std::uint64_t seed = SyntheticScript::seed_of(3, 17);
  const std::vector<TokenId> reply = said->reply(seed);
  ASSERT_EQ(SyntheticScript::thought_words(seed), 4u);
  ASSERT_EQ(SyntheticScript::answer_words(seed), 17u);
  ASSERT_EQ(reply.size(), 3 + 4 + 2 + 1 + 3 + 17 + 1u);
  EXPECT_EQ(std::vector(reply.begin(), reply.begin() + 3), (std::vector<TokenId>{channel, 82, message}));
  EXPECT_EQ(reply[3], said->word(seed, 0, 0));
  EXPECT_EQ(std::vector(reply.begin() + 7, reply.begin() + 13), (std::vector<TokenId>{end, start, assistant, channel, 83, message}));
  EXPECT_EQ(reply[13], said->word(seed, 1, 0));
  EXPECT_EQ(reply.back(), stop);
  EXPECT_NE(said->reply(seed + 1024), reply);
  EXPECT_EQ(SyntheticScript::answer_words(SyntheticScript::seed_of(9, 1024)), 1024u);
}

TEST(SyntheticExecutor, chunks_and_being_computed_again_change_no_token) {
  const auto said = script();
  const std::uint64_t seed = SyntheticScript::seed_of(1, 9);
  const std::vector<TokenId> whole = said->reply(seed);
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    const auto engine = engine_of(said);
    EXPECT_EQ(draws(*engine, 0, prompt, chunk, whole.size(), with(seed)), whole) << chunk;
    // As after preemption or a death: wherever it was, the rest follows.
    for (const std::size_t cut : {std::size_t{1}, std::size_t{4}, std::size_t{7}, whole.size() - 1}) {
      std::vector<TokenId> known = prompt;
      known.insert(known.end(), whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut));
      const auto other = engine_of(said);
      EXPECT_EQ(draws(*other, 0, known, chunk, whole.size() - cut, with(seed)),
                std::vector(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()))
          << cut;
    }
  }
}

TEST(SyntheticExecutor, choices_differ_and_any_other_prompt_gets_words) {
  const auto said = script();
  SamplingParameters second = with(2048);
  second.choice = 1;
  const auto engine = engine_of(said);
  EXPECT_EQ(draws(*engine, 0, prompt, 64, 5, second), draws(*engine, 1, prompt, 64, 5, with(2049)));
  for (const TokenId token : draws(*engine, 2, {1, 2, 3}, 2, 20, with(7))) EXPECT_LT(token, 60u);
}

TEST(SyntheticExecutor, logprobs_are_there_where_they_are_asked_for) {
  const auto engine = engine_of(script());
  SamplingParameters sampling = with(1);
  sampling.logprobs = true;
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 100, sampling, 10);
  plan.work.push_back(prompt_work(0, 0, std::vector<TokenId>{start, assistant}, true));
  const StepResult result = engine->run(plan).value();
  const auto told = read_logprobs(result.logprobs);
  ASSERT_TRUE(told.ok() && told->size() == 1);
  EXPECT_EQ((*told)[0].told.token, result.drawn[0].token);
}

TEST(SyntheticExecutor, refuses_what_every_rank_refuses_and_needs_a_script) {
  const auto engine = engine_of(script());
  StepPlan plan = engine->next_plan();
  plan.work.push_back(decode_work(0, 0));
  EXPECT_EQ(engine->run(plan).error().code, ErrorCode::invalid_argument);
  EngineOptions options;
  options.device = Device::synthetic;
  EXPECT_EQ(Engine::create(SmallModel::make(), options).error().field, "script");
}

}  // namespace
}  // namespace althing::gpu
