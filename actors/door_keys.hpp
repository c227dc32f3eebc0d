// The keys of a server whose clients need keys: its own secret, and a pair that it makes at every start for clients inside of it (the live page's
// chat). The supervisor reads the file once; cores, the one that follows a dead one too, get both halves in sealed memory, as they get their
// certificates.
#pragma once

#include <memory>

#include "actors/control_channel.hpp"
#include "actors/settings.hpp"
#include "protocol/curve/allow_list.hpp"
#include "protocol/curve/door.hpp"

namespace althing::actors {

struct DoorKeys {
  std::shared_ptr<const protocol::curve::SecretKey> server;
  std::shared_ptr<const protocol::curve::KeyPair> inside;

  // What a client inside of this server needs. Errors: io.
  Result<std::shared_ptr<const protocol::curve::ClientKeys>> client_keys() const;
  // How the ring knows it: a gateway, which may speak for any tenant.
  protocol::curve::KeyEntry inside_entry() const;
};

// Reads --curve-key, and --curve-allow to see that it can be read. Errors: those of both files. REQUIRES: both are given.
Result<DoorKeys> make_door_keys(const ServeSettings& settings);

// In memory that can be inherited and not be changed. Errors: io.
Result<Descriptor> seal(const DoorKeys& keys);
// Errors: io, and those of keys that are none.
Result<DoorKeys> unseal(const Descriptor& sealed);
// The same for a child that is only a client: the server's public key, and the pair for clients inside of it.
Result<Descriptor> seal_for_client(const DoorKeys& keys);
Result<std::shared_ptr<const protocol::curve::ClientKeys>> unseal_client_keys(const Descriptor& sealed);

// Errors: those of the file.
Result<protocol::curve::AllowList> read_allow_list(const std::string& path);

// From here on a core dump of this process holds no memory: ZeroMQ keeps copies of secret keys where nobody can mark them.
void leave_memory_out_of_core_dumps();

}  // namespace althing::actors
