// See the header.
#include "protocol/grammar/json_pieces.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::grammar {
namespace {

constexpr std::uint32_t indent_max = 32;

void add_hex(AutomatonBuilder& builder, State from, std::uint8_t first, std::uint8_t last, State to) {
  // A digit's value from first to last, in digits and in letters of both cases.
  const auto at = [](std::uint8_t value, char ten) { return static_cast<std::uint8_t>(value < 10 ? '0' + value : ten + value - 10); };
  if (first < 10) builder.bytes(from, at(first, 'a'), at(std::min<std::uint8_t>(last, 9), 'a'), to);
  if (last < 10) return;
  const std::uint8_t from_ten = std::max<std::uint8_t>(first, 10);
  builder.bytes(from, at(from_ten, 'a'), at(last, 'a'), to);
  builder.bytes(from, at(from_ten, 'A'), at(last, 'A'), to);
}

State hex(AutomatonBuilder& builder, State from, std::uint8_t first = 0, std::uint8_t last = 15) {
  const State to = builder.add_state();
  add_hex(builder, from, first, last, to);
  return to;
}

CodePointSet unescaped() { return CodePointSet({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, code_point_max}}); }

// Behind \u: four digits of a character, or of the two halves of one; half a character alone is none.
void add_unicode_escape(AutomatonBuilder& builder, State from, State to) {
  const State low = hex(builder, from, 0, 12), d = hex(builder, from, 13, 13), high = hex(builder, from, 14, 15);
  const State second = builder.add_state();
  add_hex(builder, low, 0, 15, second);
  add_hex(builder, high, 0, 15, second);
  add_hex(builder, d, 0, 7, second);
  add_hex(builder, hex(builder, second), 0, 15, to);
  const State half = builder.literal(hex(builder, hex(builder, hex(builder, d, 8, 11))), "\\u");
  const State other = hex(builder, hex(builder, half, 13, 13), 12, 15);
  add_hex(builder, hex(builder, other), 0, 15, to);
}

}  // namespace

Rule JsonPieces::line_space() {
  if (line_space_) return *line_space_;
  const Rule rule = *(line_space_ = builder_.add_rule());
  const State end = builder_.end(rule);
  builder_.free(builder_.start(rule), end);
  builder_.literal(builder_.start(rule), " ", end);
  State at = builder_.literal(builder_.start(rule), "\n");
  builder_.free(at, end);
  for (std::uint32_t i = 0; i < indent_max; ++i) {
    at = builder_.literal(at, " ");
    builder_.free(at, end);
  }
  return rule;
}

Rule JsonPieces::colon() {
  if (colon_) return *colon_;
  const Rule rule = *(colon_ = builder_.add_rule());
  const State at = builder_.literal(builder_.start(rule), ":");
  builder_.free(at, builder_.end(rule));
  builder_.literal(at, " ", builder_.end(rule));
  return rule;
}

Rule JsonPieces::character() {
  if (character_) return *character_;
  const Rule rule = *(character_ = builder_.add_rule());
  const State start = builder_.start(rule), end = builder_.end(rule);
  add_characters(builder_, start, unescaped(), Spelling::plain, end);
  const State escape = builder_.literal(start, "\\");
  for (const char c : std::string_view("\"\\/bfnrt")) builder_.bytes(escape, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), end);
  add_unicode_escape(builder_, builder_.literal(escape, "u"), end);
  return rule;
}

Rule JsonPieces::string() {
  if (string_) return *string_;
  const Rule rule = *(string_ = builder_.add_rule());
  add_string(builder_.start(rule), {}, builder_.end(rule));
  return rule;
}

void JsonPieces::add_string(State from, Lengths lengths, State to) {
  State at = builder_.literal(from, "\"");
  for (std::uint32_t i = 0; i < lengths.least && !builder_.full(); ++i) at = builder_.call(at, character());
  if (lengths.most == Lengths{}.most) {
    const State loop = builder_.add_state();
    builder_.free(at, loop);
    builder_.call(loop, character(), loop);
    return builder_.literal(loop, "\"", to);
  }
  for (std::uint32_t i = lengths.least; i < lengths.most && !builder_.full(); ++i) {
    builder_.literal(at, "\"", to);
    at = builder_.call(at, character());
  }
  builder_.literal(at, "\"", to);
}

Rule JsonPieces::number() {
  if (number_) return *number_;
  const Rule rule = *(number_ = builder_.add_rule());
  add_number(builder_, builder_.start(rule), builder_.end(rule));
  return rule;
}

Rule JsonPieces::integer() {
  if (integer_) return *integer_;
  const Rule rule = *(integer_ = builder_.add_rule());
  add_integer(builder_, builder_.start(rule), {}, builder_.end(rule));
  return rule;
}

Rule JsonPieces::value() {
  if (value_) return *value_;
  const Rule rule = *(value_ = builder_.add_rule());
  const State start = builder_.start(rule), end = builder_.end(rule);
  add_literals(start, {"null", "true", "false"}, end);
  for (const Rule kind : {string(), number(), object(), array()}) builder_.call(start, kind, end);
  return rule;
}

Rule JsonPieces::object() {
  if (object_) return *object_;
  const Rule rule = *(object_ = builder_.add_rule());
  const State open = builder_.literal(builder_.start(rule), "{");
  builder_.literal(open, "}", builder_.end(rule));
  const State member = builder_.call(open, line_space());
  const State after = builder_.call(builder_.call(builder_.call(member, string()), colon()), value());
  builder_.free(builder_.call(builder_.literal(after, ","), line_space()), member);
  builder_.literal(builder_.call(after, line_space()), "}", builder_.end(rule));
  return rule;
}

Rule JsonPieces::array() {
  if (array_) return *array_;
  const Rule rule = *(array_ = builder_.add_rule());
  const State open = builder_.literal(builder_.start(rule), "[");
  builder_.literal(open, "]", builder_.end(rule));
  const State item = builder_.call(open, line_space());
  const State after = builder_.call(item, value());
  builder_.free(builder_.call(builder_.literal(after, ","), line_space()), item);
  builder_.literal(builder_.call(after, line_space()), "]", builder_.end(rule));
  return rule;
}

Rule JsonPieces::key_except(const std::vector<std::string>& names) {
  const Rule rule = builder_.add_rule();
  struct Place {
    State state = 0;
    bool is_name = false;
    std::map<char32_t, std::size_t> next{};
  };
  std::vector<Place> places{{builder_.literal(builder_.start(rule), "\"")}};
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < name.size();) {
      const Utf8Step c = utf8_step(name, i);
      i += c.length;
      const auto [found, is_new] = places[at].next.try_emplace(c.code_point, places.size());
      at = found->second;
      if (is_new) places.push_back({builder_.add_state()});
    }
    places[at].is_name = true;
  }
  const State any = builder_.add_state();
  builder_.call(any, characters_.of(unescaped()), any);
  builder_.literal(any, "\"", builder_.end(rule));
  for (const Place& place : places) {
    std::vector<CodePoints> taken;
    for (const auto& [c, target] : place.next) {
      taken.push_back({c, c});
      // A name that needs an escape can never be written here.
      if (c >= 0x20 && c != '"' && c != '\\') add_characters(builder_, place.state, CodePointSet({{c, c}}), Spelling::plain, places[target].state);
    }
    CodePointSet others = unescaped().complement();
    others.add(CodePointSet(taken));
    add_characters(builder_, place.state, others.complement(), Spelling::plain, any);
    if (!place.is_name) builder_.literal(place.state, "\"", builder_.end(rule));
  }
  return rule;
}

void JsonPieces::add_literals(State from, const std::vector<std::string>& texts, State to) {
  std::map<std::string, State, std::less<>> made{{"", from}};
  for (const std::string& text : texts) {
    State at = from;
    for (std::size_t i = 1; i <= text.size() && !builder_.full(); ++i) {
      const auto [found, is_new] = made.try_emplace(text.substr(0, i), 0);
      if (is_new) {
        found->second = builder_.add_state();
        const auto byte = static_cast<std::uint8_t>(text[i - 1]);
        builder_.bytes(at, byte, byte, found->second);
      }
      at = found->second;
    }
    builder_.free(at, to);
  }
}

}  // namespace althing::protocol::grammar
