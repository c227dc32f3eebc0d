// Escapes byte by byte; UTF-8 passes through unchecked because JSON parsing has checked it and paths are shown as they are.
#include "gpu/weights/message.hpp"

#include <algorithm>

namespace althing::gpu {

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::size_t cut = std::min(text.size(), bytes_max);
  // A byte 10xxxxxx after the cut belongs to the character before it.
  while (cut > 0 && cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  std::string out;
  for (const char c : text.substr(0, cut)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\'' || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return cut < text.size() ? out + "..." : out;
}

std::string printable_path(const std::filesystem::path& path) { return printable(path.native(), path.native().size()); }

}  // namespace althing::gpu
