// See the header. The strength of a cell is its opacity, so one colour serves on light and dark ground.
#include "actors/commands/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace althing::actors {
namespace {

constexpr std::uint32_t margin = 56, heading = 40, legend = 48;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

// Wide maps get narrow cells, and every map some that can be seen.
std::uint32_t cell_width(const HeatMap& map) { return std::clamp(1024 / std::max(1u, map.columns), 3u, 24u); }
std::uint32_t cell_height(const HeatMap& map) { return std::clamp(480 / std::max(1u, map.rows), 8u, 24u); }
std::uint32_t width_of(const HeatMap& map) { return 2 * margin + std::max(360u, map.columns * cell_width(map)); }
std::uint32_t height_of(const HeatMap& map) { return heading + map.rows * cell_height(map) + legend; }

double largest(const HeatMap& map) {
  double most = 0;
  for (const double value : map.values) most = std::isfinite(value) ? std::max(most, value) : most;
  return most;
}

void text(std::string& out, std::uint32_t x, std::uint32_t y, const char* kind, const std::string& words) {
  out += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", x, y, kind, escaped(words));
}

// Every so many columns or rows has its number: 1, 2 or 5 times a power of ten, not closer than `pixels`.
std::uint32_t tick_step(std::uint32_t cell, std::uint32_t pixels) {
  for (std::uint32_t power = 1;; power *= 10)
    for (const std::uint32_t step : {power, 2 * power, 5 * power})
      if (step * cell >= pixels) return step;
}

void draw(std::string& out, const HeatMap& map, std::uint32_t top) {
  const std::uint32_t w = cell_width(map), h = cell_height(map), y0 = top + heading, below = y0 + map.rows * h;
  const double most = largest(map);
  text(out, margin, top + 22, "title", map.title);
  for (std::uint32_t row = 0; row < map.rows; ++row)
    for (std::uint32_t column = 0; column < map.columns; ++column) {
      const double value = map.values[std::size_t{row} * map.columns + column];
      if (!std::isfinite(value)) continue;
      // What is there and 0 shows as a trace of a cell: it is not the same as nothing.
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"{:.3f}\"><title>{} {}, {} {}: {:.6g} {}</title></rect>\n",
                         margin + column * w, y0 + row * h, w, h, most > 0 ? 0.05 + 0.95 * value / most : 0.05, escaped(map.across),
                         map.first_column + column, escaped(map.down), row, value, escaped(map.unit));
    }
  for (std::uint32_t column = 0; column < map.columns; column += tick_step(w, 32))
    text(out, margin + column * w, below + 14, "tick", std::to_string(map.first_column + column));
  for (std::uint32_t row = 0; row < map.rows; row += tick_step(h, 12)) text(out, margin - 24, y0 + row * h + h / 2 + 4, "tick", std::to_string(row));
  text(out, margin, below + 32, "axis", fmt::format("across: {}, down: {}; strongest: {:.6g} {}", map.across, map.down, most, map.unit));
}

}  // namespace

std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps) {
  std::uint32_t width = 0, height = heading;
  for (const HeatMap& map : maps) {
    width = std::max(width, width_of(map));
    height += height_of(map);
  }
  std::string out = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\">\n", width,
                                height, width, height);
  out += "<title>" + escaped(title) + "</title>\n";
  out +=
      "<style>.ground{fill:#fff}rect{fill:#0a4f9e}text{fill:#1f2328;font:12px system-ui,sans-serif}.title{font-weight:600}.name{font-size:15px}"
      ".tick{font-size:10px}@media(prefers-color-scheme:dark){.ground{fill:#0d1117}rect{fill:#79c0ff}text{fill:#e6edf3}}</style>\n";
  out += fmt::format("<rect class=\"ground\" width=\"{}\" height=\"{}\"/>\n", width, height);
  text(out, margin, 26, "name", title);
  std::uint32_t top = heading;
  for (const HeatMap& map : maps) {
    draw(out, map, top);
    top += height_of(map);
  }
  return out + "</svg>\n";
}

}  // namespace althing::actors
