// Heat maps as SVG: cells of one colour whose strength is the value. The file holds no script and nothing from elsewhere, and follows the reader's
// choice of light or dark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace althing::actors {

struct HeatMap {
  std::string title;
  std::string across, down;        // what a column and a row is
  std::uint32_t first_column = 0;  // its number
  std::uint32_t columns = 0, rows = 0;
  std::vector<double> values;  // (rows, columns), 0 and more; NaN: nothing there
  std::string unit;            // of a value, for the legend and the tips
};

// Maps one below the other.
std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps);

}  // namespace althing::actors
