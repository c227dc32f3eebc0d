// See the header. What would change the answer and cannot be done is refused by name; what only asks for more than there is to tell is ignored,
// because client libraries send it unasked.
#include "protocol/openai/responses_request.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "protocol/openai/chat_request.hpp"
#include "protocol/openai/response_format.hpp"
#include "protocol/openai/sampling.hpp"
#include "protocol/wire/json_members.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using wire::JsonMembers;

constexpr std::size_t metadata_pairs_max = 16, metadata_key_bytes_max = 64, metadata_value_bytes_max = 512;

Error unsupported(const std::string& member, const std::string& why) { return {ErrorCode::unsupported, member + " " + why, member}; }
Error invalid(const std::string& member, const std::string& why) { return {ErrorCode::invalid_argument, member + " " + why, member}; }

// Whole features that this server has not.
std::optional<Error> refused(const JsonMembers& members) {
  if (members.boolean("background"))
    return unsupported("background", "is true, and this server answers in the foreground only; leave it out, and stream");
  if (members.find("conversation") != nullptr) return unsupported("conversation", "is not kept by this server; use previous_response_id");
  if (members.find("prompt") != nullptr) return unsupported("prompt", "names a template, and this server has none; send instructions and input");
  const std::string truncation = members.text("truncation");
  if (!truncation.empty() && truncation != "auto" && truncation != "disabled")
    return invalid("truncation", "is '" + truncation + "'; use auto or disabled");
  return std::nullopt;
}

// What `text` asks of the answer; `to` is left empty for any text.
std::optional<Error> read_text(const JsonMembers& members, std::optional<Error>& error, std::optional<ResponseFormat>& to) {
  const Json* object = members.object("text");
  if (object == nullptr) return std::nullopt;
  const JsonMembers text(*object, "text.", error);
  if (const std::string verbosity = text.text("verbosity"); !verbosity.empty() && verbosity != "medium")
    return unsupported("text.verbosity",
                       "is '" + verbosity + "', which this model was not taught; say in the instructions how long answers shall be");
  const Json* format = text.object("format");
  if (error || format == nullptr) return std::nullopt;
  auto read = response_format_from(*format, "text.format", true);
  if (!read) return std::move(read).error();
  to = std::move(*read);
  return std::nullopt;
}

// What the answer shall also hold. Most of it is about tools that are not here, and so never there.
constexpr std::string_view logprobs_wanted = "message.output_text.logprobs";

std::optional<Error> refused_include(const JsonMembers& members) {
  constexpr std::string_view nothing_to_add[] = {"reasoning.encrypted_content",
                                                 "message.input_image.image_url",
                                                 "file_search_call.results",
                                                 "web_search_call.results",
                                                 "web_search_call.action.sources",
                                                 "code_interpreter_call.outputs",
                                                 "computer_call_output.output.image_url"};
  const Json* include = members.array("include");
  for (std::size_t i = 0; include != nullptr && i < include->size(); ++i) {
    const std::string member = "include[" + std::to_string(i) + "]";
    if (!(*include)[i].is_string()) return invalid(member, "is not a string");
    const std::string what = (*include)[i];
    if (what != logprobs_wanted && std::find(std::begin(nothing_to_add), std::end(nothing_to_add), what) == std::end(nothing_to_add))
      return invalid(member, "is '" + what + "', which is nothing that a response can include");
  }
  return std::nullopt;
}

Status check_metadata(const JsonMembers& members) {
  const Json* metadata = members.object("metadata");
  if (metadata == nullptr) return Ok{};
  if (metadata->size() > metadata_pairs_max)
    return invalid("metadata", "has " + std::to_string(metadata->size()) + " members; at most " + std::to_string(metadata_pairs_max) + " are kept");
  for (const auto& [key, value] : metadata->items()) {
    if (!value.is_string()) return invalid("metadata." + key, "is not a string");
    if (key.size() > metadata_key_bytes_max || value.get_ref<const std::string&>().size() > metadata_value_bytes_max)
      return invalid("metadata." + key, "is too long; keys have at most " + std::to_string(metadata_key_bytes_max) + " bytes and values " +
                                            std::to_string(metadata_value_bytes_max));
  }
  return Ok{};
}

// The flat form: name, description and parameters beside the type.
Result<harmony::Function> function_from(const Json& tool, const std::string& at) {
  if (!tool.is_object()) return invalid(at, "is not an object");
  std::optional<Error> error;
  const JsonMembers members(tool, at + ".", error);
  const std::string type = members.text("type");
  if (error) return std::move(*error);
  if (type.empty()) return invalid(at + ".type", "is missing; use function");
  if (type != "function")
    return unsupported(at + ".type", "is '" + type + "', a tool that this server does not run; it knows tools of the type function only");
  harmony::Function function{members.text("name"), members.text("description"), std::nullopt};
  if (const Json* parameters = members.object("parameters")) function.parameters = *parameters;
  members.boolean("strict");
  if (error) return std::move(*error);
  if (!function.name.empty()) return function;
  if (tool.contains("function"))
    return invalid(at + ".name", "is missing; here a tool's name stands beside its type, and not in a member `function`");
  return invalid(at + ".name", "is missing");
}

Status read_tools(const Json& body, const JsonMembers& members, ResponsesRequest& to) {
  auto choice = tool_choice_from(body);
  if (!choice) return std::move(choice).error();
  to.calls_wanted = *choice != "none";
  const Json* tools = members.array("tools");
  for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    auto function = function_from((*tools)[i], "tools[" + std::to_string(i) + "]");
    if (!function) return std::move(function).error();
    if (!to.calls_wanted) continue;  // the model is not told of what it shall not call
    to.declared.insert(function->name);
    to.submit.tools.push_back(std::move(*function));
  }
  return Ok{};
}

Status read_effort(const JsonMembers& members, std::optional<Error>& error, ResponsesRequest& to) {
  const Json* reasoning = members.object("reasoning");
  if (reasoning == nullptr) return Ok{};
  const std::string effort = JsonMembers(*reasoning, "reasoning.", error).text("effort");
  if (error || effort.empty()) return Ok{};
  auto read = effort_from(effort, "reasoning.effort");
  if (!read) return std::move(read).error();
  to.submit.reasoning_effort = *read;
  return Ok{};
}

// There are no choices here, and the most tokens have another name.
Result<wire::Sampling> sampling_of(const Json& body) {
  Json asked = Json::object();
  for (const char* member : {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty",
                             "logit_bias", "ignore_eos"})
    if (const auto found = body.find(member); found != body.end()) asked[member] = *found;
  if (const auto found = body.find("max_output_tokens"); found != body.end()) asked["max_completion_tokens"] = *found;
  auto sampling = sampling_from(asked);
  if (!sampling) return in_responses_terms(std::move(sampling).error());
  const auto top = top_count_from(body, "top_logprobs");
  if (!top) return top.error();
  const auto include = body.find("include");
  const bool wanted = include != body.end() && include->is_array() && std::find(include->begin(), include->end(), logprobs_wanted) != include->end();
  // The number alone is a wish too: here it is no error without the other.
  if (wanted || top->value_or(0) > 0) sampling->logprobs = top->value_or(0);
  return sampling;
}

// The turns before this one, and its input.
Status read_input(const JsonMembers& members, const std::string& instructions, ResponseStore& store, const std::string& owner, ResponsesRequest& to) {
  History earlier;
  if (const std::string previous = members.text("previous_response_id"); !previous.empty()) {
    auto history = store.history(owner, previous);
    if (!history) return std::move(history).error();
    earlier = std::move(*history);
  }
  const Json* input = members.find("input");
  if (input == nullptr) return invalid("input", "is missing; send a string or a list of items");
  auto items = input_items_from(*input, earlier.calls, [&](const std::string& id) { return store.item(owner, id); });
  if (!items) return std::move(items).error();
  auto& messages = to.submit.messages;
  if (!instructions.empty()) {
    harmony::Message developer;
    developer.role = harmony::Role::developer;
    developer.content.emplace_back(harmony::DeveloperContent{instructions, {}});
    messages.push_back(std::move(developer));
  }
  std::move(earlier.messages.begin(), earlier.messages.end(), std::back_inserter(messages));
  messages.insert(messages.end(), items->messages.begin(), items->messages.end());
  if (messages.empty()) return invalid("input", "says nothing; send at least one message");
  to.input = std::move(*items);
  return Ok{};
}

Json repeated_of(const Json& body, const ResponsesRequest& request) {
  const auto given = [&](const char* member, const Json& otherwise) {
    const auto found = body.find(member);
    return found == body.end() || found->is_null() ? otherwise : *found;
  };
  const harmony::ReasoningEffort effort = request.submit.reasoning_effort.value_or(harmony::ReasoningEffort::medium);
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", nullptr)},
          {"reasoning", {{"effort", harmony::name_of(effort)}, {"summary", nullptr}}},
          {"store", request.store},
          {"temperature", given("temperature", 1.0)},
          {"text", {{"format", request.submit.grammar ? body["text"]["format"] : Json{{"type", "text"}}}}},
          {"tool_choice", request.calls_wanted ? "auto" : "none"},
          {"tools", given("tools", Json::array())},
          {"top_logprobs", given("top_logprobs", 0)},
          {"top_p", given("top_p", 1.0)},
          {"truncation", given("truncation", "disabled")},
          {"user", given("user", nullptr)},
          {"metadata", given("metadata", Json::object())}};
}

}  // namespace

Error in_responses_terms(Error error) {
  constexpr std::string_view from = "max_completion_tokens", to = "max_output_tokens";
  error = in_request_terms(std::move(error));
  for (std::string* text : {&error.message, &error.field})
    for (std::size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size())) text->replace(at, from.size(), to);
  return error;
}

Result<ResponsesRequest> responses_request_from(const Json& body, ResponseStore& store, const std::string& owner) {
  std::optional<Error> error;
  const JsonMembers members(body, "", error);
  ResponsesRequest to;
  to.model = members.text("model");
  to.stream = members.boolean("stream");
  to.store = members.find("store") == nullptr || members.boolean("store");
  const std::string instructions = members.text("instructions");
  // Looked at for their kind only.
  members.text("user");
  members.boolean("parallel_tool_calls");
  if (auto why = refused(members)) return std::move(*why);
  std::optional<ResponseFormat> format;
  if (auto why = read_text(members, error, format)) return std::move(*why);
  if (auto why = refused_include(members)) return std::move(*why);
  if (auto status = check_metadata(members); !status) return std::move(status).error();
  if (auto status = read_effort(members, error, to); !status) return std::move(status).error();
  if (auto status = read_tools(body, members, to); !status) return std::move(status).error();
  if (error) return std::move(*error);
  auto sampling = sampling_of(body);
  if (!sampling) return std::move(sampling).error();
  to.submit.sampling = std::move(*sampling);
  const auto priority = priority_from(body);
  if (!priority) return priority.error();
  to.submit.priority = *priority;
  if (auto status = read_input(members, instructions, store, owner, to); !status) return std::move(status).error();
  if (error) return std::move(*error);
  if (format) {
    tell_format(*format, to.submit.messages);
    to.submit.grammar = std::move(format->grammar);
  }
  to.repeated = repeated_of(body, to);
  return to;
}

}  // namespace althing::protocol::openai
