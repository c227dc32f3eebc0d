// A request of chat completions, read: what the engine is asked, and what of it decides about the answer's form.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "protocol/openai/job.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

struct ChatRequest {
  wire::Submit submit;
  std::string model;  // as asked for; "": any
  bool stream = false;
  bool include_usage = false;  // in a stream
  bool include_reasoning = true;
  bool calls_wanted = true;        // false: tool_choice is "none"
  std::set<std::string> declared;  // names of the functions that the model is told of
};

// Unknown members are ignored, null counts as absent. Errors: invalid_argument, unsupported; field is the member's path.
Result<ChatRequest> chat_request_from(const nlohmann::ordered_json& body);

// What other routes read the same way.
// [{"type": "function", "function": {"name", "description", "parameters"}}].
Result<std::vector<harmony::Function>> functions_from(const nlohmann::ordered_json& tools);
// low, medium, high; minimal is low, xhigh and max are high, because Harmony has no others; none is refused.
Result<harmony::ReasoningEffort> effort_from(const std::string& effort, const std::string& member);
// "": auto or absent. "none". Errors: unsupported for what only a grammar could promise.
Result<std::string> tool_choice_from(const nlohmann::ordered_json& body);

}  // namespace althing::protocol::openai
