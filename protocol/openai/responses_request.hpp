// A request of OpenAI's Responses API, read: what the engine is asked, and what of it decides about the answer's form. docs/responses.md says of
// every member whether it is honoured, ignored or refused.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "protocol/openai/response_store.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

struct ResponsesRequest {
  // Its messages: the instructions of this request, the turns before it, its input.
  wire::Submit submit;
  std::string model;  // as asked for; "": any
  bool stream = false;
  bool store = true;                // the response is kept for a later previous_response_id
  bool calls_wanted = true;         // false: tool_choice is "none"
  std::set<std::string> declared;   // names of the functions that the model is told of
  InputItems input;                 // of this request alone
  nlohmann::ordered_json repeated;  // members of the response that say what was asked: instructions, tools, temperature …
};

// Unknown members are ignored, null counts as absent. `store` is asked for previous_response_id and for items that the input refers to, as `owner`
// may see them. Errors: invalid_argument, unsupported, not_found, too_large; field is the member's path, as in input[2].call_id or tools[0].type.
Result<ResponsesRequest> responses_request_from(const nlohmann::ordered_json& body, ResponseStore& store, const std::string& owner);

// The engine's error in the words of this API, whose names differ from those of chat completions.
Error in_responses_terms(Error error);

}  // namespace althing::protocol::openai
