// The gateway: see the header. Everything runs on this actor's own thread; only `enqueue` is called from others.
#include "actors/gateway_actor.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/others.hpp>
#include <exception>
#include <utility>

#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

constexpr std::chrono::milliseconds idle_poll{100};
constexpr std::chrono::milliseconds last_words{500};  // when the server stops; the supervisor waits longer for its core
constexpr std::chrono::milliseconds retry_poll{2};
constexpr int frames_at_once = 256;
constexpr std::chrono::milliseconds resume_interval{50};

const std::string no_request;

template <class Message>
const std::string& request_id_of(const Message& message) {
  if constexpr (requires { message.request_id; })
    return message.request_id;
  else
    return no_request;
}

}  // namespace

Gateway::Stream& Gateway::begin(Client& client, const std::string& request_id) {
  ++client.open;
  return client.streams[request_id];
}

void Gateway::note_end(Client& client, const std::string& request_id, Stream& stream) {
  if (std::exchange(stream.ended, true)) return;
  --client.open;
  client.ended.push_back(request_id);
}

void Gateway::erase(Client& client, std::unordered_map<std::string, Stream>::iterator stream) {
  if (!stream->second.ended) --client.open;
  client.streams.erase(stream);
  // They go in about the order in which they ended, so what is looked at here is little, and what is kept is no more than there are streams.
  while (!client.ended.empty() && !client.streams.contains(client.ended.front())) client.ended.pop_front();
}

// Ended streams linger for resumes, but not without bound.
void Gateway::forget_oldest(Client& client, std::size_t keep) {
  while (client.streams.size() >= keep && !client.ended.empty()) {
    const auto oldest = client.streams.find(client.ended.front());
    client.ended.pop_front();
    if (oldest == client.streams.end() || !oldest->second.ended) continue;
    send_exit(oldest->second.frontend, caf::exit_reason::user_shutdown);
    erase(client, oldest);
  }
}

Gateway::Gateway(caf::actor_config& config, wire::RouterSocket socket, std::shared_ptr<const FrontendShared> shared, GatewayOptions options)
    : blocking_actor(config),
      socket_(std::move(socket)),
      shared_(std::move(shared)),
      options_(std::move(options)),
      wakeup_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Gateway::~Gateway() = default;

void Gateway::enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) {
  blocking_actor::enqueue(std::move(element), unit);
  if (armed_.exchange(false)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wakeup_.get(), &one, sizeof one);
  }
}

void Gateway::act() {
  // A blocking actor has no exception handler to set; this is the same as guard()'s.
  try {
    serve();
  } catch (const std::exception& error) {
    log(LogLevel::error, "actor_exception", {{"actor", "gateway"}, {"what", error.what()}});
    ::_exit(exit_internal);
  }
}

// Before any client is heard: whoever asks for a stream of the dead core finds it. Clients get as long to come back as after any lost connection.
void Gateway::restore_streams() {
  for (std::shared_ptr<LoggedStream>& left : std::exchange(options_.left, {})) {
    const token_log::Read& read = left->read;
    FrontendStart start{RequestId{next_request_++}, read.submit.client_id, {}, caf::actor_cast<caf::actor>(this), Clock::now(), left};
    start.submit.request_id = read.submit.request_id;
    next_request_ += read.submit.choices - 1;
    // Copied before the frontend takes the rest. The scheduler hears of requests in the order in which the dead core had accepted them.
    ResubmitRequest again = resubmission_of(read, start.request);
    Client& client = clients_[read.submit.client_id];
    client.lost = Clock::now();
    client.owner = read.submit.owner;
    Stream& stream = begin(client, read.submit.request_id);
    stream.attached = false;
    if (read.ended) note_end(client, read.submit.request_id, stream);
    stream.frontend = system().spawn(frontend_actor, shared_, std::move(start));
    monitor(stream.frontend);
    for (SubmitRequest& choice : again.choices) choice.frontend = stream.frontend;
    if (!again.choices.empty()) send(shared_->scheduler, std::move(again));
  }
  if (options_.on_restored) options_.on_restored();
}

void Gateway::serve() {
  restore_streams();
  Clock::time_point swept = Clock::now();
  while (running_) {
    if (options_.pulse) options_.pulse->gateway_round();
    bool unsent = false;
    for (const auto& [route, session] : sessions_) unsent = unsent || !session.unsent.empty();
    const wire::RouterSocket::Readable readable = socket_.wait(wakeup_.get(), unsent || leaves_ || !repeated_.empty() ? retry_poll : idle_poll);
    if (readable.wakeup) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wakeup_.get(), &count, sizeof count);
      armed_ = true;
    }
    while (running_ && drain_mailbox()) {
    }
    if (readable.socket) receive_frames();
    if (unsent) drain_unsent();
    resume_repeated();
    if (Clock::now() - swept > idle_poll) {
      swept = Clock::now();
      obey_keys();
      expire();
      watch_descriptors();
    }
    running_ = running_ && !may_leave();
  }
}

// Streams that still run get their last words first, and those words into the socket, which keeps them for as long as it lingers.
bool Gateway::may_leave() const {
  if (!leaves_ || Clock::now() > *leaves_) return leaves_.has_value();
  const auto talks = [](const auto& client) { return client.second.open > 0; };
  const auto unsent = [](const auto& session) { return !session.second.unsent.empty(); };
  return std::none_of(clients_.begin(), clients_.end(), talks) && std::none_of(sessions_.begin(), sessions_.end(), unsent);
}

// One message of the mailbox; false when it is empty.
bool Gateway::drain_mailbox() {
  bool more = true;
  receive(
      [&](ToClient& out) {
        const auto client = clients_.find(out.client_id);
        if (client == clients_.end()) return;
        const std::string& id = std::visit([](const auto& message) -> const std::string& { return request_id_of(message); }, out.message);
        const auto stream = client->second.streams.find(id);
        if (stream == client->second.streams.end()) return;
        const bool is_end = std::holds_alternative<wire::Done>(out.message) || std::holds_alternative<wire::ErrorReply>(out.message);
        if (is_end) note_end(client->second, id, stream->second);
        const auto session = sessions_.find(client->second.route);
        // Without a connection the frontend's log keeps it; a resume asks for it again.
        if (session == sessions_.end() || !stream->second.attached || out.attachment != stream->second.attachment) return;
        stream->second.told_end = is_end;
        reply(session->first, session->second, out.message);
      },
      [&](const StreamClosed& closed) { forget(closed); }, [&](const caf::down_msg& down) { frontend_down(down); },
      [&](const caf::exit_msg& exit) {
        if (!leaves_) leaves_ = Clock::now() + last_words;
        fail_state(exit.reason);
      },
      caf::others >> [](caf::message_view&) -> caf::result<caf::message> {
        log(LogLevel::warning, "unexpected_message", {{"actor", "gateway"}});
        return caf::make_message();
      },
      caf::after(std::chrono::milliseconds(0)) >> [&] { more = false; });
  return more;
}

void Gateway::receive_frames() {
  for (int i = 0; i < frames_at_once; ++i) {
    const auto received = socket_.receive();
    if (!received) return;
    if (received->frames.size() >= 2) on_frames(*received);
  }
}

void Gateway::on_frames(const wire::RouterSocket::Received& received) {
  const std::vector<std::string>& frames = received.frames;
  const std::string& route = frames[0];
  const bool delimiter = frames[1].empty();
  const std::size_t at = delimiter ? 2 : 1;
  if (frames.size() != at + 2) {
    refuse(
        route, wire::Encoding::json, delimiter,
        Error{ErrorCode::corrupt, "a message has " + std::to_string(frames.size() - 1) + " frames; send [header \"ALT1c\" or \"ALT1j\"] [body]", ""});
    return;
  }
  const auto encoding = wire::encoding_of(frames[at]);
  if (!encoding) return refuse(route, wire::Encoding::json, delimiter, encoding.error());
  // Before anything that it says is looked at.
  if (auto objection = objection_to(received)) return refuse(route, *encoding, delimiter, std::move(*objection));
  std::string request_id;
  auto message = wire::decode_client(frames[at + 1], *encoding, shared_->limits, &request_id);

  const auto known = sessions_.find(route);
  if (known == sessions_.end()) {
    if (!message) return refuse(route, *encoding, delimiter, message.error());
    if (!std::holds_alternative<wire::Hello>(*message))
      return refuse(route, *encoding, delimiter,
                    Error{ErrorCode::unavailable, "this connection has no session (the server may have restarted); say hello first", ""});
    if (sessions_.size() >= shared_->limits.sessions_max && !make_room())
      return refuse(
          route, *encoding, delimiter,
          Error{ErrorCode::busy, "the server has " + std::to_string(sessions_.size()) + " sessions, which is its limit; try again later", ""});
  }
  Session& session = sessions_[route];
  session.encoding = *encoding;
  session.delimiter = delimiter;
  session.heard = Clock::now();
  session.key = received.key;
  session.connection = received.connection;
  if (!message) {
    shared_->metrics->frame_refused(message.error().code);
    return reply_error(route, session, request_id, message.error());
  }
  on_message(route, session, std::move(*message));
}

void Gateway::on_message(const std::string& route, Session& session, wire::ClientMessage message) {
  if (auto* submit = std::get_if<wire::Submit>(&message)) return on_submit(route, session, std::move(*submit));
  if (const auto* hello = std::get_if<wire::Hello>(&message)) return on_hello(route, session, *hello);
  if (const auto* ping = std::get_if<wire::Ping>(&message))
    return reply(route, session, wire::Pong{ping->nonce, options_.instance, std::string(name_of(shared_->metrics->state()))});
  if (const auto* grant = std::get_if<wire::Grant>(&message))
    return to_stream(route, session, grant->request_id, [&](Stream& stream) { send(stream.frontend, ClientGrant{grant->credit}); });
  if (const auto* resume = std::get_if<wire::Resume>(&message))
    return to_stream(route, session, resume->request_id,
                     [&](Stream& stream) { this->resume(route, session, resume->request_id, stream, resume->last_sequence); });
  const auto& cancel = std::get<wire::Cancel>(message);
  to_stream(route, session, cancel.request_id, [&](Stream& stream) {
    send(stream.frontend, ClientCancel{Error{ErrorCode::cancelled, "cancelled by the client", ""}});
  });
}

void Gateway::on_hello(const std::string& route, Session& session, const wire::Hello& hello) {
  if (hello.version_max < wire::version_min || hello.version_min > wire::version) {
    reply_error(route, session, "",
                Error{ErrorCode::version,
                      "the client speaks versions " + std::to_string(hello.version_min) + " to " + std::to_string(hello.version_max) +
                          ", this server " + std::to_string(wire::version_min) + " to " + std::to_string(wire::version),
                      "version"});
    drop_session(route);
    return;
  }
  if (is_others(hello.client_id, session)) {
    const bool is_new = session.client_id.empty();
    shared_->metrics->frame_refused(ErrorCode::denied);
    reply_error(route, session, "", Error{ErrorCode::denied, "this client_id was first used with another key; draw one of your own", "client_id"});
    if (is_new) drop_session(route);
    return;
  }
  // One connection speaks for one client at a time; a client that it spoke for before counts as gone.
  if (!session.client_id.empty() && session.client_id != hello.client_id) unroute(session.client_id, route);
  Client& client = clients_[hello.client_id];
  if (!client.route.empty() && client.route != route) sessions_.erase(client.route);  // its older connection
  if (client.route != route)
    for (auto& [id, stream] : client.streams) stream.attached = false;
  client.route = route;
  client.owner = session.key;
  session.client_id = hello.client_id;
  log(LogLevel::debug, "hello", {{"client", hello.client_name}, {"sessions", sessions_.size()}});
  shared_->metrics->sessions(static_cast<std::uint32_t>(sessions_.size()));
  const Limits& limits = shared_->limits;
  reply(route, session,
        wire::Welcome{std::min(hello.version_max, wire::version), options_.instance, options_.model, limits.context_tokens_max,
                      limits.frame_bytes_max, limits.session_silence_ms_max});
}

void Gateway::on_submit(const std::string& route, Session& session, wire::Submit submit) {
  Client& client = clients_[session.client_id];
  if (const auto known = client.streams.find(submit.request_id); known != client.streams.end()) {
    Stream& stream = known->second;
    if (stream.attached && resumed_just_now(stream)) {
      // What the first of several brings is on its way on this connection: they start nothing, and nobody needs it twice. But who was told of the
      // end already, or asked for a part only, waits for more.
      if (!stream.from_start || stream.told_end) repeated_.push_back({session.client_id, submit.request_id, stream.resumed + resume_interval});
      return;
    }
    return resume(route, session, submit.request_id, known->second, 0);
  }
  if (auto objection = settle_tenant(session, submit)) {
    shared_->metrics->request_rejected(objection->code);
    return reply_error(route, session, submit.request_id, std::move(*objection));
  }
  const std::uint32_t requests = requests_max(session);
  if (client.open >= requests) {
    shared_->metrics->request_rejected(ErrorCode::busy);
    return reply_error(
        route, session, submit.request_id,
        Error{ErrorCode::busy, "this client has " + std::to_string(client.open) + " requests open, which is its limit; wait for one to end", ""});
  }
  forget_oldest(client, std::size_t{4} * requests);
  const std::string id = submit.request_id;
  const std::uint32_t choices = submit.sampling.n;
  FrontendStart start{RequestId{next_request_}, session.client_id, std::move(submit), caf::actor_cast<caf::actor>(this), Clock::now()};
  start.owner = session.key;
  next_request_ += choices;
  caf::actor& frontend = begin(client, id).frontend;
  frontend = system().spawn(frontend_actor, shared_, std::move(start));
  monitor(frontend);
}

void Gateway::to_stream(const std::string& route, Session& session, const std::string& request_id, const std::function<void(Stream&)>& say) {
  Client& client = clients_[session.client_id];
  const auto stream = client.streams.find(request_id);
  if (stream == client.streams.end())
    return reply_error(
        route, session, request_id,
        Error{ErrorCode::not_found, "no request '" + request_id + "' of this client; it ended a while ago, or the server restarted", "request_id"});
  say(stream->second);
}

void Gateway::reply(const std::string& route, Session& session, const wire::ServerMessage& message) {
  send_body(route, session, wire::encode(message, session.encoding));
}

void Gateway::reply_error(const std::string& route, Session& session, const std::string& request_id, Error error) {
  reply(route, session, wire::ErrorReply{request_id, 0, std::move(error)});
}

// An answer to somebody without a session: sent if the socket takes it, never kept.
void Gateway::refuse(const std::string& route, wire::Encoding encoding, bool delimiter, Error error) {
  shared_->metrics->frame_refused(error.code);
  Session stranger;
  stranger.encoding = encoding;
  stranger.delimiter = delimiter;
  try_send(route, stranger, wire::encode(wire::ErrorReply{"", 0, std::move(error)}, encoding));
}

wire::RouterSocket::Sent Gateway::try_send(const std::string& route, const Session& session, const std::string& body) {
  return socket_.send(route, session.delimiter, wire::header_of(session.encoding), body);
}

void Gateway::send_body(const std::string& route, Session& session, std::string body) {
  if (session.unsent.empty()) {
    const auto sent = try_send(route, session, body);
    if (sent == wire::RouterSocket::Sent::sent) {
      // Somebody whose connection takes what we send is not gone, even if it has nothing to say: ZeroMQ's heartbeats see to that.
      session.heard = Clock::now();
      return;
    }
    if (sent == wire::RouterSocket::Sent::gone) return drop_session(std::string(route));
  }
  session.unsent_bytes += body.size();
  session.unsent.push_back(std::move(body));
  if (session.unsent_bytes <= buffer_bytes_max(session)) return;
  log(LogLevel::warning, "slow_reader", {{"bytes", session.unsent_bytes}});
  if (const auto client = clients_.find(session.client_id); client != clients_.end())
    cancel_client(client->second,
                  Error{ErrorCode::slow_reader, "the client does not read; " + std::to_string(session.unsent_bytes) + " bytes wait for it", ""});
  drop_session(std::string(route));
}

void Gateway::drain_unsent() {
  std::vector<std::string> gone_routes;
  for (auto& [route, session] : sessions_) {
    while (!session.unsent.empty()) {
      const auto sent = try_send(route, session, session.unsent.front());
      if (sent == wire::RouterSocket::Sent::gone) gone_routes.push_back(route);
      if (sent != wire::RouterSocket::Sent::sent) break;
      session.unsent_bytes -= session.unsent.front().size();
      session.unsent.pop_front();
    }
  }
  for (const std::string& route : gone_routes) drop_session(route);
}

bool Gateway::resumed_just_now(const Stream& stream) {
  return stream.resumed != Clock::time_point{} && Clock::now() - stream.resumed < resume_interval;
}

void Gateway::resume(const std::string& route, Session& session, const std::string& request_id, Stream& stream, std::uint64_t last_sequence) {
  // Each resume repeats a whole log; a client needs one a reconnect.
  if (resumed_just_now(stream))
    return reply_error(route, session, request_id, Error{ErrorCode::busy, "this request was resumed just now; wait for what that brings", ""});
  stream.resumed = Clock::now();
  stream.from_start = last_sequence == 0;
  stream.told_end = false;
  stream.attached = true;
  send(stream.frontend, ClientResume{last_sequence, ++stream.attachment});
}

void Gateway::resume_repeated() {
  while (!repeated_.empty() && repeated_.front().due <= Clock::now()) {
    Repeated repeated = std::move(repeated_.front());
    repeated_.pop_front();
    const auto client = clients_.find(repeated.client_id);
    if (client == clients_.end()) continue;
    const auto stream = client->second.streams.find(repeated.request_id);
    const auto session = sessions_.find(client->second.route);
    if (stream == client->second.streams.end() || session == sessions_.end()) continue;
    if (resumed_just_now(stream->second)) {
      if (stream->second.from_start) continue;  // one of them answers all
      repeated.due = stream->second.resumed + resume_interval;
      repeated_.push_back(std::move(repeated));
      continue;
    }
    resume(session->first, session->second, repeated.request_id, stream->second, 0);
  }
}

void Gateway::forget(const StreamClosed& closed) {
  const auto client = clients_.find(closed.client_id);
  if (client == clients_.end()) return;
  const auto stream = client->second.streams.find(closed.request_id);
  if (stream == client->second.streams.end() || stream->second.frontend != closed.frontend) return;
  const bool unanswered = stream->second.attachment != closed.attachment;
  erase(client->second, stream);
  const auto session = sessions_.find(client->second.route);
  if (unanswered && session != sessions_.end())
    reply_error(session->first, session->second, closed.request_id,
                Error{ErrorCode::not_found, "request '" + closed.request_id + "' ended a while ago and is forgotten now", "request_id"});
}

// A frontend says goodbye before it ends. One that did not has lost its stream, and its client must hear so now rather than wait for ever; the
// scheduler, which watches it too, gives up the request.
void Gateway::frontend_down(const caf::down_msg& down) {
  if (!down.reason || down.reason == caf::exit_reason::user_shutdown) return;
  for (auto& [id, client] : clients_)
    for (auto it = client.streams.begin(); it != client.streams.end(); ++it) {
      if (it->second.frontend.address() != down.source) continue;
      const std::string request_id = it->first;
      const bool ended = it->second.ended;
      erase(client, it);
      log(LogLevel::error, "frontend_lost", {{"id", request_id}, {"reason", system().render(down.reason)}});
      const auto session = sessions_.find(client.route);
      if (!ended && session != sessions_.end())
        reply_error(session->first, session->second, request_id,
                    Error{ErrorCode::internal, "the stream of request '" + request_id + "' was lost inside of the server; submit it again", ""});
      return;
    }
}

void Gateway::drop_session(const std::string& route) {
  const auto session = sessions_.find(route);
  if (session == sessions_.end()) return;
  unroute(session->second.client_id, route);
  sessions_.erase(session);
  shared_->metrics->sessions(static_cast<std::uint32_t>(sessions_.size()));
}

void Gateway::unroute(const std::string& client_id, const std::string& route) {
  const auto client = clients_.find(client_id);
  if (client == clients_.end() || client->second.route != route) return;
  client->second.route.clear();
  client->second.lost = Clock::now();
}

// Clients that fell silent or vanished.
void Gateway::expire() {
  const auto now = Clock::now();
  std::vector<std::string> silent;
  for (const auto& [route, session] : sessions_)
    if (now - session.heard > std::chrono::milliseconds(shared_->limits.session_silence_ms_max)) silent.push_back(route);
  for (const std::string& route : silent) {
    log(LogLevel::debug, "client_silent", {{"sessions", sessions_.size()}});
    drop_session(route);
  }
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = it->second;
    if (!client.route.empty() || now - client.lost < options_.resume_grace) {
      ++it;
      continue;
    }
    cancel_client(client, Error{ErrorCode::cancelled, "the client went away", ""});
    it = client.streams.empty() ? clients_.erase(it) : std::next(it);
  }
}

void Gateway::cancel_client(Client& client, const Error& error) {
  for (auto& [id, stream] : client.streams)
    if (!stream.ended) send(stream.frontend, ClientCancel{error});
}

}  // namespace althing::actors
