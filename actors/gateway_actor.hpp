// The door: one ROUTER socket, owned by one detached actor that polls the socket and its own mailbox together. It checks frames, keeps sessions,
// routes what clients say to their streams' frontends and what frontends say to wherever the client is connected now. A client that is gone or does
// not read costs a bounded number of bytes and is then cancelled; nothing a client sends can stop the door.
#pragma once

#include <atomic>
#include <caf/blocking_actor.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "actors/control_channel.hpp"
#include "actors/core_pulse.hpp"
#include "actors/descriptor_reserve.hpp"
#include "actors/frontend_actor.hpp"
#include "actors/messages.hpp"
#include "monitoring/metrics.hpp"
#include "protocol/curve/key_ring.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/router_socket.hpp"

namespace althing::actors {

struct GatewayOptions {
  std::string model;                                     // the name clients are told
  std::string instance;                                  // random; a core that takes over the streams of a dead one keeps its name
  std::chrono::milliseconds resume_grace{5'000};         // how long a vanished client's streams wait for it
  std::vector<std::shared_ptr<LoggedStream>> left;       // by a dead core, in order of acceptance
  std::function<void()> on_restored;                     // the scheduler has been sent what was left; may be null
  std::shared_ptr<CorePulse> pulse;                      // null: nobody looks
  std::shared_ptr<const protocol::curve::KeyRing> ring;  // who may speak; null: everybody who can connect
  bool keyless_gateway = false;                          // without a ring, whoever connects may be a gateway, and has a gateway's bounds
};

class Gateway : public caf::blocking_actor {
 public:
  // `socket` is bound already (so that a port in use is known before anything starts); the gateway takes it over.
  Gateway(caf::actor_config& config, protocol::wire::RouterSocket socket, std::shared_ptr<const FrontendShared> shared, GatewayOptions options);
  ~Gateway() override;

  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override;
  const char* name() const override { return "gateway"; }

 protected:
  void act() override;

 private:
  using Clock = std::chrono::steady_clock;
  // One connection.
  struct Session {
    std::string client_id;
    std::string key;      // of the connection, as Z85; "" where nobody has one
    int connection = -1;  // its descriptor, as of its last message
    protocol::wire::Encoding encoding = protocol::wire::Encoding::json;
    bool delimiter = false;  // the client's frames start with an empty one (REQ-style); so do ours then
    Clock::time_point heard;
    std::deque<std::string> unsent;  // encoded bodies that the socket would not take yet
    std::size_t unsent_bytes = 0;
  };
  struct Stream {
    caf::actor frontend;
    // Counts the connections that asked for this stream; 0 is the one that submitted it. `attached` is false from a reconnect until the client
    // resumes.
    std::uint32_t attachment = 0;
    bool attached = true;
    Clock::time_point resumed;  // last
    bool from_start = true;     // that brings all of it
    bool told_end = false;      // the end has been sent to the connection that asked last
    bool ended = false;         // its Done or ErrorReply went out; it lingers for resumes
  };
  // One client, across reconnects.
  struct Client {
    std::string route;  // of its newest connection; "" while it has none
    std::string owner;  // the key that said hello for it first; it belongs to no other
    bool revoked = false;
    Clock::time_point lost;
    std::unordered_map<std::string, Stream> streams;  // by request id
    std::uint32_t open = 0;                           // of them, those that have not ended
    std::deque<std::string> ended;                    // ids of those that have, oldest first; some may be gone already
  };

  void serve();
  void restore_streams();
  void receive_frames();
  void on_frames(const protocol::wire::RouterSocket::Received& received);
  void on_message(const std::string& route, Session& session, protocol::wire::ClientMessage message);
  void on_hello(const std::string& route, Session& session, const protocol::wire::Hello& hello);
  void on_submit(const std::string& route, Session& session, protocol::wire::Submit submit);
  void to_stream(const std::string& route, Session& session, const std::string& request_id, const std::function<void(Stream&)>& say);
  void reply(const std::string& route, Session& session, const protocol::wire::ServerMessage& message);
  void reply_error(const std::string& route, Session& session, const std::string& request_id, Error error);
  void refuse(const std::string& route, protocol::wire::Encoding encoding, bool delimiter, Error error);
  void send_body(const std::string& route, Session& session, std::string body);
  protocol::wire::RouterSocket::Sent try_send(const std::string& route, const Session& session, const std::string& body);
  // All that changes how many of a client's streams are open.
  static Stream& begin(Client& client, const std::string& request_id);
  static void note_end(Client& client, const std::string& request_id, Stream& stream);
  static void erase(Client& client, std::unordered_map<std::string, Stream>::iterator stream);
  void forget_oldest(Client& client, std::size_t keep);
  static bool resumed_just_now(const Stream& stream);
  void resume(const std::string& route, Session& session, const std::string& request_id, Stream& stream, std::uint64_t last_sequence);
  void resume_repeated();
  bool make_room();
  void forget(const StreamClosed& closed);
  void frontend_down(const caf::down_msg& down);
  void drop_session(const std::string& route);
  // The client has no connection any more, if `route` was the one it had.
  void unroute(const std::string& client_id, const std::string& route);
  void drain_unsent();
  void watch_descriptors();
  void expire();
  bool may_leave() const;
  void cancel_client(Client& client, const Error& error);
  bool drain_mailbox();
  // gateway_keys.cpp
  std::optional<Error> objection_to(const protocol::wire::RouterSocket::Received& received);
  bool is_others(const std::string& client_id, const Session& session) const;
  std::optional<Error> settle_tenant(const Session& session, protocol::wire::Submit& submit) const;
  std::uint32_t requests_max(const Session& session) const;
  std::size_t buffer_bytes_max(const Session& session) const;
  void obey_keys();
  void cut_revoked();

  protocol::wire::RouterSocket socket_;
  std::shared_ptr<const FrontendShared> shared_;
  GatewayOptions options_;
  Descriptor wakeup_;
  std::atomic<bool> armed_{true};
  std::unordered_map<std::string, Session> sessions_;  // by routing id
  std::unordered_map<std::string, Client> clients_;    // by client id
  // Submits that came too soon after a resume that does not answer them: {client id, request id, when they are answered}, by time.
  struct Repeated {
    std::string client_id, request_id;
    Clock::time_point due;
  };
  std::deque<Repeated> repeated_;
  std::uint64_t next_request_ = 1;
  std::uint64_t revocations_ = 0;         // of the ring, as far as they were obeyed
  std::optional<Clock::time_point> cut_;  // when connections of revoked keys are cut at the latest
  DescriptorReserve descriptors_{16};
  bool door_open_ = true;
  bool running_ = true;
  std::optional<Clock::time_point> leaves_;  // asked to go: at this time at the latest, or when every stream has its end
};

}  // namespace althing::actors
