// What all of OpenAI's forms of messages are made of: members with a path for errors, content that is a string or a list of parts, and the Harmony
// messages that stand for a call and its result.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "protocol/harmony/message.hpp"

namespace althing::protocol::openai {

// A member's place in the request, for errors: messages[2].content.
struct Place {
  std::string path;
  Place operator/(const std::string& member) const { return {path + "." + member}; }
  Place operator[](std::size_t index) const { return {path + "[" + std::to_string(index) + "]"}; }
  Error invalid(const std::string& what) const { return {ErrorCode::invalid_argument, path + " " + what, path}; }
  Error unsupported(const std::string& what) const { return {ErrorCode::unsupported, path + " " + what, path}; }
};

// What happens to parts of a content that are no text.
enum class OtherParts : std::uint8_t { refused, left_out };

// The texts of a content: a string, or parts (text, input_text, output_text, or refusal with its own member). null has none. Errors: unsupported for
// other parts, invalid_argument.
Result<std::vector<std::string>> texts_of(const nlohmann::ordered_json& content, const Place& at, OtherParts other);
// The same as one text; parts follow each other without anything between.
Result<std::string> text_of_parts(const nlohmann::ordered_json& content, const Place& at, OtherParts other);
// A member that is a string or absent; null counts as absent, and absent is "".
Result<std::string> text_member(const nlohmann::ordered_json& object, const std::string& member, const Place& at);

harmony::Message assistant_message(const std::string& channel, std::string text);
// A call of `function`, a name without `functions.`.
harmony::Message call_message(const std::string& function, std::string arguments);
harmony::Message result_message(const std::string& function, std::string text);

}  // namespace althing::protocol::openai
