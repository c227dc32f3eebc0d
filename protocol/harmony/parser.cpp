// One token in, at most one transition. Text is decoded as it comes, so content is always UTF-8 and every step costs the bytes of its token.
#include "protocol/harmony/parser.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::harmony {
namespace {

Error corrupt(const char* kind, std::string message) { return {ErrorCode::corrupt, std::move(message), kind}; }

Message message_of(ParsedHeader header, std::string text) {
  Message message;
  message.role = header.role;
  message.name = std::move(header.name);
  message.recipient = std::move(header.recipient);
  message.channel = std::move(header.channel);
  message.content_type = std::move(header.content_type);
  message.content.push_back(TextContent{std::move(text)});
  return message;
}

// The tokens as text. Errors: corrupt, invalid_token or invalid_utf8.
Result<std::string> decode_utf8(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) {
    const auto bytes = tokenizer.bytes_of(token);
    if (!bytes) return corrupt("invalid_token", "Invalid token for decoding: " + std::to_string(token));
    text += *bytes;
  }
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return text;
  const std::string at = " from index " + std::to_string(valid);
  const Utf8Step step = utf8_step(text, valid);
  if (step.kind == Utf8Kind::incomplete) return corrupt("invalid_utf8", "Invalid utf-8 sequence: incomplete" + at);
  return corrupt("invalid_utf8", "Invalid utf-8 sequence of " + std::to_string(step.length) + " bytes" + at);
}

}  // namespace

StreamableParser::StreamableParser(Format format, std::optional<Role> role, bool strict)
    : format_(std::move(format)), strict_(strict), state_(role ? State::header : State::expect_start), pending_role_(role) {}

Status StreamableParser::process(TokenId token) {
  tokens_.push_back(token);
  switch (state_) {
    case State::expect_start:
      if (token != format_.start)
        return corrupt("unexpected_token",
                       "Unexpected token " + std::to_string(token) + " while expecting start token " + std::to_string(format_.start));
      state_ = State::header;
      header_tokens_.clear();
      return Ok{};
    case State::header:
      if (token == format_.message) return complete_header();
      if (!strict_ && format_.is_message_stop(token)) return complete_unfinished();
      header_tokens_.push_back(token);
      return Ok{};
    case State::content:
      if (format_.is_message_stop(token)) {
        complete_message();
      } else {
        push_content(token);
      }
      return Ok{};
  }
  return Ok{};
}

Status StreamableParser::finish() {
  if (state_ == State::header) return corrupt("eos_in_header", "Unexpected EOS while waiting for message header to complete");
  if (state_ == State::content) complete_message();
  return Ok{};
}

// A header that cannot be read leaves the pending role: the next header may still need it.
Status StreamableParser::complete_header() {
  state_ = State::expect_start;
  const Result<std::string> text = decode_utf8(*format_.tokenizer, header_tokens_);
  if (!text) return corrupt("header_not_utf8", "could not decode header");
  Result<ParsedHeader> header = parse_header(*text, pending_role_);
  if (!header) return std::move(header).error();
  pending_role_.reset();
  header_ = *std::move(header);
  state_ = State::content;
  return Ok{};
}

// Only a pending role saves the words of a message that never came to its <|message|>; without one they are dropped, as upstream drops them.
Status StreamableParser::complete_unfinished() {
  state_ = State::expect_start;
  if (pending_role_ && !header_tokens_.empty()) {
    Result<std::string> text = decode_utf8(*format_.tokenizer, header_tokens_);
    if (!text) return std::move(text).error();
    Result<UnfinishedMessage> unfinished = parse_unfinished(*text, *pending_role_);
    if (!unfinished) return std::move(unfinished).error();
    messages_.push_back(message_of(std::move(unfinished->header), std::move(unfinished->text)));
  }
  pending_role_.reset();
  return Ok{};
}

void StreamableParser::push_content(TokenId token) {
  delta_.reset();
  const auto bytes = format_.tokenizer->bytes_of(token);
  if (!bytes) blocked_ = true;
  if (blocked_) return;
  undecoded_ += *bytes;
  const std::size_t before = text_.size();
  const std::string_view waiting = std::string_view(undecoded_).substr(undecoded_begin_);
  const std::size_t valid = valid_utf8_prefix(waiting);
  const bool all_valid = valid == waiting.size();
  undecoded_begin_ += valid;
  if (all_valid || valid > 0) emit(waiting.substr(0, valid));
  if (!all_valid) {
    // One U+FFFD a step at most, as upstream: what follows an invalid sequence waits for the next token.
    const Utf8Step step = utf8_step(waiting, valid);
    if (step.kind == Utf8Kind::invalid) {
      emit(replacement_character);
      undecoded_begin_ += step.length;
    }
  }
  if (all_valid || text_.size() > before) delta_ = text_.substr(before);
  // Used bytes go once they outweigh the waiting ones, so that a long run of invalid bytes is not moved at every step.
  if (2 * undecoded_begin_ >= undecoded_.size()) {
    undecoded_.erase(0, undecoded_begin_);
    undecoded_begin_ = 0;
  }
}

void StreamableParser::emit(std::string_view piece) {
  text_ += piece;
  piece_ends_.push_back(text_.size());
}

void StreamableParser::complete_message() {
  if (blocked_) text_ += replacement_character;
  std::string replaced;
  text_ += valid_utf8(std::string_view(undecoded_).substr(undecoded_begin_), replaced);
  messages_.push_back(message_of(std::exchange(header_, {}), std::exchange(text_, {})));
  state_ = State::expect_start;
  piece_ends_.clear();
  undecoded_.clear();
  undecoded_begin_ = 0;
  blocked_ = false;
  delta_.reset();
}

StreamableParser::State StreamableParser::state() const { return state_; }

std::optional<Role> StreamableParser::current_role() const { return state_ == State::content ? header_.role : pending_role_; }

std::optional<std::string> StreamableParser::current_channel() const { return header_.channel; }

std::optional<std::string> StreamableParser::current_recipient() const { return header_.recipient; }

std::optional<std::string> StreamableParser::current_content_type() const { return header_.content_type; }

std::string StreamableParser::current_content() const { return text_; }

std::optional<std::string> StreamableParser::last_content_delta() const { return delta_; }

const std::vector<Message>& StreamableParser::messages() const { return messages_; }

std::span<const TokenId> StreamableParser::tokens() const { return tokens_; }

std::string StreamableParser::state_json() const {
  using Json = nlohmann::ordered_json;
  if (state_ == State::expect_start) return Json{{"state", "ExpectStart"}}.dump();
  if (state_ == State::header) return Json{{"state", "Header"}, {"header_tokens", header_tokens_}}.dump();
  const auto or_null = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
  Json author = {{"role", name_of(header_.role)}};
  if (header_.name) author["name"] = *header_.name;
  // Upstream keeps content as tokens: every decoded piece, encoded again.
  std::vector<TokenId> content_tokens;
  std::size_t begin = 0;
  for (const std::size_t end : piece_ends_) {
    const std::vector<TokenId> piece = format_.tokenizer->encode(std::string_view(text_).substr(begin, end - begin));
    content_tokens.insert(content_tokens.end(), piece.begin(), piece.end());
    begin = end;
  }
  const Json header = {{"author", author},
                       {"recipient", or_null(header_.recipient)},
                       {"channel", or_null(header_.channel)},
                       {"content_type", or_null(header_.content_type)}};
  return Json{{"state", "Content"}, {"header", header}, {"content_tokens", content_tokens}}.dump();
}

Result<std::vector<Message>> parse_messages(const Format& format, std::span<const TokenId> tokens, std::optional<Role> role, bool strict) {
  StreamableParser parser(format, role, strict);
  for (const TokenId token : tokens)
    if (Status processed = parser.process(token); !processed) return std::move(processed).error();
  if (Status finished = parser.finish(); !finished) return std::move(finished).error();
  return parser.messages();
}

}  // namespace althing::protocol::harmony
