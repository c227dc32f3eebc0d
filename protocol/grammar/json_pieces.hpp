// What JSON texts are made of, as rules of one automaton, each built when it is first asked for. The texts are JSON as models write it, and no more:
// white space where a line may be broken is nothing, one space, or a line feed with up to 32 spaces; behind a colon it is nothing or a space. So
// nobody can go on for ever without saying anything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/grammar/automaton.hpp"
#include "protocol/grammar/number_range.hpp"
#include "protocol/grammar/regex.hpp"

namespace althing::protocol::grammar {

class JsonPieces {
 public:
  explicit JsonPieces(AutomatonBuilder& builder) : builder_(builder), characters_(builder, Spelling::json) {}

  Rule line_space();  // may be empty
  Rule colon();       // with what may be behind it
  Rule character();   // one of a string, in any spelling
  Rule string();      // with quotes; any
  Rule number();      // up to 15 digits before and behind the point, exponents up to 99
  Rule integer();     // up to 15 digits
  Rule value();       // any
  Rule object();      // any
  Rule array();       // any
  // A string without escapes that is none of these.
  Rule key_except(const std::vector<std::string>& names);
  CharacterRules& characters() { return characters_; }

  // A string of so many characters.
  void add_string(State from, Lengths lengths, State to);
  // One of the texts, byte for byte.
  void add_literals(State from, const std::vector<std::string>& texts, State to);

 private:
  AutomatonBuilder& builder_;
  CharacterRules characters_;
  std::optional<Rule> line_space_, colon_, character_, string_, number_, integer_, value_, object_, array_;
};

}  // namespace althing::protocol::grammar
