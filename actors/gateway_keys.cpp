// The gateway's dealings with keys: who may say what, and what becomes of a key that may no more. ZeroMQ has let the connection in and proven its
// key; everything else is decided here, on each message, by the ring as it is now. And what happens when there are too many to let in.
#include <algorithm>
#include <utility>

#include "actors/gateway_actor.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace curve = protocol::curve;
namespace {

constexpr std::chrono::seconds idle_eviction{1};
constexpr std::chrono::seconds last_words_of_revoked{1};  // its streams get their ends, and then the connection is cut
constexpr std::size_t given_route_bytes = 5;              // a zero and a number: what ROUTER names a connection that named itself not

Error denied(const std::string& what, const char* field) { return {ErrorCode::denied, what, field}; }

}  // namespace

// A route that the peer chose could be that of somebody who was here before, and answers would find the wrong one. Those that ROUTER makes up are
// nobody's to choose.
std::optional<Error> Gateway::objection_to(const wire::RouterSocket::Received& received) {
  if (!options_.ring) return std::nullopt;
  const std::string& route = received.frames[0];
  if (!options_.ring->find(received.key)) return denied("this key may not speak here any more; ask the operator for another", "key");
  if (route.size() != given_route_bytes || route[0] != '\0')
    return denied("this connection chose its own ROUTER identity, which a server with keys does not allow; leave the socket's identity unset",
                  "identity");
  const auto session = sessions_.find(route);
  if (session != sessions_.end() && session->second.key != received.key) return denied("this identity is another key's", "identity");
  return std::nullopt;
}

bool Gateway::is_others(const std::string& client_id, const Session& session) const {
  const auto client = clients_.find(client_id);
  return client != clients_.end() && client->second.owner != session.key;
}

// Only a gateway speaks for others. Whoever else names a tenant must name its own, which need not be named.
std::optional<Error> Gateway::settle_tenant(const Session& session, wire::Submit& submit) const {
  if (!options_.ring) return std::nullopt;
  const auto entry = options_.ring->find(session.key);
  if (!entry) return denied("this key may not speak here any more; ask the operator for another", "key");
  if (submit.tenant.empty()) submit.tenant = entry->tenant;
  if (entry->role == curve::Role::gateway || submit.tenant == entry->tenant) return std::nullopt;
  return denied("this key may not name this tenant; leave the tenant out, or ask the operator for the role gateway", "tenant");
}

// A gateway asks for many others. Without keys nobody can say who is one; nor would a bound keep anybody from opening a second session.
std::uint32_t Gateway::requests_max(const Session& session) const {
  const Limits& limits = shared_->limits;
  const auto entry = options_.ring ? options_.ring->find(session.key) : std::nullopt;
  const bool gateway = options_.ring ? entry && entry->role == curve::Role::gateway : options_.keyless_gateway;
  return gateway ? std::max(limits.gateway_requests_max, limits.requests_per_session_max) : limits.requests_per_session_max;
}

// Whoever may have more requests may have as many bytes more waiting: each is a stream that sends.
std::size_t Gateway::buffer_bytes_max(const Session& session) const {
  const std::uint64_t bytes = std::uint64_t{shared_->limits.session_buffer_bytes_max} * requests_max(session);
  return static_cast<std::size_t>(bytes / shared_->limits.requests_per_session_max);
}

// Streams of a revoked key end with an error that says why, then its connections are cut: those without a session too, since they cannot be told
// apart. Whoever still may comes back at once.
void Gateway::obey_keys() {
  if (!options_.ring) return;
  const auto now = Clock::now();
  if (const std::uint64_t revocations = options_.ring->revocations(); revocations != revocations_) {
    revocations_ = revocations;
    cut_ = now + last_words_of_revoked;
    for (auto& [id, client] : clients_) {
      if (options_.ring->find(client.owner)) continue;
      client.revoked = true;
      cancel_client(client, denied("the key of this client was revoked", "key"));
    }
  }
  if (!cut_) return;
  bool talks = false;
  for (const auto& [id, client] : clients_) talks = talks || (client.revoked && client.open > 0);
  for (const auto& [route, session] : sessions_) talks = talks || (!session.unsent.empty() && !options_.ring->find(session.key));
  if (!talks || now > *cut_) cut_revoked();
}

void Gateway::cut_revoked() {
  cut_.reset();
  std::vector<std::string> gone;
  std::vector<int> keep;
  for (const auto& [route, session] : sessions_) {
    if (!options_.ring->find(session.key))
      gone.push_back(route);
    else if (session.connection >= 0)
      keep.push_back(session.connection);
  }
  for (auto& [id, client] : clients_) client.revoked = client.revoked && client.open > 0;
  for (const std::string& route : gone) drop_session(route);
  const std::size_t connections = socket_.cut_all_but(keep);
  log(LogLevel::info, "keys_cut", {{"sessions", gone.size()}, {"connections", connections}});
}

// Clients that have taken all descriptors would keep probes out, and ZeroMQ busy with connections that it cannot take.
void Gateway::watch_descriptors() {
  if (door_open_ && descriptors_.exhausted()) {
    door_open_ = false;
    socket_.close_door();
    shared_->metrics->door_closed();
    log(LogLevel::error, "descriptors_exhausted",
        {{"sessions", sessions_.size()}, {"note", "nobody new can connect until some leave; see ulimit -n"}});
  } else if (!door_open_ && descriptors_.refill()) {
    if (const Status opened = socket_.open_door(); !opened) return log(LogLevel::error, "door", {{"error", opened.error().message}});
    door_open_ = true;
    log(LogLevel::info, "descriptors_returned", {{"sessions", sessions_.size()}});
  }
}

// Makes place for a new session by ending the one that has been silent longest, if it has no open stream. False when all are in use.
bool Gateway::make_room() {
  const auto now = Clock::now();
  auto oldest = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    const auto client = clients_.find(it->second.client_id);
    if (now - it->second.heard < idle_eviction || (client != clients_.end() && client->second.open > 0)) continue;
    if (oldest == sessions_.end() || it->second.heard < oldest->second.heard) oldest = it;
  }
  if (oldest == sessions_.end()) return false;
  drop_session(std::string(oldest->first));
  return true;
}

}  // namespace althing::actors
