// Which text is legal, as an automaton over bytes with a stack: rules are automata of their own, and may call each other, also in circles.
// Immutable once it is finished. What holds for every finished automaton: from wherever a reader of it may stand, some text leads to the end, within
// depth_max calls; so whoever follows it byte by byte never runs into a dead end.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::grammar {

using State = std::uint32_t;
using Rule = std::uint32_t;

inline constexpr std::uint32_t states_max = 60'000;  // of one automaton; about 8 MiB
inline constexpr std::uint32_t depth_max = 64;       // calls that have not returned

struct ByteEdge {
  std::uint8_t first = 0, last = 0;  // both included
  State target = 0;
};
// The rule is read from its start to its end, then the reader goes on at the target.
struct CallEdge {
  Rule rule = 0;
  State target = 0;
};
struct StateEdges {
  std::vector<ByteEdge> bytes;
  std::vector<State> free;  // without a byte
  std::vector<CallEdge> calls;
};
struct RuleEnds {
  State start = 0, end = 0;
};

class Automaton {
 public:
  static constexpr std::uint8_t never = 255;

  const StateEdges& at(State state) const { return states_[state]; }
  const RuleEnds& rule(Rule rule) const { return rules_[rule]; }
  Rule root() const { return root_; }
  bool ends_rule(State state) const { return ends_[state] != 0; }
  // Calls that must be open at once, at least, on the way from here to the end of the state's rule; `never` when there is no way.
  std::uint8_t need(State state) const { return need_[state]; }
  std::size_t state_count() const { return states_.size(); }
  // Bytes that no edge tells apart have one class, 0 … class_count()-1.
  const std::vector<std::uint8_t>& byte_classes() const { return classes_; }  // 256
  std::uint32_t class_count() const { return class_count_; }

 private:
  friend class AutomatonBuilder;
  void find_needs();
  void find_classes();

  std::vector<StateEdges> states_;
  std::vector<RuleEnds> rules_;
  std::vector<std::uint8_t> ends_, need_, classes_;
  std::uint32_t class_count_ = 0;
  Rule root_ = 0;
};

class AutomatonBuilder {
 public:
  Rule add_rule();
  State add_state();
  State start(Rule rule) const { return built_.rules_[rule].start; }
  State end(Rule rule) const { return built_.rules_[rule].end; }

  void bytes(State from, std::uint8_t first, std::uint8_t last, State to);
  void free(State from, State to);
  void call(State from, Rule rule, State to);
  // Each returns where it ends.
  State literal(State from, std::string_view text);
  State call(State from, Rule rule);
  void literal(State from, std::string_view text, State to);

  // States beyond states_max are not made: what is built then is refused.
  bool full() const { return full_; }
  // Errors: too_large (states_max), invalid_argument (no text is legal, or a rule can call itself before any byte was read).
  Result<std::shared_ptr<const Automaton>> finish(Rule root);

 private:
  bool calls_itself() const;

  Automaton built_;
  bool full_ = false;
};

}  // namespace althing::protocol::grammar
