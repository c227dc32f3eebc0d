// How every CAF system of the project is configured: the shared queue scheduler, no extra middleman threads (both measured: a third of the round
// trip), and TLS with both sides' certificates wherever the middleman is loaded. Without certificates the constructor refuses, because
// CAF would silently speak anonymous TLS.
#pragma once

#include <caf/actor_system_config.hpp>
#include <string>

namespace althing::actors {

struct TlsPaths {
  std::string authority;
  std::string certificate;
  std::string key;
};

// One process, no network: tests, `generate` and `serve --in-process`.
class LocalSystemConfig : public caf::actor_system_config {
 public:
  LocalSystemConfig();
};

// A member of a running server. REQUIRES: no path is empty (throws std::invalid_argument otherwise, before anything listens).
class ClusterSystemConfig : public LocalSystemConfig {
 public:
  explicit ClusterSystemConfig(const TlsPaths& tls);
};

}  // namespace althing::actors
