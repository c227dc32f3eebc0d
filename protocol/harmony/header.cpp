// The channel is cut out first, wherever it stands; what is left are words, and their number and a leading to= say what they are.
#include "protocol/harmony/header.hpp"

#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/tokenizer/character_class.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::harmony {
namespace {

constexpr std::string_view recipient_prefix = "to=";

struct Words {
  std::optional<std::string> channel;
  std::vector<std::string> words;  // not empty strings; from `first` on, the earlier ones are used up
  std::size_t first = 0;

  bool empty() const { return first == words.size(); }
  std::size_t size() const { return words.size() - first; }
  std::string pop_back() {
    std::string last = std::move(words.back());
    words.pop_back();
    return last;
  }
  std::string joined() const {
    std::string text;
    for (std::size_t i = first; i < words.size(); ++i) text += (i > first ? " " : "") + words[i];
    return text;
  }
};

Error header_error(const char* kind, std::string message) { return {ErrorCode::corrupt, std::move(message), kind}; }

// Bytes of the White_Space character at `at`, or 0; any byte inside a character counts as none.
std::size_t whitespace_bytes(std::string_view text, std::size_t at) {
  const Utf8Step step = utf8_step(text, at);
  return step.kind == Utf8Kind::valid && (class_of(step.code_point) & character_class::space) ? step.length : 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const std::size_t space = whitespace_bytes(text, 0);
    if (space == 0) break;
    text.remove_prefix(space);
  }
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (whitespace_bytes(text, last) == 0) break;
    text = text.substr(0, last);
  }
  return text;
}

// Takes the first channel marker and its value out of `text`. An empty value is an error, which the empty channel tells.
std::optional<std::string> take_channel(std::string& text) {
  const std::size_t marker = text.find(channel_marker);
  if (marker == std::string::npos) return std::nullopt;
  const std::size_t begin = marker + channel_marker.size();
  std::size_t end = begin;
  while (end < text.size() && text[end] != '<' && whitespace_bytes(text, end) == 0) ++end;
  std::string channel = text.substr(begin, end - begin);
  text.erase(marker, end - marker);
  return channel;
}

// Splits at ASCII whitespace and before every constrain marker.
std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
    if ((space || text.substr(i).starts_with(constrain_marker)) && !words.back().empty()) words.emplace_back();
    if (!space) words.back() += c;
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Result<Words> words_of(std::string_view text) {
  std::string rest(text);
  Words words;
  words.channel = take_channel(rest);
  if (words.channel && words.channel->empty()) return header_error("empty_channel", "channel marker present but no channel value found in header");
  words.words = split(trimmed(rest));
  return words;
}

// The role and, for a tool, its name; their words are used up.
Result<ParsedHeader> take_role(Words& words, std::optional<Role> role) {
  ParsedHeader header;
  header.channel = words.channel;
  if (role) {
    header.role = *role;
  } else {
    if (words.empty()) return header_error("missing_role", "message header did not contain a role");
    const std::string& word = words.words[words.first];
    if (const auto known = role_of(word)) {
      header.role = *known;
    } else if (words.size() > 1 || word.starts_with(recipient_prefix)) {
      header.role = Role::tool;
    } else {
      return header_error("unknown_role", "Unknown role: " + word);
    }
    if (header.role == Role::tool) header.name = word;
    if (!role_of(word)) ++words.first;
  }
  if (!words.empty() && words.words[words.first] == name_of(header.role)) ++words.first;
  return header;
}

std::string without_prefix(const std::string& word) { return word.starts_with(recipient_prefix) ? word.substr(recipient_prefix.size()) : word; }

void take_recipient_and_type(Words& words, ParsedHeader& header) {
  if (words.empty()) return;
  const bool alone = words.size() == 1;
  std::string last = words.pop_back();
  if (last.starts_with(recipient_prefix) || alone) {
    header.recipient = without_prefix(last);
    return;
  }
  header.content_type = std::move(last);
  header.recipient = without_prefix(words.pop_back());
}

// As Rust prints a string for debugging. Words hold no ASCII whitespace but a vertical tab.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const unsigned code = static_cast<unsigned char>(c);
    if (code == 0) {
      out += "\\0";
    } else if (code < 0x20 || code == 0x7F) {
      constexpr char digits[] = "0123456789abcdef";
      out += std::string("\\u{") + (code >= 0x10 ? std::string(1, digits[code >> 4]) : "") + digits[code & 15] + "}";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

Result<ParsedHeader> parse_header(std::string_view text, std::optional<Role> role) {
  Result<Words> words = words_of(text);
  if (!words) return std::move(words).error();
  Result<ParsedHeader> header = take_role(*words, role);
  if (!header) return header;
  take_recipient_and_type(*words, *header);
  if (!words->empty()) return header_error("header_leftover", "unexpected tokens remaining in message header: Some(" + quoted(words->joined()) + ")");
  return header;
}

Result<UnfinishedMessage> parse_unfinished(std::string_view text, Role role) {
  Result<Words> words = words_of(text);
  if (!words) return std::move(words).error();
  Result<ParsedHeader> header = take_role(*words, role);
  if (!header) return std::move(header).error();
  return UnfinishedMessage{*std::move(header), words->joined()};
}

}  // namespace althing::protocol::harmony
