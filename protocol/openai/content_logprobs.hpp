// How likely the tokens of a choice's content were, in the form of chat completions and of the Responses API. Only tokens of content are told: those
// of reasoning, calls and headers, and all control tokens, are left out. Which token is what, a parse of the drawn ids says; it is the engine's own,
// so messages have the numbers that deltas name.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "protocol/openai/message_kind.hpp"
#include "protocol/wire/delta_stream.hpp"

namespace althing::protocol::openai {

// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}. A token may be a part of a character: its bytes are exact, in its
// text U+FFFD stands for what is no UTF-8.
nlohmann::ordered_json logprob_json(const Tokenizer& tokenizer, const TokenLogprobs& told);
// A token's text, as above.
std::string token_text(const Tokenizer& tokenizer, TokenId token);

class ContentLogprobs {
 public:
  // As kind_of's.
  ContentLogprobs(const chat::ChatFormat& format, std::set<std::string> declared, bool calls_wanted, bool only_final = false);

  // The next token of the choice. REQUIRES: one call a token, in order, from the first.
  void push(const TokenLogprobs& told);
  // A list of those in messages up to this one that were not taken before.
  nlohmann::ordered_json take(std::uint32_t message);
  nlohmann::ordered_json take_all();

 private:
  struct Told {
    std::uint32_t message = 0;
    nlohmann::ordered_json json;
  };

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::set<std::string> declared_;
  bool calls_wanted_, only_final_;
  wire::DeltaStream stream_;
  std::vector<wire::DeltaEvent> events_;  // of the token at hand
  bool content_ = false;                  // the open message is
  std::uint32_t message_ = 0;             // … and its number
  std::deque<Told> told_;
};

}  // namespace althing::protocol::openai
