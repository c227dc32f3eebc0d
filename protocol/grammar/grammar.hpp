// A grammar as requests ask for one, bound to a vocabulary: which tokens may follow, as masks. Requests with the same grammar share one, and with it
// what was computed for them. Everything here may be used by any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/grammar/automaton.hpp"
#include "protocol/grammar/matcher.hpp"
#include "protocol/grammar/token_trie.hpp"
#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/token_mask.hpp"

namespace althing::protocol::grammar {

// The automaton of what was asked for. Errors: those of json_schema.hpp; the field is "grammar".
Result<std::shared_ptr<const Automaton>> compile(const wire::Grammar& asked);

// A mask in the form of token_mask.hpp; shared, because it is kept for whoever comes to the same place.
using Mask = std::shared_ptr<const std::string>;

class Grammar : public std::enable_shared_from_this<Grammar> {
 public:
  // `ends`: tokens that may be drawn where the text is whole, and end it. `vocabulary`: of the model, which may have more ids than the tokenizer.
  Grammar(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie, std::vector<TokenId> ends, std::uint32_t vocabulary);

  // How far one text has come. Moves, and is not copied: the grammar knows where its readers stand.
  class Reader {
   public:
    explicit Reader(std::shared_ptr<Grammar> grammar);
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader();

    // False for a token that is not legal here, which changes nothing. Not for tokens that end the text.
    bool push(TokenId token);
    bool is_complete() const;
    // Errors: too_large (the grammar has too many places to keep), internal (no token is legal: the vocabulary lacks bytes that the grammar needs).
    Result<Mask> mask();

   private:
    friend class Grammar;
    std::shared_ptr<Grammar> grammar_;
    Matcher::Standing at_ = Matcher::dead;
  };

 private:
  static constexpr std::size_t mask_bytes_max = 4u << 20;  // kept

  bool push(Reader& reader, TokenId token);
  Result<Mask> mask(Reader& reader);
  bool walk(Matcher::Standing from, std::vector<std::uint32_t>& words);
  void make_room();

  mutable std::mutex mutex_;
  Matcher matcher_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<TokenId> ends_;
  std::uint32_t vocabulary_;
  std::vector<Reader*> readers_;
  std::unordered_map<Matcher::Standing, Mask> masks_;
  std::size_t mask_bytes_ = 0;
  std::vector<Matcher::Standing> stack_;  // of walk
};

// The grammars of a server.
class GrammarLibrary {
 public:
  // Different ones that requests are using at a time.
  static constexpr std::size_t grammars_max = 64;

  GrammarLibrary(std::shared_ptr<const Tokenizer> tokenizer, std::uint32_t vocabulary);

  // Errors: compile's; busy.
  std::uint32_t vocabulary() const { return vocabulary_; }
  Result<std::shared_ptr<Grammar>> get(const wire::Grammar& asked, const std::vector<TokenId>& ends);

 private:
  static constexpr std::size_t kept_max = 16;  // that nobody uses, maybe

  struct Entry {
    std::string key;
    std::weak_ptr<Grammar> grammar;
  };
  std::mutex mutex_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::uint32_t vocabulary_;
  std::shared_ptr<const TokenTrie> trie_;  // made for the first
  std::list<Entry> entries_;
  std::list<std::shared_ptr<Grammar>> kept_;  // the newest first
};

}  // namespace althing::protocol::grammar
