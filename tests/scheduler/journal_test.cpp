// Every event comes back from its line to the last bit, a journal replays to the same effects, and damaged lines are refused.
#include "scheduler/journal.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <limits>

#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using scheduler::from_config_line;
using scheduler::from_line;
using scheduler::JournalText;
using scheduler::to_config_line;
using scheduler::to_line;
using testing::HasSubstr;

// Lines are compared, not events: a NaN does not equal itself, but its bits do.
void expect_round_trip(const Event& event) {
  const std::string line = to_line(event);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto back = from_line(line);
  ASSERT_TRUE(back.ok()) << line << ": " << back.error().message;
  EXPECT_EQ(back->index(), event.index());
  EXPECT_EQ(to_line(*back), line);
}

Submitted full_request() {
  Submitted s = request(std::numeric_limits<std::uint64_t>::max(), 5, 7);
  s.sampling = {0.7F, 0.1F, 40, 1e-45F, std::numeric_limits<std::uint64_t>::max(), 3, 4'000'000'000u, {1, 2}, true};
  s.sampling.repetition_penalty = 1.1F;
  s.sampling.presence_penalty = -0.0F;
  s.sampling.frequency_penalty = 1e-45F;
  s.sampling.logit_bias = {{0, -100.0F}, {4'000'000'000u, 0.1F}};
  s.sampling.logprobs = true;
  s.sampling.top_logprobs = 20;
  s.deadline_ms = 12345;
  s.boundaries = {2, 5};
  s.drawn = {7, 0, 999};
  s.choices = 5;
  s.trace_top_m = 6;
  s.constrained = true;
  s.draws_ready = 3;
  return s;
}

TEST(Journal, every_kind_of_event_comes_back) {
  expect_round_trip(full_request());
  expect_round_trip(Submitted{});
  expect_round_trip(
      Cancelled{RequestId{3}, Error{ErrorCode::slow_reader, "did not read: 100 % of 1 MiB\n\ttab, \"quotes\" and \xD0\x9F", "a field"}});
  expect_round_trip(StepDone{StepResult{StepId{7}, EpochId{2}, {{RowIndex{0}, RequestId{5}, 17, false}, {RowIndex{3}, RequestId{6}, 0, true}}}});
  expect_round_trip(StepDone{});
  expect_round_trip(StepDone{StepResult{StepId{7}, EpochId{2}, {}, {{DpGroup{1}, MirrorSlot{3}}, {DpGroup{2}, MirrorSlot{4'000'000'000}}}}});
  expect_round_trip(RanksReady{EpochId{9}});
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  expect_round_trip(RanksReady{EpochId{9}, KvShape{3, easy_config().kv, 17, most}});
  expect_round_trip(RanksReady{EpochId{9}, std::nullopt, {most, 1}, {{DpGroup{0}, MirrorSlot{1}, {0, most}}, {DpGroup{3}, MirrorSlot{0}, {5, 6}}}});
  StepResult drafted{StepId{most}, EpochId{3}, {{RowIndex{0}, RequestId{5}, 1, false}}};
  drafted.guesses = {{RowIndex{0}, RequestId{most}, {0, 4'000'000'000u, 7}}, {RowIndex{3}, RequestId{2}, {9}}};
  expect_round_trip(StepDone{drafted});
  expect_round_trip(RanksLost{EpochId{10}});
  expect_round_trip(Ticked{std::numeric_limits<std::uint64_t>::max()});
  expect_round_trip(DrainStarted{});
  expect_round_trip(Stopped{RequestId{3}, 17});
  expect_round_trip(DrawsReady{RequestId{3}, 4'000'000'000u});
}

TEST(Journal, floats_keep_their_bits_even_when_they_are_no_numbers) {
  for (const std::uint32_t bits : {0x7FC00001u, 0xFFC00000u, 0x80000000u, 0x00000001u, 0x3F333333u, 0x7F800000u}) {
    Submitted s = request(1, 1, 1);
    s.sampling.temperature = std::bit_cast<float>(bits);
    const auto back = from_line(to_line(s));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(std::bit_cast<std::uint32_t>(std::get<Submitted>(*back).sampling.temperature), bits);
  }
}

TEST(Journal, the_fields_of_a_submission_are_the_same_again) {
  const Submitted s = full_request();
  const auto back = from_line(to_line(s));
  ASSERT_TRUE(back.ok());
  const auto& again = std::get<Submitted>(*back);
  EXPECT_EQ(again.request, s.request);
  EXPECT_EQ(again.prompt, s.prompt);
  EXPECT_EQ(again.sampling, s.sampling);
  EXPECT_EQ(again.deadline_ms, s.deadline_ms);
  EXPECT_EQ(again.boundaries, s.boundaries);
  EXPECT_EQ(again.drawn, s.drawn);
  EXPECT_EQ(again.choices, s.choices);
  EXPECT_EQ(again.trace_top_m, s.trace_top_m);
}

TEST(Journal, the_config_comes_back) {
  auto config = easy_config();
  config.limits.logit_bias_max = 7;
  config.limits.traces_max = 3;
  config.limits.trace_top_m_max = 5;
  const auto back = from_config_line(to_config_line(config));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->kv, config.kv);
  EXPECT_EQ(back->vocabulary, config.vocabulary);
  EXPECT_EQ(back->limits.rows_max, config.limits.rows_max);
  EXPECT_EQ(back->limits.stop_tokens_max, config.limits.stop_tokens_max);
  EXPECT_EQ(back->limits.logit_bias_max, 7u);
  EXPECT_EQ(back->limits.traces_max, 3u);
  EXPECT_EQ(back->limits.trace_top_m_max, 5u);
  EXPECT_EQ(to_config_line(*back), to_config_line(config));
}

TEST(Journal, the_header_names_the_version) {
  EXPECT_TRUE(scheduler::check_journal_header(scheduler::journal_header()).ok());
  EXPECT_EQ(scheduler::check_journal_header("althing-journal 99").error().code, ErrorCode::version);
  EXPECT_EQ(scheduler::check_journal_header("{\"json\": 1}").error().code, ErrorCode::corrupt);
}

TEST(Journal, a_redacted_journal_holds_no_token_and_is_refused_for_replay) {
  Submitted s = request(1, 3, 2);
  s.prompt = {777, 888, 999};
  const std::string line = to_line(s, JournalText::redacted);
  EXPECT_THAT(line, HasSubstr("prompt=#3"));
  EXPECT_THAT(line, testing::Not(HasSubstr("777")));
  EXPECT_EQ(from_line(line).error().code, ErrorCode::unsupported);
  const StepDone done{StepResult{StepId{1}, EpochId{1}, {{RowIndex{0}, RequestId{5}, 17171, false}}}};
  EXPECT_THAT(to_line(done, JournalText::redacted), testing::Not(HasSubstr("17171")));
  EXPECT_EQ(from_line(to_line(done, JournalText::redacted)).error().code, ErrorCode::unsupported);
  StepDone drafted;
  drafted.result.guesses = {{RowIndex{0}, RequestId{5}, {18181, 19191}}};
  EXPECT_THAT(to_line(drafted, JournalText::redacted), HasSubstr("guesses=0:5:#.#"));
  EXPECT_EQ(from_line(to_line(drafted, JournalText::redacted)).error().code, ErrorCode::unsupported);
  // Keys and their secret together would tell who guesses a prompt that it is right.
  const RanksReady ready{EpochId{1}, std::nullopt, {51515, 61616}, {{DpGroup{0}, MirrorSlot{1}, {71717, 81818}}}};
  for (const char* number : {"51515", "61616", "71717", "81818"}) EXPECT_THAT(to_line(ready, JournalText::redacted), testing::Not(HasSubstr(number)));
  EXPECT_EQ(from_line(to_line(ready, JournalText::redacted)).error().code, ErrorCode::unsupported);
  EXPECT_THAT(to_line(RanksReady{EpochId{1}, std::nullopt, {51515, 1}, {}}, JournalText::redacted), testing::Not(HasSubstr("51515")));
}

TEST(Journal, a_line_cut_anywhere_is_refused) {
  for (const Event& event : {Event{full_request()}, Event{Ticked{123}}, Event{DrainStarted{}}}) {
    const std::string line = to_line(event);
    for (std::size_t length = 0; length < line.size(); ++length) {
      const auto back = from_line(line.substr(0, length));
      ASSERT_FALSE(back.ok()) << line.substr(0, length);
      EXPECT_FALSE(back.error().message.empty());
    }
  }
}

TEST(Journal, damaged_lines_are_refused_with_the_place) {
  const auto message = [](const std::string& line) {
    const auto back = from_line(line);
    EXPECT_FALSE(back.ok()) << line;
    return back.ok() ? std::string{} : back.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("not an event"));
  EXPECT_THAT(message("exploded epoch=1"), HasSubstr("exploded"));
  EXPECT_THAT(message("ticked now_ms=18446744073709551616"), HasSubstr("now_ms"));
  EXPECT_THAT(message("ticked now_ms=-1"), HasSubstr("now_ms"));
  EXPECT_THAT(message("ticked now_ms=007"), HasSubstr("now_ms"));
  EXPECT_THAT(message("ticked now_ms="), HasSubstr("now_ms"));
  EXPECT_THAT(message("ticked now_ms=1 2 ."), HasSubstr("more follows"));
  EXPECT_THAT(message("ticked now_ms=1"), HasSubstr("cut short"));
  EXPECT_THAT(message("ticked  now_ms=1"), HasSubstr("expected"));
  EXPECT_THAT(message("ranks_lost step=1"), HasSubstr("epoch"));
  EXPECT_THAT(message("drain_started now ."), HasSubstr("more follows"));
  EXPECT_THAT(message("stopped request=1 completion_tokens=x ."), HasSubstr("completion_tokens"));
  EXPECT_THAT(message("step_done step=1 epoch=1 drawn=0:1:2"), HasSubstr("drawn"));
  EXPECT_THAT(message("step_done step=1 epoch=1 drawn=0:1:2:0,"), HasSubstr("drawn"));
  EXPECT_THAT(message("step_done step=1 epoch=1 drawn=0:1:2:7"), HasSubstr("drawn"));
  EXPECT_THAT(message("step_done step=1 epoch=1 drawn= unrestored=1"), HasSubstr("unrestored"));
  EXPECT_THAT(message("step_done step=1 epoch=1 drawn= unrestored=1:2:3"), HasSubstr("unrestored"));
  for (const char* guesses : {"1", "1:2", "1:2:3:4", "1:2:3.", "1:2:x", "1:2:3,"})
    EXPECT_THAT(message(std::string("step_done step=1 epoch=1 drawn= unrestored= guesses=") + guesses), HasSubstr("guesses"));
  const std::string no_shape = "ranks_ready epoch=1 dp_groups=0 page_count=0 page_bytes=0 groups= mirror_slots=0 mirror_identity=0 ";
  EXPECT_THAT(message(no_shape + "seed=1 mirrored="), HasSubstr("seed"));
  EXPECT_THAT(message(no_shape + "seed=1:2 mirrored=0:1:2"), HasSubstr("mirrored"));
  EXPECT_THAT(message(no_shape + "seed=1:2 mirrored=0:4294967296:2:3"), HasSubstr("mirrored"));
  EXPECT_THAT(message("cancelled request=1 code=nonsense retry_after_ms=0 field= message="), HasSubstr("nonsense"));
  EXPECT_THAT(message("cancelled request=1 code=io retry_after_ms=0 field=%4 message="), HasSubstr("field"));
  EXPECT_FALSE(from_config_line("config rows_max=1").ok());
  EXPECT_FALSE(from_config_line(to_line(Ticked{1})).ok());
}

TEST(Journal, a_journal_replays_to_the_same_effects) {
  auto config = easy_config();
  config.kv.groups = {KvGroup{0, 4, {0}}};
  config.kv.page_count = 10;
  CoreHarness live(config);
  std::vector<std::string> lines;
  std::vector<std::vector<Effect>> effects;
  const auto record = [&](const Event& event) {
    lines.push_back(to_line(event));
    effects.push_back(live.on(event));
  };
  record(ready(1));
  for (std::uint64_t id = 1; id <= 6; ++id) {
    record(request(id, static_cast<std::uint32_t>(2 + id), 25));
    if (live.awaited() > 0) record(StepDone{StepResult(live.next_result())});
  }
  record(cancelled(4));
  record(lost(1));
  record(ready(2));
  while (live.awaited() > 0) record(StepDone{StepResult(live.next_result())});
  ASSERT_EQ(live.broken(), "");
  EXPECT_GT(live.stats().preemptions, 0u);

  auto again = scheduler::Core::create(*from_config_line(to_config_line(config)));
  ASSERT_TRUE(again.ok());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto event = from_line(lines[i]);
    ASSERT_TRUE(event.ok()) << lines[i];
    const auto replayed = (*again)->on(*event);
    ASSERT_EQ(std::vector<Effect>(replayed.begin(), replayed.end()), effects[i]) << "after " << lines[i];
  }
}

}  // namespace
}  // namespace althing::tests
