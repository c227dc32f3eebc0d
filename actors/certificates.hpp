// Throwaway certificates for one run of the server: CAF's BASP has no authentication of its own, so the core and the ranks speak it over TLS and
// accept only certificates of the authority made here. The authority's key is forgotten at once; nothing touches the disk (memfds, read through
// /proc/self/fd).
#pragma once

#include <string>

#include "actors/control_channel.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

struct Certificates {
  Descriptor authority;    // PEM certificate of the authority
  Descriptor certificate;  // PEM certificate signed by it, for both sides
  Descriptor key;          // PEM private key of `certificate`
};

// P-256, valid for a year. Errors: internal with OpenSSL's reason.
Result<Certificates> make_certificates();

// The path under which this process can open an inherited descriptor by name.
std::string path_of(int descriptor);

}  // namespace althing::actors
