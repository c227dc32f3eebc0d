// See the header. In two steps: repetitions are written out, which gives an automaton over characters; then that is walked together with what length
// and anchors depend on: how many characters were read, and whether $ has been passed.
#include "protocol/grammar/regex.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "protocol/grammar/regex_syntax.hpp"

namespace althing::protocol::grammar {
namespace {

constexpr std::size_t places_max = 50'000;

// A place in the expression, between its characters.
struct Place {
  struct Step {
    std::uint32_t set = 0, target = 0;
  };
  enum class Guard : std::uint8_t { none, at_start, at_end };
  struct Free {
    Guard guard = Guard::none;
    std::uint32_t target = 0;
  };
  std::vector<Step> steps;
  std::vector<Free> free;
};

class Expansion {
 public:
  explicit Expansion(const Regex& regex) : regex_(regex) {}

  std::uint32_t add() {
    places.emplace_back();
    return static_cast<std::uint32_t>(places.size() - 1);
  }
  bool full() const { return places.size() > places_max || visits_ > visits_max; }

  // Writes the node out behind `from`; returns where it ends.
  std::uint32_t expand(std::uint32_t node, std::uint32_t from) {
    if (++visits_; full()) return from;
    const RegexNode& n = regex_.nodes[node];
    switch (n.kind) {
      case RegexNode::Kind::nothing:
        return from;
      case RegexNode::Kind::characters:
        return step(from, n.set);
      case RegexNode::Kind::at_start:
        return guard(from, Place::Guard::at_start);
      case RegexNode::Kind::at_end:
        return guard(from, Place::Guard::at_end);
      case RegexNode::Kind::sequence:
        for (const std::uint32_t part : n.parts) from = expand(part, from);
        return from;
      case RegexNode::Kind::choice: {
        const std::uint32_t end = add();
        for (const std::uint32_t part : n.parts) {
          const std::uint32_t begin = guard(from, Place::Guard::none);
          guard(expand(part, begin), Place::Guard::none, end);
        }
        return end;
      }
      case RegexNode::Kind::repeat:
        return expand_repeat(n, from);
    }
    return from;
  }

  std::uint32_t step(std::uint32_t from, const CodePointSet& set) {
    const std::uint32_t to = add();
    if (set.empty()) return to;  // nothing leads there
    auto found = std::find_if(sets.begin(), sets.end(), [&](const CodePointSet& s) { return s.ranges() == set.ranges(); });
    if (found == sets.end()) found = sets.insert(sets.end(), set);
    places[from].steps.push_back({static_cast<std::uint32_t>(found - sets.begin()), to});
    return to;
  }
  void loop(std::uint32_t at, const CodePointSet& set) {
    const std::uint32_t to = step(at, set);
    guard(to, Place::Guard::none, at);
  }
  std::uint32_t guard(std::uint32_t from, Place::Guard guard_kind) {
    const std::uint32_t to = add();
    guard(from, guard_kind, to);
    return to;
  }
  void guard(std::uint32_t from, Place::Guard guard_kind, std::uint32_t to) { places[from].free.push_back({guard_kind, to}); }

  std::vector<Place> places;
  std::vector<CodePointSet> sets;

 private:
  std::uint32_t expand_repeat(const RegexNode& n, std::uint32_t from) {
    for (std::uint32_t i = 0; i < n.least && !full(); ++i) from = expand(n.parts[0], from);
    if (n.most == unbounded) {
      const std::uint32_t again = guard(from, Place::Guard::none);
      guard(expand(n.parts[0], again), Place::Guard::none, again);
      return guard(again, Place::Guard::none);
    }
    const std::uint32_t end = add();
    for (std::uint32_t i = n.least; i < n.most && !full(); ++i) {
      guard(from, Place::Guard::none, end);
      from = expand(n.parts[0], from);
    }
    guard(from, Place::Guard::none, end);
    return end;
  }

  static constexpr std::size_t visits_max = 1'000'000;  // repetitions of nothing make no places

  const Regex& regex_;
  std::size_t visits_ = 0;
};

// Where a reader stands, as far as it matters.
struct Standing {
  std::uint32_t place = 0;
  std::uint32_t count = 0;  // characters, up to where more of them change nothing
  bool started = false;     // ^ is behind
  bool ended = false;       // $ was passed: no more characters
  friend auto operator<=>(const Standing&, const Standing&) = default;
};

class Product {
 public:
  Product(CharacterRules& characters, const Expansion& expansion, Lengths lengths)
      : characters_(characters), expansion_(expansion), lengths_(lengths) {}

  void add(State from, std::uint32_t begin, std::uint32_t end, State to) {
    AutomatonBuilder& builder = characters_.builder();
    builder.free(from, state_of({begin, 0, false, false}));
    while (!open_.empty() && !builder.full()) {
      const Standing at = open_.back();
      open_.pop_back();
      const State state = states_[at];
      if (at.place == end && at.count >= lengths_.least) builder.free(state, to);
      for (const Place::Free& free : expansion_.places[at.place].free) {
        if (free.guard == Place::Guard::at_start && at.started) continue;
        builder.free(state, state_of({free.target, at.count, at.started, at.ended || free.guard == Place::Guard::at_end}));
      }
      if (at.ended || at.count == lengths_.most) continue;
      const std::uint32_t count = lengths_.most == unbounded ? std::min(at.count + 1, lengths_.least) : at.count + 1;
      for (const Place::Step& step : expansion_.places[at.place].steps)
        builder.call(state, characters_.of(expansion_.sets[step.set]), state_of({step.target, count, true, false}));
    }
  }

 private:
  State state_of(const Standing& at) {
    const auto [found, is_new] = states_.try_emplace(at, 0);
    if (is_new) {
      found->second = characters_.builder().add_state();
      open_.push_back(at);
    }
    return found->second;
  }

  CharacterRules& characters_;
  const Expansion& expansion_;
  Lengths lengths_;
  std::map<Standing, State> states_;
  std::vector<Standing> open_;
};

}  // namespace

Rule CharacterRules::of(const CodePointSet& set) {
  for (const auto& [known, rule] : rules_)
    if (known.ranges() == set.ranges()) return rule;
  const Rule rule = builder_.add_rule();
  add_characters(builder_, builder_.start(rule), set, spelling_, builder_.end(rule));
  rules_.emplace_back(set, rule);
  return rule;
}

Status add_regex(CharacterRules& characters, State from, std::string_view expression, Anchoring anchoring, Lengths lengths, State to) {
  auto regex = parse_regex(expression);
  if (!regex) return regex.error();
  Expansion expansion(*regex);
  const std::uint32_t begin = expansion.add();
  if (anchoring == Anchoring::part) expansion.loop(begin, CodePointSet::all());
  const std::uint32_t end = expansion.expand(regex->root, begin);
  if (expansion.full())
    return Error{ErrorCode::too_large,
                 "the expression is longer than " + std::to_string(places_max) + " places with its repetitions written out; lower its counts",
                 "regex"};
  const std::uint32_t last = expansion.guard(end, Place::Guard::none);
  if (anchoring == Anchoring::part) expansion.loop(last, CodePointSet::all());
  Product(characters, expansion, lengths).add(from, begin, last, to);
  return Ok{};
}

}  // namespace althing::protocol::grammar
