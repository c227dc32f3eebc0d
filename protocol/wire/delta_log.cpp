// See the header.
#include "protocol/wire/delta_log.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::wire {

DeltaLog::DeltaLog(std::string request_id, const std::optional<chat::ChatFormat>& format, bool return_tokens, std::uint32_t choices,
                   const Stops& stops)
    : request_id_(std::move(request_id)), return_tokens_(return_tokens || !format), choices_(choices) {
  for (Choice& choice : choices_) {
    if (format) choice.stream.emplace(*format);
    if (!stops.strings.empty()) choice.gate.emplace(stops.strings, format ? format->tokenizer() : stops.tokenizer, !format);
  }
}

void DeltaLog::push(TokenId token, std::uint32_t choice, std::optional<TokenLogprobs> logprobs) {
  Choice& to = choices_[choice];
  if (to.gate) {
    std::vector<DeltaEvent> said;
    if (to.stream) to.stream->push(token, said);
    to.gate->push({token, std::move(logprobs)}, said, to.heard);
    if (!return_tokens_) to.heard.tokens.clear();
  } else {
    if (to.stream) to.stream->push(token, to.heard.events);
    if (return_tokens_) to.heard.tokens.push_back(token);
    if (logprobs) to.heard.logprobs.push_back(std::move(*logprobs));
  }
  ++to.count;
}

void DeltaLog::push(StepRouting&& routing, std::uint32_t choice) {
  Choice& to = choices_[choice];
  const std::size_t token_bytes = bytes_of(routing) / std::max<std::size_t>(1, routing.tokens.size());
  for (StepRouting& piece : in_pieces(std::move(routing), std::max<std::size_t>(1, routing_piece_bytes / token_bytes))) {
    to.routing_bytes += bytes_of(piece);
    to.routing.push_back(std::move(piece));
  }
}

void DeltaLog::close(std::uint32_t choice) {
  Choice& of = choices_[choice];
  of.closed = true;
  std::vector<DeltaEvent> said;
  if (of.stream) of.stream->finish(of.gate ? said : of.heard.events);
  if (!of.gate) return;
  of.gate->close(said, of.heard);
  if (!return_tokens_) of.heard.tokens.clear();
}

const ServerMessage& DeltaLog::cut(std::uint32_t choice) {
  Choice& of = choices_[choice];
  of.count = 0;
  of.was_cut = true;
  Heard heard = std::exchange(of.heard, {});
  Delta delta{request_id_, messages_.size() + 1, choice, std::move(heard.events), std::move(heard.tokens), {}, std::move(heard.logprobs)};
  for (std::size_t bytes = 0; !of.routing.empty() && bytes < routing_bytes_max - routing_piece_bytes; of.routing.pop_front()) {
    bytes += bytes_of(of.routing.front());
    of.routing_bytes -= bytes_of(of.routing.front());
    delta.routing.push_back(std::move(of.routing.front()));
  }
  return messages_.emplace_back(std::move(delta));
}

const ServerMessage& DeltaLog::end(ServerMessage last) {
  std::visit(
      [&](auto& message) {
        if constexpr (requires { message.sequence; }) message.sequence = messages_.size() + 1;
      },
      last);
  return messages_.emplace_back(std::move(last));
}

std::size_t DeltaLog::pending_bytes() const {
  std::size_t bytes = 0;
  for (const Choice& choice : choices_) {
    bytes += choice.heard.tokens.size() * sizeof(TokenId);
    for (const TokenLogprobs& told : choice.heard.logprobs) bytes += bytes_of(told);
    for (const DeltaEvent& event : choice.heard.events)
      if (const auto* text = std::get_if<Text>(&event)) bytes += text->text.size();
  }
  return bytes;
}

std::uint32_t DeltaLog::reasoning_tokens() const {
  std::uint32_t sum = 0;
  for (const Choice& choice : choices_)
    if (choice.stream) sum += choice.stream->reasoning_tokens();
  return sum;
}

std::array<std::uint32_t, harmony::repair_kinds> DeltaLog::repairs() const {
  std::array<std::uint32_t, harmony::repair_kinds> sums{};
  for (const Choice& choice : choices_)
    for (std::size_t kind = 0; choice.stream && kind < sums.size(); ++kind) sums[kind] += choice.stream->repairs()[kind];
  return sums;
}

}  // namespace althing::protocol::wire
