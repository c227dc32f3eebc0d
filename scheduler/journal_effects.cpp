// Effects as text: see the header. Lists are joined with commas, the parts of an entry with colons.
#include "scheduler/journal_effects.hpp"

#include <bit>

#include "scheduler/journal_fields.hpp"

namespace althing::scheduler {
namespace {

constexpr std::string_view effects_word = "effects", continued_word = "continued";

template <class List, class Text>
std::string listed(const List& list, Text text, char between = ',') {
  std::string all;
  for (const auto& entry : list) {
    if (!all.empty()) all += between;
    all += text(entry);
  }
  return all;
}

std::string word(std::uint64_t number) { return std::to_string(number); }

template <class... Rest>
std::string word(std::uint64_t first, Rest... rest) {
  return std::to_string(first) + ':' + word(rest...);
}

std::string text_of(const MirrorPage& page) {
  return word(page.dp_group.value, page.group, page.page.value, page.slot.value, page.key.high, page.key.low);
}
std::string text_of(const LeftPage& left) { return word(left.dp_group.value, left.page.value); }
std::string text_of(const SlotOfGroup& place) { return word(place.dp_group.value, place.slot.value); }

// A row's sampling is the request's, which its submission says in full; only what the core changes of it stands here, and what must not be mixed up.
std::string text_of(const RowSetup& setup) {
  return word(setup.row.value, setup.request.value, setup.dp_group.value, setup.trace_top_m, setup.sampling.seed, setup.sampling.choice,
              setup.sampling.completion_tokens_max, setup.prompt_count, setup.drafted ? 1U : 0U) +
         ':' +
         listed(
             setup.tokens, [](TokenId token) { return word(token); }, '.');
}

std::string text_of(const PageGrant& grant) {
  return word(grant.row.value, grant.group, grant.first, grant.kept ? 1U : 0U) + ':' +
         listed(
             grant.pages, [](PageId page) { return word(page.value); }, '.');
}

// The core leaves masks empty.
std::string text_of(const RowWork& work) {
  return word(work.row.value, work.start, work.count, work.sample ? work.draws : 0U, work.guesses) + ':' +
         listed(
             work.tokens, [](TokenId token) { return word(token); }, '.');
}

std::string write(const Accepted& e) { return LineWriter("accepted").number("request", e.request.value).take(); }

LineWriter& write(LineWriter& line, const Error& error) {
  return line.raw("code", name_of(error.code))
      .number("retry_after_ms", error.retry_after_ms)
      .text("field", error.field)
      .text("message", error.message);
}

std::string write(const Rejected& e) {
  LineWriter line("rejected");
  line.number("request", e.request.value);
  return write(line, e.error).take();
}

std::string write(const RunStep& e) {
  const StepPlan& plan = e.plan;
  const auto text = [](const auto& entry) { return text_of(entry); };
  LineWriter line("run_step");
  line.number("step", plan.step.value).number("epoch", plan.epoch.value).number("snapshot", plan.snapshot ? 1 : 0).number("base", plan.base.value);
  line.raw("cleared", listed(plan.cleared, [](RowIndex row) { return word(row.value); })).raw("set", listed(plan.set, text));
  line.raw("pages", listed(plan.pages, text)).raw("scrub", listed(plan.scrub, text)).raw("forget", listed(plan.forget, text));
  line.raw("restore", listed(plan.restore, text)).raw("work", listed(plan.work, text)).raw("mirror", listed(plan.mirror, text));
  return line.take();
}

std::string write(const TokensDrawn& e) {
  LineWriter line("tokens_drawn");
  line.number("request", e.request.value).number("first", e.first).numbers("tokens", e.tokens).number("preemptions", e.preemptions);
  return line.number("cached_tokens", e.cached_tokens).raw("miss", name_of(e.miss)).take();
}

std::string write(const Finished& e) {
  LineWriter line("finished");
  line.number("request", e.request.value).raw("reason", name_of(e.reason)).number("prompt_tokens", e.usage.prompt_tokens);
  line.number("completion_tokens", e.usage.completion_tokens).number("preemptions", e.usage.preemptions);
  line.number("cached_tokens", e.usage.cached_tokens).raw("miss", name_of(e.usage.miss));
  return write(line, e.error).take();
}

std::string write(const Preempted& e) {
  LineWriter line("preempted");
  line.number("request", e.request.value).number("by", e.by.value).raw("cause", name_of(e.cause)).number("tokens", e.tokens);
  return line.take();
}

bool begins_with_word(std::string_view line, std::string_view word) { return line.substr(0, line.find(' ')) == word; }

std::string hexadecimal(std::uint64_t number) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += digits[(number >> shift) & 15u];
  return text;
}

}  // namespace

std::string to_text(const Effect& effect) {
  return std::visit([](const auto& e) { return write(e); }, effect);
}

// FNV-1a, and a newline behind each text.
EffectsDigest digest_of(std::span<const Effect> effects) {
  EffectsDigest digest{effects.size(), 0xcbf2'9ce4'8422'2325u};
  const auto take = [&](char c) { digest.hash = (digest.hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3u; };
  for (const Effect& effect : effects) {
    for (const char c : to_text(effect)) take(c);
    take('\n');
  }
  return digest;
}

std::string to_effects_line(const EffectsDigest& digest) {
  return LineWriter(effects_word).number("count", digest.count).raw("digest", hexadecimal(digest.hash)).take();
}

bool is_effects_line(std::string_view line) { return begins_with_word(line, effects_word); }

Result<EffectsDigest> from_effects_line(std::string_view text) {
  LineReader line(text);
  EffectsDigest digest;
  if (line.word() != effects_word) line.unknown_word("a line of effects");
  line.number("count", digest.count);
  const auto hash = line.field("digest");
  if (hash && (hash->size() != 16 || !parse(*hash, digest.hash, 16))) line.fail("digest", *hash, "16 hexadecimal digits");
  line.end();
  if (line.error()) return *line.error();
  return digest;
}

std::string to_continued_line(std::uint32_t part) { return LineWriter(continued_word).number("part", part).take(); }

bool is_continued_line(std::string_view line) { return begins_with_word(line, continued_word); }

Result<std::uint32_t> from_continued_line(std::string_view text) {
  LineReader line(text);
  std::uint32_t part = 0;
  if (line.word() != continued_word) line.unknown_word("a line that says what the file continues");
  line.number("part", part);
  line.end();
  if (line.error()) return *line.error();
  return part;
}

}  // namespace althing::scheduler
