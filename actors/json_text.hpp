// Text inside a line of JSON that we print: quotes, backslashes and control characters escaped, so that nothing from outside can end or forge a line.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace althing::actors {

// Without the quotes around it.
inline std::string json_escaped(std::string_view text) {
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

}  // namespace althing::actors
