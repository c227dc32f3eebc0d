// The invariant all of this keeps: what is given out is valid UTF-8, and no byte is looked at more than a fixed number of times.
#include "protocol/tokenizer/utf8.hpp"

#include <cstring>

namespace althing::protocol {
namespace {

// What may follow a first byte: how many bytes in all, and the range of the second (later ones are 80..BF). Length 0: never a first byte.
struct Lead {
  std::size_t length;
  std::uint8_t second_min, second_max;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below would be overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above would be a surrogate
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above would pass U+10FFFF
  return {0, 0, 0};
}

void append_replaced(std::string_view text, std::string& out) {
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t valid = valid_utf8_prefix(text.substr(position));
    out.append(text.substr(position, valid));
    position += valid;
    if (position == text.size()) break;
    out.append(replacement_character);
    position += utf8_step(text, position).length;
  }
}

}  // namespace

Utf8Step utf8_step(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  const std::uint8_t first = byte(position);
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {Utf8Kind::invalid, 1, 0};
  if (lead.length == 1) return {Utf8Kind::valid, 1, first};
  char32_t code_point = first & (0xFFu >> (lead.length + 1));
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {Utf8Kind::incomplete, i, 0};
    const std::uint8_t next = byte(position + i);
    const std::uint8_t low = i == 1 ? lead.second_min : 0x80, high = i == 1 ? lead.second_max : 0xBF;
    if (next < low || next > high) return {Utf8Kind::invalid, i, 0};
    code_point = code_point << 6 | (next & 0x3Fu);
  }
  return {Utf8Kind::valid, lead.length, code_point};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    std::uint64_t word = 0;
    if (position + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + position, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        position += sizeof(word);
        continue;
      }
    }
    const Utf8Step step = utf8_step(text, position);
    if (step.kind != Utf8Kind::valid) break;
    position += step.length;
  }
  return position;
}

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return text;
  storage.assign(text.substr(0, valid));
  append_replaced(text.substr(valid), storage);
  return storage;
}

std::string take_certain_utf8(std::string& pending) {
  // The incomplete tail, if there is one, begins at one of the last three bytes.
  std::size_t certain = pending.size();
  for (std::size_t back = 1; back <= 3 && back <= pending.size(); ++back) {
    const std::size_t position = pending.size() - back;
    const auto byte = static_cast<std::uint8_t>(pending[position]);
    if ((byte & 0xC0u) == 0x80u) continue;
    // A first byte. It is unfinished only if the whole tail is the beginning of one character.
    const Utf8Step step = utf8_step(pending, position);
    if (step.kind == Utf8Kind::incomplete) certain = position;
    break;
  }
  std::string text;
  append_replaced(std::string_view(pending).substr(0, certain), text);
  pending.erase(0, certain);
  return text;
}

}  // namespace althing::protocol
