// Server-sent events as OpenAI's clients read them: one line of JSON each, and an empty line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "protocol/http/error_reply.hpp"

namespace althing::protocol::openai {

inline std::string text_of(const nlohmann::ordered_json& json) { return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace); }
inline std::string event_of(const nlohmann::ordered_json& json) { return "data: " + text_of(json) + "\n\n"; }
inline constexpr std::string_view last_event = "data: [DONE]\n\n";

// {"prompt_tokens", "completion_tokens", "total_tokens", details}.
inline nlohmann::ordered_json usage_of(const wire::Done& done) {
  return {{"prompt_tokens", done.usage.prompt_tokens},
          {"completion_tokens", done.usage.completion_tokens},
          {"total_tokens", done.usage.prompt_tokens + done.usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", done.usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", done.reasoning_tokens}}}};
}

// How choice `choice` ended; an Error where it failed.
inline Result<FinishReason> end_of(const wire::Done& done, std::size_t choice) {
  FinishReason reason = done.reason;
  if (choice < done.choices.size()) {
    if (done.choices[choice].error) return *done.choices[choice].error;
    reason = done.choices[choice].reason;
  }
  if (reason == FinishReason::stop || reason == FinishReason::length) return reason;
  return Error{reason == FinishReason::cancelled ? ErrorCode::cancelled : ErrorCode::internal, "the request was " + std::string(name_of(reason)), ""};
}

}  // namespace althing::protocol::openai
