// A journal as a server writes it, lived once more: the same when nothing was touched, and the first thing that differs when something was.
#include "scheduler/replay.hpp"

#include <gmock/gmock.h>

#include "scheduler/journal.hpp"
#include "tests/scheduler/core_script.hpp"

namespace althing::tests {
namespace {

using scheduler::digest_of;
using scheduler::Replay;
using scheduler::to_effects_line;
using scheduler::to_line;
using testing::HasSubstr;

// What the scheduler's shell writes of a short life: requests that share a small pool, a cancel, a membership lost, and an end.
class Journal {
 public:
  Journal() {
    auto config = easy_config();
    config.kv.page_count = 14;
    CoreHarness live(config);
    lines_ = {scheduler::journal_header(), scheduler::to_config_line(config)};
    const auto record = [&](const Event& event) {
      lines_.push_back(to_line(event));
      const auto& effects = live.on(event);
      if (!effects.empty()) lines_.push_back(to_effects_line(digest_of(effects)));
      ++events_;
    };
    record(ready(1));
    for (std::uint64_t id = 1; id <= 6; ++id) {
      record(request(id, static_cast<std::uint32_t>(2 + id), 12));
      record(Ticked{id});
      if (live.awaited() > 0) record(StepDone{StepResult(live.next_result())});
    }
    record(cancelled(4));
    record(lost(1));
    record(ready(2));
    while (live.awaited() > 0) record(StepDone{StepResult(live.next_result())});
    EXPECT_EQ(live.broken(), "");
  }

  const std::vector<std::string>& lines() const { return lines_; }
  std::vector<std::string> copy() const { return lines_; }
  std::uint64_t events() const { return events_; }
  // The first line behind `from` that begins so.
  std::size_t find(const std::string& word, std::size_t from = 0) const {
    for (std::size_t i = from; i < lines_.size(); ++i)
      if (lines_[i].starts_with(word + ' ')) return i;
    ADD_FAILURE() << "no line " << word;
    return 0;
  }

 private:
  std::vector<std::string> lines_;
  std::uint64_t events_ = 0;
};

// Until a difference or an error; its line is the number of lines taken.
struct Replayed {
  Replay replay;
  std::size_t lines = 0;
  std::optional<Error> error;

  explicit Replayed(const std::vector<std::string>& journal) { take(journal); }
  void take(const std::vector<std::string>& journal) {
    replay.begin_file();
    for (const std::string& line : journal) {
      ++lines;
      if (auto status = replay.line(line); !status) error = status.error();
      if (error || replay.difference()) return;
    }
  }
};

TEST(Replay, an_untouched_journal_is_the_same_to_its_end) {
  const Journal journal;
  Replayed replayed(journal.lines());
  replayed.replay.end();
  EXPECT_FALSE(replayed.error) << replayed.error->message;
  EXPECT_FALSE(replayed.replay.difference());
  EXPECT_EQ(replayed.replay.events(), journal.events());
  EXPECT_EQ(replayed.replay.compared(), journal.events());
  EXPECT_EQ(replayed.replay.core()->stats().running, 0u);
}

TEST(Replay, other_effects_are_found_at_their_event) {
  const Journal journal;
  auto lines = journal.copy();
  const std::size_t at = journal.find("effects", lines.size() / 2);
  char& digit = lines[at][lines[at].find("digest=") + 7];
  digit = digit == '0' ? '1' : '0';
  const Replayed replayed(lines);
  ASSERT_TRUE(replayed.replay.difference());
  EXPECT_EQ(replayed.lines, at + 1);
  EXPECT_NE(replayed.replay.difference()->recorded, replayed.replay.difference()->replayed);
  EXPECT_EQ(replayed.replay.difference()->replayed, digest_of(replayed.replay.effects()));
}

TEST(Replay, an_event_that_was_another_leads_to_other_effects) {
  const Journal journal;
  auto lines = journal.copy();
  const std::size_t at = journal.find("cancelled");
  lines[at] = to_line(cancelled(5));
  const Replayed replayed(lines);
  ASSERT_TRUE(replayed.replay.difference());
  EXPECT_EQ(replayed.lines, at + 2);  // the line behind it says what it led to
}

TEST(Replay, effects_that_nobody_wrote_down_differ_at_the_event_that_has_them) {
  const Journal journal;
  auto lines = journal.copy();
  const std::size_t at = journal.find("cancelled");
  ASSERT_TRUE(lines[at + 1].starts_with("effects "));
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  const Replayed replayed(lines);
  ASSERT_TRUE(replayed.replay.difference());
  EXPECT_EQ(replayed.replay.difference()->recorded, digest_of({}));
  // They are still those of the event, and the next one has not been lived.
  EXPECT_EQ(replayed.replay.difference()->replayed, digest_of(replayed.replay.effects()));
  EXPECT_FALSE(all<Finished>(replayed.replay.effects()).empty());
}

TEST(Replay, the_last_event_may_have_died_before_its_effects_were_written) {
  const Journal journal;
  auto lines = journal.copy();
  ASSERT_TRUE(lines.back().starts_with("effects "));
  lines.pop_back();
  Replayed replayed(lines);
  replayed.replay.end();
  EXPECT_FALSE(replayed.replay.difference());
  EXPECT_EQ(replayed.replay.compared(), journal.events() - 1);
}

TEST(Replay, a_redacted_journal_is_refused) {
  const Journal journal;
  auto lines = journal.copy();
  const std::size_t at = journal.find("submitted");
  lines[at] = to_line(request(1, 3, 12), scheduler::JournalText::redacted);
  const Replayed replayed(lines);
  ASSERT_TRUE(replayed.error);
  EXPECT_EQ(replayed.error->code, ErrorCode::unsupported);
  EXPECT_EQ(replayed.lines, at + 1);
  EXPECT_THAT(replayed.error->message, HasSubstr("redacted"));
}

TEST(Replay, what_is_no_journal_is_refused) {
  const auto code = [](const std::vector<std::string>& lines) {
    const Replayed replayed(lines);
    return replayed.error ? std::optional(replayed.error->code) : std::nullopt;
  };
  const Journal journal;
  EXPECT_EQ(code({"{}"}), ErrorCode::corrupt);
  EXPECT_EQ(code({"althing-journal 1"}), ErrorCode::version);
  EXPECT_EQ(code({journal.lines()[0], "config rows_max=1"}), ErrorCode::corrupt);
  EXPECT_EQ(code({journal.lines()[0], journal.lines()[1], "exploded ."}), ErrorCode::corrupt);
  EXPECT_EQ(code({journal.lines()[0], journal.lines()[1], to_effects_line({})}), ErrorCode::corrupt);
  auto impossible = easy_config();
  impossible.kv.page_count = 1;
  EXPECT_EQ(code({journal.lines()[0], scheduler::to_config_line(impossible)}), ErrorCode::too_large);
  // A damaged number does not take the machine's memory.
  auto huge = easy_config();
  huge.kv.page_count = 4'000'000'000;
  EXPECT_EQ(code({journal.lines()[0], scheduler::to_config_line(huge)}), ErrorCode::corrupt);
  huge = easy_config();
  huge.limits.rows_max = huge.limits.step_tokens_max = huge.limits.sequences_max = 4'000'000'000;
  EXPECT_EQ(code({journal.lines()[0], scheduler::to_config_line(huge)}), ErrorCode::corrupt);
  const RanksReady wide{EpochId{1}, KvShape{64, huge.kv, 4'000'000'000, 0}, {}, {}};
  EXPECT_EQ(code({journal.lines()[0], journal.lines()[1], to_line(wide)}), ErrorCode::corrupt);
}

TEST(Replay, a_journal_of_several_files_is_one_life) {
  const Journal journal;
  const auto& lines = journal.lines();
  const auto middle = lines.begin() + static_cast<std::ptrdiff_t>(journal.find("effects", lines.size() / 2));  // between an event and its effects
  const std::vector<std::string> first(lines.begin(), middle);
  std::vector<std::string> second = {lines[0], lines[1], scheduler::to_continued_line(2)};
  second.insert(second.end(), middle, lines.end());
  Replayed both(first);
  both.take(second);
  EXPECT_FALSE(both.error) << both.error->message;
  EXPECT_FALSE(both.replay.difference());
  EXPECT_EQ(both.replay.compared(), journal.events());

  const Replayed alone(second);
  ASSERT_TRUE(alone.error);
  EXPECT_EQ(alone.error->code, ErrorCode::unsupported);
  EXPECT_THAT(alone.error->message, HasSubstr("part 2"));
  Replayed twice(first);
  twice.take(first);
  ASSERT_TRUE(twice.error);
  EXPECT_EQ(twice.error->code, ErrorCode::invalid_argument);
  second[1] = scheduler::to_config_line(easy_config());
  Replayed other(first);
  other.take(second);
  ASSERT_TRUE(other.error);
  EXPECT_EQ(other.error->code, ErrorCode::invalid_argument);
}

TEST(Replay, lines_of_effects_and_of_parts_come_back_and_are_refused_when_damaged) {
  const scheduler::EffectsDigest digest{3, 0x0123'4567'89AB'CDEFu};
  const auto back = scheduler::from_effects_line(to_effects_line(digest));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, digest);
  EXPECT_EQ(*scheduler::from_continued_line(scheduler::to_continued_line(7)), 7u);
  const std::string line = to_effects_line(digest);
  for (std::size_t length = 0; length < line.size(); ++length) EXPECT_FALSE(scheduler::from_effects_line(line.substr(0, length)).ok());
  EXPECT_FALSE(scheduler::from_effects_line("effects count=1 digest=12 .").ok());
  EXPECT_FALSE(scheduler::from_effects_line("effects count=x digest=0123456789abcdef .").ok());
  EXPECT_FALSE(scheduler::from_continued_line("continued part= .").ok());
}

TEST(Replay, every_effect_has_a_text_and_a_digest_of_its_own) {
  StepPlan plan;
  plan.work = {{RowIndex{1}, 2, 1, {7}, true}};
  std::vector<Effect> effects;
  effects.emplace_back(Accepted{RequestId{1}});
  effects.emplace_back(Rejected{RequestId{1}, Error{ErrorCode::busy, "full: try again", {}, 70}});
  effects.emplace_back(RunStep{plan});
  effects.emplace_back(TokensDrawn{RequestId{1}, 2, {3}, 0, {}, 0, PrefixMiss::none});
  effects.emplace_back(Finished{RequestId{1}, FinishReason::length, {1, 2, 0, 0, PrefixMiss::cold}, {}});
  effects.emplace_back(Preempted{RequestId{1}, RequestId{2}, PreemptionCause::share, 9});
  plan.work[0].tokens[0] = 8;
  effects.emplace_back(RunStep{plan});
  plan.work[0].draws = 2;
  effects.emplace_back(RunStep{plan});
  std::set<std::uint64_t> digests;
  for (const Effect& effect : effects) {
    EXPECT_EQ(scheduler::to_text(effect).find('\n'), std::string::npos);
    digests.insert(digest_of({&effect, 1}).hash);
  }
  EXPECT_EQ(digests.size(), effects.size());
}

}  // namespace
}  // namespace althing::tests
