// Numbers that people type: as a flag, in the environment or in the settings file, always through the same reader. What is no number, or is out of
// its range, is refused before anything starts, in one sentence with the flag, what was given and what may be. Invariant: a value that has been
// stored is in its range, and NaN is in none.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "actors/number_range.hpp"

namespace althing::actors {
namespace number_option_detail {

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};

// "-n,--choices" as people know it: the long name.
inline std::string shown_name(const std::string& names) {
  const std::size_t at = names.find("--");
  return names.substr(at, names.find(',', at) - at);
}

template <class T>
std::optional<T> number_in(const std::string& text, const auto& range) {
  using Read = std::conditional_t<std::is_floating_point_v<T>, double, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  Read read{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  // What is kept is what is checked: a number that is over 0 may be 0 as a float.
  if constexpr (std::is_floating_point_v<T>) {
    const T kept = static_cast<T>(read);
    return range.holds(kept) ? std::optional<T>(kept) : std::nullopt;
  } else {
    return range.holds(read) ? std::optional<T>(static_cast<T>(read)) : std::nullopt;
  }
}

}  // namespace number_option_detail

// Adds a flag for a number, or for an optional one. Of several values the last counts, as for every other setting.
template <class T, class Range>
CLI::Option* number_option(CLI::App& app, const std::string& names, T& value, const Range& range, const std::string& help) {
  using Number = typename number_option_detail::Unwrapped<T>::type;
  const std::string shown = number_option_detail::shown_name(names);
  const auto take = [&value, range, shown](const CLI::results_t& words) {
    const auto number = number_option_detail::number_in<Number>(words.back(), range);
    if (!number) throw CLI::ValidationError(shown + " is '" + words.back() + "'; use " + range.text());
    value = *number;
    return true;
  };
  const auto shown_default = [&]() -> std::string {
    if constexpr (std::is_same_v<T, Number>)
      return CLI::detail::to_string(value);
    else
      return "";
  };
  return app.add_option(names, take, help, false, shown_default)
      ->type_name(range.brief())
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace althing::actors
