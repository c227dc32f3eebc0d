// Text to token ids and back, as clients ask for it before they send a request: /tokenize and /detokenize. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "protocol/chat/chat_format.hpp"

namespace althing::protocol::openai {

// `prompt` (control tokens may stand in it by name, as in completions), or `messages` with all that chat completions take, which are rendered as they
// would be there, today's date (YYYY-MM-DD) included. Gives {"count", "max_model_len", "tokens"}, and "token_strs" if `return_token_strs`.
Result<nlohmann::ordered_json> tokenize(const nlohmann::ordered_json& body, const chat::ChatFormat& format, std::uint32_t context_tokens_max,
                                        const std::string& today);
// `tokens` to {"prompt"}. Bytes that are no UTF-8 become U+FFFD.
Result<nlohmann::ordered_json> detokenize(const nlohmann::ordered_json& body, const Tokenizer& tokenizer);

}  // namespace althing::protocol::openai
