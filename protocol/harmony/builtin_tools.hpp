// The two tool namespaces that gpt-oss models were trained to use without being taught: browser and python. Their wording is part of the
// format; they belong in the system message, functions of the user's in the developer message.
#pragma once

#include "protocol/harmony/message.hpp"

namespace althing::protocol::harmony {

ToolNamespace browser_tools();  // search, open, find
ToolNamespace python_tools();   // no functions: the content of a call is the program

}  // namespace althing::protocol::harmony
