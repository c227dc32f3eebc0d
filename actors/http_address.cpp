// See the header. No resolver is asked: a name could lead anywhere.
#include "actors/http_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <optional>

namespace althing::actors {
namespace {

// Whether only this machine reaches it; nothing when it is no address.
std::optional<bool> is_loopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return std::nullopt;
}

}  // namespace

Result<HttpAddress> http_address(const std::string& text, bool has_keys, const std::string& flag) {
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::invalid_argument,
                 "--" + flag + " is '" + text + "', which " + why + "; use HOST:PORT such as 127.0.0.1:8080 (port 0 picks one)", flag};
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("has no port");
  HttpAddress address;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc{} || stop != end) return wrong("has no port from 0 to 65535");
  address.host = text.substr(0, colon);
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.starts_with('[') && address.host.ends_with(']')) address.host = address.host.substr(1, address.host.size() - 2);
  const auto loopback = is_loopback(address.host);
  if (!loopback) return wrong("has a host that is no address");
  address.loopback = *loopback;
  if (!address.loopback && !has_keys)
    return Error{
        ErrorCode::invalid_argument,
        "--" + flag + " is '" + text + "', which other machines can reach, and nobody would need a key; add --api-keys FILE, or use 127.0.0.1", flag};
  return address;
}

}  // namespace althing::actors
