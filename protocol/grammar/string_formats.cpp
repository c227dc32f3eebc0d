// See the header.
#include "protocol/grammar/string_formats.hpp"

#include <array>
#include <utility>

namespace althing::protocol::grammar {
namespace {

// 29 February would need to know the year.
#define ALTHING_DATE "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define ALTHING_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define ALTHING_LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define ALTHING_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> formats = {{
    {"date", ALTHING_DATE},
    {"time", ALTHING_TIME},
    {"date-time", ALTHING_DATE "T" ALTHING_TIME},
    {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+){0,8}@" ALTHING_LABEL "(\\." ALTHING_LABEL "){1,4}"},
    {"hostname", ALTHING_LABEL "(\\." ALTHING_LABEL "){0,4}"},
    {"ipv4", ALTHING_BYTE "(\\." ALTHING_BYTE "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uri",
     "[a-z][a-z0-9+.-]{0,15}://" ALTHING_LABEL "(\\." ALTHING_LABEL "){0,4}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]*){0,32}(\\?[A-Za-z0-9._~=&-]*)?"
     "(#[A-Za-z0-9._~-]*)?"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
}};

#undef ALTHING_DATE
#undef ALTHING_TIME
#undef ALTHING_LABEL
#undef ALTHING_BYTE

}  // namespace

std::string_view expression_of_format(std::string_view format) {
  for (const auto& [name, expression] : formats)
    if (name == format) return expression;
  return "";
}

}  // namespace althing::protocol::grammar
