// What a synthetic engine says: which token follows a row's tokens, as a function of those tokens and of the request's seed and nothing else. So
// whoever knows the seed knows every byte of the answer, and a row that is computed again, on another rank or in another batch, goes on as it was. A
// conversation is answered with two messages, a thought and an answer, of as many words as the seed says; a prompt of any other tokens with words
// without end.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::gpu {

// The ids come from whoever has a tokenizer. Invariant: no list is empty, and control tokens are no words.
class SyntheticScript {
 public:
  struct Ids {
    TokenId start = 0, channel = 0, end = 0, stop = 0;  // control tokens: a message begins, its channel follows, it ends, the turn ends
    std::vector<TokenId> role;                          // of the answerer: what stands behind `start` where a prompt ends
    std::vector<TokenId> thought, answer;               // headers of the two messages behind the role, up to where their words begin
    std::vector<TokenId> words;
  };
  explicit SyntheticScript(Ids ids) : ids_(std::move(ids)) {}

  // Words of the two messages: 1 to 8 of the thought, 1 to 1024 of the answer.
  static constexpr std::uint32_t thought_words(std::uint64_t seed) { return 1 + static_cast<std::uint32_t>(seed / 1024 % 8); }
  static constexpr std::uint32_t answer_words(std::uint64_t seed) { return 1 + static_cast<std::uint32_t>(seed % 1024); }
  static constexpr std::uint64_t seed_of(std::uint64_t number, std::uint32_t answer_words) { return number * 1024 + (answer_words - 1) % 1024; }

  const Ids& ids() const { return ids_; }
  // The word at a place of the thought (0), of the answer (1), or of what follows a prompt that is no conversation (2).
  TokenId word(std::uint64_t seed, std::uint32_t message, std::uint32_t place) const;
  // All of what a conversation is answered with, the last token included.
  std::vector<TokenId> reply(std::uint64_t seed) const;

 private:
  Ids ids_;
};

// Where one row is in its script. Reads tokens in their order from position 0 on.
class ScriptReader {
 public:
  void read(const SyntheticScript& script, TokenId token) {
    ++behind_;
    if (token == script.ids().start) {
      in_message_ = true;
      behind_ = 0;
      after_thought_ = has_channel_;
      has_channel_ = false;
    }
    // Only messages of the answerer have one. One that a user wrote comes between two turns.
    if (token == script.ids().channel) has_channel_ = true;
  }
  // What follows.
  TokenId next(const SyntheticScript& script, std::uint64_t seed) const;

 private:
  std::uint32_t behind_ = 0;  // tokens behind the newest start of a message; without one, all
  bool in_message_ = false;
  bool has_channel_ = false;    // the newest message has a channel
  bool after_thought_ = false;  // the one before it had
};

}  // namespace althing::gpu
