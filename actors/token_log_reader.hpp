// Reads a token log that another process wrote, died over, or overwrote with anything: no byte is believed before it is checked, nothing is written,
// and a slot that does not add up costs that slot only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/token_log_layout.hpp"
#include "actors/token_log_record.hpp"

namespace althing::actors::token_log {

struct Counts {
  std::uint32_t slots = 0;
  std::uint32_t blocks = 0;
};
// How a log of so many bytes is cut. Errors: invalid_argument, naming the bounds.
Result<Counts> counts_of(std::size_t bytes);

// One request as it was at the last commit.
struct Read {
  std::uint32_t slot = 0;
  std::uint64_t serial = 0;
  LoggedSubmit submit;
  bool accepted = false;
  // Tokens, and between them word_cut, word_closed, word_choice and marks of TP degrees where they happened. Nothing else.
  std::vector<std::uint32_t> story;
  std::vector<TokenLogprobs> logprobs;           // one for each token of the story, in its order, where the submit asks for them
  std::vector<std::optional<LoggedEnd>> closed;  // by choice; set when the story holds its word_closed
  std::optional<LoggedEnd> ended;
  std::uint64_t credit = 0;
  std::uint32_t takeovers = 0;
  // Where the chain stands.
  std::uint32_t submit_words = 0;
  std::uint32_t words = 0;
  std::uint32_t choice = 0;  // that the next word is about
  std::uint32_t checksum = 0;
  std::vector<std::uint32_t> blocks;

  // No token of it will come.
  bool computed() const {
    return ended || std::all_of(closed.begin(), closed.end(), [](const auto& end) { return end.has_value(); });
  }
};

struct Contents {
  std::vector<Read> requests;          // ascending by serial
  std::vector<std::uint32_t> damaged;  // slots that claim a request and hold none
};

// What a log begins with.
Header header_for(const Counts& counts, const std::string& instance);
// The server_instance of a log whose header is sound; nullopt for any other.
std::optional<std::string> instance_of(std::span<const std::byte> log);
// REQUIRES: instance_of(log) is set.
Contents read(std::span<const std::byte> log);

}  // namespace althing::actors::token_log
