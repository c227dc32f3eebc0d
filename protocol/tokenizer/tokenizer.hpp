// Byte-level BPE with the o200k pre-tokenizer. Text never becomes a special token: control ids come only from whoever renders a format.
// Immutable after loading and safe to share between threads.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol {

class Tokenizer {
 public:
  // A Hugging Face tokenizer.json: model BPE, byte-level, vocab and merges (strings or pairs). Every entry of
  // added_tokens becomes a special token, whatever its flag says: ordinary text never yields it.
  // Errors: not_found, io, corrupt (what and where), unsupported (another model type, normalizer or pre-tokenizer).
  static Result<std::shared_ptr<const Tokenizer>> from_tokenizer_json(const std::filesystem::path& file);
  static Result<std::shared_ptr<const Tokenizer>> from_tokenizer_json_text(std::string_view text);
  // Merge ranks, one `base64 rank` a line from rank 0, and special tokens by name; the first name of an id is the one it decodes to.
  // Errors: not_found, io, corrupt (the line), invalid_argument (special tokens that contradict the ranks or each other).
  static Result<std::shared_ptr<const Tokenizer>> from_tiktoken(const std::filesystem::path& file,
                                                                std::vector<std::pair<std::string, TokenId>> special_tokens);
  // The special tokens of o200k_harmony (harmony's names; 200018 also answers to <|endofprompt|>).
  static std::vector<std::pair<std::string, TokenId>> o200k_harmony_special_tokens();
  // DIR/tokenizer.json of a model folder.
  static Result<std::shared_ptr<const Tokenizer>> of_model(const std::filesystem::path& directory);
  ~Tokenizer();

  // Ordinary encoding. Invalid UTF-8 in `text` is encoded as U+FFFD, one per maximal subpart. Linear in practice, also for
  // runs of one character. REQUIRES: text is under 4 GiB.
  std::vector<TokenId> encode(std::string_view text) const;
  // As encode, but occurrences of special tokens' strings become their ids (leftmost, longest). For raw prompts of tests and tools only.
  std::vector<TokenId> encode_with_special(std::string_view text) const;

  // The bytes of a token (a special token's are its name); nullopt for an id that does not exist. Bytes need not be valid UTF-8.
  std::optional<std::string_view> bytes_of(TokenId token) const;
  std::optional<TokenId> special(std::string_view name) const;
  bool is_special(TokenId token) const;
  // One more than the largest id.
  TokenId vocabulary_size() const;
  // All bytes concatenated, special tokens as their names. Errors: corrupt "Invalid token for decoding: N".
  Result<std::string> decode(std::span<const TokenId> tokens) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace althing::protocol
