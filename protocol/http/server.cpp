// The server's coroutines: see the header. The one file that includes Boost, which is slow to compile; nothing of it shows outside. Errors come back
// as values (as_tuple); what a coroutine does not catch would end the process, so none throws.
#include "protocol/http/server.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "protocol/http/error_reply.hpp"

namespace althing::protocol::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using namespace asio::experimental::awaitable_operators;

constexpr auto as_values = asio::experimental::as_tuple(asio::use_awaitable);
using Parser = beast::http::request_parser<beast::http::string_body>;

constexpr std::size_t read_ahead_max = 64u << 10;     // of a connection, while its answer is made
constexpr int send_buffer_bytes = 128 << 10;          // of a connection, in the kernel
constexpr std::size_t turned_away_max = 64;           // connections above the bound that are told so at a time
constexpr milliseconds farewell_time{1000};           // in which a client reads what we said last
constexpr std::size_t farewell_bytes_max = 8u << 20;  // that are read and dropped meanwhile
constexpr milliseconds descriptors_pause{100};
constexpr std::size_t workers_count = 2;

struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(tcp::socket socket)
      : stream(std::move(socket)), buffer(read_ahead_max), wake(stream.get_executor()), watchdog(stream.get_executor()) {}

  // What is being read has to come within this. The stream's own deadline would close the connection, and with it the way to say that it has passed.
  void read_within(milliseconds time) {
    stream.expires_never();
    late = false;
    watchdog.expires_after(time);
    watchdog.async_wait([self = weak_from_this(), round = ++rounds](error_code cancelled) {
      const auto connection = self.lock();
      if (cancelled || !connection || connection->rounds != round) return;
      connection->late = true;
      connection->stream.socket().cancel(cancelled);
    });
  }
  void has_read() {
    ++rounds;
    watchdog.cancel();
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  asio::steady_timer wake;  // never over by itself: cancelled when the answer has something new
  asio::steady_timer watchdog;
  std::uint64_t rounds = 0;
  bool late = false;
};

Request request_of(const beast::http::request<beast::http::string_body>& from, std::string own_id) {
  const auto text = [&](beast::http::field field) { return std::string(from[field]); };
  Request to;
  to.method = std::string(from.method_string());
  std::string_view target(from.target().data(), from.target().size());
  // The form with scheme and host, as proxies are sent it; servers must read it too.
  if (target.starts_with("http://")) target.remove_prefix(std::min(target.find('/', 7), target.size()));
  const std::size_t mark = std::min(target.find('?'), target.size());
  to.path = mark == 0 ? "/" : target.substr(0, mark);
  to.query = target.substr(std::min(mark + 1, target.size()));
  to.host = text(beast::http::field::host);
  to.authorization = text(beast::http::field::authorization);
  to.content_type = text(beast::http::field::content_type);
  to.id = std::string(from["x-request-id"]);
  if (!is_request_id(to.id)) to.id = std::move(own_id);
  return to;
}

// The parser goes by Content-Length where chunks are not the last coding, and a proxy in front may go by the coding: they would disagree about where
// the next request begins. Codings under the chunks (gzip, chunked) would be passed on undecoded.
bool is_framed_otherwise(const beast::http::request<beast::http::string_body>& head) {
  const auto [coding, end] = head.equal_range(beast::http::field::transfer_encoding);
  return coding != end && (std::next(coding) != end || !beast::iequals(coding->value(), "chunked"));
}

ErrorReply refusal(std::uint16_t status, std::string code, std::string message) {
  return {status, "invalid_request_error", std::move(code), std::move(message), "", 0};
}

// Why a header or a body could not be read; nothing when there is nobody to tell.
std::optional<ErrorReply> refusal_of(error_code failure, bool late, const ServerOptions& options) {
  using beast::http::error;
  if (late) return refusal(408, "timeout", "the request did not come in time; send it without pauses, or a smaller one");
  if (failure == error::header_limit || failure == error::buffer_overflow)
    return refusal(431, "header_too_large", "the request's header is over " + std::to_string(options.header_bytes_max) + " bytes");
  if (failure == error::body_limit)
    return refusal(413, "body_too_large", "the request's body is over " + std::to_string(options.body_bytes_max) + " bytes; send less");
  if (failure == error::end_of_stream || failure == error::partial_message) return std::nullopt;
  if (failure.category() == make_error_code(error::end_of_stream).category())
    return refusal(400, "bad_request", "this is no HTTP/1.1 request (" + failure.message() + ")");
  return std::nullopt;
}

std::string endpoint_text(const tcp::endpoint& at) {
  const std::string host = at.address().to_string();
  return (at.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(at.port());
}

}  // namespace

struct Server::State {
  State(ServerOptions server_options, Handler& server_handler) : options(std::move(server_options)), handler(server_handler), acceptor(io) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", std::random_device{}());
    id_prefix = std::string("req_") + text;
  }

  ServerOptions options;
  Handler& handler;
  asio::io_context io{1};
  asio::thread_pool workers{workers_count};  // ends before the loop that its work reports to
  tcp::acceptor acceptor;
  std::atomic<std::size_t> open{0}, answering{0};  // others may look
  std::size_t turned_away = 0;
  std::string id_prefix;
  std::uint64_t ids_made = 0;

  std::string next_id() { return id_prefix + std::to_string(++ids_made); }

  asio::awaitable<void> accept_all();
  asio::awaitable<void> turn_away(tcp::socket socket);
  asio::awaitable<void> serve(std::shared_ptr<Connection> connection);
  asio::awaitable<bool> serve_one(Connection& c, bool first);
  asio::awaitable<bool> read_body(Connection& c, Parser& parser, Exchange& early);
  asio::awaitable<void> answer(Connection& c, std::shared_ptr<Exchange> exchange);
  asio::awaitable<void> write_out(Connection& c, Exchange& exchange);
  asio::awaitable<void> watch_peer(Connection& c);
  asio::awaitable<void> farewell(beast::tcp_stream& stream);
  // Says it, on an exchange of its own, and that the connection ends.
  asio::awaitable<bool> reject(Connection& c, Request request, const ErrorReply& why);
};

asio::awaitable<void> Server::State::accept_all() {
  asio::steady_timer pause(io);
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(as_values);
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      // Out of descriptors: the connection waits in the kernel's queue, and asking again at once would spin.
      if (error == asio::error::no_descriptors || error.value() == ENFILE || error.value() == ENOBUFS || error.value() == ENOMEM) {
        handler.refused_connection("descriptors");
        pause.expires_after(descriptors_pause);
        co_await pause.async_wait(as_values);
      }
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    // The kernel would take megabytes for a client that reads nothing, and nobody would notice that it does not.
    socket.set_option(asio::socket_base::send_buffer_size(send_buffer_bytes), ignored);
    if (open >= options.connections_max) {
      handler.refused_connection("connections");
      if (turned_away < turned_away_max) asio::co_spawn(io, turn_away(std::move(socket)), asio::detached);
      continue;
    }
    ++open;
    asio::co_spawn(io, serve(std::make_shared<Connection>(std::move(socket))), asio::detached);
  }
}

asio::awaitable<void> Server::State::turn_away(tcp::socket socket) {
  ++turned_away;
  beast::tcp_stream stream(std::move(socket));
  const std::string id = next_id();
  const Response full =
      to_response({503, "server_error", "connections",
                   "the server has " + std::to_string(options.connections_max) + " connections, which is its limit; try again", "", 1});
  const std::string bytes = head_of(full, {id, false, Framing::length}) + full.body;
  stream.expires_after(farewell_time);
  co_await asio::async_write(stream, asio::buffer(bytes), as_values);
  co_await farewell(stream);
  --turned_away;
}

asio::awaitable<void> Server::State::serve(std::shared_ptr<Connection> connection) {
  for (bool first = true; co_await serve_one(*connection, first); first = false) {
  }
  --open;
}

// True when the connection may carry another request.
asio::awaitable<bool> Server::State::serve_one(Connection& c, bool first) {
  if (c.buffer.size() == 0) {
    c.read_within(first ? options.header_time : options.idle_time);
    auto [error, bytes] = co_await c.stream.async_read_some(c.buffer.prepare(options.header_bytes_max), as_values);
    c.has_read();
    if (error) co_return false;
    c.buffer.commit(bytes);
  }
  Parser parser;
  parser.header_limit(options.header_bytes_max);
  parser.body_limit(options.body_bytes_max);
  c.read_within(options.header_time);
  const auto [error, bytes] = co_await beast::http::async_read_header(c.stream, c.buffer, parser, as_values);
  c.has_read();
  if (error) {
    const auto why = refusal_of(error, c.late, options);
    if (!why) co_return false;
    Request nameless;
    nameless.id = next_id();
    co_return co_await reject(c, std::move(nameless), *why);
  }

  Request request = request_of(parser.get(), next_id());
  if (is_framed_otherwise(parser.get()))
    co_return co_await reject(
        c, std::move(request),
        refusal(400, "bad_request", "the body is framed in a way that is not spoken here; send Content-Length, or Transfer-Encoding: chunked alone"));
  const bool has_body = parser.chunked() || parser.content_length().value_or(0) > 0;
  auto exchange = std::make_shared<Exchange>(request, parser.get().version() >= 11, parser.get().keep_alive());
  if (auto refused = handler.refuse(request)) {
    // What is not read now would be taken for the next request.
    if (has_body && !parser.is_done()) exchange->close_after();
    exchange->respond(*refused);
    co_await answer(c, exchange);
    co_return exchange->keeps_alive() && !exchange->gone();
  }
  if (request.method == "POST" && !parser.chunked() && !parser.content_length())
    co_return co_await reject(c, std::move(request), refusal(411, "length_required", "a POST needs Content-Length or chunks"));
  if (!parser.is_done() && !co_await read_body(c, parser, *exchange)) co_return false;
  request.body = std::move(parser.get().body());
  exchange = std::make_shared<Exchange>(std::move(request), parser.get().version() >= 11, parser.get().keep_alive());
  handler.handle(exchange);
  co_await answer(c, exchange);
  co_return exchange->keeps_alive() && !exchange->gone();
}

// False when the connection is over: the client has gone, or was told why.
asio::awaitable<bool> Server::State::read_body(Connection& c, Parser& parser, Exchange& early) {
  const auto expects = parser.get()[beast::http::field::expect];
  if (!expects.empty()) {
    if (!beast::iequals(expects, "100-continue"))
      co_return co_await reject(c, early.request(), refusal(417, "expectation_failed", "only Expect: 100-continue can be met"));
    constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    c.stream.expires_after(options.write_time);
    const auto [error, bytes] = co_await asio::async_write(c.stream, asio::buffer(go_on), as_values);
    if (error) co_return false;
  }
  c.read_within(options.body_time);
  const auto [error, bytes] = co_await beast::http::async_read(c.stream, c.buffer, parser, as_values);
  c.has_read();
  if (!error) co_return true;
  const auto why = refusal_of(error, c.late, options);
  if (!why) co_return false;
  co_return co_await reject(c, early.request(), *why);
}

asio::awaitable<bool> Server::State::reject(Connection& c, Request request, const ErrorReply& why) {
  auto exchange = std::make_shared<Exchange>(std::move(request), true, false);
  exchange->respond(to_response(why));
  co_await answer(c, exchange);
  co_return false;
}

asio::awaitable<void> Server::State::answer(Connection& c, std::shared_ptr<Exchange> exchange) {
  ++answering;
  exchange->on_output = [&c] { c.wake.cancel(); };
  if (exchange->finished()) {
    co_await write_out(c, *exchange);
  } else {
    // Whichever is first ends the other: the answer, or the client.
    co_await (write_out(c, *exchange) || watch_peer(c));
    if (!exchange->finished() || exchange->has_output()) exchange->lost();
  }
  exchange->on_output = nullptr;
  --answering;
  handler.answered(*exchange);
  if (!exchange->gone() && !exchange->keeps_alive()) co_await farewell(c.stream);
}

asio::awaitable<void> Server::State::write_out(Connection& c, Exchange& exchange) {
  for (;;) {
    const std::string bytes = exchange.take();
    if (!bytes.empty()) {
      c.stream.expires_after(options.write_time);
      const auto [error, written] = co_await asio::async_write(c.stream, asio::buffer(bytes), as_values);
      if (error) {
        exchange.lost();
        co_return;
      }
      if (!exchange.has_output()) exchange.drained();
    } else if (exchange.finished()) {
      co_return;
    } else {
      c.wake.expires_at(asio::steady_timer::time_point::max());
      co_await c.wake.async_wait(as_values);
      const auto cancelled = (co_await asio::this_coro::cancellation_state).cancelled();
      if (cancelled != asio::cancellation_type::none) co_return;
    }
  }
}

// Until the client has closed its side. What it sends meanwhile is the next request and is kept, up to a bound; from there on it is not looked at.
asio::awaitable<void> Server::State::watch_peer(Connection& c) {
  for (;;) {
    const auto [waited] = co_await c.stream.socket().async_wait(tcp::socket::wait_read, as_values);
    if (waited) co_return;
    const std::size_t room = c.buffer.max_size() - c.buffer.size();
    if (room == 0) break;
    const auto into = c.buffer.prepare(std::min<std::size_t>(room, 4096));
    const ssize_t got = ::recv(c.stream.socket().native_handle(), into.data(), into.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) co_return;
    if (got > 0) c.buffer.commit(static_cast<std::size_t>(got));
  }
  asio::steady_timer never(io, asio::steady_timer::time_point::max());
  co_await never.async_wait(as_values);
}

// Bytes that were never read would make the kernel take back what we said last: they are read and dropped until the client has closed.
asio::awaitable<void> Server::State::farewell(beast::tcp_stream& stream) {
  error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  char dropped[4096];
  stream.expires_after(farewell_time);
  for (std::size_t total = 0; total < farewell_bytes_max;) {
    const auto [error, bytes] = co_await stream.async_read_some(asio::buffer(dropped), as_values);
    if (error) co_return;
    total += bytes;
  }
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::listen(const ServerOptions& options, Handler& handler) {
  error_code error;
  const auto host = asio::ip::make_address(options.host, error);
  if (error) return Error{ErrorCode::invalid_argument, "the host \"" + options.host + "\" is no address; use one such as 127.0.0.1 or ::1", "listen"};
  auto state = std::make_unique<State>(options, handler);
  const tcp::endpoint at(host, options.port);
  state->acceptor.open(at.protocol(), error);
  if (!error) state->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) state->acceptor.bind(at, error);
  if (!error) state->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    std::string what = "cannot listen on " + endpoint_text(at) + ": " + error.message();
    if (error == asio::error::address_in_use) what += "; another program has this port: stop it, or choose another port (0 picks a free one)";
    if (error == asio::error::access_denied) what += "; choose a port above 1023 (0 picks a free one)";
    return Error{ErrorCode::io, what, "listen"};
  }
  asio::co_spawn(state->io, state->accept_all(), asio::detached);
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

std::string Server::address() const {
  error_code ignored;
  return endpoint_text(state_->acceptor.local_endpoint(ignored));
}

std::size_t Server::connections() const { return state_->open; }
std::size_t Server::answering() const { return state_->answering; }

void Server::watch(int descriptor, std::function<void()> on_readable) {
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return;
  asio::co_spawn(
      state_->io,
      [&io = state_->io, own, call = std::move(on_readable)]() -> asio::awaitable<void> {
        asio::posix::stream_descriptor watched(io, own);
        for (;;) {
          const auto [error] = co_await watched.async_wait(asio::posix::stream_descriptor::wait_read, as_values);
          if (error) co_return;
          call();
        }
      },
      asio::detached);
}

void Server::every(milliseconds interval, std::function<void()> call) {
  asio::co_spawn(
      state_->io,
      [&io = state_->io, interval, call = std::move(call)]() -> asio::awaitable<void> {
        asio::steady_timer timer(io);
        for (;;) {
          timer.expires_after(interval);
          const auto [error] = co_await timer.async_wait(as_values);
          if (error) co_return;
          call();
        }
      },
      asio::detached);
}

void Server::on_signal(const std::vector<int>& numbers, std::function<void(int)> call) {
  asio::co_spawn(
      state_->io,
      [&io = state_->io, numbers, call = std::move(call)]() -> asio::awaitable<void> {
        asio::signal_set signals(io);
        error_code ignored;
        for (const int number : numbers) signals.add(number, ignored);
        for (;;) {
          const auto [error, number] = co_await signals.async_wait(as_values);
          if (error) co_return;
          call(number);
        }
      },
      asio::detached);
}

void Server::aside(std::function<void()> heavy, std::function<void()> then) {
  asio::post(state_->workers, [&io = state_->io, heavy = std::move(heavy), then = std::move(then)]() mutable {
    heavy();
    asio::post(io, std::move(then));
  });
}

void Server::run() { state_->io.run(); }
void Server::stop() { state_->io.stop(); }

}  // namespace althing::protocol::http
