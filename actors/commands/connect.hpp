// Where a command finds its server, and the keys that it needs to come in: what all commands that are clients share.
#pragma once

#include <string>

#include "protocol/client/client.hpp"

namespace althing::actors {

struct ConnectSettings {
  std::string endpoint = "tcp://127.0.0.1:4550";
  std::string server_key;  // its .pub file, or the public key itself; "": without encryption
  std::string key;         // our .key file
};

// `name`: of the client, for the server's log. Errors: invalid_argument (one key without the other), those of the files.
Result<protocol::ClientOptions> client_options_of(const ConnectSettings& settings, const std::string& name);

}  // namespace althing::actors
