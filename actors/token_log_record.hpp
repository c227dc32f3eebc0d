// What the token log keeps of a request besides tokens, as 32-bit words: the submit as it was admitted, how generation ended, what the client was
// told at the end. Reading takes any words: it checks every length before it takes memory and gives nothing for what is not exactly one record.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/events.hpp"

namespace althing::actors {

// Everything that a stream needs to be known from, resumed and computed to its end. Messages and tools are in the rendered prompt.
struct LoggedSubmit {
  std::string client_id, request_id;
  std::vector<TokenId> prompt;
  std::vector<std::uint32_t> boundaries;
  SamplingParameters sampling;  // with the seed that was drawn
  bool raw = false;             // token ids came in, so no messages go out
  bool return_tokens = false;
  std::uint32_t choices = 1;          // 1 to choices_bound; sampling.choice is the first one's
  std::uint32_t credit = 0;           // of the submit; 0: not counted
  std::uint64_t deadline_ns = 0;      // on the monotonic clock, which all processes share; 0: none
  std::uint32_t trace_top_m = 0;      // the submit's
  std::uint32_t traced_cuts_max = 0;  // deltas that may come besides those that carry tokens; only where it is traced

  std::string tenant{};             // the submit's
  std::int32_t priority = 0;        // likewise
  std::vector<std::string> stop{};  // likewise: what the client heard of the text depends on it
  std::uint32_t client_stops = 0;   // so many of them, the first, are the client's own
  std::string owner{};              // the client's key; "" where clients have none
  // The submit's, and whether it named tools: a model that may call some may begin otherwise.
  std::optional<protocol::wire::Grammar> grammar{};
  bool has_tools = false;

  friend bool operator==(const LoggedSubmit&, const LoggedSubmit&) = default;
};

// How a stream ended for its client: Done, or an error when `error` is set.
struct LoggedEnd {
  FinishReason reason = FinishReason::stop;
  Usage usage;
  std::optional<Error> error;
  std::optional<std::uint32_t> stop_string{};  // index of the one of the submit's that it came to

  friend bool operator==(const LoggedEnd&, const LoggedEnd&) = default;
};

inline constexpr std::size_t logged_text_bytes_max = 512;  // of an error's message; longer ones are cut
inline constexpr std::uint32_t end_words_max = 2 * (logged_text_bytes_max / 4 + 1) + 16;

std::vector<std::uint32_t> to_words(const LoggedSubmit& submit);
std::vector<std::uint32_t> to_words(const LoggedEnd& end);
std::optional<LoggedSubmit> submit_from_words(std::span<const std::uint32_t> words);
std::optional<LoggedEnd> end_from_words(std::span<const std::uint32_t> words);

}  // namespace althing::actors
