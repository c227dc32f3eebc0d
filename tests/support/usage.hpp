// The one answer of every test program and benchmark to --help: what it takes and does, on standard output, and nothing is run. It stands first in
// main, so that nobody who asks what a program does gets a GPU taken, a checkpoint read or minutes of work.
#pragma once

#include <cstdio>
#include <string_view>

namespace althing::tests {

inline bool asks_for_help(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (const std::string_view word = argv[i]; word == "--help" || word == "-h") return true;
  return false;
}

// Whether the command line asks for help; if so `usage` has been printed, and main returns 0.
inline bool helped(int argc, char** argv, const char* usage) {
  if (!asks_for_help(argc, argv)) return false;
  std::printf("usage: %s\n", usage);
  return true;
}

}  // namespace althing::tests
