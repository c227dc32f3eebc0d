// See the header.
#include "protocol/openai/turn_tokens.hpp"

#include <algorithm>
#include <utility>

#include "protocol/harmony/replay.hpp"

namespace althing::protocol::openai {

void add_tokens(const harmony::Format& format, std::span<const TokenId> ids, std::vector<harmony::Message>& messages) {
  // Behind each stop, and at the end of what was cut.
  std::vector<std::span<const TokenId>> pieces;
  while (!ids.empty()) {
    const auto stop = std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return format.is_message_stop(id); });
    const std::size_t length = std::min(static_cast<std::size_t>(stop - ids.begin()) + 1, ids.size());
    pieces.push_back(ids.first(length));
    ids = ids.subspan(length);
  }
  if (pieces.size() != messages.size()) return;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto generated = harmony::message_of_ids(format, pieces[i]);
    if (!generated) continue;
    harmony::Message candidate = messages[i];
    candidate.content_type = generated->content_type;
    candidate.tokens = std::move(generated->tokens);
    if (harmony::replayed(format, candidate)) messages[i] = std::move(candidate);
  }
}

}  // namespace althing::protocol::openai
