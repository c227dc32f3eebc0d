// Formats of strings that JSON schemas name, as regular expressions of what is written for them: narrower than their standards allow, never wider.
#pragma once

#include <string_view>

namespace althing::protocol::grammar {

// "" for a format that is not known.
std::string_view expression_of_format(std::string_view format);
// For messages.
inline constexpr std::string_view known_formats = "date, time, date-time, email, hostname, ipv4, ipv6, uri, uuid";

}  // namespace althing::protocol::grammar
