// See json_line.hpp.
#include "monitoring/json_line.hpp"

#include <cmath>
#include <cstdio>

namespace althing::monitoring {

std::string json_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      char escape[8] = "";
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string json_text(std::string_view text) { return "\"" + json_escaped(text) + "\""; }

std::string json_number(double number) {
  if (!std::isfinite(number)) return "null";
  char text[32] = "";
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

}  // namespace althing::monitoring
