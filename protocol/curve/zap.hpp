// Who answers ZeroMQ's question whether a key may come in (ZAP 1.0, rfc.zeromq.org/spec/27). One thread with one socket in the door's own context,
// bound before the door is. While it is dead, or slower than a handshake may take, nobody new comes in, because the door insists on an answer; those
// who are in already do not notice. What is refused is refused with the same words, whatever was wrong.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "protocol/curve/key_ring.hpp"

namespace althing::protocol::curve {

inline constexpr const char* zap_domain = "althing";

using ZapFrames = std::vector<std::string>;

enum class ZapResult : std::uint8_t { accepted, denied, malformed };

struct ZapAnswer {
  ZapResult result = ZapResult::denied;
  ZapFrames frames;  // version, request id, status (200, 400 or 500), text, user id (the key as Z85, when accepted), metadata (none)
};

// Pure. `request`: version, request id, domain, address, identity, mechanism, credentials.
ZapAnswer zap_answer(const ZapFrames& request, const KeyRing& ring);

class ZapHandler {
 public:
  using Answer = std::function<ZapFrames(const ZapFrames& request)>;

  // `answer` is called on the handler's own thread. Errors: io (another handler in this context, no descriptors).
  static Result<std::unique_ptr<ZapHandler>> start(zmq::context_t& context, Answer answer);
  // Ends the thread. From then on the door is shut to new connections.
  ~ZapHandler();
  ZapHandler(const ZapHandler&) = delete;
  ZapHandler& operator=(const ZapHandler&) = delete;

 private:
  ZapHandler(zmq::socket_t socket, int wakeup, Answer answer);
  void serve();

  zmq::socket_t socket_;  // the thread's own
  int wakeup_;            // an eventfd: readable when the thread should end
  Answer answer_;
  std::thread thread_;
};

}  // namespace althing::protocol::curve
