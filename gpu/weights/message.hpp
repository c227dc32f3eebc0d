// What error messages of the loader are made with. Names out of files and paths go through printable(): they come from strangers, and an error is
// one line of valid text whatever they hold.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace althing::gpu {

// Control characters, quotes and backslashes escaped; cut at `bytes_max`, not inside a UTF-8 sequence.
std::string printable(std::string_view text, std::size_t bytes_max = 200);
// The same for a path; never cut.
std::string printable_path(const std::filesystem::path& path);

}  // namespace althing::gpu
