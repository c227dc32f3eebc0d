// See the header.
#include "protocol/http/error_reply.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::http {
namespace {

constexpr std::uint32_t soon = 1;  // seconds: a queue may have moved, a rank or a core be back

nlohmann::ordered_json text_or_null(const std::string& text) { return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text); }

}  // namespace

ErrorReply reply_for(const Error& error) {
  ErrorReply reply{500, "server_error", std::string(name_of(error.code)), error.message, error.field, 0};
  switch (error.code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::corrupt:
      reply.status = 400;
      reply.type = "invalid_request_error";
      reply.code = "invalid_value";
      break;
    case ErrorCode::unsupported:
      reply.status = 400;
      reply.type = "invalid_request_error";
      reply.code = "unsupported_parameter";
      break;
    case ErrorCode::too_large:
      reply.status = 400;
      reply.type = "invalid_request_error";
      reply.code = error.field.empty() || error.field == "prompt" ? "context_length_exceeded" : "too_large";
      break;
    case ErrorCode::not_found:
      reply.status = 404;
      reply.type = "not_found_error";
      break;
    case ErrorCode::denied:  // by the engine, which has its own opinion of the gateway's key: no client can do anything about it
      reply.status = 500;
      break;
    case ErrorCode::deadline:
      reply.status = 504;
      break;
    case ErrorCode::busy:
    case ErrorCode::draining:
    case ErrorCode::unavailable:
    case ErrorCode::rank_lost:
    case ErrorCode::core_lost:
      reply.status = 503;
      reply.retry_after_seconds = std::max(soon, (error.retry_after_ms + 999) / 1000);
      break;
    default:
      break;
  }
  return reply;
}

nlohmann::ordered_json to_json(const ErrorReply& error) {
  return {{"error", {{"message", error.message}, {"type", error.type}, {"param", text_or_null(error.param)}, {"code", text_or_null(error.code)}}}};
}

Response to_response(const ErrorReply& error) {
  Response response;
  response.status = error.status;
  response.body = to_json(error).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (error.retry_after_seconds > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  return response;
}

}  // namespace althing::protocol::http
