// A token's place is the end of its text among all visible bytes. It goes through when the text up to there has, which is before a match as a whole
// or not at all: an id cannot be cut.
#include "protocol/wire/stop_gate.hpp"

#include <utility>

namespace althing::protocol::wire {

void append_text(std::vector<DeltaEvent>& events, std::uint32_t index, std::string text) {
  if (text.empty()) return;
  auto* const last = events.empty() ? nullptr : std::get_if<Text>(&events.back());
  if (last != nullptr && last->index == index)
    last->text += text;
  else
    events.emplace_back(Text{index, std::move(text)});
}

namespace {

// What stands for a control token where raw text is looked at: two characters of a private plane, so that no text begins or ends within its name.
std::string stand_in(TokenId token) {
  std::string two;
  for (const std::uint32_t part : {token >> 12, token & 0xFFF}) {
    const std::uint32_t point = 0xF0000 + part;
    for (const std::uint32_t byte : {0xF0 | (point >> 18), 0x80 | ((point >> 12) & 0x3F), 0x80 | ((point >> 6) & 0x3F), 0x80 | (point & 0x3F)})
      two += static_cast<char>(byte);
  }
  return two;
}

// Stop strings with the stand-ins of the control tokens that they name.
std::vector<std::string> with_stand_ins(std::vector<std::string> stops, const Tokenizer& tokenizer) {
  for (std::string& stop : stops) {
    std::string text;
    for (const TokenId token : tokenizer.encode_with_special(stop))
      text += tokenizer.is_special(token) ? stand_in(token) : std::string(tokenizer.bytes_of(token).value_or(""));
    stop = std::move(text);
  }
  return stops;
}

}  // namespace

StopGate::StopGate(std::vector<std::string> stops, std::shared_ptr<const Tokenizer> tokenizer, bool raw)
    : matcher_(raw ? with_stand_ins(std::move(stops), *tokenizer) : std::move(stops)),
      tokenizer_(std::move(tokenizer)),
      raw_(raw),
      text_(tokenizer_),
      visible_(raw) {}

// A token that is text and says nothing yet is the begin of a character. A control token says nothing ever, but in a stream of ids.
bool StopGate::is_text(TokenId token) const { return visible_ && (raw_ || !tokenizer_->is_special(token)); }

void StopGate::push(SaidToken token, std::vector<DeltaEvent>& events, Heard& to) {
  if (stopped()) return events.clear();
  const TokenId id = token.token;
  const bool says_something = !events.empty();
  waiting_.push_back({std::move(token)});
  const std::string piece = tokenizer_->is_special(id) ? text_.finish() + stand_in(id) : text_.push(id);
  if (raw_) see(piece, 0, to);
  hear(events, to);
  if (stopped()) return;
  if (says_something || !is_text(id)) settle(seen_);
  let_through(seen_ - matcher_.held_bytes(), to);
}

void StopGate::close(std::vector<DeltaEvent>& events, Heard& to) {
  if (stopped()) events.clear();
  const std::string piece = text_.finish();
  if (raw_ && !stopped()) see(piece, 0, to);
  hear(events, to);
  if (stopped()) {
    if (!raw_ && !std::exchange(ended_, true)) to.events.emplace_back(MessageEnded{open_});
    return;
  }
  if (raw_) flush(0, to);
  settle(seen_);
  let_through(seen_, to);
}

// Up to a match, if there is one.
void StopGate::hear(std::vector<DeltaEvent>& events, Heard& to) {
  for (DeltaEvent& event : std::exchange(events, {})) {
    if (stopped()) return;
    if (auto* started = std::get_if<MessageStarted>(&event)) {
      visible_ = started->channel != "analysis" && started->recipient.empty();
      open_ = started->index;
      to.events.push_back(std::move(event));
    } else if (auto* text = std::get_if<Text>(&event)) {
      if (visible_)
        see(text->text, text->index, to);
      else
        append_text(to.events, text->index, std::move(text->text));
    } else {
      flush(std::get<MessageEnded>(event).index, to);
      visible_ = false;
      to.events.push_back(std::move(event));
    }
  }
}

// More visible text, of the newest token.
void StopGate::see(const std::string& piece, std::uint32_t index, Heard& to) {
  if (piece.empty() || stopped()) return;
  seen_ += piece.size();
  settle(seen_);
  const std::uint64_t held = matcher_.held_bytes();
  std::string certain = matcher_.push(piece);
  const std::uint64_t text = stopped() ? seen_ - piece.size() - held + certain.size() : seen_ - matcher_.held_bytes();
  if (raw_)
    untold_ += certain;
  else
    append_text(to.events, index, std::move(certain));
  let_through(text, to);
  if (!stopped()) return;
  waiting_.clear();
  append_text(to.events, index, std::exchange(untold_, {}));
}

// The message is over, and with it what could have become a match.
void StopGate::flush(std::uint32_t index, Heard& to) {
  std::string certain = matcher_.flush();
  if (!raw_) append_text(to.events, index, std::move(certain));
}

// Tokens whose end was not known end here; not the newest, when it began a character besides.
void StopGate::settle(std::uint64_t end) {
  auto waiting = waiting_.rbegin();
  if (text_.within_character() && waiting != waiting_.rend()) ++waiting;
  for (; waiting != waiting_.rend() && waiting->end == undecided; ++waiting) waiting->end = end;
}

void StopGate::let_through(std::uint64_t text, Heard& to) {
  for (; !waiting_.empty() && waiting_.front().end <= text; waiting_.pop_front()) {
    SaidToken& token = waiting_.front().token;
    to.tokens.push_back(token.token);
    if (token.logprobs) to.logprobs.push_back(std::move(*token.logprobs));
    if (const auto behind = static_cast<std::size_t>(text - waiting_.front().end); behind < untold_.size()) untold_.erase(0, untold_.size() - behind);
  }
}

}  // namespace althing::protocol::wire
