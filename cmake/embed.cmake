# Writes OUTPUT, a C++ file that holds the live page's files as arrays; a script for `cmake -P`, so that a build needs nothing but CMake for it.
#   cmake -DFOLDER=monitoring/page -DOUTPUT=page_files.cpp -P cmake/embed.cmake
# The ETag is a hash of the file's bytes, so it changes when the file does and never otherwise.
set(arrays "")
set(rows "")
foreach(entry "index.html|/|text/html" "page.css|/page.css|text/css" "page.js|/page.js|text/javascript"
              "chat.js|/chat.js|text/javascript" "heat_map.js|/heat_map.js|text/javascript" "icon.svg|/icon.svg|image/svg+xml")
  string(REPLACE "|" ";" entry "${entry}")
  list(GET entry 0 name)
  list(GET entry 1 path)
  list(GET entry 2 type)
  file(READ "${FOLDER}/${name}" hex HEX)
  file(SHA256 "${FOLDER}/${name}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(MAKE_C_IDENTIFIER "${name}" array)
  string(APPEND arrays "constexpr unsigned char ${array}[] = {\n    ${bytes}};\n\n")
  string(APPEND rows "    {\"${path}\", \"${type}; charset=utf-8\", \"\\\"${hash}\\\"\", text_of(${array})},\n")
endforeach()
file(WRITE "${OUTPUT}.new" "// Made by cmake/embed.cmake from the files of monitoring/page/; change those.
#include \"monitoring/page_files.hpp\"

#include <cstddef>

namespace althing::monitoring {
namespace {

${arrays}template <std::size_t size>
std::string_view text_of(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
${rows}  };
  return files;
}

}  // namespace althing::monitoring
")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
