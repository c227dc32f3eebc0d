// What each event's line holds: the writer and the reader of an event name the same fields in the same order (journal_fields.hpp says how a
// field looks). A new field needs a new format_version, or old journals would be misread.
#include "scheduler/journal.hpp"

#include <bit>
#include <utility>

#include "scheduler/journal_fields.hpp"

namespace althing::scheduler {
namespace {

constexpr std::string_view header_word = "althing-journal";
constexpr std::uint32_t format_version = 8;

std::string write(const Submitted& e, JournalText text) {
  const SamplingParameters& s = e.sampling;
  LineWriter line("submitted");
  line.number("request", e.request.value).number("choices", e.choices).number("trace_top_m", e.trace_top_m).number("deadline_ms", e.deadline_ms);
  line.bits("temperature", s.temperature).bits("top_p", s.top_p).number("top_k", s.top_k).bits("min_p", s.min_p);
  line.number("seed", s.seed).number("choice", s.choice).number("completion_tokens_max", s.completion_tokens_max);
  line.number("ignore_stop", s.ignore_stop ? 1 : 0).numbers("stop_tokens", s.stop_tokens).numbers("boundaries", e.boundaries);
  line.bits("repetition_penalty", s.repetition_penalty).bits("presence_penalty", s.presence_penalty);
  line.bits("frequency_penalty", s.frequency_penalty).number("logprobs", s.logprobs ? 1 : 0).number("top_logprobs", s.top_logprobs);
  std::string biases;
  for (const TokenBias& entry : s.logit_bias)
    biases += (biases.empty() ? "" : ",") + std::to_string(entry.token) + ':' + std::to_string(std::bit_cast<std::uint32_t>(entry.bias));
  line.raw("logit_bias", biases);
  const auto tokens = [&](std::string_view key, const std::vector<TokenId>& ids) {
    if (text == JournalText::redacted)
      line.raw(key, "#" + std::to_string(ids.size()));
    else
      line.numbers(key, ids);
  };
  line.raw("salt", std::to_string(e.salt.high) + ':' + std::to_string(e.salt.low));
  line.number("tenant", e.tenant.value).raw("priority", std::to_string(e.priority));
  tokens("prompt", e.prompt);
  tokens("drawn", e.drawn);
  line.number("constrained", e.constrained ? 1 : 0).number("draws_ready", e.draws_ready);
  return line.take();
}

std::string write(const Cancelled& e, JournalText) {
  return LineWriter("cancelled")
      .number("request", e.request.value)
      .raw("code", name_of(e.error.code))
      .number("retry_after_ms", e.error.retry_after_ms)
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
  std::string unrestored;
  for (const SlotOfGroup& place : e.result.unrestored)
    unrestored += (unrestored.empty() ? "" : ",") + std::to_string(place.dp_group.value) + ':' + std::to_string(place.slot.value);
  std::string guesses;
  for (const RowGuesses& row : e.result.guesses) {
    guesses += (guesses.empty() ? "" : ",") + std::to_string(row.row.value) + ':' + std::to_string(row.request.value) + ':';
    for (std::size_t i = 0; i < row.tokens.size(); ++i)
      guesses += (i > 0 ? "." : "") + (text == JournalText::redacted ? "#" : std::to_string(row.tokens[i]));
  }
  return LineWriter("step_done")
      .number("step", e.result.step.value)
      .number("epoch", e.result.epoch.value)
      .raw("drawn", drawn)
      .raw("unrestored", unrestored)
      .raw("guesses", guesses)
      .take();
}

std::string groups_text(const std::vector<KvGroup>& groups) {
  std::string text;
  for (const KvGroup& group : groups) {
    if (!text.empty()) text += ',';
    text += std::to_string(group.window) + ':' + std::to_string(group.tokens_per_page);
    for (std::size_t i = 0; i < group.layers.size(); ++i) text += (i == 0 ? ':' : '.') + std::to_string(group.layers[i]);
  }
  return text;
}

// Without a shape the line says 0 groups. Keys are as good as the tokens to whoever can guess these and knows the seed, so they are redacted like
// them.
std::string write(const RanksReady& e, JournalText text) {
  const KvShape shape = e.shape.value_or(KvShape{0, {}});
  LineWriter line("ranks_ready");
  line.number("epoch", e.epoch.value).number("dp_groups", shape.dp_groups).number("page_count", shape.layout.page_count);
  line.number("page_bytes", shape.layout.page_bytes).raw("groups", groups_text(shape.layout.groups));
  line.number("mirror_slots", shape.mirror_slots).number("mirror_identity", shape.mirror_identity);
  if (text == JournalText::redacted && !e.mirrored.empty())
    return line.raw("seed", "#").raw("mirrored", "#" + std::to_string(e.mirrored.size())).take();
  const PageKey seed = text == JournalText::redacted ? PageKey{} : e.mirror_seed;
  std::string pages;
  for (const MirroredPage& page : e.mirrored)
    pages += (pages.empty() ? "" : ",") + std::to_string(page.dp_group.value) + ':' + std::to_string(page.slot.value) + ':' +
             std::to_string(page.key.high) + ':' + std::to_string(page.key.low);
  return line.raw("seed", std::to_string(seed.high) + ':' + std::to_string(seed.low)).raw("mirrored", pages).take();
}
std::string write(const RanksLost& e, JournalText) { return LineWriter("ranks_lost").number("epoch", e.epoch.value).take(); }
std::string write(const Ticked& e, JournalText) { return LineWriter("ticked").number("now_ms", e.now_ms).take(); }
std::string write(const DrainStarted&, JournalText) { return LineWriter("drain_started").take(); }

std::string write(const Stopped& e, JournalText) {
  return LineWriter("stopped").number("request", e.request.value).number("completion_tokens", e.completion_tokens).take();
}

std::string write(const DrawsReady& e, JournalText) {
  return LineWriter("draws_ready").number("request", e.request.value).number("until", e.until).take();
}

// "1:2:3", as many numbers as there are places for them.
template <class... Numbers>
bool read_numbers(std::string_view text, Numbers&... values) {
  std::size_t index = 0;
  const auto one = [&](std::string_view part) {
    std::size_t place = 0;
    const bool read = ((place++ == index && parse(part, values)) || ...);
    ++index;
    return read;
  };
  return split(text, ':', one) && index == sizeof...(values);
}

void read_biases(LineReader& line, std::vector<TokenBias>& target) {
  const auto one = [&](std::string_view part) {
    TokenBias& entry = target.emplace_back();
    std::uint32_t bits = 0;
    const bool read = read_numbers(part, entry.token, bits);
    entry.bias = std::bit_cast<float>(bits);
    return read;
  };
  const auto biases = line.field("logit_bias");
  if (biases && !split(*biases, ',', one)) line.fail("logit_bias", *biases, "token:bits, separated by commas");
}

Submitted read_submitted(LineReader& line) {
  Submitted e;
  SamplingParameters& s = e.sampling;
  line.number("request", e.request);
  line.number("choices", e.choices);
  line.number("trace_top_m", e.trace_top_m);
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
  line.bits("repetition_penalty", s.repetition_penalty);
  line.bits("presence_penalty", s.presence_penalty);
  line.bits("frequency_penalty", s.frequency_penalty);
  line.flag("logprobs", s.logprobs);
  line.number("top_logprobs", s.top_logprobs);
  read_biases(line, s.logit_bias);
  if (const auto salt = line.field("salt"))
    if (!read_numbers(*salt, e.salt.high, e.salt.low)) line.fail("salt", *salt, "two numbers with a colon between");
  line.number("tenant", e.tenant);
  line.number("priority", e.priority);
  line.numbers("prompt", e.prompt);
  line.numbers("drawn", e.drawn);
  line.flag("constrained", e.constrained);
  line.number("draws_ready", e.draws_ready);
  return e;
}

Stopped read_stopped(LineReader& line) {
  Stopped e;
  line.number("request", e.request);
  line.number("completion_tokens", e.completion_tokens);
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
  line.number("retry_after_ms", e.error.retry_after_ms);
  line.text("field", e.error.field);
  line.text("message", e.error.message);
  return e;
}

// row:request:token.token
bool read_guesses(LineReader& line, std::string_view text, RowGuesses& row) {
  int index = 0;
  return split(text, ':',
               [&](std::string_view part) {
                 switch (index++) {
                   case 0:
                     return parse(part, row.row.value);
                   case 1:
                     return parse(part, row.request.value);
                   case 2:
                     return split(part, '.', [&](std::string_view token) {
                       if (token == "#") line.redacted("guesses");
                       return token == "#" || parse(token, row.tokens.emplace_back());
                     });
                   default:
                     return false;
                 }
               }) &&
         index == 3;
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
  if (const auto unrestored = line.field("unrestored")) {
    const auto one = [&](std::string_view part) {
      SlotOfGroup& place = e.result.unrestored.emplace_back();
      return read_numbers(part, place.dp_group.value, place.slot.value);
    };
    if (!split(*unrestored, ',', one)) line.fail("unrestored", *unrestored, "group:slot, separated by commas");
  }
  if (const auto guesses = line.field("guesses"))
    if (!split(*guesses, ',', [&](std::string_view part) { return read_guesses(line, part, e.result.guesses.emplace_back()); }))
      line.fail("guesses", *guesses, "row:request:tokens, separated by commas");
  return e;
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

void read_groups(LineReader& line, std::vector<KvGroup>& target) {
  const auto groups = line.field("groups");
  const auto one = [&](std::string_view part) { return read_group(part, target.emplace_back()); };
  if (groups && !split(*groups, ',', one)) line.fail("groups", *groups, "window:tokens_per_page:layers, separated by commas");
}

RanksReady read_ranks_ready(LineReader& line) {
  RanksReady e;
  KvShape shape;
  line.number("epoch", e.epoch);
  line.number("dp_groups", shape.dp_groups);
  line.number("page_count", shape.layout.page_count);
  line.number("page_bytes", shape.layout.page_bytes);
  read_groups(line, shape.layout.groups);
  line.number("mirror_slots", shape.mirror_slots);
  line.number("mirror_identity", shape.mirror_identity);
  if (shape.dp_groups > 0) e.shape = std::move(shape);
  const auto seed = line.field("seed");
  if (seed == "#") line.redacted("mirrored");
  if (seed && !read_numbers(*seed, e.mirror_seed.high, e.mirror_seed.low)) line.fail("seed", *seed, "two numbers with a colon between");
  if (const auto pages = line.field("mirrored")) {
    const auto one = [&](std::string_view part) {
      MirroredPage& page = e.mirrored.emplace_back();
      return read_numbers(part, page.dp_group.value, page.slot.value, page.key.high, page.key.low);
    };
    if (!split(*pages, ',', one)) line.fail("mirrored", *pages, "group:slot:key:key, separated by commas");
  }
  return e;
}

// An unknown word leaves an error in the reader.
Event read_event(LineReader& line) {
  const std::string_view word = line.word();
  if (word == "submitted") return read_submitted(line);
  if (word == "cancelled") return read_cancelled(line);
  if (word == "step_done") return read_step_done(line);
  if (word == "drain_started") return DrainStarted{};
  if (word == "ranks_ready") return read_ranks_ready(line);
  if (word == "stopped") return read_stopped(line);
  if (word == "draws_ready") {
    DrawsReady ready;
    line.number("request", ready.request);
    line.number("until", ready.until);
    return ready;
  }
  RanksLost lost;
  Ticked ticked;
  if (word == "ranks_lost") return line.number("epoch", lost.epoch), lost;
  if (word == "ticked") return line.number("now_ms", ticked.now_ms), ticked;
  line.unknown_word("an event");
  return DrainStarted{};
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
  LineWriter line("config");
  line.number("rows_max", l.rows_max).number("step_tokens_max", l.step_tokens_max).number("prefill_chunk_max", l.prefill_chunk_max);
  line.number("steps_in_flight_max", l.steps_in_flight_max).number("sequences_max", l.sequences_max);
  line.number("context_tokens_max", l.context_tokens_max).number("completion_tokens_max", l.completion_tokens_max);
  line.number("stop_tokens_max", l.stop_tokens_max).number("choices_max", l.choices_max);
  line.number("logit_bias_max", l.logit_bias_max);
  line.number("traces_max", l.traces_max).number("trace_top_m_max", l.trace_top_m_max).number("vocabulary", config.vocabulary);
  line.number("dp_groups", config.dp_groups);
  line.number("mirror_slots", config.mirror_slots).number("mirror_identity", config.mirror_identity);
  line.number("share_prefixes", config.share_prefixes ? 1 : 0);
  line.number("speculation_tokens_max", l.speculation_tokens_max).number("draft_model", l.draft_model ? 1 : 0);
  line.number("tenant_sequences_max", l.tenant_sequences_max).number("priority_ms", l.priority_ms).number("deadline_near_ms", l.deadline_near_ms);
  line.number("page_count", config.kv.page_count).number("page_bytes", config.kv.page_bytes).raw("groups", groups_text(config.kv.groups));
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
  line.number("choices_max", l.choices_max);
  line.number("logit_bias_max", l.logit_bias_max);
  line.number("traces_max", l.traces_max);
  line.number("trace_top_m_max", l.trace_top_m_max);
  line.number("vocabulary", config.vocabulary);
  line.number("dp_groups", config.dp_groups);
  line.number("mirror_slots", config.mirror_slots);
  line.number("mirror_identity", config.mirror_identity);
  line.flag("share_prefixes", config.share_prefixes);
  line.number("speculation_tokens_max", l.speculation_tokens_max);
  line.flag("draft_model", l.draft_model);
  line.number("tenant_sequences_max", l.tenant_sequences_max);
  line.number("priority_ms", l.priority_ms);
  line.number("deadline_near_ms", l.deadline_near_ms);
  line.number("page_count", config.kv.page_count);
  line.number("page_bytes", config.kv.page_bytes);
  read_groups(line, config.kv.groups);
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
