// Escapes byte by byte; UTF-8 passes through unchecked because JSON parsing has checked it and paths are shown as they are.
#include "gpu/weights/message.hpp"

namespace althing::gpu {

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string out;
  for (const char c : text.substr(0, bytes_max)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\'' || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  // A cut inside a UTF-8 sequence would make the whole message invalid.
  if (text.size() > bytes_max) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0x80) != 0) out.pop_back();
    out += "...";
  }
  return out;
}

std::string printable_path(const std::filesystem::path& path) { return printable(path.native(), path.native().size()); }

}  // namespace althing::gpu
