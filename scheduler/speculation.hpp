// Guesses of how a sequence goes on, which the step that computes its next token verifies along with it: each guess costs one more row of the step
// and saves a step where the model draws the same. A guess never changes what is drawn, since every draw is keyed by its position and a guess is kept
// only where it equals the draw in front of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"

namespace althing::scheduler {

// Prompt lookup: what came behind the latest earlier place that ends in the same three tokens. Finding it takes the same time however long the text
// is.
class PromptLookup {
 public:
  static constexpr std::uint32_t match_tokens = 3;

  // REQUIRES: `tokens` begins with those of the calls before.
  void read(std::span<const TokenId> tokens);
  // At most so many tokens that may follow; none where nothing matches. REQUIRES: read(tokens).
  std::vector<TokenId> guess(std::span<const TokenId> tokens, std::uint32_t most) const;

 private:
  std::size_t bucket(std::span<const TokenId> tokens, std::size_t end) const;
  void insert(std::span<const TokenId> tokens, std::size_t end);

  std::vector<std::uint32_t> ends_;  // by hash of three tokens: where the latest such place ends, 0: none; a power of two in size
  std::size_t read_ = 0;             // tokens
};

// How much to guess: more while guesses hold, less when they do not, and for a while nothing when none does. A draft model may be wrong once: it goes
// by the whole sequence and is right again behind the word that it missed, where what a lookup goes by has ended.
class SpeculationPace {
 public:
  std::uint32_t length(std::uint32_t most) const;
  void verified(std::uint32_t guessed, std::uint32_t held, bool drafted = false);
  // A token was drawn that nobody had guessed.
  void drawn() { rest_ -= rest_ > 0 ? 1 : 0; }

 private:
  std::uint32_t length_ = 2;
  std::uint32_t failures_ = 0;  // in a row
  std::uint32_t rest_ = 0;      // so many tokens are drawn before the next guess
};

}  // namespace althing::scheduler
