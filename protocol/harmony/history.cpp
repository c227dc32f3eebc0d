// Both policies come down to one index: analysis before it is dropped, whoever wrote it.
#include "protocol/harmony/history.hpp"

namespace althing::protocol::harmony {
namespace {

bool is_on(const Message& message, std::string_view channel) { return message.channel && *message.channel == channel; }

// The index before which analysis is dropped; 0 keeps all.
std::size_t cut_of(const std::vector<Message>& messages, AnalysisHistory policy) {
  if (policy == AnalysisHistory::keep) return 0;
  std::size_t at = messages.size();
  while (at > 0 && !(messages[at - 1].role == Role::assistant && (policy == AnalysisHistory::upstream || is_on(messages[at - 1], "final")))) --at;
  if (at == 0) return 0;
  // Now at - 1 is the last final of an assistant, or, for the reference's rule, the last message of an assistant.
  if (policy == AnalysisHistory::drop_finished_turns) return at - 1;
  if (!is_on(messages[at - 1], "final")) return 0;
  std::size_t first = 0;
  while (!is_on(messages[first], "final")) ++first;
  return first;
}

}  // namespace

std::vector<std::size_t> kept_messages(const std::vector<Message>& messages, AnalysisHistory policy) {
  const std::size_t cut = cut_of(messages, policy);
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (i >= cut || !is_on(messages[i], "analysis")) kept.push_back(i);
  return kept;
}

}  // namespace althing::protocol::harmony
