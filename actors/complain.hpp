// How every command says that it failed: one line on standard error, and the exit code of the error's class.
#pragma once

#include <cstdio>

#include "actors/exit_codes.hpp"

namespace althing::actors {

inline int complain(const Error& error) {
  std::fprintf(stderr, "althing: %s\n", error.message.c_str());
  return exit_code_of(error.code);
}

}  // namespace althing::actors
