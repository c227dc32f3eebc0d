// See the header.
#include "protocol/grammar/matcher.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::grammar {

std::size_t Matcher::ListHash::operator()(const std::vector<std::uint32_t>& key) const {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::uint32_t word : key) hash = (hash ^ word) * 1099511628211u;
  return hash ^ (hash >> 32);
}

Matcher::Matcher(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)), classes_(automaton_->class_count()), class_of_(automaton_->byte_classes().data()) {}

Matcher::Standing Matcher::start() { return settle({place(automaton_->rule(automaton_->root()).start, bottom)}); }

std::uint32_t Matcher::place(State state, std::uint32_t below) {
  const std::uint64_t key = (std::uint64_t{state} << 32) | below;
  const auto [found, is_new] = place_numbers_.try_emplace(key, static_cast<std::uint32_t>(places_.size()));
  if (is_new) {
    places_.push_back({state, below, below == bottom ? 0 : places_[below].depth + 1});
    seen_.push_back(0);
  }
  return found->second;
}

// From places that a byte led to: whatever can be reached without another one, in a fixed order. Ways that need more depth than is left are not gone.
Matcher::Standing Matcher::settle(std::vector<std::uint32_t> open) {
  ++turn_;
  List list;
  std::reverse(open.begin(), open.end());
  while (!open.empty() && list.places.size() < places_max) {
    const std::uint32_t at = open.back();
    open.pop_back();
    if (std::exchange(seen_[at], turn_) == turn_) continue;
    const Place here = places_[at];
    const StateEdges& edges = automaton_->at(here.state);
    const std::uint32_t left = depth_max - here.depth;
    if (!edges.bytes.empty()) list.places.push_back(at);
    if (automaton_->ends_rule(here.state)) {
      if (here.below == bottom)
        list.is_complete = true;
      else
        open.push_back(here.below);
    }
    for (auto call = edges.calls.rbegin(); call != edges.calls.rend(); ++call) {
      const State inside = automaton_->rule(call->rule).start;
      if (automaton_->need(call->target) > left || automaton_->need(inside) >= left) continue;
      open.push_back(place(inside, place(call->target, here.below)));
    }
    for (auto free = edges.free.rbegin(); free != edges.free.rend(); ++free)
      if (automaton_->need(*free) <= left) open.push_back(place(*free, here.below));
  }
  return number(std::move(list));
}

Matcher::Standing Matcher::number(List&& list) {
  if (list.places.empty() && !list.is_complete) return dead;
  std::vector<std::uint32_t> key = list.places;
  key.push_back(list.is_complete ? 1 : 0);
  const auto found = list_numbers_.find(key);
  if (found != list_numbers_.end()) return found->second;
  if (next_.size() + classes_ > cells_max || places_kept_ + key.size() > places_kept_max) return full;
  const auto standing = static_cast<Standing>(lists_.size());
  places_kept_ += key.size();
  list_numbers_.emplace(std::move(key), standing);
  lists_.push_back(std::move(list));
  next_.resize(next_.size() + classes_, unknown);
  return standing;
}

Matcher::Standing Matcher::find(Standing from, std::uint8_t byte) {
  std::vector<std::uint32_t> reached;
  for (const std::uint32_t at : lists_[from].places) {
    const Place here = places_[at];
    const std::uint32_t left = depth_max - here.depth;
    for (const ByteEdge& edge : automaton_->at(here.state).bytes)
      if (edge.first <= byte && byte <= edge.last && automaton_->need(edge.target) <= left) reached.push_back(place(edge.target, here.below));
  }
  const Standing to = reached.empty() ? dead : settle(std::move(reached));
  if (to != full) next_[std::size_t{from} * classes_ + class_of_[byte]] = to;
  return to;
}

void Matcher::reset(std::vector<Standing*> kept) {
  // A stack is written down from its top; the number of a place says nothing once the others are gone.
  struct Kept {
    std::vector<std::vector<State>> stacks;
    bool is_complete = false;
  };
  std::vector<Kept> old;
  for (const Standing* standing : kept) {
    Kept& of = old.emplace_back();
    if (*standing == dead) continue;
    of.is_complete = lists_[*standing].is_complete;
    for (std::uint32_t at : lists_[*standing].places) {
      std::vector<State>& stack = of.stacks.emplace_back();
      for (; at != bottom; at = places_[at].below) stack.push_back(places_[at].state);
    }
  }
  places_.clear();
  place_numbers_.clear();
  seen_.clear();
  turn_ = 0;
  lists_.clear();
  list_numbers_.clear();
  next_.clear();
  places_kept_ = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    List list;
    list.is_complete = old[i].is_complete;
    for (const std::vector<State>& stack : old[i].stacks) {
      std::uint32_t below = bottom;
      for (auto state = stack.rbegin(); state != stack.rend(); ++state) below = place(*state, below);
      list.places.push_back(below);
    }
    *kept[i] = number(std::move(list));
  }
}

}  // namespace althing::protocol::grammar
