// Errors as OpenAI's clients read them: a status, and {"error": {"message", "type", "param", "code"}}. The status decides which exception a client
// raises and whether it tries again, so every class of error of ours has one of its own here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "protocol/http/message.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::http {

struct ErrorReply {
  std::uint16_t status = 500;
  std::string type = "server_error", code;  // code "": null
  std::string message, param;               // param "": null
  std::uint32_t retry_after_seconds = 0;    // 0: not said
};

// invalid_argument, corrupt, unsupported, too_large: 400. not_found: 404. busy: 503 with Retry-After, as draining and unavailable, rank_lost and
// core_lost. deadline: 504. All others are failures of ours: 500.
ErrorReply reply_for(const Error& error);

nlohmann::ordered_json to_json(const ErrorReply& error);  // {"error": {…}}
Response to_response(const ErrorReply& error);

}  // namespace althing::protocol::http
