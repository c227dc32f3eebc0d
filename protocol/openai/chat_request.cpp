// See the header.
#include "protocol/openai/chat_request.hpp"

#include <utility>

#include "protocol/openai/chat_messages.hpp"
#include "protocol/openai/response_format.hpp"
#include "protocol/openai/sampling.hpp"
#include "protocol/wire/json_members.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using wire::JsonMembers;

Error unsupported(const std::string& member, const std::string& why) { return {ErrorCode::unsupported, member + " " + why, member}; }

std::optional<Error> refused_form(const JsonMembers& members) {
  if (const Json* modalities = members.array("modalities"); modalities != nullptr && *modalities != Json::array({"text"}))
    return unsupported("modalities", "asks for more than text, which is all this model makes");
  for (const char* old : {"functions", "function_call"})
    if (const Json* value = members.find(old); value != nullptr) return unsupported(old, "is the old form; use tools and tool_choice");
  if (const Json* audio = members.find("audio"); audio != nullptr) return unsupported("audio", "cannot be made by this model");
  return std::nullopt;
}

// `reasoning_effort`, or `effort` of the object `reasoning`, which may also exclude reasoning from the answer.
Status read_reasoning(const JsonMembers& members, std::optional<Error>& error, ChatRequest& to) {
  std::string effort = members.text("reasoning_effort"), member = "reasoning_effort";
  if (const Json* include = members.find("include_reasoning"); include != nullptr) to.include_reasoning = members.boolean("include_reasoning");
  if (const Json* object = members.object("reasoning")) {
    const JsonMembers reasoning(*object, "reasoning.", error);
    if (effort.empty()) effort = reasoning.text("effort"), member = "reasoning.effort";
    if (reasoning.boolean("exclude")) to.include_reasoning = false;
  }
  if (error || effort.empty()) return Ok{};
  auto read = effort_from(effort, member);
  if (!read) return std::move(read).error();
  to.submit.reasoning_effort = *read;
  return Ok{};
}

Status read_tools(const Json& body, const JsonMembers& members, ChatRequest& to) {
  auto choice = tool_choice_from(body);
  if (!choice) return std::move(choice).error();
  to.calls_wanted = *choice != "none";
  const Json* tools = members.array("tools");
  if (tools == nullptr) return Ok{};
  auto functions = functions_from(*tools);
  if (!functions) return std::move(functions).error();
  if (!to.calls_wanted) return Ok{};  // the model is not told of what it shall not call
  for (const harmony::Function& function : *functions) to.declared.insert(function.name);
  to.submit.tools = std::move(*functions);
  return Ok{};
}

}  // namespace

Result<harmony::ReasoningEffort> effort_from(const std::string& effort, const std::string& member) {
  using harmony::ReasoningEffort;
  if (effort == "low" || effort == "minimal") return ReasoningEffort::low;
  if (effort == "medium") return ReasoningEffort::medium;
  if (effort == "high" || effort == "xhigh" || effort == "max") return ReasoningEffort::high;
  if (effort == "none") return unsupported(member, "is 'none', and this model always reasons; use low");
  return Error{ErrorCode::invalid_argument, member + " is '" + effort + "'; use low, medium or high", member};
}

Result<std::string> tool_choice_from(const Json& body) {
  const auto found = body.find("tool_choice");
  if (found == body.end() || found->is_null() || *found == "auto") return std::string();
  if (*found == "none") return std::string("none");
  if (*found == "required" || found->is_object())
    return unsupported("tool_choice", "forces a call, which this server cannot promise yet; use auto, and say in the instructions when to call");
  return Error{ErrorCode::invalid_argument, "tool_choice is neither none nor auto", "tool_choice"};
}

Result<std::vector<harmony::Function>> functions_from(const Json& tools) {
  std::vector<harmony::Function> functions;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "]";
    std::optional<Error> error;
    if (!tools[i].is_object()) return Error{ErrorCode::invalid_argument, at + " is not an object", at};
    const JsonMembers tool(tools[i], at + ".", error);
    if (const std::string type = tool.text("type"); !error && type != "function")
      return unsupported(at + ".type", "is '" + type + "'; this server knows tools of the type function only");
    const Json* object = tool.object("function");
    if (error) return std::move(*error);
    if (object == nullptr) return Error{ErrorCode::invalid_argument, at + ".function is missing", at + ".function"};
    const JsonMembers function(*object, at + ".function.", error);
    harmony::Function next{function.text("name"), function.text("description"), std::nullopt};
    if (const Json* parameters = function.object("parameters")) next.parameters = *parameters;
    if (error) return std::move(*error);
    if (next.name.empty()) return Error{ErrorCode::invalid_argument, at + ".function.name is missing", at + ".function.name"};
    functions.push_back(std::move(next));
  }
  return functions;
}

Result<ChatRequest> chat_request_from(const Json& body) {
  std::optional<Error> error;
  const JsonMembers members(body, "", error);
  ChatRequest to;
  to.model = members.text("model");
  to.stream = members.boolean("stream");
  if (const Json* options = members.object("stream_options"))
    to.include_usage = JsonMembers(*options, "stream_options.", error).boolean("include_usage");
  if (auto refused = refused_form(members)) return std::move(*refused);
  if (auto status = read_reasoning(members, error, to); !status) return std::move(status).error();
  if (auto status = read_tools(body, members, to); !status) return std::move(status).error();
  if (error) return std::move(*error);
  const Json* messages = members.find("messages");
  if (messages == nullptr) return Error{ErrorCode::invalid_argument, "messages is missing; send at least one message", "messages"};
  auto converted = messages_from_chat(*messages);
  if (!converted) return std::move(converted).error();
  if (converted->empty()) return Error{ErrorCode::invalid_argument, "messages is empty; send at least one message", "messages"};
  to.submit.messages = std::move(*converted);
  if (const Json* wanted = members.object("response_format")) {
    auto format = response_format_from(*wanted, "response_format", false);
    if (!format) return std::move(format).error();
    if (*format) {
      tell_format(**format, to.submit.messages);
      to.submit.grammar = std::move((*format)->grammar);
    }
  }
  if (error) return std::move(*error);
  auto sampling = sampling_from(body);
  if (!sampling) return std::move(sampling).error();
  to.submit.sampling = std::move(*sampling);
  const auto priority = priority_from(body);
  if (!priority) return priority.error();
  to.submit.priority = *priority;
  auto logprobs = chat_logprobs_from(body);
  if (!logprobs) return std::move(logprobs).error();
  to.submit.sampling.logprobs = *logprobs;
  return to;
}

}  // namespace althing::protocol::openai
