// What a decoded message must satisfy, whichever encoding it came in: every count and length within Limits, every text valid UTF-8, every number in
// its range. One place for both encodings, so that they refuse the same things with the same words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::protocol::wire {

inline constexpr std::size_t client_id_bytes_min = 16;
inline constexpr std::size_t tenant_bytes_max = 64;
inline constexpr std::size_t delta_events_max = 1u << 16;  // events or token ids in one delta

// Errors: invalid_argument, too_large; `field` is the path of the offending one, e.g. "messages[3].channel".
Status check(const ClientMessage& message, const Limits& limits);
// Texts a model wrote (channel, recipient, content type) may be as long as any text here: models write what they like.
Status check(const ServerMessage& message, const Limits& limits);

Error too_many(std::string_view field, std::size_t count, std::size_t count_max, std::string_view limit);

}  // namespace althing::protocol::wire
