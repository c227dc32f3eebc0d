// What a client wants the answer to be, in the words of OpenAI's APIs: `response_format` of chat completions, `text.format` of responses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

struct ResponseFormat {
  wire::Grammar grammar;
  std::string instructions;  // what the model is told of it, as it was trained to be told: "" for any JSON object
};

// `format`: {"type": "text"}, which is nothing; {"type": "json_object"}; {"type": "json_schema"} with name, description, schema and strict in the
// member json_schema, or, where `is_flat`, beside the type. The answer is held to the schema whether it is strict or not. `member`: its path in the
// request. Errors: invalid_argument, unsupported and too_large, for the schema those of grammar::compile; the field is a path below `member`.
Result<std::optional<ResponseFormat>> response_format_from(const nlohmann::ordered_json& format, const std::string& member, bool is_flat);

// Puts what the model is told behind the instructions of the first developer message; into a new one in front of all when there is none.
void tell_format(const ResponseFormat& format, std::vector<harmony::Message>& messages);

}  // namespace althing::protocol::openai
