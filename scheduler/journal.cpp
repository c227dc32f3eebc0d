// What each event's line holds: the writer and the reader of an event name the same fields in the same order (journal_fields.hpp says how a
// field looks). A new field needs a new format_version, or old journals would be misread.
#include "scheduler/journal.hpp"

#include <utility>

#include "scheduler/journal_fields.hpp"

namespace althing::scheduler {
namespace {

constexpr std::string_view header_word = "althing-journal";
constexpr std::uint32_t format_version = 1;

std::string write(const Submitted& e, JournalText text) {
  const SamplingParameters& s = e.sampling;
  LineWriter line("submitted");
  line.number("request", e.request.value).number("deadline_ms", e.deadline_ms);
  line.bits("temperature", s.temperature).bits("top_p", s.top_p).number("top_k", s.top_k).bits("min_p", s.min_p);
  line.number("seed", s.seed).number("choice", s.choice).number("completion_tokens_max", s.completion_tokens_max);
  line.number("ignore_stop", s.ignore_stop ? 1 : 0).numbers("stop_tokens", s.stop_tokens).numbers("boundaries", e.boundaries);
  if (text == JournalText::redacted)
    line.raw("prompt", "#" + std::to_string(e.prompt.size()));
  else
    line.numbers("prompt", e.prompt);
  return line.take();
}

std::string write(const Cancelled& e, JournalText) {
  return LineWriter("cancelled")
      .number("request", e.request.value)
      .raw("code", name_of(e.error.code))
      .text("field", e.error.field)
      .text("message", e.error.message)
      .take();
}

std::string write(const StepDone& e, JournalText text) {
  std::string drawn;
  for (const DrawnToken& d : e.result.drawn) {
    if (!drawn.empty()) drawn += ',';
    drawn += std::to_string(d.row.value) + ':' + std::to_string(d.request.value) + ':';
    drawn += (text == JournalText::redacted ? "#" : std::to_string(d.token)) + (d.nonfinite ? ":1" : ":0");
  }
  return LineWriter("step_done").number("step", e.result.step.value).number("epoch", e.result.epoch.value).raw("drawn", drawn).take();
}

std::string write(const RanksReady& e, JournalText) { return LineWriter("ranks_ready").number("epoch", e.epoch.value).take(); }
std::string write(const RanksLost& e, JournalText) { return LineWriter("ranks_lost").number("epoch", e.epoch.value).take(); }
std::string write(const Ticked& e, JournalText) { return LineWriter("ticked").number("now_ms", e.now_ms).take(); }
std::string write(const DrainStarted&, JournalText) { return LineWriter("drain_started").take(); }

Submitted read_submitted(LineReader& line) {
  Submitted e;
  SamplingParameters& s = e.sampling;
  line.number("request", e.request);
  line.number("deadline_ms", e.deadline_ms);
  line.bits("temperature", s.temperature);
  line.bits("top_p", s.top_p);
  line.number("top_k", s.top_k);
  line.bits("min_p", s.min_p);
  line.number("seed", s.seed);
  line.number("choice", s.choice);
  line.number("completion_tokens_max", s.completion_tokens_max);
  line.flag("ignore_stop", s.ignore_stop);
  line.numbers("stop_tokens", s.stop_tokens);
  line.numbers("boundaries", e.boundaries);
  line.numbers("prompt", e.prompt);
  return e;
}

Cancelled read_cancelled(LineReader& line) {
  Cancelled e;
  line.number("request", e.request);
  if (const auto code = line.field("code")) {
    int i = 0;
    while (i < error_code_count && name_of(static_cast<ErrorCode>(i)) != *code) ++i;
    if (i == error_code_count)
      line.fail("code", *code, "the name of an error code");
    else
      e.error.code = static_cast<ErrorCode>(i);
  }
  line.text("field", e.error.field);
  line.text("message", e.error.message);
  return e;
}

StepDone read_step_done(LineReader& line) {
  StepDone e;
  line.number("step", e.result.step);
  line.number("epoch", e.result.epoch);
  const auto drawn = line.field("drawn");
  if (!drawn) return e;
  const bool whole = split(*drawn, ',', [&](std::string_view part) {
    DrawnToken& d = e.result.drawn.emplace_back();
    int index = 0;
    return split(part, ':',
                 [&](std::string_view text) {
                   switch (index++) {
                     case 0:
                       return parse(text, d.row.value);
                     case 1:
                       return parse(text, d.request.value);
                     case 2:
                       if (text == "#") line.redacted("drawn");
                       return text == "#" || parse(text, d.token);
                     case 3:
                       d.nonfinite = text == "1";
                       return text == "0" || text == "1";
                     default:
                       return false;
                   }
                 }) &&
           index == 4;
  });
  if (!whole) line.fail("drawn", *drawn, "row:request:token:nonfinite, separated by commas");
  return e;
}

// An unknown word leaves an error in the reader.
Event read_event(LineReader& line) {
  const std::string_view word = line.word();
  if (word == "submitted") return read_submitted(line);
  if (word == "cancelled") return read_cancelled(line);
  if (word == "step_done") return read_step_done(line);
  if (word == "drain_started") return DrainStarted{};
  RanksReady ready;
  RanksLost lost;
  Ticked ticked;
  if (word == "ranks_ready") return line.number("epoch", ready.epoch), ready;
  if (word == "ranks_lost") return line.number("epoch", lost.epoch), lost;
  if (word == "ticked") return line.number("now_ms", ticked.now_ms), ticked;
  line.unknown_word("an event");
  return DrainStarted{};
}

// window:tokens_per_page:layer.layer.layer
bool read_group(std::string_view text, KvGroup& group) {
  int index = 0;
  return split(text, ':',
               [&](std::string_view part) {
                 switch (index++) {
                   case 0:
                     return parse(part, group.window);
                   case 1:
                     return parse(part, group.tokens_per_page);
                   case 2:
                     return split(part, '.', [&](std::string_view layer) { return parse(layer, group.layers.emplace_back()); });
                   default:
                     return false;
                 }
               }) &&
         index >= 2;
}

}  // namespace

std::string journal_header() { return std::string(header_word) + ' ' + std::to_string(format_version); }

Status check_journal_header(std::string_view line) {
  if (line == journal_header()) return Ok{};
  if (line.substr(0, line.find(' ')) == header_word)
    return Error{ErrorCode::version,
                 "the journal's first line is \"" + std::string(line.substr(0, 60)) + "\" and this build reads \"" + journal_header() +
                     "\"; replay it with the build that wrote it",
                 "journal"};
  return Error{ErrorCode::corrupt, "not a journal: the first line is \"" + std::string(line.substr(0, 60)) + "\", not \"" + journal_header() + "\"",
               "journal"};
}

std::string to_config_line(const CoreConfig& config) {
  const Limits& l = config.limits;
  std::string groups;
  for (const KvGroup& group : config.kv.groups) {
    if (!groups.empty()) groups += ',';
    groups += std::to_string(group.window) + ':' + std::to_string(group.tokens_per_page);
    for (std::size_t i = 0; i < group.layers.size(); ++i) groups += (i == 0 ? ':' : '.') + std::to_string(group.layers[i]);
  }
  LineWriter line("config");
  line.number("rows_max", l.rows_max).number("step_tokens_max", l.step_tokens_max).number("prefill_chunk_max", l.prefill_chunk_max);
  line.number("steps_in_flight_max", l.steps_in_flight_max).number("sequences_max", l.sequences_max);
  line.number("context_tokens_max", l.context_tokens_max).number("completion_tokens_max", l.completion_tokens_max);
  line.number("stop_tokens_max", l.stop_tokens_max).number("vocabulary", config.vocabulary);
  line.number("page_count", config.kv.page_count).number("page_bytes", config.kv.page_bytes).raw("groups", groups);
  return line.take();
}

Result<CoreConfig> from_config_line(std::string_view text) {
  CoreConfig config;
  Limits& l = config.limits;
  LineReader line(text);
  if (line.word() != "config") return Error{ErrorCode::corrupt, "journal line: expected the config line after the header", "config"};
  line.number("rows_max", l.rows_max);
  line.number("step_tokens_max", l.step_tokens_max);
  line.number("prefill_chunk_max", l.prefill_chunk_max);
  line.number("steps_in_flight_max", l.steps_in_flight_max);
  line.number("sequences_max", l.sequences_max);
  line.number("context_tokens_max", l.context_tokens_max);
  line.number("completion_tokens_max", l.completion_tokens_max);
  line.number("stop_tokens_max", l.stop_tokens_max);
  line.number("vocabulary", config.vocabulary);
  line.number("page_count", config.kv.page_count);
  line.number("page_bytes", config.kv.page_bytes);
  if (const auto groups = line.field("groups")) {
    const auto one = [&](std::string_view part) { return read_group(part, config.kv.groups.emplace_back()); };
    if (!split(*groups, ',', one)) line.fail("groups", *groups, "window:tokens_per_page:layers, separated by commas");
  }
  line.end();
  if (line.error()) return *line.error();
  return config;
}

std::string to_line(const Event& event, JournalText text) {
  return std::visit([text](const auto& e) { return write(e, text); }, event);
}

Result<Event> from_line(std::string_view text) {
  LineReader line(text);
  Event event = read_event(line);
  line.end();
  if (line.error()) return *line.error();
  return event;
}

}  // namespace althing::scheduler
