// See the header.
#include "protocol/wire/delta_log.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::wire {

DeltaLog::DeltaLog(std::string request_id, const harmony::Format* format, bool return_tokens, std::uint32_t choices)
    : request_id_(std::move(request_id)), return_tokens_(return_tokens || format == nullptr), choices_(choices) {
  if (format == nullptr) return;
  for (Choice& choice : choices_) choice.stream.emplace(*format);
}

void DeltaLog::push(TokenId token, std::uint32_t choice) {
  Choice& to = choices_[choice];
  if (to.stream) to.stream->push(token, to.events);
  if (return_tokens_) to.tokens.push_back(token);
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
  if (of.stream) of.stream->finish(of.events);
}

const ServerMessage& DeltaLog::cut(std::uint32_t choice) {
  Choice& of = choices_[choice];
  of.count = 0;
  of.was_cut = true;
  Delta delta{request_id_, messages_.size() + 1, choice, std::exchange(of.events, {}), std::exchange(of.tokens, {})};
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
    bytes += choice.tokens.size() * sizeof(TokenId);
    for (const DeltaEvent& event : choice.events)
      if (const auto* text = std::get_if<Text>(&event)) bytes += text->text.size();
  }
  return bytes;
}

std::array<std::uint32_t, harmony::repair_kinds> DeltaLog::repairs() const {
  std::array<std::uint32_t, harmony::repair_kinds> sums{};
  for (const Choice& choice : choices_)
    for (std::size_t kind = 0; choice.stream && kind < sums.size(); ++kind) sums[kind] += choice.stream->repairs()[kind];
  return sums;
}

}  // namespace althing::protocol::wire
