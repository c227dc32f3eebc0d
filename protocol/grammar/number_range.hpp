// Numbers as JSON writes them, all of them or those between two bounds. At most 15 digits stand before the point and 15 significant ones in all where
// there are bounds: then a reader's double is on the same side of a bound as the text, and nobody can write digits for ever.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/grammar/automaton.hpp"

namespace althing::protocol::grammar {

inline constexpr std::uint32_t number_digits_max = 15;
inline constexpr std::int64_t integer_end = 1'000'000'000'000'000;  // integers lie between this and its negative, without these

struct IntegerRange {
  std::int64_t least = 1 - integer_end, most = integer_end - 1;  // both included
};

struct Bound {
  double value = 0;
  bool is_excluded = false;
};
struct NumberRange {
  std::optional<Bound> least, most;
};

void add_integer(AutomatonBuilder& builder, State from, IntegerRange range, State to);
// Any, with exponents of up to two digits.
void add_number(AutomatonBuilder& builder, State from, State to);
// Without exponents.
void add_number(AutomatonBuilder& builder, State from, const NumberRange& range, State to);

}  // namespace althing::protocol::grammar
