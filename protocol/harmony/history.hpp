// Which messages of a conversation the model sees again: reasoning of finished turns is left out, everything else is kept in order.
#pragma once

#include <cstddef>
#include <vector>

#include "protocol/harmony/message.hpp"
#include "protocol/harmony/render.hpp"

namespace althing::protocol::harmony {

// Indices of the messages that are rendered, ascending.
std::vector<std::size_t> kept_messages(const std::vector<Message>& messages, AnalysisHistory policy);

}  // namespace althing::protocol::harmony
