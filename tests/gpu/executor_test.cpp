// The executor's promises: bits do not depend on batch, chunking, pages, threads or preemption; experts commute over layouts; every bad plan is
// refused with nothing computed; NaN surfaces; a broken communicator ends the epoch and nothing else.
#include "gpu/executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <random>

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

std::unique_ptr<Engine> engine_of(std::shared_ptr<const Model> model, const EngineOptions& options = {}) {
  auto engine = Engine::create(std::move(model), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

SamplingParameters sampled(std::uint64_t seed) {
  SamplingParameters p;
  p.temperature = 0.9F;
  p.top_p = 0.95F;
  p.seed = seed;
  return p;
}

// Logits of one sequence, all positions, run alone with chunks of `chunk`.
std::vector<float> logits_of(std::shared_ptr<const Model> model, const std::vector<TokenId>& tokens, std::uint32_t chunk,
                             const EngineOptions& options = {}) {
  auto engine = engine_of(std::move(model), options);
  std::vector<float> logits;
  for (std::size_t r = 0; r < engine->ranks(); ++r) {
    Observer observer;
    observer.logits = [&logits, r](std::span<const float> values) {
      if (r == 0) logits.insert(logits.end(), values.begin(), values.end());
    };
    engine->executor(r).observe(observer);
  }
  const std::uint32_t length = static_cast<std::uint32_t>(tokens.size());
  for (std::uint32_t at = 0; at < length; at += chunk) {
    StepPlan plan = engine->next_plan();
    if (at == 0) engine->admit(plan, 0, 1, {}, length);
    plan.work = {prompt_work(0, at, std::span(tokens).subspan(at, std::min(chunk, length - at)), false)};
    const auto result = engine->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result) return {};
  }
  return logits;
}

struct Sequence {
  std::vector<TokenId> tokens;
  std::uint32_t admitted_at = 0;  // step
  std::uint32_t chunk = 0;
};

// Runs sequences together as a scheduler would, mixing prefill and decode; returns each one's drawn tokens.
std::vector<std::vector<TokenId>> generate(std::shared_ptr<const Model> model, const std::vector<Sequence>& sequences, std::uint32_t count,
                                           const EngineOptions& options) {
  auto engine = engine_of(std::move(model), options);
  std::vector<std::vector<TokenId>> drawn(sequences.size());
  std::vector<std::uint32_t> done(sequences.size());
  for (std::uint32_t step = 0; std::any_of(drawn.begin(), drawn.end(), [&](const auto& d) { return d.size() < count; }); ++step) {
    StepPlan plan = engine->next_plan();
    for (std::uint32_t s = 0; s < sequences.size(); ++s) {
      const Sequence& q = sequences[s];
      const std::uint32_t length = static_cast<std::uint32_t>(q.tokens.size());
      if (step < q.admitted_at || drawn[s].size() == count) continue;
      if (step == q.admitted_at) engine->admit(plan, s, 100 + s, sampled(s), length + count);
      if (done[s] < length) {
        const std::uint32_t size = std::min(q.chunk, length - done[s]);
        plan.work.push_back(prompt_work(s, done[s], std::span(q.tokens).subspan(done[s], size), done[s] + size == length));
        done[s] += size;
      } else {
        plan.work.push_back(decode_work(s, done[s]++));
      }
    }
    const auto result = engine->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result) return {};
    for (const DrawnToken& d : result->drawn) {
      EXPECT_EQ(d.request, RequestId{100 + d.row.value});
      EXPECT_FALSE(d.nonfinite);
      drawn[d.row.value].push_back(d.token);
    }
  }
  return drawn;
}

TEST(Executor, chunks_pages_and_threads_do_not_change_bits) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(1, 150);
  const auto whole = logits_of(model, tokens, 150);
  ASSERT_EQ(whole.size(), 150u * 101);
  for (const std::uint32_t chunk : {1u, 7u, 64u}) {
    EngineOptions options;
    options.page_seed = chunk + 5;
    options.threads = 1 + chunk % 3;
    EXPECT_EQ(logits_of(model, tokens, chunk, options), whole) << "chunks of " << chunk;
  }
}

TEST(Executor, every_weight_format_runs_and_they_differ_in_nothing_but_layout) {
  const auto plain = logits_of(SmallModel::make({.mxfp4 = false}), small_prompt(1, 30), 30);
  EXPECT_FALSE(plain.empty());
  // The same numbers stored (experts, in, out): transpose the plain model's experts.
  auto model = SmallModel::make({.mxfp4 = false});
  std::vector<std::vector<std::byte>> store;
  for (DecoderLayer& layer : model->spec.layers) {
    for (ExpertLinear* l : {&layer.moe.gate_up, &layer.moe.down}) {
      auto& turned = store.emplace_back(std::size_t{6} * l->out * l->in * 2);
      for (std::size_t e = 0; e < 6; ++e)
        for (std::size_t o = 0; o < l->out; ++o)
          for (std::size_t k = 0; k < l->in; ++k)
            std::memcpy(turned.data() + ((e * l->in + k) * l->out + o) * 2, l->plain.data + ((e * l->out + o) * l->in + k) * 2, 2);
      l->plain.data = turned.data();
      l->plain.shape = {6, l->in, l->out};
      l->transposed = true;
    }
  }
  EXPECT_EQ(logits_of(model, small_prompt(1, 30), 30), plain);
}

TEST(Executor, a_sequence_draws_the_same_alone_and_in_a_mixed_batch) {
  const auto model = SmallModel::make();
  std::vector<Sequence> sequences;
  for (std::uint32_t s = 0; s < 8; ++s) sequences.push_back({small_prompt(s + 1, 5 + s * 9), s * 2, 1 + s * 5});
  EngineOptions options;
  options.context_tokens_max = 128;
  const auto together = generate(model, sequences, 20, options);
  for (std::uint32_t s = 0; s < sequences.size(); ++s) {
    auto engine = engine_of(model, options);
    std::vector<TokenId> drawn;
    const std::uint32_t length = static_cast<std::uint32_t>(sequences[s].tokens.size());
    for (std::uint32_t i = 0; i < 20; ++i) {
      StepPlan plan = engine->next_plan();
      if (i == 0) {
        engine->admit(plan, s, 1, sampled(s), length + 20);
        plan.work = {prompt_work(s, 0, sequences[s].tokens, true)};
      } else {
        plan.work = {decode_work(s, length + i - 1)};
      }
      drawn.push_back(engine->run(plan)->drawn.at(0).token);
    }
    EXPECT_EQ(drawn, together[s]) << "sequence " << s;
  }
}

TEST(Executor, recomputing_a_sequence_after_preemption_gives_the_same_draws) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(3, 40);
  const auto straight = generate(model, {{tokens, 0, 40}}, 30, {})[0];
  auto engine = engine_of(model);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, sampled(0), 80);
  plan.work = {prompt_work(0, 0, tokens, true)};
  std::vector<TokenId> known = tokens;
  known.push_back(engine->run(plan)->drawn.at(0).token);
  for (int i = 0; i < 10; ++i) {
    plan = engine->next_plan();
    plan.work = {decode_work(0, static_cast<std::uint32_t>(known.size()) - 1)};
    known.push_back(engine->run(plan)->drawn.at(0).token);
  }
  // The row is lost; its tokens come back as one prompt in another row, in another epoch.
  ASSERT_TRUE(engine->enter_epoch(2).ok());
  plan = engine->next_plan();
  engine->admit(plan, 5, 1, sampled(0), 80);
  plan.work = {prompt_work(5, 0, known, true)};
  known.push_back(engine->run(plan)->drawn.at(0).token);
  while (known.size() < 70) {
    plan = engine->next_plan();
    plan.work = {decode_work(5, static_cast<std::uint32_t>(known.size()) - 1)};
    known.push_back(engine->run(plan)->drawn.at(0).token);
  }
  EXPECT_EQ(std::vector<TokenId>(known.begin() + 40, known.end()), straight);
}

TEST(Executor, ranks_agree_and_keep_their_bits_over_chunks) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(2, 60);
  for (const std::uint32_t ranks : {2u, 4u}) {
    EngineOptions options;
    options.ranks = ranks;
    const auto whole = logits_of(model, tokens, 60, options);
    EXPECT_EQ(logits_of(model, tokens, 13, options), whole) << ranks;
    const auto one = logits_of(model, tokens, 60);
    double worst = 0;
    for (std::size_t i = 0; i < one.size(); ++i) worst = std::max(worst, std::abs(double{one[i]} - double{whole[i]}));
    EXPECT_LT(worst, 1e-3) << ranks;
  }
}

// Attention is split alike in all of these, only the experts move between the two ranks.
TEST(Executor, where_experts_live_does_not_change_a_bit) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(4, 50);
  const auto whole = logits_of(model, tokens, 50, {.ranks = 2});
  const auto split = [&](std::vector<std::uint32_t> on_rank_0) {
    auto placements = scheduler::place(2, tests::shape_of(model->spec)).value();
    placements[0].experts.clear(), placements[1].experts.clear();
    for (std::uint32_t e = 0; e < 6; ++e)
      placements[std::find(on_rank_0.begin(), on_rank_0.end(), e) == on_rank_0.end() ? 1 : 0].experts.push_back({ExpertId{e}});
    auto segment = SharedSegment::create(2, EpochId{1}).value();
    std::vector<float> logits;
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        ExecutorConfig config;
        config.placement = placements[r];
        config.kv = kv_layout(model->spec, placements, kv_format(Device::cpu), 1 << 22, 64).value();
        auto executor = Executor::create(model, config).value();
        Observer observer;
        observer.logits = [&, r](std::span<const float> values) {
          if (r == 0) logits.assign(values.begin(), values.end());
        };
        executor->observe(observer);
        StepPlan plan;
        plan.step = StepId{1}, plan.epoch = EpochId{1}, plan.snapshot = true;
        plan.set = {{RowIndex{0}, RequestId{1}, {}}};
        plan.pages = {{RowIndex{0}, 0, 0, {PageId{0}, PageId{1}}}, {RowIndex{0}, 1, 0, {PageId{2}, PageId{3}, PageId{4}, PageId{5}}}};
        plan.work = {prompt_work(0, 0, tokens, true)};
        auto communicator = segment.join(RankId{r}, std::chrono::seconds{300});
        const auto result = executor->run(plan, *communicator);
        EXPECT_TRUE(result.ok()) << result.error().message;
      });
    }
    for (auto& thread : threads) thread.join();
    return logits;
  };
  const auto even = split({0, 1, 2});
  EXPECT_EQ(even, whole);
  EXPECT_EQ(split({5, 3, 0}), even);
  EXPECT_EQ(split({4}), even);
}

TEST(Executor, expert_counts_are_exact) {
  const auto model = SmallModel::make();
  auto engine = engine_of(model, {.ranks = 2});
  std::vector<std::vector<float>> router(3);
  Observer observer;
  observer.router_logits = [&](std::uint32_t layer, std::span<const float> values) {
    router[layer].insert(router[layer].end(), values.begin(), values.end());
  };
  engine->executor(0).observe(observer);
  const auto tokens = small_prompt(8, 33);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 40);
  plan.work = {prompt_work(0, 0, tokens, true)};
  ASSERT_TRUE(engine->run(plan).ok());
  plan = engine->next_plan();
  plan.work = {decode_work(0, 33)};
  ASSERT_TRUE(engine->run(plan).ok());
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    std::vector<std::uint64_t> expected(6);
    for (std::size_t t = 0; t < 34; ++t) {
      std::vector<std::uint32_t> order{0, 1, 2, 3, 4, 5};
      const float* logits = router[layer].data() + t * 6;
      std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
      ++expected[order[0]], ++expected[order[1]];
    }
    for (std::uint32_t e = 0; e < 6; ++e) {
      EXPECT_EQ(engine->executor(e < 3 ? 0 : 1).expert_counts().tokens[layer * 6 + e], expected[e]);
      EXPECT_EQ(engine->executor(e < 3 ? 1 : 0).expert_counts().tokens[layer * 6 + e], 0u);
    }
  }
}

TEST(Executor, nan_fails_its_own_row_only) {
  auto model = SmallModel::make();
  // Token 7 alone has a NaN embedding.
  std::vector<std::byte> table(std::size_t{101} * 160 * 2);
  std::memcpy(table.data(), model->spec.embedding.data, table.size());
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(table.data() + 7 * 160 * 2, &nan, 2);
  const auto healthy = SmallModel::make();
  model->spec.embedding.data = table.data();
  for (const std::uint32_t ranks : {1u, 2u}) {
    auto engine = engine_of(model, {.ranks = ranks});
    auto other = engine_of(healthy, {.ranks = ranks});
    const std::vector<TokenId> good{1, 2, 3}, bad{1, 7};
    StepPlan plan = engine->next_plan(), alone = other->next_plan();
    engine->admit(plan, 0, 1, {}, 10);
    engine->admit(plan, 1, 2, {}, 10);
    other->admit(alone, 0, 1, {}, 10);
    plan.work = {prompt_work(0, 0, good, true), prompt_work(1, 0, bad, true)};
    alone.work = {prompt_work(0, 0, good, true)};
    const auto result = engine->run(plan);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(result->drawn[1].nonfinite);
    EXPECT_FALSE(result->drawn[0].nonfinite);
    EXPECT_EQ(result->drawn[0].token, other->run(alone)->drawn[0].token);
    // The step after may already be planned on the void draw.
    StepPlan next = engine->next_plan();
    next.work = {decode_work(0, 3), decode_work(1, 2)};
    const auto second = engine->run(next);
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_TRUE(second->drawn[1].nonfinite);
    EXPECT_FALSE(second->drawn[0].nonfinite);
  }
}

TEST(Executor, expert_outputs_beyond_fixed_point_surface_as_nonfinite) {
  auto model = SmallModel::make();
  std::vector<std::byte> huge(std::size_t{6} * 160 * 2);
  const std::uint16_t bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(1e9F) >> 16);
  for (std::size_t i = 0; i < huge.size(); i += 2) std::memcpy(huge.data() + i, &bits, 2);
  model->spec.layers[1].moe.down.bias.data = huge.data();
  auto engine = engine_of(model);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, {}, 10);
  plan.work = {prompt_work(0, 0, small_prompt(1, 4), true)};
  EXPECT_TRUE(engine->run(plan)->drawn[0].nonfinite);
}

TEST(Executor, a_refused_plan_changes_nothing) {
  const auto model = SmallModel::make();
  auto engine = engine_of(model), twin = engine_of(model);
  const auto tokens = small_prompt(5, 12);
  for (Engine* e : {engine.get(), twin.get()}) {
    StepPlan plan = e->next_plan();
    e->admit(plan, 0, 1, {}, 40);
    plan.work = {prompt_work(0, 0, tokens, true)};
    ASSERT_TRUE(e->run(plan).ok());
  }
  const auto counts = engine->executor(0).expert_counts().tokens;
  // Good parts before the bad one: nothing of them may stay.
  StepPlan bad = engine->next_plan();
  bad.set = {{RowIndex{1}, RequestId{2}, {}}};
  bad.pages = {{RowIndex{1}, 0, 0, {PageId{0}}}, {RowIndex{1}, 1, 0, {PageId{1}}}};
  bad.work = {decode_work(0, 12), prompt_work(1, 0, std::vector<TokenId>{101}, true)};
  const auto refused = engine->executor(0).run(bad, engine->communicator(0));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(engine->executor(0).expert_counts().tokens, counts);
  for (int i = 0; i < 5; ++i) {
    StepPlan a = engine->next_plan(), b = twin->next_plan();
    a.work = b.work = {decode_work(0, 12 + static_cast<std::uint32_t>(i))};
    const auto one = engine->run(a), two = twin->run(b);
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(*one, *two);
  }
}

TEST(Executor, a_step_is_done_once_and_in_order_also_when_it_is_refused) {
  auto engine = engine_of(SmallModel::make());
  StepPlan first = engine->next_plan();
  engine->admit(first, 0, 1, {}, 20);
  first.work = {prompt_work(0, 0, small_prompt(5, 12), true)};
  StepPlan second;  // on the first one's draw, which nobody has seen yet
  second.step = StepId{2}, second.base = StepId{1}, second.epoch = engine->epoch();
  second.work = {decode_work(0, 12)};
  StepPlan third = second;  // a base that is over
  third.step = StepId{3};
  std::atomic<int> progress = 0;
  Observer observer;
  observer.progress = [&] { ++progress; };
  engine->executor(0).observe(observer);
  std::shared_ptr<Communicator> communicator = solo_communicator(engine->epoch());
  std::vector<std::pair<int, bool>> done;
  int number = 0;
  for (const StepPlan* plan : {&first, &second, &third})
    engine->executor(0).submit(*plan, communicator, [&done, n = ++number](const Result<StepResult>& result) { done.emplace_back(n, result.ok()); });
  EXPECT_EQ(done, (std::vector<std::pair<int, bool>>{{1, true}, {2, true}, {3, false}}));
  EXPECT_GE(progress, 2 * 3) << "at least once a layer and step";
  EXPECT_EQ(communicator.use_count(), 1) << "not kept";
}

TEST(Executor, refuses_a_communicator_of_another_world_rank_or_epoch) {
  auto engine = engine_of(SmallModel::make());
  StepPlan plan = engine->next_plan();
  auto stale = solo_communicator(EpochId{9});
  EXPECT_EQ(engine->executor(0).run(plan, *stale).error().code, ErrorCode::invalid_argument);
  auto segment = SharedSegment::create(2, EpochId{1}).value();
  auto second = segment.join(RankId{1}, std::chrono::milliseconds{100});
  EXPECT_EQ(engine->executor(0).run(plan, *second).error().code, ErrorCode::invalid_argument);
}

TEST(Executor, an_empty_plan_is_a_step) {
  auto engine = engine_of(SmallModel::make(), {.ranks = 2});
  const auto result = engine->run(engine->next_plan());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(result->drawn.empty());
  EXPECT_TRUE(engine->run(engine->next_plan()).ok());
}

TEST(Executor, an_aborted_step_needs_a_snapshot_and_a_new_epoch) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(6, 20);
  auto engine = engine_of(model, {.ranks = 2});
  const auto start = [&] {
    StepPlan plan = engine->next_plan();
    engine->admit(plan, 0, 1, {}, 30);
    plan.work = {prompt_work(0, 0, tokens, true)};
    return plan;
  };
  const auto before = engine->run(start());
  ASSERT_TRUE(before.ok()) << before.error().message;
  // Rank 1 never comes; somebody aborts.
  auto segment = SharedSegment::create(2, EpochId{2}).value();
  auto lonely = segment.join(RankId{0}, std::chrono::seconds{300});
  std::thread supervisor([&] { segment.abort(); });
  ASSERT_TRUE(engine->enter_epoch(2).ok());
  const StepPlan plan = start();
  const auto broken = engine->executor(0).run(plan, *lonely);
  supervisor.join();
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, ErrorCode::unavailable);
  ASSERT_TRUE(engine->enter_epoch(3).ok());
  StepPlan difference = engine->next_plan();
  difference.snapshot = false;
  EXPECT_EQ(engine->executor(0).run(difference, engine->communicator(0)).error().code, ErrorCode::invalid_argument);
  const auto again = engine->run(start());
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->drawn, before->drawn);
}

// Window pages that slid out are handed to another row while the first goes on.
TEST(Executor, recycled_window_pages_change_nothing) {
  const auto model = SmallModel::make();
  const auto tokens = small_prompt(7, 100), others = small_prompt(9, 16);
  const auto straight = generate(model, {{tokens, 0, 100}}, 10, {})[0];
  auto engine = engine_of(model);
  StepPlan plan = engine->next_plan();
  engine->admit(plan, 0, 1, sampled(0), 110);
  const auto window_pages = plan.pages[1].pages;
  plan.work = {prompt_work(0, 0, tokens, true)};
  std::vector<TokenId> drawn{engine->run(plan)->drawn.at(0).token};
  for (std::uint32_t i = 1; i < 10; ++i) {
    plan = engine->next_plan();
    plan.work = {decode_work(0, 99 + i)};
    if (i == 2) {
      engine->admit(plan, 1, 2, {}, 16);
      plan.pages[1].pages[0] = window_pages[0];  // positions 0-15, out of the window of 20 since position 35
      plan.work.push_back(prompt_work(1, 0, others, false));
    }
    drawn.push_back(engine->run(plan)->drawn.at(0).token);
  }
  EXPECT_EQ(drawn, straight);
}

TEST(Executor, create_refuses_what_it_cannot_run) {
  const auto model = SmallModel::make();
  ExecutorConfig config;
  config.placement = scheduler::place(1, tests::shape_of(model->spec)).value()[0];
  config.kv = kv_layout(model->spec, std::vector{config.placement}, kv_format(Device::cpu), 1 << 20, 64).value();
  EXPECT_TRUE(Executor::create(model, config).ok());
  EXPECT_EQ(Executor::create(nullptr, config).error().code, ErrorCode::invalid_argument);
  ExecutorConfig bad = config;
  bad.threads = 0;
  EXPECT_EQ(Executor::create(model, bad).error().field, "threads");
  bad = config;
  bad.kv.groups[0].window = 33;
  EXPECT_NE(Executor::create(model, bad).error().message.find("layer 1 has a window of 0"), std::string::npos);
  bad = config;
  bad.device = Device::cuda;
  bad.gpu = 64;
  const auto no_gpu = Executor::create(model, bad);
  ASSERT_FALSE(no_gpu.ok());
  EXPECT_EQ(no_gpu.error().code, ErrorCode::unsupported);
  EXPECT_EQ(no_gpu.error().field, "device");
  auto odd = SmallModel::make();
  odd->spec.head_dim = 12;
  EXPECT_EQ(Executor::create(odd, config).error().code, ErrorCode::unsupported);
  const ExecutorMemory memory = Executor::create(model, config).value()->memory();
  EXPECT_EQ(memory.kv_bytes, config.kv.page_bytes * config.kv.page_count);
  EXPECT_GT(memory.weight_bytes, 100'000u);
  EXPECT_GT(memory.scratch_bytes, 100'000u);
}

}  // namespace
}  // namespace althing::gpu
