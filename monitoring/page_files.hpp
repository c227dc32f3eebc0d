// The files of the live page (monitoring/page/), which the build turns into arrays of this program (cmake/embed.cmake): what is served is what was
// built, and no file of the machine is ever opened for a client.
#pragma once

#include <span>
#include <string_view>

namespace althing::monitoring {

struct PageFile {
  std::string_view path;  // as it is asked for: / or /page.css
  std::string_view type;  // for Content-Type
  std::string_view etag;  // of its bytes, with the quotes
  std::string_view body;
};

std::span<const PageFile> page_files();

}  // namespace althing::monitoring
