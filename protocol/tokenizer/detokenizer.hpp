// Tokens to text as they come: what is returned is always valid UTF-8, and the pieces concatenate to the lossy decoding of all bytes.
// An incomplete character waits for its next token; bytes that can never become one turn into one U+FFFD per maximal subpart.
#pragma once

#include <memory>
#include <string>

#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::protocol {

class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer);

  // Text that became certain with this token; may be empty. An unknown id gives U+FFFD.
  std::string push(TokenId token);
  // What still waits, as U+FFFD; the detokenizer is then as new.
  std::string finish();
  // A character waits for its next token.
  bool within_character() const { return !pending_.empty(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;
};

}  // namespace althing::protocol
