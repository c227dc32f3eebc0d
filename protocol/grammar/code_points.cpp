// See the header. A range of characters is cut until each piece is a product of byte ranges: at lengths of UTF-8 first, then where the upper bytes of
// its ends differ and the lower ones do not run over all there are.
#include "protocol/grammar/code_points.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace althing::protocol::grammar {
namespace {

constexpr CodePoints surrogates{0xD800, 0xDFFF};

struct Utf8 {
  std::array<std::uint8_t, 4> bytes{};
  std::uint32_t count = 0;
};

Utf8 utf8(std::uint32_t c) {
  const auto low = [&](std::uint32_t shift) { return static_cast<std::uint8_t>(0x80u | ((c >> shift) & 0x3Fu)); };
  if (c < 0x80) return {{static_cast<std::uint8_t>(c)}, 1};
  if (c < 0x800) return {{static_cast<std::uint8_t>(0xC0u | (c >> 6)), low(0)}, 2};
  if (c < 0x10000) return {{static_cast<std::uint8_t>(0xE0u | (c >> 12)), low(6), low(0)}, 3};
  return {{static_cast<std::uint8_t>(0xF0u | (c >> 18)), low(12), low(6), low(0)}, 4};
}

// REQUIRES: first and last are of one length in UTF-8.
void add_utf8_range(AutomatonBuilder& builder, State from, CodePoints range, State to) {
  const std::uint32_t count = utf8(range.first).count;
  for (std::uint32_t tail = 1; tail < count; ++tail) {
    const std::uint32_t mask = (1u << (6 * tail)) - 1;
    if ((range.first & ~mask) == (range.last & ~mask)) continue;
    if ((range.first & mask) != 0) {
      add_utf8_range(builder, from, {range.first, range.first | mask}, to);
      return add_utf8_range(builder, from, {(range.first | mask) + 1, range.last}, to);
    }
    if ((range.last & mask) != mask) {
      add_utf8_range(builder, from, {range.first, (range.last & ~mask) - 1}, to);
      return add_utf8_range(builder, from, {range.last & ~mask, range.last}, to);
    }
  }
  const Utf8 first = utf8(range.first), last = utf8(range.last);
  for (std::uint32_t i = 0; i < count; ++i) {
    const State next = i + 1 == count ? to : builder.add_state();
    builder.bytes(from, first.bytes[i], last.bytes[i], next);
    from = next;
  }
}

void add_utf8(AutomatonBuilder& builder, State from, CodePoints range, State to) {
  constexpr std::uint32_t lengths[] = {0x80, 0x800, 0x10000, code_point_max + 1};
  for (const std::uint32_t end : lengths) {
    if (range.first >= end || range.first > range.last) continue;
    add_utf8_range(builder, from, {range.first, std::min(range.last, end - 1)}, to);
    range.first = end;
  }
}

bool escaped(std::uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

std::string escape(std::uint32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      constexpr std::string_view digits = "0123456789abcdef";
      return std::string("\\u00") + digits[c >> 4] + digits[c & 15u];
  }
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePoints> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CodePoints& a, const CodePoints& b) { return a.first < b.first; });
  const auto append = [this](CodePoints range) {
    if (range.first > range.last) return;
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    else
      ranges_.push_back(range);
  };
  for (const CodePoints& range : ranges) {
    append({range.first, std::min(range.last, surrogates.first - 1)});
    append({std::max(range.first, surrogates.last + 1), std::min(range.last, code_point_max)});
  }
}

CodePointSet CodePointSet::complement() const {
  std::vector<CodePoints> rest;
  std::uint32_t next = 0;
  for (const CodePoints& range : ranges_) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= code_point_max) rest.push_back({next, code_point_max});
  return CodePointSet(std::move(rest));
}

void CodePointSet::add(const CodePointSet& other) {
  std::vector<CodePoints> ranges = std::move(ranges_);
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  *this = CodePointSet(std::move(ranges));
}

void add_characters(AutomatonBuilder& builder, State from, const CodePointSet& set, Spelling spelling, State to) {
  for (CodePoints range : set.ranges()) {
    if (spelling == Spelling::plain || range.first > '\\') {
      add_utf8(builder, from, range, to);
      continue;
    }
    // Where escapes are, character by character; runs of others between them.
    for (std::uint32_t c = range.first; c <= range.last && c <= '\\';) {
      if (escaped(c)) {
        builder.literal(from, escape(c), to);
        range.first = ++c;
        continue;
      }
      while (c <= range.last && c <= '\\' && !escaped(c)) ++c;
      add_utf8(builder, from, {range.first, c - 1}, to);
      range.first = c;
    }
    if (range.first <= range.last) add_utf8(builder, from, range, to);
  }
}

std::string json_string(std::string_view text) {
  std::string written = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (escaped(byte))
      written += escape(byte);
    else
      written += c;
  }
  return written += '"';
}

}  // namespace althing::protocol::grammar
