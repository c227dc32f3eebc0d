// See the header.
#include "protocol/grammar/automaton.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace althing::protocol::grammar {

Rule AutomatonBuilder::add_rule() {
  const RuleEnds ends{add_state(), add_state()};
  built_.rules_.push_back(ends);
  built_.ends_[ends.end] = 1;
  return static_cast<Rule>(built_.rules_.size() - 1);
}

// Once it is full every new state is the last one: nothing of it will be used.
State AutomatonBuilder::add_state() {
  if (built_.states_.size() >= states_max) {
    full_ = true;
    return states_max - 1;
  }
  built_.states_.emplace_back();
  built_.ends_.push_back(0);
  return static_cast<State>(built_.states_.size() - 1);
}

void AutomatonBuilder::bytes(State from, std::uint8_t first, std::uint8_t last, State to) {
  if (!full_) built_.states_[from].bytes.push_back({first, last, to});
}

void AutomatonBuilder::free(State from, State to) {
  if (!full_) built_.states_[from].free.push_back(to);
}

void AutomatonBuilder::call(State from, Rule rule, State to) {
  if (!full_) built_.states_[from].calls.push_back({rule, to});
}

State AutomatonBuilder::literal(State from, std::string_view text) {
  for (const char c : text) {
    const State next = add_state();
    bytes(from, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
    from = next;
  }
  return from;
}

void AutomatonBuilder::literal(State from, std::string_view text, State to) { free(literal(from, text), to); }

State AutomatonBuilder::call(State from, Rule rule) {
  const State next = add_state();
  call(from, rule, next);
  return next;
}

Result<std::shared_ptr<const Automaton>> AutomatonBuilder::finish(Rule root) {
  if (full_)
    return Error{ErrorCode::too_large,
                 "the grammar needs more than " + std::to_string(states_max) + " states; lower its counts (maxLength, maxItems, {n,m}) or split it",
                 "grammar"};
  built_.root_ = root;
  built_.find_needs();
  if (built_.need(start(root)) == Automaton::never)
    return Error{
        ErrorCode::invalid_argument,
        "no text satisfies the grammar, or none that nests " + std::to_string(depth_max) + " levels at most; look for what contradicts itself",
        "grammar"};
  if (calls_itself())
    return Error{ErrorCode::invalid_argument, "a part of the grammar refers to itself with nothing in between; give it something that ends it",
                 "grammar"};
  built_.find_classes();
  return std::make_shared<const Automaton>(std::move(built_));
}

// Whether some rule can call itself without having read a byte: then a reader would call for ever.
bool AutomatonBuilder::calls_itself() const {
  const std::size_t count = built_.rules_.size();
  std::vector<std::uint8_t> is_empty(count, 0);  // may be read without a byte
  std::vector<std::vector<Rule>> begins(count);  // rules that it may begin with
  std::vector<std::uint32_t> seen(built_.states_.size(), 0);
  std::uint32_t turn = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule rule = 0; rule < count; ++rule) {
      ++turn;
      begins[rule].clear();
      std::vector<State> open{built_.rules_[rule].start};
      while (!open.empty()) {
        const State state = open.back();
        open.pop_back();
        if (std::exchange(seen[state], turn) == turn) continue;
        if (state == built_.rules_[rule].end && is_empty[rule] == 0) is_empty[rule] = 1, changed = true;
        const StateEdges& edges = built_.states_[state];
        open.insert(open.end(), edges.free.begin(), edges.free.end());
        for (const CallEdge& call : edges.calls) {
          begins[rule].push_back(call.rule);
          if (is_empty[call.rule] != 0) open.push_back(call.target);
        }
      }
    }
  }
  // Rules that begin with none that is left are taken away until nothing changes; a circle stays.
  std::vector<std::uint8_t> done(count, 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule rule = 0; rule < count; ++rule) {
      if (done[rule] != 0) continue;
      if (std::all_of(begins[rule].begin(), begins[rule].end(), [&](Rule other) { return done[other] != 0; })) done[rule] = 1, changed = true;
    }
  }
  return std::find(done.begin(), done.end(), 0) != done.end();
}

// From the ends backwards, in order of need, so that each state is settled once.
void Automaton::find_needs() {
  need_.assign(states_.size(), never);
  struct Way {
    State from;
    const CallEdge* call;  // null: no call
  };
  std::vector<std::vector<Way>> ways(states_.size());  // into a state, or through a rule's start
  for (State state = 0; state < states_.size(); ++state) {
    for (const ByteEdge& edge : states_[state].bytes) ways[edge.target].push_back({state, nullptr});
    for (const State target : states_[state].free) ways[target].push_back({state, nullptr});
    for (const CallEdge& call : states_[state].calls) {
      ways[call.target].push_back({state, &call});
      ways[rules_[call.rule].start].push_back({state, &call});
    }
  }
  std::vector<std::vector<State>> due(depth_max + 1);
  for (const RuleEnds& rule : rules_) due[0].push_back(rule.end);
  for (std::uint32_t need = 0; need <= depth_max; ++need)
    while (!due[need].empty()) {
      const State state = due[need].back();
      due[need].pop_back();
      if (need_[state] != never) continue;
      need_[state] = static_cast<std::uint8_t>(need);
      for (const Way& way : ways[state]) {
        if (need_[way.from] != never) continue;
        std::uint32_t through = need;
        if (way.call != nullptr) {
          const std::uint8_t inside = need_[rules_[way.call->rule].start], behind = need_[way.call->target];
          if (inside == never || behind == never) continue;  // the other one comes later, with more
          through = std::max<std::uint32_t>(inside + 1u, behind);
        }
        if (through <= depth_max) due[through].push_back(way.from);
      }
    }
}

void Automaton::find_classes() {
  std::array<bool, 257> cut{};  // between byte b-1 and b
  for (const StateEdges& edges : states_)
    for (const ByteEdge& edge : edges.bytes) cut[edge.first] = cut[edge.last + 1u] = true;
  classes_.assign(256, 0);
  std::uint32_t current = 0;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && cut[byte]) ++current;
    classes_[byte] = static_cast<std::uint8_t>(current);
  }
  class_count_ = current + 1;
}

}  // namespace althing::protocol::grammar
