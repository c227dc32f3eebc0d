// Exit codes by class, so that scripts can tell what to do about a failure. 2 is left to the command line parser's own complaints.
#pragma once

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;         // the request or check itself failed
inline constexpr int exit_usage = 2;          // a wrong flag or argument
inline constexpr int exit_not_found = 3;      // a file, model or server that is not there
inline constexpr int exit_corrupt = 4;        // a checkpoint or frame that contradicts itself
inline constexpr int exit_unsupported = 5;    // this build or machine cannot do it
inline constexpr int exit_resources = 6;      // memory, descriptors, a port in use
inline constexpr int exit_rank_lost = 7;      // ranks keep dying
inline constexpr int exit_interrupted = 130;  // Ctrl-C, as shells say it
inline constexpr int exit_internal = 70;      // a bug of ours

constexpr int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return exit_usage;
    case ErrorCode::not_found:
    case ErrorCode::unavailable:
    case ErrorCode::core_lost:
      return exit_not_found;
    case ErrorCode::corrupt:
    case ErrorCode::version:
      return exit_corrupt;
    case ErrorCode::unsupported:
      return exit_unsupported;
    case ErrorCode::too_large:
    case ErrorCode::busy:
    case ErrorCode::io:
      return exit_resources;
    case ErrorCode::rank_lost:
      return exit_rank_lost;
    case ErrorCode::internal:
      return exit_internal;
    case ErrorCode::draining:
    case ErrorCode::cancelled:
    case ErrorCode::deadline:
    case ErrorCode::slow_reader:
    case ErrorCode::nonfinite:
    case ErrorCode::denied:
      return exit_failed;
  }
  return exit_failed;
}

}  // namespace althing::actors
