// See the header.
#include "tests/bench/load/sse_streams.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace althing::load {
namespace {

constexpr std::uint32_t opening_most = 512;  // connections without an answer; the kernel's queue of a listener is not longer than a few thousand
constexpr int ready_at_once = 256;
constexpr std::size_t read_bytes = 64u << 10;

// The text behind `name` in an event, where it has one: words need no escapes, so it ends at the next quote.
std::optional<std::string_view> text_of(std::string_view event, std::string_view name) {
  const std::size_t at = event.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = event.substr(at + name.size());
  return rest.substr(0, rest.find('"'));
}

}  // namespace

// One step of taking apart; false when more bytes are needed.
bool EventReader::step(std::string& body) {
  if (state_ == State::head) {
    const std::size_t end = pending_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::string_view head = std::string_view(pending_).substr(0, end + 2);
    if (!head.starts_with("HTTP/1.1 200") || head.find("chunked\r\n") == std::string_view::npos) {
      state_ = State::broken;
      return false;
    }
    pending_.erase(0, end + 4);
    state_ = State::size;
  } else if (state_ == State::size) {
    const std::size_t end = pending_.find("\r\n");
    if (end == std::string::npos) return false;
    const auto [rest, code] = std::from_chars(pending_.data(), pending_.data() + end, left_, 16);
    state_ = code != std::errc{} || rest != pending_.data() + end ? State::broken : State::data;
    pending_.erase(0, end + 2);
  } else if (state_ == State::data && left_ > 0) {
    const std::size_t some = std::min(left_, pending_.size());
    body.append(pending_, 0, some);
    pending_.erase(0, some);
    left_ -= some;
    if (left_ > 0) return false;
    state_ = State::data_end;
  } else {
    // Behind a chunk, and behind the last one, which is empty.
    if (pending_.size() < 2) return false;
    const bool last = state_ == State::data;
    state_ = !pending_.starts_with("\r\n") ? State::broken : last ? State::over : State::size;
    pending_.erase(0, 2);
  }
  return state_ != State::broken && state_ != State::over;
}

template <class Hear>
void EventReader::read(std::string_view bytes, const Hear& hear) {
  pending_ += bytes;
  while (step(events_)) {
  }
  std::size_t at = 0;
  for (std::size_t end; (end = events_.find("\n\n", at)) != std::string::npos; at = end + 2) {
    std::string_view event = std::string_view(events_).substr(at, end - at);
    event.remove_prefix(std::min<std::size_t>(event.size(), std::strlen("data: ")));
    hear(event);
  }
  events_.erase(0, at);
}

SseStreams::SseStreams(const Speech& speech, const std::string& address, std::string model, std::uint32_t streams, std::uint32_t words)
    : speech_(speech), model_(std::move(model)), streams_(streams), words_(words), epoll_(::epoll_create1(EPOLL_CLOEXEC)), buffer_(read_bytes, 0) {
  const std::size_t colon = address.rfind(':');
  host_ = address.substr(0, colon);
  if (colon != std::string::npos) std::from_chars(address.data() + colon + 1, address.data() + address.size(), port_);
  tally_.asked = streams;
}

SseStreams::~SseStreams() {
  for (Stream& stream : streams_) close(stream);
  ::close(epoll_);
}

void SseStreams::close(Stream& stream) {
  if (stream.socket >= 0) ::close(std::exchange(stream.socket, -1));
}

void SseStreams::open_more() {
  for (; opened_ < streams_.size() && opening_ < opening_most; ++opened_) {
    Stream& stream = streams_[opened_];
    const std::uint64_t seed = gpu::SyntheticScript::seed_of(opened_, words_);
    stream.check = std::make_unique<Check>(speech_, seed);
    const std::string body = R"({"model":")" + model_ + R"(","messages":[{"role":"user","content":"speak"}],"stream":true,)" +
                             R"("stream_options":{"include_usage":true},"seed":)" + std::to_string(seed) + R"(,"max_completion_tokens":)" +
                             std::to_string(words_ + 64) + "}";
    stream.request = "POST /v1/chat/completions HTTP/1.1\r\nHost: " + host_ +
                     "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    ++opening_;
    stream.socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    ::inet_pton(AF_INET, host_.c_str(), &to.sin_addr);
    const int one = 1;
    ::setsockopt(stream.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    epoll_event wish{EPOLLIN | EPOLLOUT, {}};
    wish.data.u32 = opened_;
    if (stream.socket < 0 || (::connect(stream.socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) ||
        ::epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.socket, &wish) != 0)
      fail(stream, std::string("a connection cannot be opened: ") + std::strerror(errno));
  }
}

bool SseStreams::pump(int wait_ms) {
  if (tally_.over()) return false;
  open_more();
  std::array<epoll_event, ready_at_once> ready;
  const int count = ::epoll_wait(epoll_, ready.data(), ready_at_once, wait_ms);
  for (int i = 0; i < count; ++i) on_ready(ready[static_cast<std::size_t>(i)].data.u32, ready[static_cast<std::size_t>(i)].events);
  return count > 0;
}

void SseStreams::fail(Stream& stream, const std::string& why) {
  if (!std::exchange(stream.check, nullptr)) return;
  if (!stream.accepted) --opening_;
  tally_.fail(stream.accepted, "SSE: " + why);
  close(stream);
}

void SseStreams::on_ready(std::uint32_t number, std::uint32_t events) {
  Stream& stream = streams_[number];
  if (stream.socket < 0) return;
  if (!stream.request.empty() && (events & EPOLLOUT) != 0) {
    const ssize_t sent = ::send(stream.socket, stream.request.data(), stream.request.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return fail(stream, std::string("a request cannot be sent: ") + std::strerror(errno));
    stream.request.erase(0, static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    epoll_event wish{EPOLLIN, {}};
    wish.data.u32 = number;
    if (stream.request.empty()) ::epoll_ctl(epoll_, EPOLL_CTL_MOD, stream.socket, &wish);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) take(stream);
}

void SseStreams::take(Stream& stream) {
  const ssize_t got = ::recv(stream.socket, buffer_.data(), buffer_.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return fail(stream, got == 0 ? "the server closed a connection" : std::string("a connection broke: ") + std::strerror(errno));
  stream.reader.read(std::string_view(buffer_.data(), static_cast<std::size_t>(got)), [&](std::string_view event) { hear(stream, event); });
  if (!stream.check) return;
  if (stream.reader.state() == EventReader::State::broken) return fail(stream, "no stream of events came: " + stream.reader.pending().substr(0, 300));
  if (stream.reader.has_head() && !std::exchange(stream.accepted, true)) {
    --opening_;
    tally_.accept();
  }
  if (stream.reader.state() != EventReader::State::over) return;
  if (!stream.finished || !stream.check->whole(stream.tokens)) return fail(stream, "a stream ended before its end");
  stream.check.reset();
  ++tally_.whole;
  tally_.tokens += stream.tokens;
  close(stream);
}

void SseStreams::hear(Stream& stream, std::string_view event) {
  if (!stream.check) return;
  if (stream.finished) return fail(stream, "something came behind [DONE]");
  if (event == "[DONE]") {
    stream.finished = stream.told;
    if (!stream.told) fail(stream, "[DONE] came without a reason");
    return;
  }
  if (event.starts_with(R"({"error")")) return fail(stream, std::string(event.substr(0, 300)));
  if (event.find(R"("finish_reason":"stop")") != std::string_view::npos && std::exchange(stream.told, true))
    return fail(stream, "a stream was finished twice");
  if (const auto count = text_of(event, R"("completion_tokens":)")) std::from_chars(count->data(), count->data() + count->size(), stream.tokens);
  const auto reasoning = text_of(event, R"("delta":{"reasoning":")"), content = text_of(event, R"("delta":{"content":")");
  if ((reasoning && !stream.check->hear(0, *reasoning)) || (content && !stream.check->hear(1, *content)))
    fail(stream, "an event's text is not what the engine said: " + std::string(event));
}

}  // namespace althing::load
