// What `althing top` shows, as text: a pure function of one reading of a server and the size of the terminal. Whatever the server sent, a missing or
// odd member shows as a dash, and nothing in it reaches the terminal as a control character.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/wire/json_text.hpp"

namespace althing::actors {

struct TopReading {
  nlohmann::ordered_json live;     // of /live.json
  nlohmann::ordered_json experts;  // of /experts.json; null where the server counts none
  nlohmann::ordered_json events;   // a list, ascending; the newest that fit are shown
  std::string trouble;             // why this reading is old; "" when it is not
};

struct TopLook {
  std::uint32_t columns = 80;
  std::uint32_t rows = 0;  // 0: as many as it takes
  bool colour = false;
};

// Lines that end with a line feed, each at most `columns` wide, at most `rows` of them.
std::string top_screen(const TopReading& reading, const TopLook& look);

// One layer's tokens as shades: a character or more an expert where they fit, else the largest of neighbours that share one. A dot took no token.
std::string shades_of(const std::vector<double>& tokens, std::uint32_t columns);

}  // namespace althing::actors
