// See the header.
#include "actors/serving_addresses.hpp"

#include <utility>

#include "protocol/wire/router_socket.hpp"

namespace althing::actors {
namespace {

Error with_flag(const Error& error, const char* flag) { return {error.code, error.message + " (--" + flag + ")", flag}; }

}  // namespace

Result<std::vector<ServingAddress>> serving_addresses(const std::string& bind, const std::string& metrics) {
  if (auto status = protocol::wire::RouterSocket::check(bind); !status) return status.error();
  std::vector<ServingAddress> addresses;
  // After the check above it begins with tcp://.
  const std::pair<const char*, std::string> wanted[] = {{"bind", bind.substr(6)}, {"metrics", metrics}};
  for (const auto& [flag, text] : wanted) {
    if (text.empty()) continue;
    auto address = monitoring::parse_loopback_address(text);
    if (!address) return with_flag(address.error(), flag);
    addresses.push_back({flag, std::move(*address)});
  }
  return addresses;
}

Status check_free(const ServingAddress& address) {
  if (auto status = monitoring::check_can_listen(address.address); !status) return with_flag(status.error(), address.flag);
  return Ok{};
}

}  // namespace althing::actors
