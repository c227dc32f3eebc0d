// The fields of a journal line: key=value in one fixed order, separated by single spaces. Private to the journal.
// Text is percent-escaped so that it never holds a space, a newline or a control character. Reading is strict: keys in order, numbers in
// range and without leading zeros, nothing left over; the first fault is kept and makes every later read void.
#pragma once

#include <bit>
#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::scheduler {

// Closes every line, so that a line cut short by a crash is never taken for one with a shorter last number.
inline constexpr std::string_view line_end = " .";

class LineWriter {
 public:
  explicit LineWriter(std::string_view word) : line_(word) {}

  LineWriter& number(std::string_view key, std::uint64_t value) {
    field(key);
    line_ += std::to_string(value);
    return *this;
  }
  LineWriter& bits(std::string_view key, float value) {
    field(key);
    constexpr std::string_view digits = "0123456789abcdef";
    const auto pattern = std::bit_cast<std::uint32_t>(value);
    for (int shift = 28; shift >= 0; shift -= 4) line_ += digits[(pattern >> shift) & 15u];
    return *this;
  }
  LineWriter& numbers(std::string_view key, const std::vector<std::uint32_t>& values) {
    field(key);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) line_ += ',';
      line_ += std::to_string(values[i]);
    }
    return *this;
  }
  LineWriter& text(std::string_view key, std::string_view value) {
    field(key);
    constexpr std::string_view digits = "0123456789ABCDEF";
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte > 0x20 && byte < 0x7F && c != '%') {
        line_ += c;
      } else {
        line_ += '%';
        line_ += digits[byte >> 4];
        line_ += digits[byte & 15u];
      }
    }
    return *this;
  }
  LineWriter& raw(std::string_view key, std::string_view value) {
    field(key);
    line_ += value;
    return *this;
  }
  std::string take() { return std::move(line_ += line_end); }

 private:
  void field(std::string_view key) {
    line_ += ' ';
    line_ += key;
    line_ += '=';
  }
  std::string line_;
};

template <std::integral T>
bool parse(std::string_view text, T& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  // A leading zero would be a second way to write the same number.
  const bool plain = base != 10 || text.size() == 1 || (!text.empty() && text[0] != '0' && !text.starts_with("-0"));
  return error == std::errc{} && end == text.data() + text.size() && plain;
}

// Calls `each` for every part; false as soon as one is refused. An empty text has no parts.
template <class Each>
bool split(std::string_view text, char separator, Each each) {
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (!each(text.substr(0, end))) return false;
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + 1);
    if (text.empty()) return false;
  }
  return true;
}

inline int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Reads fields in order. After the first fault every read is void and error() tells what it was.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : line_(line) {
    word_ = line_.substr(0, line_.find(' '));
    at_ = word_.size();
  }

  std::string_view word() const { return word_; }

  template <std::integral T>
  void number(std::string_view key, T& value) {
    const auto text = field(key);
    if (text && !parse(*text, value)) fail(key, *text, "a number that fits");
  }
  template <class Tag, class Representation>
  void number(std::string_view key, Id<Tag, Representation>& id) {
    number(key, id.value);
  }
  void flag(std::string_view key, bool& value) {
    const auto text = field(key);
    if (text && *text != "0" && *text != "1") return fail(key, *text, "0 or 1");
    value = text && *text == "1";
  }
  void bits(std::string_view key, float& value) {
    const auto text = field(key);
    std::uint32_t pattern = 0;
    if (text && (text->size() != 8 || !parse(*text, pattern, 16))) return fail(key, *text, "the 8 hexadecimal digits of a float");
    value = std::bit_cast<float>(pattern);
  }
  void numbers(std::string_view key, std::vector<std::uint32_t>& values) {
    const auto text = field(key);
    if (text && text->starts_with('#')) return redacted(key);
    const auto one = [&](std::string_view part) { return parse(part, values.emplace_back()); };
    if (text && !split(*text, ',', one)) fail(key, *text, "numbers separated by commas");
  }
  void text(std::string_view key, std::string& value) {
    const auto escaped = field(key);
    if (!escaped) return;
    for (std::size_t i = 0; i < escaped->size(); ++i) {
      const char c = (*escaped)[i];
      if (c != '%') {
        value += c;
        continue;
      }
      const int high = i + 2 < escaped->size() ? hex_digit((*escaped)[i + 1]) : -1;
      const int low = i + 2 < escaped->size() ? hex_digit((*escaped)[i + 2]) : -1;
      if (high < 0 || low < 0) return fail(key, *escaped, "text with %XX escapes");
      value += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  std::optional<std::string_view> field(std::string_view key) {
    if (error_) return std::nullopt;
    std::string_view rest = line_.substr(at_);
    if (rest.size() < key.size() + 2 || rest[0] != ' ' || rest.substr(1, key.size()) != key || rest[key.size() + 1] != '=') {
      fault("expected \" " + std::string(key) + "=\" at byte " + std::to_string(at_) + " of a " + std::string(word_) + " line");
      return std::nullopt;
    }
    rest.remove_prefix(key.size() + 2);
    const std::string_view value = rest.substr(0, rest.find(' '));
    at_ += key.size() + 2 + value.size();
    return value;
  }
  void fail(std::string_view key, std::string_view found, std::string_view expected) {
    fault(std::string(key) + " is \"" + std::string(found.substr(0, 40)) + "\"; expected " + std::string(expected));
  }
  void redacted(std::string_view key) {
    if (!error_)
      error_ = Error{ErrorCode::unsupported, "token ids were redacted when this journal was written, so it cannot be replayed; keep ids to replay",
                     std::string(key)};
  }
  void unknown_word(std::string_view expected) { fault('"' + std::string(word_.substr(0, 40)) + "\" is not " + std::string(expected)); }
  void end() {
    if (!error_ && line_.substr(at_).empty()) fault("the line is cut short: its closing \".\" is missing");
    if (!error_ && line_.substr(at_) != line_end) fault("more follows at byte " + std::to_string(at_) + " of a " + std::string(word_) + " line");
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  void fault(std::string message) {
    if (!error_) error_ = Error{ErrorCode::corrupt, "journal line: " + std::move(message), std::string(word_)};
  }

  std::string_view line_;
  std::string_view word_;
  std::size_t at_ = 0;
  std::optional<Error> error_;
};

}  // namespace althing::scheduler
