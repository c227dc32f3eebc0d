// The one place that registers message types and sets CAF's switches.
#include "actors/actor_system.hpp"

#include <caf/io/middleman.hpp>
#include <caf/openssl/manager.hpp>
#include <stdexcept>

#include "actors/messages.hpp"

namespace althing::actors {

LocalSystemConfig::LocalSystemConfig() {
  add_message_types<caf::id_block::althing>();
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", 4);
  config_file_path = "";  // no caf-application.ini of the working directory may change a server
}

ClusterSystemConfig::ClusterSystemConfig(const TlsPaths& tls) {
  if (tls.authority.empty() || tls.certificate.empty() || tls.key.empty())
    throw std::invalid_argument("TLS between processes needs an authority, a certificate and a key; one of them is empty");
  load<caf::io::middleman>();
  load<caf::openssl::manager>();
  set("middleman.workers", 0);
  // CAF's own heartbeats stay off on one host: its timeout counts from time zero until a new connection's first message, and so cut a third of all
  // TLS handshakes on a busy machine. Deaths are seen by pidfd and monitors, frozen ranks by probes and step deadlines.
  openssl_cafile = tls.authority;
  openssl_certificate = tls.certificate;
  openssl_key = tls.key;
}

}  // namespace althing::actors
