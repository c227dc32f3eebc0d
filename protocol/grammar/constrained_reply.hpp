// One choice of a request with a grammar: which of its draws are free, and what the others may yield. Pure but for the grammar that it reads with:
// the same tokens give the same answers, so whoever knows them can go on.
//
// With Harmony the grammar is of the final channel's text. What is said on other channels is free, calls of tools too, and a model may never come to
// the final channel. Headers are held to their form, so that no text of a malformed one passes for the answer. Without Harmony the grammar holds from
// the first token.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/chat/chat_format.hpp"
#include "protocol/grammar/grammar.hpp"

namespace althing::protocol::grammar {

// What may be drawn next.
struct Allowance {
  std::uint32_t free = 0;  // so many draws from here on, whatever they yield; or
  Mask mask;               // the next one, of these tokens
};

class ConstrainedReply {
 public:
  struct Setting {
    const harmony::Format* harmony = nullptr;  // null: the grammar holds at once
    bool has_tools = false;
    std::uint32_t vocabulary = 0;
  };

  ConstrainedReply(std::shared_ptr<Grammar> grammar, const Setting& setting);

  void push(TokenId token);
  // Errors: Grammar::Reader::mask's; internal (tokens were pushed that were not legal).
  Result<Allowance> next();
  // The text is whole and its message has ended, or the turn ended without it: nothing more belongs to it.
  bool is_over() const { return is_over_; }

  // Tokens that end the text.
  static std::vector<TokenId> ends_of(const harmony::Format* harmony, const std::vector<TokenId>& stop_tokens);

 private:
  // Where a reply of Harmony stands.
  enum class Place : std::uint8_t {
    between,  // behind a message
    role,     // behind <|start|>
    header,   // behind a role
    words,    // in a header, behind what begins a recipient or a content type
    channel,  // behind <|channel|>
    content,  // of a message that is not held
  };
  void push_harmony(TokenId token);
  void begin_header();
  std::vector<TokenId> legal_in_header() const;

  std::shared_ptr<Grammar> grammar_;
  Setting setting_;
  std::optional<Grammar::Reader> reader_;  // while the grammar holds
  Place place_ = Place::header;            // the prompt ended in <|start|>assistant
  std::string channel_;                    // what stands behind <|channel|> so far
  std::string words_;
  bool has_recipient_ = false;       // words came before a channel
  std::uint32_t header_tokens_ = 0;  // ordinary ones
  bool is_over_ = false;
  bool is_broken_ = false;  // something was drawn that was not legal
};

}  // namespace althing::protocol::grammar
