// The text of system and developer messages: identity, date, reasoning effort, tools as TypeScript, valid channels, instructions.
#pragma once

#include <string>

#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

// `has_function_tools` adds the line that sends function calls to the commentary channel.
std::string system_text(const SystemContent& content, bool has_function_tools);
std::string developer_text(const DeveloperContent& content);

// Whether any developer content declares a function in the namespace `functions`.
bool has_function_tools(const std::vector<Message>& messages);

// invalid_argument naming the function whose parameters are nested deeper than schema_depth_max; rendering would recurse without bound.
Status check_tools(const Tools& tools);

}  // namespace althing::protocol::harmony
