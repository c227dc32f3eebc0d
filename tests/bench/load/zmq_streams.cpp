// See the header.
#include "tests/bench/load/zmq_streams.hpp"

#include <fmt/format.h>

#include <charconv>
#include <random>
#include <utility>
#include <zmq_addon.hpp>

namespace althing::load {
namespace wire = protocol::wire;
namespace {

constexpr wire::Encoding encoding = wire::Encoding::capnp;
constexpr int frames_at_once = 64;  // of one session before the next has its turn
constexpr std::chrono::seconds ping_interval{3};

std::uint32_t number_of(const std::string& request_id) {
  std::uint32_t number = UINT32_MAX;
  std::from_chars(request_id.data() + 1, request_id.data() + request_id.size(), number);
  return number;
}

}  // namespace

// Streams of an earlier run can be resumed for a while; these are to be new.
std::string fresh_client_id() {
  std::random_device device;
  return fmt::format("load-{:08x}{:08x}", device(), device());
}

Session::Session(zmq::context_t& context, const std::string& endpoint, const std::string& client_id)
    : client_id_(client_id), socket_(context, zmq::socket_type::dealer) {
  socket_.set(zmq::sockopt::linger, 0);
  socket_.set(zmq::sockopt::sndhwm, 0);
  socket_.set(zmq::sockopt::rcvhwm, 100'000);
  socket_.connect(endpoint);
  hello();
}

void Session::hello() {
  wire::Hello hello;
  hello.client_id = client_id_;
  hello.client_name = "althing-load";
  send(hello);
}

void Session::send(const wire::ClientMessage& message) {
  const std::string header = wire::header_of(encoding), body = wire::encode(message, encoding);
  socket_.send(zmq::buffer(header), zmq::send_flags::sndmore);
  socket_.send(zmq::buffer(body), zmq::send_flags::none);
}

std::optional<wire::ServerMessage> Session::receive() {
  zmq::message_t header, body;
  if (!socket_.recv(header, zmq::recv_flags::dontwait)) return std::nullopt;
  static_cast<void>(socket_.recv(body, zmq::recv_flags::none));
  auto message = wire::decode_server(body.to_string_view(), encoding, Limits{});
  if (!message) return wire::ErrorReply{"", 0, message.error()};
  return std::move(*message);
}

ZmqStreams::ZmqStreams(const Speech& speech, std::string endpoint, std::uint32_t streams, std::uint32_t sessions, std::uint32_t words,
                       std::vector<workload::Ask> asks)
    : speech_(speech),
      streams_(asks.empty() ? streams : asks.size()),
      words_(words),
      asks_(std::move(asks)),
      followers_(asks_.size()),
      greeted_(sessions, false),
      pinged_(Clock::now()) {
  context_.set(zmq::ctxopt::max_sockets, static_cast<int>(sessions) + 16);
  tally_.asked = static_cast<std::uint32_t>(streams_.size());
  for (std::uint32_t i = 0; i < sessions; ++i) sessions_.emplace_back(context_, endpoint, fresh_client_id());
  for (std::uint32_t i = 0; i < asks_.size(); ++i) {
    if (asks_[i].after)
      followers_[*asks_[i].after].push_back(i);
    else
      due_.emplace(pinged_ + std::chrono::microseconds(asks_[i].at_us), i);
  }
}

bool ZmqStreams::pump() {
  bool busy = ask_due();
  for (std::size_t i = 0; i < sessions_.size(); ++i)
    for (int frames = 0; frames < frames_at_once; ++frames) {
      const auto message = sessions_[i].receive();
      if (!message) break;
      busy = true;
      hear(i, *message);
    }
  if (Clock::now() - pinged_ > ping_interval) ping();
  return busy;
}

void ZmqStreams::wait(std::chrono::milliseconds time) {
  std::vector<zmq::pollitem_t> items;
  for (Session& session : sessions_) items.push_back({session.socket().handle(), 0, ZMQ_POLLIN, 0});
  zmq::poll(items, time);
}

void ZmqStreams::ping() {
  pinged_ = Clock::now();
  for (Session& session : sessions_) session.send(wire::Ping{1});
}

// A connection that is new to the server goes on with what it had: what was accepted is resumed, and the rest asked for.
void ZmqStreams::greet(std::size_t session) {
  greeted_[session] = true;
  for (std::size_t i = session; i < streams_.size(); i += sessions_.size()) {
    Stream& stream = streams_[i];
    const auto number = static_cast<std::uint32_t>(i);
    if (!stream.asked && asks_.empty())
      ask(number);
    else if (stream.check && stream.accepted)
      sessions_[session].send(wire::Resume{"r" + std::to_string(i), stream.sequence});
    else if (stream.check)
      submit(session, number);
  }
}

void ZmqStreams::ask(std::uint32_t number) {
  Stream& stream = streams_[number];
  stream.asked = true;
  stream.check = std::make_unique<Check>(speech_, gpu::SyntheticScript::seed_of(number, words_of(number)));
  submit(number % sessions_.size(), number);
}

// Of a workload. Late is late: what the server, or this program, made it wait for counts.
bool ZmqStreams::ask_due() {
  bool asked = false;
  for (auto next = due_.begin(); next != due_.end() && next->first <= Clock::now();) {
    const auto [when, number] = *next;
    if (!greeted_[number % sessions_.size()]) {
      ++next;
      continue;
    }
    next = due_.erase(next);
    streams_[number].due = when;
    ask(number);
    asked = true;
  }
  return asked;
}

// Whoever goes on from it is due a while later.
void ZmqStreams::end(std::uint32_t number) {
  if (asks_.empty()) return;
  for (const std::uint32_t next : followers_[number]) due_.emplace(Clock::now() + std::chrono::microseconds(asks_[next].at_us), next);
}

// The words of its family, its own, and in front of them all that it goes on from.
std::string ZmqStreams::prompt_of(std::uint32_t number) const {
  if (asks_.empty()) return "speak";
  const workload::Ask& ask = asks_[number];
  std::string text = ask.after ? prompt_of(*ask.after) + " and" : "speak";
  for (std::uint32_t i = 0; i < ask.shared; ++i) text += fmt::format(" {}of{}", i, ask.family);
  for (std::uint32_t i = ask.shared; i < ask.prompt; ++i) text += fmt::format(" {}", (number + 1) * 7919u % 1000u + i);
  return text;
}

void ZmqStreams::submit(std::size_t session, std::uint32_t number) {
  wire::Submit submit;
  submit.request_id = "r" + std::to_string(number);
  protocol::harmony::Message& message = submit.messages.emplace_back();
  message.content = {protocol::harmony::TextContent{prompt_of(number)}};
  submit.sampling.seed = gpu::SyntheticScript::seed_of(number, words_of(number));
  submit.sampling.completion_tokens_max = words_of(number) + 64;
  sessions_[session].send(submit);
}

void ZmqStreams::fail(std::uint32_t number, const std::string& why) {
  if (!std::exchange(streams_[number].check, nullptr)) return;
  tally_.fail(streams_[number].accepted, "ZeroMQ: " + why);
  end(number);
}

void ZmqStreams::hear(std::size_t session, const wire::ServerMessage& message) {
  if (std::holds_alternative<wire::Welcome>(message)) return greet(session);
  // A machine that is too busy lets heartbeats pass, and connections are made anew.
  if (const auto* lost = std::get_if<wire::ErrorReply>(&message); lost != nullptr && lost->error.code == ErrorCode::unavailable)
    return sessions_[session].hello();
  if (std::holds_alternative<wire::Pong>(message)) return;
  const std::string& id = std::visit(
      [](const auto& said) -> const std::string& {
        static const std::string none;
        if constexpr (requires { said.request_id; })
          return said.request_id;
        else
          return none;
      },
      message);
  const std::uint32_t number = number_of(id.empty() ? "-" : id);
  if (number >= streams_.size() || !streams_[number].check) {
    const auto* error = std::get_if<wire::ErrorReply>(&message);
    if (tally_.first_failure.empty())
      tally_.first_failure = "ZeroMQ: something came for no open stream: " + (error == nullptr ? "'" + id + "'" : error->error.message);
    return;
  }
  Stream& stream = streams_[number];
  if (std::holds_alternative<wire::Accepted>(message)) {
    if (std::exchange(stream.accepted, true)) return fail(number, "a stream was accepted twice");
    tally_.accept();
  } else if (const auto* delta = std::get_if<wire::Delta>(&message)) {
    hear(number, *delta);
  } else if (const auto* done = std::get_if<wire::Done>(&message)) {
    if (done->sequence != stream.sequence + 1 || done->reason != FinishReason::stop || !stream.check->whole(done->usage.completion_tokens))
      return fail(number, "a stream ended before its end");
    stream.check.reset();
    ++tally_.whole;
    tally_.tokens += done->usage.completion_tokens;
    end(number);
  } else {
    fail(number, std::get<wire::ErrorReply>(message).error.message);
  }
}

void ZmqStreams::hear(std::uint32_t number, const wire::Delta& delta) {
  Stream& stream = streams_[number];
  if (stream.sequence == 0 && !asks_.empty()) first_deltas_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - stream.due).count());
  if (delta.sequence != ++stream.sequence) return fail(number, "a delta is missing, or came twice");
  for (const wire::DeltaEvent& event : delta.events)
    if (const auto* text = std::get_if<wire::Text>(&event); text != nullptr && !stream.check->hear(text->index, text->text))
      return fail(number, "a delta's text is not what the engine said: '" + text->text + "'");
}

}  // namespace althing::load
