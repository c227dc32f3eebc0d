// See the header. A range of numbers is one of magnitudes for each sign; of whole magnitudes one for each count of digits, which are then compared
// digit by digit.
#include "protocol/grammar/number_range.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace althing::protocol::grammar {
namespace {

std::uint8_t digit(int value) { return static_cast<std::uint8_t>('0' + value); }

// Digits of equal count, from `least` to `most`. REQUIRES: least <= most.
void add_digits(AutomatonBuilder& builder, State from, std::string_view least, std::string_view most, State to) {
  const std::size_t count = least.size();
  // [place][at the least so far][at the most so far]
  std::vector<std::array<std::array<std::optional<State>, 2>, 2>> states(count + 1);
  states[0][1][1] = from;
  const auto state_at = [&](std::size_t i, bool low, bool high) {
    if (i == count) return to;
    std::optional<State>& state = states[i][low ? 1 : 0][high ? 1 : 0];
    if (!state) state = builder.add_state();
    return *state;
  };
  for (std::size_t i = 0; i < count; ++i)
    for (const bool low : {false, true})
      for (const bool high : {false, true}) {
        const std::optional<State> state = states[i][low ? 1 : 0][high ? 1 : 0];
        if (!state) continue;
        const int first = low ? least[i] - '0' : 0, last = high ? most[i] - '0' : 9;
        for (int d = first; d <= last; ++d) builder.bytes(*state, digit(d), digit(d), state_at(i + 1, low && d == first, high && d == last));
      }
}

// Whole numbers without a sign. REQUIRES: least <= most.
void add_whole(AutomatonBuilder& builder, State from, std::uint64_t least, std::uint64_t most, State to) {
  std::uint64_t power = 1;
  for (std::size_t count = 1; count <= number_digits_max; ++count, power *= 10) {
    const std::uint64_t low = std::max(least, count == 1 ? 0 : power), high = std::min(most, power * 10 - 1);
    if (low <= high) add_digits(builder, from, std::to_string(low), std::to_string(high), to);
  }
}

// One side of a range of magnitudes: a decimal number, and whether it is in the range itself.
struct Edge {
  std::uint64_t whole = 0;
  std::string fraction;  // digits, without zeros at its end
  bool is_excluded = false;
};

Edge edge_of(double magnitude, bool is_excluded) {
  if (magnitude >= static_cast<double>(integer_end)) return {static_cast<std::uint64_t>(integer_end), "", false};
  char text[400];
  const auto end = std::to_chars(text, text + sizeof text, magnitude, std::chars_format::fixed).ptr;
  const std::string_view digits(text, static_cast<std::size_t>(end - text));
  const std::size_t point = digits.find('.');
  Edge edge{0, point == std::string_view::npos ? "" : std::string(digits.substr(point + 1)), is_excluded};
  std::from_chars(text, text + std::min(point, digits.size()), edge.whole);
  while (!edge.fraction.empty() && edge.fraction.back() == '0') edge.fraction.pop_back();
  return edge;
}

// What may stand behind a whole part: nothing, or a point and digits. The value is at least `least` and at most `most` where these are given.
void add_fraction(AutomatonBuilder& builder, State from, std::uint32_t digits_max, const Edge* least, const Edge* most, State to) {
  using Key = std::tuple<std::uint32_t, bool, bool>;  // digits read, equal to the least so far, to the most so far
  std::map<Key, State> states;
  std::vector<Key> open;
  const auto digit_of = [](const Edge* edge, std::uint32_t i) { return i < edge->fraction.size() ? edge->fraction[i] - '0' : 0; };
  const auto may_end = [&](std::uint32_t read, bool low, bool high) {
    if (low && (read < least->fraction.size() || least->is_excluded)) return false;
    return !(high && read >= most->fraction.size() && most->is_excluded);
  };
  const auto state_at = [&](const Key& key) {
    const auto [found, is_new] = states.try_emplace(key, 0);
    if (is_new) {
      found->second = builder.add_state();
      open.push_back(key);
    }
    return found->second;
  };
  const Key start{0, least != nullptr, most != nullptr};
  if (may_end(0, least != nullptr, most != nullptr)) builder.free(from, to);
  if (digits_max == 0) return;
  builder.bytes(from, '.', '.', state_at(start));
  while (!open.empty()) {
    const Key key = open.back();
    open.pop_back();
    const auto [read, low, high] = key;
    if (read > 0 && may_end(read, low, high)) builder.free(states[key], to);
    if (read == digits_max) continue;
    const int first = low ? digit_of(least, read) : 0, last = high ? digit_of(most, read) : 9;
    for (int d = first; d <= last; ++d) {
      const State next = state_at({read + 1, low && d == first, high && d == last});
      builder.bytes(states[key], digit(d), digit(d), next);
    }
  }
}

// Digits behind the point that leave a double on the right side of a bound with this whole part.
std::uint32_t fraction_digits(std::uint64_t whole) {
  if (whole >= static_cast<std::uint64_t>(integer_end)) return number_digits_max;  // no bound
  return number_digits_max - static_cast<std::uint32_t>(std::to_string(whole).size());
}

// Magnitudes from `least` to `most`.
void add_magnitudes(AutomatonBuilder& builder, State from, const Edge& least, const Edge& most, State to) {
  const auto end = static_cast<std::uint64_t>(integer_end);
  if (least.whole > most.whole || least.whole >= end) return;
  const auto behind = [&](std::uint64_t first, std::uint64_t last, const Edge* low, const Edge* high, std::uint32_t digits_max) {
    const State point = builder.add_state();
    add_whole(builder, from, first, last, point);
    add_fraction(builder, point, digits_max, low, high, to);
  };
  if (least.whole == most.whole) {
    if (least.fraction <= most.fraction) behind(least.whole, least.whole, &least, &most, fraction_digits(most.whole));
    return;
  }
  behind(least.whole, least.whole, &least, nullptr, std::min(fraction_digits(least.whole), fraction_digits(most.whole)));
  if (least.whole + 1 <= most.whole - 1) behind(least.whole + 1, most.whole - 1, nullptr, nullptr, fraction_digits(most.whole));
  if (most.whole < end) behind(most.whole, most.whole, nullptr, &most, fraction_digits(most.whole));
}

}  // namespace

void add_integer(AutomatonBuilder& builder, State from, IntegerRange range, State to) {
  range.least = std::max(range.least, 1 - integer_end);
  range.most = std::min(range.most, integer_end - 1);
  if (range.most >= 0 && range.least <= range.most)
    add_whole(builder, from, static_cast<std::uint64_t>(std::max<std::int64_t>(range.least, 0)), static_cast<std::uint64_t>(range.most), to);
  if (range.least >= 0 || range.least > range.most) return;
  const State minus = builder.literal(from, "-");
  add_whole(builder, minus, static_cast<std::uint64_t>(-std::min<std::int64_t>(range.most, -1)), static_cast<std::uint64_t>(-range.least), to);
}

void add_number(AutomatonBuilder& builder, State from, State to) {
  const State magnitude = builder.add_state(), fraction = builder.add_state(), exponent = builder.add_state();
  builder.free(from, magnitude);
  builder.literal(from, "-", magnitude);
  add_whole(builder, magnitude, 0, integer_end - 1, fraction);
  add_fraction(builder, fraction, number_digits_max, nullptr, nullptr, exponent);
  builder.free(exponent, to);
  const State sign = builder.add_state(), first = builder.add_state(), second = builder.add_state();
  for (const char e : {'e', 'E'}) builder.bytes(exponent, static_cast<std::uint8_t>(e), static_cast<std::uint8_t>(e), sign);
  builder.free(sign, first);
  for (const char s : {'+', '-'}) builder.bytes(sign, static_cast<std::uint8_t>(s), static_cast<std::uint8_t>(s), first);
  builder.bytes(first, '0', '9', second);
  builder.free(second, to);
  builder.bytes(second, '0', '9', to);
}

void add_number(AutomatonBuilder& builder, State from, const NumberRange& range, State to) {
  const Edge zero{}, above_zero{0, "", true}, most{static_cast<std::uint64_t>(integer_end), "", false};
  // From zero up.
  if (!range.most || range.most->value >= 0) {
    const Edge low = range.least && range.least->value >= 0 ? edge_of(range.least->value, range.least->is_excluded) : zero;
    add_magnitudes(builder, from, low, range.most ? edge_of(range.most->value, range.most->is_excluded) : most, to);
  }
  // Below zero.
  if (range.least && range.least->value >= 0) return;
  const State minus = builder.literal(from, "-");
  const Edge low = range.most && range.most->value < 0 ? edge_of(-range.most->value, range.most->is_excluded) : above_zero;
  add_magnitudes(builder, minus, low, range.least ? edge_of(-range.least->value, range.least->is_excluded) : most, to);
}

}  // namespace althing::protocol::grammar
