// See the header.
#include "protocol/curve/zap.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <zmq_addon.hpp>

namespace althing::protocol::curve {
namespace {

constexpr const char* zap_endpoint = "inproc://zeromq.zap.01";
constexpr const char* zap_version = "1.0";
constexpr std::size_t request_frames = 7;  // of the mechanism CURVE

}  // namespace

ZapAnswer zap_answer(const ZapFrames& request, const KeyRing& ring) {
  const std::string id = request.size() > 1 ? request[1] : "";
  const auto say = [&](ZapResult result, const char* status, const char* text, std::string user) {
    return ZapAnswer{result, {zap_version, id, status, text, std::move(user), ""}};
  };
  const bool readable = request.size() >= request_frames - 1 && request[0] == zap_version;
  if (!readable) return say(ZapResult::malformed, "500", "malformed request", "");
  if (request[2] != zap_domain || request[5] != "CURVE") return say(ZapResult::denied, "400", "denied", "");
  if (request.size() != request_frames || request[6].size() != key_bytes) return say(ZapResult::malformed, "500", "malformed request", "");
  const PublicKey key = public_key_of_bytes(request[6]);
  if (!ring.find(key.text)) return say(ZapResult::denied, "400", "denied", "");
  return say(ZapResult::accepted, "200", "", key.text);
}

Result<std::unique_ptr<ZapHandler>> ZapHandler::start(zmq::context_t& context, Answer answer) {
  try {
    zmq::socket_t socket(context, zmq::socket_type::rep);
    socket.set(zmq::sockopt::linger, 0);
    socket.bind(zap_endpoint);
    const int wakeup = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wakeup < 0) return Error{ErrorCode::io, std::string("cannot answer handshakes: ") + std::strerror(errno), ""};
    std::unique_ptr<ZapHandler> handler(new ZapHandler(std::move(socket), wakeup, std::move(answer)));
    handler->thread_ = std::thread([&handler = *handler] { handler.serve(); });
    return handler;
  } catch (const zmq::error_t& error) {
    return Error{ErrorCode::io, std::string("cannot answer handshakes: ") + error.what(), ""};
  }
}

ZapHandler::ZapHandler(zmq::socket_t socket, int wakeup, Answer answer) : socket_(std::move(socket)), wakeup_(wakeup), answer_(std::move(answer)) {}

ZapHandler::~ZapHandler() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeup_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  socket_.close();
  ::close(wakeup_);
}

// An error of one exchange is that exchange's: the peer that it was about gets no answer, and so does not come in.
void ZapHandler::serve() {
  zmq_pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wakeup_, ZMQ_POLLIN, 0}};
  while (items[1].revents == 0) {
    try {
      zmq::poll(items, 2, std::chrono::milliseconds(-1));
      if (items[0].revents == 0) continue;
      std::vector<zmq::message_t> parts;
      if (!zmq::recv_multipart(socket_, std::back_inserter(parts), zmq::recv_flags::dontwait)) continue;
      ZapFrames request;
      for (const zmq::message_t& part : parts) request.emplace_back(part.to_string_view());
      std::vector<zmq::const_buffer> reply;
      const ZapFrames frames = answer_(request);
      for (const std::string& frame : frames) reply.push_back(zmq::buffer(frame));
      static_cast<void>(zmq::send_multipart(socket_, reply, zmq::send_flags::dontwait));
    } catch (const zmq::error_t& error) {
      if (error.num() == ETERM || error.num() == ENOTSOCK) return;
    }
  }
}

}  // namespace althing::protocol::curve
