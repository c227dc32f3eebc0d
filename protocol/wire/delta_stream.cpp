// Watches the parser's state before and after each token; every transition has one meaning for the client.
#include "protocol/wire/delta_stream.hpp"

#include <utility>

#include "protocol/tokenizer/detokenizer.hpp"

namespace althing::protocol::wire {

DeltaStream::DeltaStream(const harmony::Format& format) : format_(format), parser_(format, harmony::Role::assistant, false) {}

void DeltaStream::push(TokenId token, std::vector<DeltaEvent>& out) {
  const State before = parser_.state();
  // The tokens of a header, or of stray text, are kept until it is known whether somebody understood them.
  if (before == State::expect_start && token == format_.start) unread(out);
  if (before != State::content) header_.push_back(token);
  const bool understood = parser_.process(token).ok();
  const State after = parser_.state();
  if (before == State::content) {
    after_content(out);
  } else if (after == State::content) {
    after_header(out);
  } else if (before == State::header && after == State::expect_start) {
    // A stop token or an unreadable header ended the message before its content began.
    if (parser_.messages().size() > messages_seen_) {
      ++repairs_;
      const harmony::Message& message = parser_.messages().back();
      out.push_back(MessageStarted{index_, harmony::Role::assistant, message.channel.value_or(""), "", ""});
      after_content(out);
    } else
      unread(out);
  } else if (!understood && !format_.tokenizer->is_special(token)) {
    ++repairs_;
  }
}

void DeltaStream::after_header(std::vector<DeltaEvent>& out) {
  header_.clear();
  sent_bytes_ = 0;
  out.push_back(MessageStarted{index_, parser_.current_role().value_or(harmony::Role::assistant), parser_.current_channel().value_or(""),
                               parser_.current_recipient().value_or(""), parser_.current_content_type().value_or("")});
}

void DeltaStream::after_content(std::vector<DeltaEvent>& out) {
  if (parser_.messages().size() == messages_seen_) {
    if (auto delta = parser_.last_content_delta()) text(std::move(*delta), out);
    return;
  }
  // The message is complete; what its last bytes turned into has not been sent yet.
  messages_seen_ = parser_.messages().size();
  std::string content;
  for (const harmony::Content& part : parser_.messages().back().content)
    if (const auto* piece = std::get_if<harmony::TextContent>(&part)) content += piece->text;
  if (content.size() > sent_bytes_) text(content.substr(sent_bytes_), out);
  out.push_back(MessageEnded{index_++});
  sent_bytes_ = 0;
  header_.clear();
}

void DeltaStream::unread(std::vector<DeltaEvent>& out) {
  Detokenizer detokenizer(format_.tokenizer);
  std::string words;
  for (const TokenId token : header_)
    if (!format_.tokenizer->is_special(token)) words += detokenizer.push(token);
  words += detokenizer.finish();
  header_.clear();
  if (words.empty()) return;
  ++repairs_;
  out.push_back(MessageStarted{index_, harmony::Role::assistant, "", "", ""});
  out.push_back(Text{index_, std::move(words)});
  out.push_back(MessageEnded{index_++});
}

void DeltaStream::text(std::string piece, std::vector<DeltaEvent>& out) {
  if (piece.empty()) return;
  sent_bytes_ += piece.size();
  if (!out.empty()) {
    if (auto* last = std::get_if<Text>(&out.back()); last != nullptr && last->index == index_) {
      last->text += piece;
      return;
    }
  }
  out.push_back(Text{index_, std::move(piece)});
}

void DeltaStream::finish(std::vector<DeltaEvent>& out) {
  const State before = parser_.state();
  // An end of stream inside a header is an error for the parser; here it only means that the header's words are unread.
  if (!parser_.finish().ok()) ++repairs_;
  if (before == State::content)
    after_content(out);
  else
    unread(out);
}

}  // namespace althing::protocol::wire
