// See the header.
#include "actors/commands/connect.hpp"

#include <utility>

#include "actors/door_keys.hpp"
#include "protocol/curve/key_file.hpp"

namespace althing::actors {
namespace curve = protocol::curve;

Result<protocol::ClientOptions> client_options_of(const ConnectSettings& settings, const std::string& name) {
  protocol::ClientOptions options;
  options.endpoint = settings.endpoint;
  options.name = name;
  if (settings.server_key.empty() && settings.key.empty()) return options;
  if (settings.server_key.empty())
    return Error{ErrorCode::invalid_argument, "--key is given, and not whose door it opens; add --server-key with the server's .pub file",
                 "server-key"};
  if (settings.key.empty())
    return Error{ErrorCode::invalid_argument,
                 "--server-key is given, and no key of your own; make one with `althing keys new`, have it allowed, and add --key", "key"};
  auto server = curve::public_key_from(settings.server_key);
  if (!server) return Error{server.error().code, server.error().message + " (--server-key)", "server-key"};
  auto secret = curve::read_secret_key(settings.key);
  if (!secret) return Error{secret.error().code, secret.error().message + " (--key)", "key"};
  leave_memory_out_of_core_dumps();
  curve::PublicKey own = secret->public_key();
  options.keys = std::make_shared<const curve::ClientKeys>(curve::ClientKeys{std::move(*server), {std::move(own), std::move(*secret)}});
  return options;
}

}  // namespace althing::actors
