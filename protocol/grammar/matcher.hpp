// Follows an automaton byte by byte. Where a reader may stand is a list of places with a stack each; such lists are numbered as they come up, and
// what follows each under each class of bytes is computed once. The list is an ordered one, and its order depends on the bytes that were read alone:
// so another matcher, in another process, comes to the same lists.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/grammar/automaton.hpp"

namespace althing::protocol::grammar {

class Matcher {
 public:
  using Standing = std::uint32_t;
  static constexpr Standing dead = 0xFFFF'FFFFu;  // no text goes on so
  static constexpr Standing full = 0xFFFF'FFFEu;  // there are too many standings to number another: reset() first
  // A list longer than this loses its end: less is legal then, and whatever is legal still leads to the end.
  static constexpr std::size_t places_max = 1024;

  explicit Matcher(std::shared_ptr<const Automaton> automaton);

  Standing start();
  // REQUIRES: `from` is neither dead nor full.
  Standing step(Standing from, std::uint8_t byte) {
    const Standing known = next_[std::size_t{from} * classes_ + class_of_[byte]];
    return known != unknown ? known : find(from, byte);
  }
  // What was read is a whole text.
  bool is_complete(Standing at) const { return lists_[at].is_complete; }
  std::size_t count() const { return lists_.size(); }

  // Forgets all but these, which are numbered anew in place.
  void reset(std::vector<Standing*> kept);

 private:
  static constexpr Standing unknown = 0xFFFF'FFFDu;
  static constexpr std::uint32_t bottom = 0xFFFF'FFFFu;  // of every stack
  static constexpr std::size_t cells_max = 1u << 20;     // of next_
  static constexpr std::size_t places_kept_max = 1u << 18;

  // A state, and the place where its rule returns to.
  struct Place {
    State state = 0;
    std::uint32_t below = bottom;
    std::uint32_t depth = 0;  // places below
  };
  struct List {
    std::vector<std::uint32_t> places;  // with bytes to read
    bool is_complete = false;
  };
  struct ListHash {
    std::size_t operator()(const std::vector<std::uint32_t>& key) const;
  };

  Standing find(Standing from, std::uint8_t byte);
  std::uint32_t place(State state, std::uint32_t below);
  Standing settle(std::vector<std::uint32_t> open);
  Standing number(List&& list);

  std::shared_ptr<const Automaton> automaton_;
  std::size_t classes_;
  const std::uint8_t* class_of_;
  std::vector<Place> places_;
  std::unordered_map<std::uint64_t, std::uint32_t> place_numbers_;
  std::vector<List> lists_;
  std::unordered_map<std::vector<std::uint32_t>, Standing, ListHash> list_numbers_;
  std::vector<Standing> next_;       // (lists, classes)
  std::size_t places_kept_ = 0;      // in lists
  std::vector<std::uint32_t> seen_;  // by place: in which turn of settle
  std::uint32_t turn_ = 0;
};

}  // namespace althing::protocol::grammar
