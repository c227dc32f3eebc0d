// See the header.
#include "actors/epoch_layout.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>

namespace althing::actors {
namespace {

constexpr std::size_t replicas_max = 4096;

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Error refused(std::string_view text) {
  return {ErrorCode::invalid_argument, "'" + std::string(text.substr(0, 60)) + "' is no grid; it must be world:dp:tp:ep:replicas, as in 4:2:2:2:-",
          "grid"};
}

std::string replicas_text(const std::vector<ExpertId>& replicas) {
  if (replicas.empty()) return "-";
  std::string text;
  for (std::size_t i = 0; i < replicas.size();) {
    std::size_t end = i + 1;
    while (end < replicas.size() && replicas[end].value == replicas[end - 1].value + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(replicas[i].value);
    if (end - i > 1) text += "-" + std::to_string(replicas[end - 1].value);
    i = end;
  }
  return text;
}

bool read_replicas(std::string_view text, std::vector<ExpertId>& replicas) {
  if (text == "-") return true;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view run = text.substr(0, comma);
    const std::size_t dash = run.find('-');
    const auto first = number_of(run.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_of(run.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= replicas_max - replicas.size()) return false;
    for (std::uint32_t expert = *first; expert <= *last; ++expert) replicas.push_back(ExpertId{expert});
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string to_text(const Grid& grid) {
  std::string text;
  for (const std::uint32_t number : {grid.world, grid.dp, grid.tp, grid.ep}) text += std::to_string(number) + ":";
  return text + replicas_text(grid.replicas);
}

Result<Grid> grid_of_text(std::string_view text) {
  const std::string_view whole = text;
  Grid grid;
  for (std::uint32_t* number : std::array{&grid.world, &grid.dp, &grid.tp, &grid.ep}) {
    const std::size_t colon = text.find(':');
    const auto value = colon == std::string_view::npos ? std::nullopt : number_of(text.substr(0, colon));
    if (!value) return refused(whole);
    *number = *value;
    text.remove_prefix(colon + 1);
  }
  if (!read_replicas(text, grid.replicas)) return refused(whole);
  return grid;
}

std::string to_text(const Place& place) { return std::to_string(place.rank) + "@" + to_text(place.grid); }

Result<Place> place_of_text(std::string_view text) {
  const std::size_t at = text.find('@');
  const auto rank = number_of(text.substr(0, at));
  if (at == std::string_view::npos || !rank) return refused(text);
  auto grid = grid_of_text(text.substr(at + 1));
  if (!grid) return grid.error();
  if (*rank >= grid->world)
    return Error{ErrorCode::invalid_argument, "there is no rank " + std::to_string(*rank) + " in a grid of " + std::to_string(grid->world), "grid"};
  return Place{*rank, std::move(*grid)};
}

}  // namespace althing::actors
