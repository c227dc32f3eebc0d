// How likely drawn tokens were, and the bytes of StepResult::logprobs. Only rows that asked for it are in it (SamplingParameters::logprobs), so a
// step without any has no bytes. One section a drawn token, in the order of the step's draws.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing {

inline constexpr std::uint32_t logprobs_top_max = 20;

// Natural logarithm of a token's probability before temperature and filters; finite.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// A drawn token's, and those of the most likely ones: falling, the smaller id first among equals.
struct TokenLogprobs {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;

  friend bool operator==(const TokenLogprobs&, const TokenLogprobs&) = default;
};

// What one takes where bytes are counted, about, in the widest encoding.
inline std::size_t bytes_of(const TokenLogprobs& told) { return 48 * (told.top.size() + 1); }

struct RequestLogprobs {
  RequestId request;
  TokenLogprobs told;

  friend bool operator==(const RequestLogprobs&, const RequestLogprobs&) = default;
};

namespace logprobs_detail {

struct SectionHead {
  std::uint64_t request = 0;
  TokenId token = 0;
  float logprob = 0;
  std::uint32_t top_count = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(SectionHead) == 24 && sizeof(TokenLogprob) == 8);

}  // namespace logprobs_detail

inline void append_logprobs(std::string& bytes, const RequestLogprobs& drawn) {
  const logprobs_detail::SectionHead head{drawn.request.value, drawn.told.token, drawn.told.logprob,
                                          static_cast<std::uint32_t>(drawn.told.top.size()), 0};
  bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(drawn.told.top.data()), drawn.told.top.size() * sizeof(TokenLogprob));
}

// All sections. Errors: corrupt; another process wrote the bytes.
inline Result<std::vector<RequestLogprobs>> read_logprobs(std::string_view bytes) {
  std::vector<RequestLogprobs> found;
  while (!bytes.empty()) {
    logprobs_detail::SectionHead head;
    if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
    if (bytes.size() < sizeof head || head.top_count > logprobs_top_max || bytes.size() - sizeof head < head.top_count * sizeof(TokenLogprob))
      return Error{ErrorCode::corrupt, "the logprobs of a step end in the middle of a token, or are of more tokens than can be asked for",
                   "logprobs"};
    bytes.remove_prefix(sizeof head);
    RequestLogprobs& one = found.emplace_back(RequestLogprobs{RequestId{head.request}, {head.token, head.logprob, {}}});
    one.told.top.resize(head.top_count);
    if (head.top_count > 0) std::memcpy(one.told.top.data(), bytes.data(), head.top_count * sizeof(TokenLogprob));
    bytes.remove_prefix(head.top_count * sizeof(TokenLogprob));
  }
  return found;
}

}  // namespace althing
