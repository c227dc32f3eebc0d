// A draft model beside a model: it guesses what it would say itself, the model draws what it draws alone, and nothing that goes wrong with a guess
// goes wrong with a step.
#include "gpu/drafting_executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using testing::HasSubstr;
using tests::decode_work;
using tests::Engine;
using tests::EngineOptions;
using tests::prompt_work;
using tests::small_prompt;
using tests::SmallModel;

std::shared_ptr<const DraftModel> draft_of(std::shared_ptr<const Model> model) {
  auto placement = scheduler::place(1, tests::shape_of(model->spec)).value()[0];
  return std::make_shared<const DraftModel>(DraftModel{std::move(model), std::move(placement)});
}

std::unique_ptr<Engine> engine_of(std::shared_ptr<const Model> model, std::shared_ptr<const Model> draft = nullptr, EngineOptions options = {}) {
  if (draft) options.draft = draft_of(std::move(draft));
  options.rows_max = 32;
  auto engine = Engine::create(std::move(model), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

SamplingParameters sampling_of(float temperature) {
  SamplingParameters p;
  p.temperature = temperature;
  p.seed = 7;
  return p;
}

// What a model says by itself behind `prompt`.
std::vector<TokenId> alone(std::shared_ptr<const Model> model, const std::vector<TokenId>& prompt, std::uint32_t count, float temperature) {
  auto engine = engine_of(std::move(model));
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, sampling_of(temperature), static_cast<std::uint32_t>(prompt.size()) + count);
  plan.work = {prompt_work(0, 0, prompt, true)};
  std::vector<TokenId> said;
  for (std::uint32_t position = static_cast<std::uint32_t>(prompt.size()); said.size() < count; ++position) {
    const auto result = engine->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    said.push_back(result->drawn[0].token);
    plan = engine->next_plan();
    plan.work = {decode_work(0, position)};
  }
  return said;
}

struct Speaker {
  std::uint32_t row = 0;
  std::vector<TokenId> tokens;  // the prompt, then what was drawn
  std::uint32_t prompt_count = 0;
  std::vector<TokenId> guesses{};
  std::uint32_t verified = 0, held = 0;
};

void admit(Engine& engine, StepPlan& plan, const Speaker& speaker, float temperature, std::uint32_t room) {
  engine.admit(plan, speaker.row, 100 + speaker.row, sampling_of(temperature), room);
  plan.set.back().drafted = true;
}

// Takes the step's draws as a scheduler does: guesses hold up to the first that was not drawn.
void take(const StepResult& result, std::size_t& drawn, std::uint32_t draws, Speaker& speaker) {
  std::size_t held = 0;
  while (held + 1 < draws && result.drawn[drawn + held].token == speaker.guesses[held]) ++held;
  for (std::size_t i = 0; i <= held; ++i) speaker.tokens.push_back(result.drawn[drawn + i].token);
  speaker.verified += draws - 1;
  speaker.held += static_cast<std::uint32_t>(held);
  drawn += draws;
  speaker.guesses.clear();
  for (const RowGuesses& guesses : result.guesses)
    if (guesses.row.value == speaker.row) speaker.guesses = guesses.tokens;
}

// All speakers go on together until each has said `count` tokens, with up to `most` guesses a step.
void speak(Engine& engine, std::vector<Speaker>& speakers, std::uint32_t count, std::uint32_t most, float temperature, std::uint32_t room = 300) {
  StepPlan plan = engine.next_plan();
  for (const Speaker& speaker : speakers) {
    admit(engine, plan, speaker, temperature, room);
    plan.work.push_back(prompt_work(speaker.row, 0, speaker.tokens, true));
    plan.work.back().guesses = most;
  }
  for (int step = 0; step < 1000; ++step) {
    const auto result = engine.run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    std::size_t drawn = 0;
    for (const RowWork& work : plan.work)
      for (Speaker& speaker : speakers)
        if (speaker.row == work.row.value) take(*result, drawn, work.draws, speaker);
    plan = engine.next_plan();
    for (const Speaker& speaker : speakers) {
      if (speaker.tokens.size() >= speaker.prompt_count + count) continue;
      const auto known = static_cast<std::uint32_t>(speaker.tokens.size());
      std::vector<TokenId> tokens{speaker.tokens.back()};
      tokens.insert(tokens.end(), speaker.guesses.begin(), speaker.guesses.end());
      RowWork work = prompt_work(speaker.row, known - 1, tokens, true);
      work.draws = static_cast<std::uint32_t>(tokens.size());
      work.guesses = most;
      plan.work.push_back(work);
    }
    if (plan.work.empty()) return;
  }
  FAIL() << "nobody comes to an end";
}

std::vector<Speaker> speakers_of(std::size_t count, std::uint32_t length) {
  std::vector<Speaker> speakers;
  for (std::uint32_t row = 0; row < count; ++row) {
    const auto prompt = small_prompt(30 + row, length + 7 * row);
    speakers.push_back({row, prompt, static_cast<std::uint32_t>(prompt.size())});
  }
  return speakers;
}

TEST(DraftingExecutor, guesses_what_the_draft_model_would_say) {
  const auto model = SmallModel::make({.seed = 1}), draft = SmallModel::make({.seed = 2});
  for (const float temperature : {0.0F, 1.0F}) {
    auto engine = engine_of(model, draft);
    const auto prompt = small_prompt(3, 50);
    StepPlan plan = engine->next_plan();
    admit(*engine, plan, {0, prompt, 50}, temperature, 120);
    plan.work = {prompt_work(0, 0, std::span(prompt).first(33), false)};
    const auto begun_with = engine->run(plan);
    ASSERT_TRUE(begun_with.ok()) << begun_with.error().message;
    plan = engine->next_plan();
    plan.work = {prompt_work(0, 33, std::span(prompt).subspan(33), true)};
    plan.work[0].guesses = 6;
    const auto result = engine->run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    ASSERT_EQ(result->guesses.size(), 1u);
    EXPECT_EQ(result->guesses[0].request, RequestId{100});
    std::vector<TokenId> begun = prompt;
    begun.push_back(result->drawn[0].token);
    EXPECT_EQ(result->guesses[0].tokens, alone(draft, begun, 6, temperature)) << "temperature " << temperature;
  }
}

TEST(DraftingExecutor, the_model_says_what_it_says_alone_whatever_is_guessed) {
  const auto model = SmallModel::make({.seed = 1});
  for (const std::uint32_t seed : {2u, 3u})
    for (const float temperature : {0.0F, 0.7F}) {
      auto engine = engine_of(model, SmallModel::make({.seed = seed}));
      auto speakers = speakers_of(3, 20);
      speak(*engine, speakers, 60, 5, temperature);
      for (const Speaker& speaker : speakers) {
        const std::vector<TokenId> prompt(speaker.tokens.begin(), speaker.tokens.begin() + speaker.prompt_count);
        std::vector<TokenId> said(speaker.tokens.begin() + speaker.prompt_count, speaker.tokens.end());
        EXPECT_EQ(said, alone(model, prompt, static_cast<std::uint32_t>(said.size()), temperature)) << "row " << speaker.row;
        EXPECT_GT(speaker.verified, 0u);
      }
    }
}

TEST(DraftingExecutor, a_model_that_drafts_for_itself_is_always_right) {
  const auto model = SmallModel::make({.seed = 4});
  for (const float temperature : {0.0F, 1.0F}) {
    auto engine = engine_of(model, model);
    auto speakers = speakers_of(4, 18);
    speak(*engine, speakers, 80, 4, temperature);
    for (const Speaker& speaker : speakers) {
      EXPECT_EQ(speaker.held, speaker.verified) << "temperature " << temperature << ", row " << speaker.row;
      EXPECT_GE(speaker.verified, 60u);
    }
  }
}

// Tokens that nobody asked guesses for are read later, all at once; draws that are still on the device are known by then.
TEST(DraftingExecutor, reads_what_was_drawn_while_nobody_asked) {
  const auto model = SmallModel::make({.seed = 5});
  auto engine = engine_of(model, model);
  const auto prompt = small_prompt(9, 12);
  StepPlan plan = engine->next_plan();
  admit(*engine, plan, {0, prompt, 12}, 1.0F, 120);
  plan.work = {prompt_work(0, 0, prompt, true)};
  std::vector<TokenId> tokens = prompt;
  for (std::uint32_t position = 12; position < 60; ++position) {
    const auto result = engine->run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(result->guesses.empty());
    tokens.push_back(result->drawn[0].token);
    plan = engine->next_plan();
    plan.work = {decode_work(0, position)};
  }
  plan.work[0].guesses = 3;
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok()) << result.error().message;
  tokens.push_back(result->drawn[0].token);
  ASSERT_EQ(result->guesses.size(), 1u);
  EXPECT_EQ(result->guesses[0].tokens, alone(model, tokens, 3, 1.0F));
}

TEST(DraftingExecutor, guesses_end_where_the_row_s_pages_do) {
  const auto model = SmallModel::make({.seed = 6});
  auto engine = engine_of(model, model);
  std::uint32_t page = 0;
  for (const KvGroup& group : engine->layout().groups) page = std::max(page, group.tokens_per_page);
  const auto prompt = small_prompt(2, page - 3);
  StepPlan plan = engine->next_plan();
  admit(*engine, plan, {0, prompt, page - 3}, 0.0F, page);
  for (PageGrant& grant : plan.pages)
    grant.pages.resize((page + engine->layout().groups[grant.group].tokens_per_page - 1) / engine->layout().groups[grant.group].tokens_per_page);
  plan.work = {prompt_work(0, 0, prompt, true)};
  plan.work[0].guesses = 8;
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result->guesses.size(), 1u);
  EXPECT_EQ(result->guesses[0].tokens.size(), 3u) << "the draw and two guesses have a place";
}

TEST(DraftingExecutor, rows_that_nobody_drafts_cost_it_nothing_and_are_not_guessed) {
  const auto model = SmallModel::make({.seed = 7});
  auto engine = engine_of(model, model);
  const auto prompt = small_prompt(1, 20);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 60);
  admit(*engine, plan, {1, prompt, 20}, 0.0F, 60);
  plan.work = {prompt_work(0, 0, prompt, true), prompt_work(1, 0, prompt, true)};
  plan.work[1].guesses = 2;
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result->guesses.size(), 1u);
  EXPECT_EQ(result->guesses[0].row, RowIndex{1});
}

TEST(DraftingExecutor, goes_on_after_a_refused_plan_a_lost_epoch_and_rows_that_change_hands) {
  const auto model = SmallModel::make({.seed = 8});
  auto engine = engine_of(model, model);
  auto speakers = speakers_of(2, 25);
  speak(*engine, speakers, 20, 3, 1.0F, 120);
  StepPlan wrong = engine->next_plan();
  wrong.work = {prompt_work(5, 0, small_prompt(1, 4), true)};
  EXPECT_FALSE(engine->run(wrong).ok()) << "nobody has row 5";
  ASSERT_TRUE(engine->enter_epoch(2).ok());
  auto others = speakers_of(3, 31);
  speak(*engine, others, 30, 4, 1.0F, 120);
  for (const Speaker& speaker : others) EXPECT_EQ(speaker.held, speaker.verified);
  // The same rows with other requests in the same epoch.
  StepPlan plan = engine->next_plan();
  for (std::uint32_t row = 0; row < 3; ++row) engine->clear(plan, row);
  Speaker next{1, small_prompt(77, 40), 40};
  admit(*engine, plan, next, 0.0F, 100);
  plan.work = {prompt_work(1, 0, next.tokens, true)};
  plan.work[0].guesses = 4;
  const auto result = engine->run(plan);
  ASSERT_TRUE(result.ok()) << result.error().message;
  next.tokens.push_back(result->drawn[0].token);
  ASSERT_EQ(result->guesses.size(), 1u);
  EXPECT_EQ(result->guesses[0].tokens, alone(model, next.tokens, 4, 0.0F));
}

// Rows of both DP groups have pages of the same names, and in the draft model's one pool others.
TEST(DraftingExecutor, the_first_rank_of_a_world_drafts_for_all_groups) {
  const auto model = SmallModel::make({.seed = 9});
  EngineOptions options;
  options.ranks = 2;
  Grid grid = scheduler::default_grid(2);
  grid.dp = 2;
  grid.tp = 1;
  options.grid = grid;
  auto engine = engine_of(model, model, options);
  auto speakers = speakers_of(4, 22);
  speak(*engine, speakers, 50, 4, 0.8F, 150);
  for (const Speaker& speaker : speakers) {
    EXPECT_EQ(speaker.held, speaker.verified) << "row " << speaker.row;
    EXPECT_GT(speaker.verified, 20u);
  }
}

TEST(DraftingExecutor, what_does_not_fit_is_refused_by_name) {
  const auto model = SmallModel::make();
  auto wide = std::make_shared<Model>(*model);
  wide->spec.vocabulary = 102;
  EngineOptions options;
  options.draft = draft_of(wide);
  const auto strangers = Engine::create(model, options);
  ASSERT_FALSE(strangers.ok());
  EXPECT_THAT(strangers.error().message, HasSubstr("a vocabulary of 102 tokens, the model one of 101"));
  EXPECT_EQ(strangers.error().field, "draft-model");

  DecoderSpec other = model->spec;
  other.layers[0].attention.window = 33;
  const KvLayout kv{10, 4096, {KvGroup{0, 16, {1}}, KvGroup{20, 16, {0, 2}}}};
  const auto refused = draft_layout(other, kv, 2, kv_format(Device::cpu));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("layer 0 of the draft model sees 33 tokens"));
  const auto layout = draft_layout(model->spec, kv, 2, kv_format(Device::cpu));
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->page_count, 20u);
  EXPECT_EQ(layout->groups, kv.groups);
  EXPECT_EQ(layout->page_bytes, 2u * 16 * 2 * 16 * 2 * 4) << "two layers of two heads of 16, keys and values of 16 tokens";
}

}  // namespace
}  // namespace althing::gpu
