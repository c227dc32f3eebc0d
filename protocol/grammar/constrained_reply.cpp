// See the header.
#include "protocol/grammar/constrained_reply.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace althing::protocol::grammar {
namespace {

constexpr std::string_view final_channel = "final";
constexpr std::string_view role = "assistant";
constexpr std::string_view recipient = " to=";
constexpr std::string_view content_type = " json";
constexpr std::array<std::string_view, 3> channels = {"analysis", "commentary", final_channel};
constexpr std::uint32_t header_tokens_max = 24;  // what is longer, a reader takes for text without a header

bool is_channel(std::string_view text) { return std::find(channels.begin(), channels.end(), text) != channels.end(); }

Mask mask_of(const std::vector<TokenId>& tokens, std::uint32_t vocabulary) {
  std::vector<std::uint32_t> words(mask_words(vocabulary), 0);
  for (const TokenId token : tokens)
    if (token < vocabulary) words[token / 32] |= 1u << (token % 32);
  return std::make_shared<const std::string>(encode_mask(words));
}

// Tokens that the text goes on with.
void add_beginnings(const Tokenizer& tokenizer, std::string_view text, std::vector<TokenId>& to) {
  for (std::size_t length = 1; length <= text.size(); ++length) {
    const auto tokens = tokenizer.encode(text.substr(0, length));
    if (tokens.size() == 1) to.push_back(tokens[0]);
  }
}

void add_ordinary(const Tokenizer& tokenizer, std::vector<TokenId>& to) {
  for (TokenId token = 0; token < tokenizer.vocabulary_size(); ++token)
    if (tokenizer.bytes_of(token) && !tokenizer.is_special(token)) to.push_back(token);
}

}  // namespace

ConstrainedReply::ConstrainedReply(std::shared_ptr<Grammar> grammar, const Setting& setting) : grammar_(std::move(grammar)), setting_(setting) {
  if (setting_.harmony == nullptr) reader_.emplace(grammar_);
}

std::vector<TokenId> ConstrainedReply::ends_of(const harmony::Format* harmony, const std::vector<TokenId>& stop_tokens) {
  return harmony != nullptr ? std::vector<TokenId>{harmony->return_, harmony->end} : stop_tokens;
}

void ConstrainedReply::push(TokenId token) {
  if (is_over_ || is_broken_) return;
  if (!reader_) return push_harmony(token);
  if (reader_->push(token)) return;
  // What ends the message or the turn is no text.
  const harmony::Format* format = setting_.harmony;
  const bool ends = format == nullptr || token == format->return_ || token == format->end;
  (ends && reader_->is_complete() ? is_over_ : is_broken_) = true;
}

void ConstrainedReply::push_harmony(TokenId token) {
  const harmony::Format& format = *setting_.harmony;
  // The turn ended without an answer.
  if (token == format.return_ && (place_ == Place::content || place_ == Place::between)) {
    is_over_ = true;
    return;
  }
  if (place_ == Place::content) {
    // As the reader of Harmony has it: a message ends with a stop token, or where another one begins.
    if (format.is_message_stop(token) || token == format.endoftext) place_ = Place::between;
    if (token == format.start) place_ = Place::role;
    if (token != format.channel) return;
    begin_header();
  }
  const auto legal = legal_in_header();
  if (std::find(legal.begin(), legal.end(), token) == legal.end()) {
    is_broken_ = true;
    return;
  }
  if (token == format.message) {
    place_ = Place::content;
    if (channel_ == final_channel) reader_.emplace(grammar_);
  } else if (token == format.start) {
    place_ = Place::role;
  } else if (token == format.channel) {
    place_ = Place::channel;
    channel_.clear();
  } else if (place_ == Place::role) {
    begin_header();
  } else if (token == format.constrain) {
    place_ = Place::words;
  } else {
    ++header_tokens_;
    const std::string_view bytes = format.tokenizer->bytes_of(token).value_or("");
    if (place_ == Place::channel && !is_channel(channel_)) {
      channel_ += bytes;
      return;
    }
    has_recipient_ = has_recipient_ || channel_.empty();
    words_ += bytes;
    place_ = Place::words;
  }
}

void ConstrainedReply::begin_header() {
  place_ = Place::header;
  channel_.clear();
  words_.clear();
  has_recipient_ = false;
  header_tokens_ = 0;
}

// What keeps a header in its form: <|start|> assistant, maybe a recipient, <|channel|> and its name, <|message|>. Where there are tools, more may
// stand behind the names of other channels than the final one.
std::vector<TokenId> ConstrainedReply::legal_in_header() const {
  const harmony::Format& format = *setting_.harmony;
  std::vector<TokenId> legal;
  switch (place_) {
    case Place::between:
      return {format.start, format.return_};
    case Place::role:
      return format.tokenizer->encode(role);
    case Place::header:
      legal = {format.channel};
      if (setting_.has_tools) add_beginnings(*format.tokenizer, recipient, legal);
      return legal;
    case Place::words:
      if (channel_.empty()) {
        legal = {format.channel};
        if (words_.size() < recipient.size()) {
          legal.clear();
          add_beginnings(*format.tokenizer, recipient.substr(words_.size()), legal);
          return legal;
        }
      } else {
        legal = {format.message, format.constrain};
      }
      if (header_tokens_ < header_tokens_max) add_ordinary(*format.tokenizer, legal);
      return legal;
    case Place::channel:
      if (is_channel(channel_)) {
        legal = {format.message};
        if (channel_ == final_channel || !setting_.has_tools) return legal;
        legal.push_back(format.constrain);
        add_beginnings(*format.tokenizer, recipient, legal);
        add_beginnings(*format.tokenizer, content_type, legal);
        return legal;
      }
      // A call goes to another channel than the final one.
      for (const std::string_view name : channels)
        if (name.starts_with(channel_) && !(has_recipient_ && name == final_channel))
          add_beginnings(*format.tokenizer, name.substr(channel_.size()), legal);
      return legal;
    case Place::content:
      break;
  }
  return legal;
}

Result<Allowance> ConstrainedReply::next() {
  if (is_broken_) return Error{ErrorCode::internal, "a token was drawn that the grammar does not allow; please report this", "grammar"};
  if (is_over_) return Allowance{1, nullptr};
  if (reader_) {
    auto mask = reader_->mask();
    if (!mask) return mask.error();
    return Allowance{0, std::move(*mask)};
  }
  // A message may end with the very next token, and behind it a header begins.
  if (place_ == Place::content) return Allowance{1, nullptr};
  return Allowance{0, mask_of(legal_in_header(), setting_.vocabulary)};
}

}  // namespace althing::protocol::grammar
