// One GET of a small page of a server on this machine, over HTTP/1.1, with a deadline for all of it. No redirects, no names to resolve, no TLS: what
// `althing top` needs of HTTP and nothing else.
#pragma once

#include <chrono>
#include <string>

#include "monitoring/loopback_address.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

struct HttpAnswer {
  int status = 0;
  std::string body;
};

inline constexpr std::size_t http_answer_bytes_max = 16u << 20;

// Errors: unavailable (nobody listens, or does not answer in time), corrupt (what answers does not speak HTTP, or was cut off), too_large.
Result<HttpAnswer> http_get(const monitoring::LoopbackAddress& address, const std::string& path, std::chrono::milliseconds timeout);

// The answer in bytes that a server sent until it closed. Errors: corrupt.
Result<HttpAnswer> http_answer_of(const std::string& bytes);

}  // namespace althing::actors
