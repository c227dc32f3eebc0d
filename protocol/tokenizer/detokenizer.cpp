// An id that does not exist is fed as the byte FF, which no character contains: it becomes its own U+FFFD and ends what was pending.
#include "protocol/tokenizer/detokenizer.hpp"

#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

std::string Detokenizer::push(TokenId token) {
  pending_.append(tokenizer_->bytes_of(token).value_or("\xFF"));
  return take_certain_utf8(pending_);
}

std::string Detokenizer::finish() {
  std::string storage;
  std::string text(valid_utf8(pending_, storage));
  pending_.clear();
  return text;
}

}  // namespace althing::protocol
