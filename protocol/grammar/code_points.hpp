// Sets of characters, and how a character is written: as the bytes of its UTF-8, or as it stands between the quotes of a JSON string.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/grammar/automaton.hpp"

namespace althing::protocol::grammar {

struct CodePoints {
  std::uint32_t first = 0, last = 0;  // both included
  friend bool operator==(const CodePoints&, const CodePoints&) = default;
};

inline constexpr std::uint32_t code_point_max = 0x10FFFF;

// Ascending, apart, and without surrogates, which are no characters.
class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(std::vector<CodePoints> ranges);
  static CodePointSet all() { return CodePointSet({{0, code_point_max}}); }

  const std::vector<CodePoints>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  CodePointSet complement() const;
  void add(const CodePointSet& other);

 private:
  std::vector<CodePoints> ranges_;
};

enum class Spelling : std::uint8_t {
  plain,  // UTF-8
  json,   // likewise, but what JSON wants escaped is escaped, in its shortest form
};

// Edges for one character of the set. How a character is spelled is unique, so counting characters is counting these.
void add_characters(AutomatonBuilder& builder, State from, const CodePointSet& set, Spelling spelling, State to);

// Text, as a JSON string with its quotes; the one spelling that the above has. REQUIRES: valid UTF-8.
std::string json_string(std::string_view text);

}  // namespace althing::protocol::grammar
