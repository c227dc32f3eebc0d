// The pattern's seven alternatives in order, the first that matches wins. Each function below is one or two of them and says in its comment
// what the backtracking of a regular expression engine would have found; it returns `begin` when it does not match.
#include "protocol/tokenizer/pretokenizer.hpp"

#include <cstdint>

#include "protocol/tokenizer/character_class.hpp"

namespace althing::protocol {

const std::string_view o200k_pattern =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
    "|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)"
    "|\\s+";

namespace {

using namespace character_class;

struct Character {
  char32_t code_point = 0;
  std::size_t length = 0;  // bytes; 0 past the end of the text
  std::uint8_t classes = 0;

  bool is(std::uint8_t any_of) const { return (classes & any_of) != 0; }
  bool is_line_break() const { return length == 1 && (code_point == '\r' || code_point == '\n'); }
};

// REQUIRES: text is valid UTF-8 and a character begins at `position`, or it is the end.
Character character_at(std::string_view text, std::size_t position) {
  if (position >= text.size()) return {};
  const auto byte = [&](std::size_t i) -> char32_t { return static_cast<std::uint8_t>(text[position + i]); };
  const auto tail = [&](std::size_t i) -> char32_t { return byte(i) & 0x3F; };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1, class_of(first)};
  char32_t code_point = 0;
  std::size_t length = 0;
  if (first < 0xE0) {
    code_point = (first & 0x1F) << 6 | tail(1);
    length = 2;
  } else if (first < 0xF0) {
    code_point = (first & 0x0F) << 12 | tail(1) << 6 | tail(2);
    length = 3;
  } else {
    code_point = (first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    length = 4;
  }
  return {code_point, length, class_of(code_point)};
}

std::size_t skip_run(std::string_view text, std::size_t position, std::uint8_t classes) {
  for (Character c = character_at(text, position); c.is(classes); c = character_at(text, position)) position += c.length;
  return position;
}

// The end of 's 't 're 've 'm 'll 'd at `position` in any case, else `position`. Simple case folding lets U+017F stand for s.
std::size_t contraction_end(std::string_view text, std::size_t position) {
  if (position + 1 >= text.size() || text[position] != '\'') return position;
  const auto lower = [&](std::size_t at) { return at < text.size() ? static_cast<char>(text[at] | 0x20) : '\0'; };
  const char first = lower(position + 1), second = lower(position + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return position + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return position + 3;
  if (text.substr(position + 1, 2) == "\xC5\xBF") return position + 3;
  return position;
}

// Alternatives 1 and 2: an optional prefix (anything but a line break, letter or number), a run of upper, a run of lower, a contraction.
std::size_t word_end(std::string_view text, std::size_t begin) {
  const Character first = character_at(text, begin);
  const bool has_prefix = !first.is(letter | number) && !first.is_line_break();
  const std::size_t run = has_prefix ? begin + first.length : begin;
  std::size_t position = run;
  std::size_t last_lower_end = run;  // past the last character of the upper run that could also be of the lower run
  Character c = character_at(text, position);
  for (; c.is(upper_run); c = character_at(text, position)) {
    position += c.length;
    if (c.is(lower_run)) last_lower_end = position;
  }
  if (c.is(lower_run)) return contraction_end(text, skip_run(text, position, lower_run));
  // Alternative 1 wants a lower character: the upper run gives back until its last one that is.
  if (last_lower_end > run) return contraction_end(text, last_lower_end);
  // Or, without the prefix, the prefix itself, when it is a mark.
  if (has_prefix && first.is(lower_run)) return contraction_end(text, run);
  // Alternative 2 is content with the upper run.
  return position > run ? contraction_end(text, position) : begin;
}

// Alternative 3: up to three numbers.
std::size_t number_end(std::string_view text, std::size_t begin) {
  std::size_t position = begin;
  for (int count = 0; count < 3; ++count) {
    const Character c = character_at(text, position);
    if (!c.is(number)) break;
    position += c.length;
  }
  return position;
}

// Alternative 4: an optional space, a run of what is no space, letter or number, then any line breaks and slashes.
std::size_t punctuation_end(std::string_view text, std::size_t begin) {
  const std::size_t run = text[begin] == ' ' ? begin + 1 : begin;
  std::size_t position = run;
  for (Character c = character_at(text, position); c.length > 0 && !c.is(space | letter | number); c = character_at(text, position))
    position += c.length;
  if (position == run) return begin;
  while (position < text.size() && (text[position] == '\r' || text[position] == '\n' || text[position] == '/')) ++position;
  return position;
}

// Alternatives 5 to 7 for the whole run of spaces: up to its last line break; else all of it at the end of the text; else all but its last
// character, which goes with what follows; else that one character.
std::size_t space_end(std::string_view text, std::size_t begin) {
  std::size_t position = begin, last_begin = begin, line_break_end = begin;
  for (Character c = character_at(text, position); c.is(space); c = character_at(text, position)) {
    last_begin = position;
    position += c.length;
    if (c.is_line_break()) line_break_end = position;
  }
  if (line_break_end > begin) return line_break_end;
  if (position == text.size() || last_begin == begin) return position;
  return last_begin;
}

}  // namespace

std::size_t piece_end(std::string_view text, std::size_t begin) {
  if (const std::size_t end = word_end(text, begin); end > begin) return end;
  if (const std::size_t end = number_end(text, begin); end > begin) return end;
  if (const std::size_t end = punctuation_end(text, begin); end > begin) return end;
  return space_end(text, begin);
}

}  // namespace althing::protocol
