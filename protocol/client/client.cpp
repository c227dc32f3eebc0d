// The client's decisions: when to greet, ping, resume, grant and give up. Two rules keep a stream from hanging or ending twice: only messages that
// are answered at once (hello, submit, ping) start the clock of the server's silence, and a stream leaves the map before its handler hears the end.
// What a server says about a connection it does not know reaches us before its Welcome does, because one connection keeps its order.
#include "protocol/client/client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "protocol/client/link.hpp"
#include "protocol/client/stream_order.hpp"

namespace althing::protocol {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds hello_interval{100};  // between attempts while a server says that it is starting
constexpr milliseconds resume_interval{100};
constexpr int resume_refusals_max = 20;
constexpr int frames_per_poll_max = 1000;  // so that poll() returns even from a server that never pauses

// 32 hexadecimal digits from the operating system: whoever knows them can resume the client's requests.
std::string make_client_id() {
  std::random_device source;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", source());
  return id;
}

// Of the requests that are not named by the caller. Clients of one server meet in its traces and its usage log, where names that all begin at r1
// would be one another's. Not the client's id, which is a secret.
std::string make_request_prefix() { return fmt::format("{:08x}-", std::random_device()()); }

struct Stream {
  StreamHandler handler;
  StreamOrder order;
  std::string submit_body;  // sent again when the connection is lost before Accepted came; empty afterwards
  Clock::time_point opened;
  Grants grants = Grants::as_handled;
  std::uint32_t credit = 0, consumed = 0;  // consumed: and not granted again yet
  std::uint32_t owed = 0;                  // of those, what the caller has granted and the queue would not take
  // The server did not know this connection when it heard of the stream. Everything that we sent before Hello is answered so; after Welcome, and
  // after the stream was asked for again, the same answer is meant.
  enum class Unknown : std::uint8_t { no, greeting, asked_again } unknown = Unknown::no;
  // A resume that came too soon after another is refused as busy; it is sent again at this time.
  std::optional<Clock::time_point> resume_at;
  std::optional<Clock::time_point> asked_at;  // when the stream was asked for last
  int refusals = 0;                           // in a row
};

}  // namespace

struct Client::State {
  State(ClientOptions client_options, Link client_link)
      : options(std::move(client_options)), link(std::move(client_link)), header(wire::header_of(options.encoding)), client_id(make_client_id()) {}

  ClientOptions options;
  Link link;
  std::string header;
  std::string client_id;
  std::optional<wire::Welcome> welcome;
  std::optional<Error> refused;      // why Hello was not answered with Welcome
  std::optional<Error> unsupported;  // the last message that is readable, but not known to this build
  std::map<std::string, Stream> streams;
  std::string request_prefix = make_request_prefix();
  std::uint64_t requests_made = 0, pings_sent = 0;
  std::optional<Clock::time_point> asked;  // since when the server owes us an answer
  std::optional<Clock::time_point> greeted;
  Clock::time_point next_ping = Clock::now();
  Clock::time_point next_resume = Clock::time_point::max();  // of all streams'; with many of them nobody looks at each for every message
  bool silent = false;
  std::string state;     // as the newest Pong has it
  bool current = false;  // which came on this connection

  bool send(const wire::ClientMessage& message) { return link.send(header, wire::encode(message, options.encoding)); }
  // For the messages that are answered at once whatever happens.
  void ask(const wire::ClientMessage& message) {
    if (send(message) && !asked) asked = Clock::now();
  }
  void greet() {
    if (greeted && Clock::now() - *greeted < hello_interval) return;
    greeted = Clock::now();
    ask(wire::Hello{wire::version_min, wire::version, client_id, options.name});
  }
  milliseconds ping_interval() const {
    if (silent) return options.timeout;
    milliseconds interval = std::min(options.ping_interval_max, options.timeout / 5);
    if (welcome && welcome->session_silence_ms_max > 0) interval = std::min(interval, milliseconds(welcome->session_silence_ms_max / 3));
    return std::max(interval, milliseconds(1));
  }

  // Takes the stream out before the handler runs: the handler may submit again under the same id, or cancel.
  void finish(const std::string& id, const StreamEvent& last) {
    auto node = streams.extract(id);
    if (!node.empty() && node.mapped().handler) node.mapped().handler(last);
  }
  void finish_all(const Error& error) {
    std::vector<std::string> ids;
    for (const auto& [id, stream] : streams) ids.push_back(id);
    for (const auto& id : ids) finish(id, error);
  }
  // The handler is copied: it may end its own stream.
  static void tell(const Stream& stream, const StreamEvent& event) {
    if (const StreamHandler handler = stream.handler) handler(event);
  }

  void act(const std::string& id, Stream& stream, StreamOrder::Verdict verdict) {
    if (verdict == StreamOrder::Verdict::resume) {
      ask_for(id, stream);
    } else if (verdict == StreamOrder::Verdict::broken && unsupported) {
      finish(id, *unsupported);  // resumes bring it again and again
    } else if (verdict == StreamOrder::Verdict::broken) {
      finish(id, Error{ErrorCode::corrupt,
                       fmt::format("the stream of request {} has a gap after message {} that {} resumes did not close", id, stream.order.last(),
                                   StreamOrder::resume_attempts_max),
                       ""});
    }
  }
  // What is accepted is resumed. What may never have arrived is submitted again, which attaches to the request if it has.
  void ask_for(const std::string& id, Stream& stream) {
    stream.resume_at.reset();
    stream.asked_at = Clock::now();
    if (stream.submit_body.empty()) {
      send(wire::Resume{id, stream.order.last()});
    } else {
      link.send(header, stream.submit_body);
    }
  }
  void ask_again() {
    for (auto& [id, stream] : streams) {
      if (stream.unknown == Stream::Unknown::greeting) stream.unknown = Stream::Unknown::asked_again;
      ask_for(id, stream);
      // Grants may have gone down with the old connection. One window too many does no harm, one too few would stall the stream.
      if (stream.credit == 0 || !stream.submit_body.empty()) continue;
      if (stream.grants == Grants::by_caller) {
        stream.consumed -= std::exchange(stream.owed, 0);
        if (stream.consumed < stream.credit) send(wire::Grant{id, stream.credit - stream.consumed});
      } else if (send(wire::Grant{id, stream.credit})) {
        stream.consumed = 0;
      }
    }
  }

  void on(wire::Welcome message) {
    greeted.reset();
    if (message.version < wire::version_min || message.version > wire::version) {
      refused =
          Error{ErrorCode::version,
                fmt::format("the server chose protocol version {}; this client speaks {} to {}", message.version, wire::version_min, wire::version),
                "version"};
      return finish_all(*refused);
    }
    const bool again = welcome.has_value();
    welcome = std::move(message);
    if (again) ask_again();
  }
  void on(const wire::Accepted& message) {
    const auto found = streams.find(message.request_id);
    if (found == streams.end() || found->second.submit_body.empty()) return;
    found->second.submit_body.clear();
    found->second.unknown = Stream::Unknown::no;
    tell(found->second, message);
  }
  void on(const wire::Delta& message) {
    const auto found = streams.find(message.request_id);
    if (found == streams.end()) return;
    const auto verdict = found->second.order.on(message.sequence);
    if (verdict != StreamOrder::Verdict::deliver) return act(message.request_id, found->second, verdict);
    found->second.unknown = Stream::Unknown::no;
    found->second.refusals = 0;
    found->second.submit_body.clear();
    if (found->second.grants == Grants::by_caller) ++found->second.consumed;  // the handler may grant it already
    tell(found->second, message);
    consume(message.request_id);
  }
  void on(const wire::Done& message) {
    const auto found = streams.find(message.request_id);
    if (found == streams.end()) return;
    const auto verdict = found->second.order.on(message.sequence);
    if (verdict != StreamOrder::Verdict::deliver) return act(message.request_id, found->second, verdict);
    finish(message.request_id, message);
  }
  void on(const wire::ErrorReply& message) {
    if (message.request_id.empty()) return on_session_error(message.error);
    const auto found = streams.find(message.request_id);
    if (found == streams.end()) return;
    if (message.sequence > 0) {
      const auto verdict = found->second.order.on(message.sequence);
      if (verdict != StreamOrder::Verdict::deliver) return act(message.request_id, found->second, verdict);
      return finish(message.request_id, message.error);
    }
    if (message.error.code == ErrorCode::unavailable && found->second.unknown != Stream::Unknown::asked_again) {
      found->second.unknown = Stream::Unknown::greeting;
      return greet();
    }
    if (message.error.code == ErrorCode::busy && found->second.submit_body.empty() && found->second.refusals < resume_refusals_max) {
      ++found->second.refusals;
      resume_later(found->second, Clock::now() + resume_interval);
      return;
    }
    if (message.error.code == ErrorCode::not_found && found->second.submit_body.empty())
      return finish(message.request_id, Error{ErrorCode::core_lost,
                                              fmt::format("the server (instance {}) no longer knows request {}: {}; submit it again",
                                                          welcome ? welcome->server_instance : "?", message.request_id, message.error.message),
                                              ""});
    finish(message.request_id, message.error);
  }
  void on(const wire::Pong& message) {
    state = message.state;
    current = true;
    if (welcome && message.server_instance != welcome->server_instance) greet();
  }

  // `unavailable` says that the server does not know this connection (it is new to it), or that it is starting. Any other error is its answer to
  // Hello.
  void on_session_error(const Error& error) {
    if (error.code == ErrorCode::unavailable) {
      if (!welcome) refused = error;
      return greet();
    }
    if (!greeted) return;
    greeted.reset();
    refused = error;
    finish_all(error);
  }

  void consume(const std::string& id) {
    const auto found = streams.find(id);
    if (found == streams.end() || found->second.credit == 0 || found->second.grants == Grants::by_caller) return;
    Stream& stream = found->second;
    ++stream.consumed;
    // Half a window at a time: the server never runs dry while the handler keeps up, and few grants travel.
    if (stream.consumed >= std::max(1U, stream.credit / 2) && send(wire::Grant{id, stream.consumed})) stream.consumed = 0;
  }

  void resume_later(Stream& stream, Clock::time_point when) {
    stream.resume_at = when;
    next_resume = std::min(next_resume, when);
  }
  void resume_due(Clock::time_point now) {
    next_resume = Clock::time_point::max();
    for (auto& [id, stream] : streams) {
      if (!stream.resume_at) continue;
      if (now >= *stream.resume_at)
        ask_for(id, stream);
      else
        next_resume = std::min(next_resume, *stream.resume_at);
    }
  }

  void on_unreadable() {
    std::vector<std::string> ids;
    for (const auto& [id, stream] : streams) ids.push_back(id);
    for (const auto& id : ids) {
      const auto found = streams.find(id);
      if (found == streams.end() || found->second.resume_at) continue;
      Stream& stream = found->second;
      // Much that cannot be read at once is one thing to ask for, a moment later; for ever it is a broken stream.
      const bool just_asked = stream.asked_at && Clock::now() - *stream.asked_at < resume_interval;
      if (just_asked && ++stream.refusals <= resume_refusals_max) {
        resume_later(stream, *stream.asked_at + resume_interval);
      } else {
        act(id, stream, just_asked ? StreamOrder::Verdict::broken : stream.order.on_unreadable());
      }
    }
  }

  // Handles one frame; false when none was waiting.
  bool take_frame() {
    const auto frame = link.receive();
    if (!frame) return false;
    asked.reset();
    silent = false;
    const auto encoding = wire::encoding_of(frame->header);
    if (!encoding) {
      if (encoding.error().code != ErrorCode::version) return on_unreadable(), true;
      refused = encoding.error();
      return finish_all(encoding.error()), true;
    }
    auto message = wire::decode_server(frame->body, *encoding, options.limits);
    if (message) {
      std::visit([this](auto& m) { on(std::move(m)); }, *message);
    } else if (message.error().code != ErrorCode::unsupported) {
      on_unreadable();
    } else {
      unsupported = message.error();  // a later server may say things that we need not know; a gap in a stream shows that we must
    }
    return true;
  }

  void tick() {
    const auto now = Clock::now();
    if (const auto& refusal = link.refusal()) {
      silent = true;
      return finish_all(*refusal);
    }
    if (asked && now - *asked > options.timeout) {
      silent = true;
      std::vector<std::string> ids;
      for (const auto& [id, stream] : streams)
        if (now - stream.opened > options.timeout) ids.push_back(id);
      for (const auto& id : ids)
        finish(id, Error{ErrorCode::unavailable,
                         fmt::format("{} has not answered for {} ms; check that the server runs and submit again", options.endpoint,
                                     options.timeout.count()),
                         ""});
    }
    // A new connection is a stranger to the server. Hello at once: pings and grants that waited in the queue have gone before it and are refused.
    const bool reconnected = link.reconnected();
    if (reconnected || !link.up()) current = false;
    if (reconnected && welcome) {
      greeted.reset();
      greet();
    }
    if (now >= next_resume) resume_due(now);
    if (now < next_ping) return;
    next_ping = now + ping_interval();
    if (welcome) {
      ask(wire::Ping{++pings_sent});
    } else {
      greet();
    }
  }
};

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

// Nobody else can resume what was open, because nobody else has the client id: give the server its memory back.
Client::~Client() {
  if (!state_) return;
  for (const auto& [id, stream] : state_->streams) state_->send(wire::Cancel{id});
}

Result<Client> Client::open(const ClientOptions& options) {
  if (options.timeout <= milliseconds(0))
    return Error{ErrorCode::invalid_argument, fmt::format("the timeout is {} ms; it must be positive", options.timeout.count()), "timeout"};
  auto link = Link::open(options.endpoint, options.limits.frame_bytes_max, options.keys);
  if (!link) return std::move(link).error();
  return Client(std::make_unique<State>(options, std::move(link).value()));
}

Result<Client> Client::connect(const ClientOptions& options) {
  auto opened = open(options);
  if (!opened) return opened;
  std::unique_ptr<State>& state = opened->state_;
  const auto deadline = Clock::now() + options.timeout;
  state->greet();
  while (!state->welcome && Clock::now() < deadline) {
    if (state->refused && state->refused->code != ErrorCode::unavailable) return std::move(*state->refused);
    if (const auto& refusal = state->link.refusal()) return *refusal;
    if (state->link.reconnected()) {
      state->greeted.reset();
      state->greet();
    }
    state->link.wait(std::min(hello_interval, std::chrono::duration_cast<milliseconds>(deadline - Clock::now()) + milliseconds(1)));
    while (!state->welcome && state->take_frame()) {
    }
    if (!state->welcome && state->refused && state->refused->code == ErrorCode::unavailable) state->greet();
  }
  if (state->welcome) {
    state->refused.reset();
    state->next_ping = Clock::now() + state->ping_interval();
    return opened;
  }
  if (state->refused) return std::move(*state->refused);
  if (options.keys && state->link.handshakes_fail())
    return Error{ErrorCode::denied,
                 fmt::format("{} breaks the handshake off, as a server does that the given server key is not of; compare it with what "
                             "`althing keys show` says of the server's",
                             options.endpoint),
                 "server-key"};
  return Error{ErrorCode::unavailable,
               fmt::format("nobody answered at {} within {} ms; start a server there with `althing serve`, or name another endpoint{}",
                           options.endpoint, options.timeout.count(),
                           state->link.handshakes_fail() ? "; if the server wants keys, give its public one and your own (--server-key, --key)" : ""),
               "endpoint"};
}

Standing Client::standing() const {
  const State& s = *state_;
  const auto owing = s.asked ? std::chrono::duration_cast<milliseconds>(Clock::now() - *s.asked) : milliseconds(0);
  return {s.welcome.has_value(), s.current, s.state, owing};
}

const wire::Welcome& Client::server() const { return *state_->welcome; }

Result<std::string> Client::submit(wire::Submit submit, StreamHandler handler, Grants grants) {
  State& s = *state_;
  if (!s.welcome) return Error{ErrorCode::unavailable, "the server at " + s.options.endpoint + " has not answered yet; try again soon", ""};
  if (submit.request_id.empty()) submit.request_id = fmt::format("{}{}", s.request_prefix, ++s.requests_made);
  const std::string id = submit.request_id;
  if (s.streams.contains(id))
    return Error{ErrorCode::invalid_argument, "request " + id + " is open already; choose another request_id or leave it empty", "request_id"};
  Stream stream;
  stream.handler = std::move(handler);
  stream.grants = grants;
  stream.credit = submit.credit;
  stream.opened = Clock::now();
  stream.submit_body = wire::encode(wire::ClientMessage(std::move(submit)), s.options.encoding);
  // The server would not read a longer one, it would close the connection.
  if (const std::size_t bytes_max = s.welcome->frame_bytes_max; bytes_max > 0 && stream.submit_body.size() > bytes_max)
    return Error{
        ErrorCode::too_large,
        fmt::format("the request is {} bytes long, over the server's limit of {}; shorten the conversation", stream.submit_body.size(), bytes_max),
        "messages"};
  if (!s.link.send(s.header, stream.submit_body))
    return Error{ErrorCode::busy, "the outgoing queue is full: the server does not read; call poll() and try again", ""};
  if (!s.asked) s.asked = Clock::now();
  s.streams.emplace(id, std::move(stream));
  return id;
}

void Client::cancel(const std::string& request_id) {
  if (state_->streams.contains(request_id)) state_->send(wire::Cancel{request_id});
}

void Client::grant(const std::string& request_id, std::uint32_t deltas) {
  const auto found = state_->streams.find(request_id);
  if (found == state_->streams.end() || found->second.credit == 0 || deltas == 0) return;
  Stream& stream = found->second;
  stream.owed = std::min(stream.owed + deltas, stream.consumed);
  if (stream.owed > 0 && state_->send(wire::Grant{request_id, stream.owed})) stream.consumed -= std::exchange(stream.owed, 0);
}

void Client::poll(milliseconds wait) {
  State& s = *state_;
  const auto deadline = Clock::now() + wait;
  for (;;) {
    int frames = 0;
    while (frames < frames_per_poll_max && s.take_frame()) ++frames;
    s.tick();
    const auto now = Clock::now();
    if (frames > 0 || now >= deadline) return;
    auto until = std::min(deadline, std::max(s.next_ping, now));
    until = std::min(until, std::max(s.next_resume, now));
    s.link.wait(std::chrono::duration_cast<milliseconds>(until - now) + milliseconds(1));
  }
}

std::array<int, 2> Client::descriptors() const { return state_->link.descriptors(); }
bool Client::has_input() const { return state_->link.has_input(); }

std::size_t Client::open_streams() const { return state_->streams.size(); }

}  // namespace althing::protocol
