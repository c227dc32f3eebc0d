// A regular expression as part of an automaton.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "protocol/grammar/automaton.hpp"
#include "protocol/grammar/code_points.hpp"

namespace althing::protocol::grammar {

// One rule for each set of characters that is asked for, since edges of characters are many states.
class CharacterRules {
 public:
  CharacterRules(AutomatonBuilder& builder, Spelling spelling) : builder_(builder), spelling_(spelling) {}

  // Reads one character of the set. REQUIRES: it is not empty.
  Rule of(const CodePointSet& set);
  AutomatonBuilder& builder() { return builder_; }

 private:
  AutomatonBuilder& builder_;
  Spelling spelling_;
  std::vector<std::pair<CodePointSet, Rule>> rules_;
};

enum class Anchoring : std::uint8_t {
  whole,  // the text is the expression's
  part,   // the expression is found somewhere in it, as JSON schemas have it
};

struct Lengths {
  std::uint32_t least = 0;
  std::uint32_t most = 0xFFFF'FFFFu;  // characters
};

// Whatever the expression allows, of an allowed length, between the two states. Errors: parse_regex's; too_large (the expanded expression).
Status add_regex(CharacterRules& characters, State from, std::string_view expression, Anchoring anchoring, Lengths lengths, State to);

}  // namespace althing::protocol::grammar
