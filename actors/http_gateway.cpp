// See the header. Everything runs on the HTTP server's loop; only a metrics address of its own has threads, which read counters.
#include "actors/http_gateway.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "actors/child_process.hpp"
#include "actors/complain.hpp"
#include "actors/descriptor_reserve.hpp"
#include "actors/door_keys.hpp"
#include "actors/engine_setup.hpp"
#include "actors/exit_codes.hpp"
#include "actors/http_address.hpp"
#include "actors/key_desk.hpp"
#include "actors/logging.hpp"
#include "actors/ready_file.hpp"
#include "monitoring/gateway_metrics.hpp"
#include "monitoring/http_endpoint.hpp"
#include "protocol/http/server.hpp"
#include "protocol/openai/gateway.hpp"

namespace althing::actors {
namespace {

namespace http = protocol::http;
namespace openai = protocol::openai;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds beat{20};
constexpr milliseconds keys_interval{1000};
constexpr const char* client_name = "althing-gateway/" ALTHING_VERSION;
constexpr milliseconds last_words{100};         // after a stop, for what they are to leave
constexpr milliseconds farewell{700};           // under the supervisor's patience with a core that stops
constexpr milliseconds engine_timeout{30'000};  // longer than any recovery: a stream waits for a core that is started again
constexpr milliseconds engine_ping_interval{100};

class MetricsObserver : public openai::Observer {
 public:
  MetricsObserver() : metrics_({openai::Gateway::route_names(), rejections(), {"connections", "descriptors"}}) {}

  void answered(std::string_view route, std::uint16_t status, std::uint64_t bytes, bool broken_off) override {
    metrics_.answered(route, status, bytes, broken_off);
  }
  void rejected(openai::Rejection why) override { metrics_.rejected(name_of(why)); }
  void refused_connection(std::string_view why) override { metrics_.refused_connection(why); }
  void open_requests(std::size_t count) override { metrics_.open_requests(count); }
  void first_event(double seconds) override { metrics_.first_event(seconds); }
  void tokens(const openai::TokenCounts& counts) override { metrics_.tokens(counts.prompt, counts.completion, counts.reasoning); }
  std::string scrape() override { return metrics_.scrape(); }

 private:
  static std::vector<std::string_view> rejections() {
    std::vector<std::string_view> names;
    for (int i = 0; i < openai::rejection_count; ++i) names.push_back(name_of(static_cast<openai::Rejection>(i)));
    return names;
  }
  monitoring::GatewayMetrics metrics_;
};

class HttpGateway {
 public:
  static Result<std::unique_ptr<HttpGateway>> start(const HttpGatewaySettings& settings, protocol::ClientOptions engine);

  std::string address() const { return server_->address(); }
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }
  http::Server& server() { return *server_; }
  void drain() {
    if (!gateway_->draining()) log(LogLevel::info, "gateway_draining", {{"open", gateway_->open_requests()}});
    gateway_->drain();
  }
  bool draining() const { return gateway_->draining(); }
  bool ready() const { return ready_; }
  // Nothing is open, and all that was said has left.
  bool idle() const { return gateway_->open_requests() == 0 && server_->answering() == 0; }
  // Ends run(): when it is idle, or then; what is still open hears why.
  void stop_by(Clock::time_point time) { stop_by_ = std::min(stop_by_, time); }
  std::function<void()> on_beat;
  void run() { server_->run(); }

 private:
  explicit HttpGateway(KeyDesk desk) : desk_(std::move(desk)) {}
  Status listen(const HttpGatewaySettings& settings, const HttpAddress& address);
  Status show_metrics(const std::string& address);
  void watch_engine();
  void stop_if_due();

  KeyDesk desk_;
  MetricsObserver observer_;
  std::optional<openai::Gateway> gateway_;
  std::unique_ptr<http::Server> server_;
  std::atomic<bool> ready_{false};  // for the thread of metrics
  std::unique_ptr<monitoring::HttpEndpoint> metrics_;
  Clock::time_point stop_by_ = Clock::time_point::max();
};

Result<std::unique_ptr<HttpGateway>> HttpGateway::start(const HttpGatewaySettings& settings, protocol::ClientOptions options) {
  const auto address = http_address(settings.listen, !settings.api_keys.empty(), settings.engine.child.empty() ? "listen" : "http");
  if (!address) return address.error();
  auto desk = KeyDesk::open(settings.api_keys);
  if (!desk) return std::move(desk).error();
  auto format = chat_format(settings.engine);
  if (!format) return std::move(format).error();
  options.timeout = engine_timeout;
  options.ping_interval_max = engine_ping_interval;
  auto client = protocol::Client::open(options);
  if (!client) return std::move(client).error();
  std::unique_ptr<HttpGateway> gateway(new HttpGateway(std::move(*desk)));
  openai::GatewayOptions gateway_options{std::move(*format), address->loopback, {}};
  gateway_options.keep_alive = milliseconds(settings.keep_alive_ms);
  gateway_options.responses.responses_max = settings.responses_max;
  gateway_options.responses.bytes_max = std::size_t{settings.responses_mib} << 20;
  // The server is there before the first request is.
  gateway_options.aside = [it = gateway.get()](auto heavy, auto then) { it->server_->aside(std::move(heavy), std::move(then)); };
  gateway->gateway_.emplace(std::move(gateway_options), std::move(*client), gateway->desk_, gateway->observer_);
  if (auto status = gateway->listen(settings, *address); !status) return status.error();
  if (auto status = gateway->show_metrics(settings.metrics); !status) return status.error();
  gateway->watch_engine();
  return gateway;
}

Status HttpGateway::listen(const HttpGatewaySettings& settings, const HttpAddress& address) {
  http::ServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.connections_max = settings.connections_max;
  options.body_bytes_max = Limits{}.frame_bytes_max;
  auto server = http::Server::listen(options, *gateway_);
  if (!server) return std::move(server).error();
  server_ = std::move(*server);
  return Ok{};
}

Status HttpGateway::show_metrics(const std::string& address) {
  if (address.empty()) return Ok{};
  monitoring::HttpHandlers handlers;
  handlers.metrics = [this] { return observer_.scrape(); };
  handlers.ready = [this] {
    return ready_ ? monitoring::Readiness{true, "{\"state\":\"ready\"}\n"} : monitoring::Readiness{false, "{\"state\":\"not ready\"}\n"};
  };
  auto endpoint = monitoring::HttpEndpoint::start(address, std::move(handlers));
  if (!endpoint) return std::move(endpoint).error();
  metrics_ = std::move(*endpoint);
  return Ok{};
}

void HttpGateway::watch_engine() {
  for (const int descriptor : gateway_->descriptors()) server_->watch(descriptor, [this] { gateway_->pump(); });
  server_->every(beat, [this] {
    gateway_->pump();
    gateway_->keep_alive(Clock::now());
    ready_ = gateway_->state() == "ready";
    if (on_beat) on_beat();
    if (stop_by_ != Clock::time_point::max()) stop_if_due();
  });
  server_->every(keys_interval, [this] { desk_.reload(false); });
  server_->on_signal({SIGHUP}, [this](int) { desk_.reload(true); });
}

void HttpGateway::stop_if_due() {
  const auto now = Clock::now();
  // An engine that stops says so to its streams; one that died, or is another's, does not.
  if (now > stop_by_ && gateway_->open_requests() > 0)
    gateway_->end_open(Error{ErrorCode::draining, "the gateway stopped before this request was finished; ask again when it is back", ""});
  if (idle() || now > stop_by_ + last_words) server_->stop();
}

int report(const ControlChannel& control, const Error& error) {
  control.send("failed " + std::to_string(exit_code_of(error.code)) + " " + error.message);
  return exit_code_of(error.code);
}

}  // namespace

int run_http_gateway(const HttpGatewaySettings& settings) {
  raise_descriptor_limit();
  if (!settings.ready_file.empty()) ::unlink(settings.ready_file.c_str());
  auto engine = client_options_of(settings.server, client_name);
  if (!engine) return complain(engine.error());
  auto gateway = HttpGateway::start(settings, std::move(*engine));
  if (!gateway) return complain(gateway.error());
  HttpGateway& running = **gateway;
  running.server().on_signal({SIGTERM, SIGINT}, [&](int) {
    const bool again = running.draining();
    running.drain();
    running.stop_by(Clock::now() + (again ? milliseconds(0) : milliseconds(1000) * settings.drain_seconds));
  });
  std::printf("gateway to %s on http://%s/v1\n", settings.server.endpoint.c_str(), running.address().c_str());
  std::fflush(stdout);
  log(LogLevel::info, "gateway_listening", {{"address", running.address()}, {"engine", settings.server.endpoint}});
  if (auto status = write_ready_file(settings.ready_file, {{"http", running.address()}, {"metrics", running.metrics_address()}}); !status)
    return complain(status.error());
  running.run();
  if (!settings.ready_file.empty()) ::unlink(settings.ready_file.c_str());
  return exit_ok;
}

int run_http_child(const ServeSettings& settings) {
  ControlChannel control{Descriptor(control_descriptor)};
  raise_descriptor_limit();
  HttpGatewaySettings own;
  own.server.endpoint = settings.bind;
  own.listen = settings.http;
  own.engine = settings;
  own.api_keys = settings.api_keys;
  own.metrics = settings.http_metrics;
  own.connections_max = settings.http_connections_max;
  own.responses_max = settings.http_responses_max;
  own.responses_mib = settings.http_responses_mib;
  own.keep_alive_ms = settings.http_keep_alive_ms;
  protocol::ClientOptions engine;
  engine.endpoint = settings.bind;
  engine.name = client_name;
  if (!settings.curve_key.empty()) {
    auto keys = unseal_client_keys(Descriptor(gateway_keys_descriptor));
    if (!keys) return report(control, keys.error());
    leave_memory_out_of_core_dumps();
    engine.keys = std::move(*keys);
  }
  auto gateway = HttpGateway::start(own, std::move(engine));
  if (!gateway) return report(control, gateway.error());
  HttpGateway& running = **gateway;
  bool listens = false, told = false;
  running.on_beat = [&] {
    // Who hears of the address may use it at once.
    if (!listens && running.ready()) {
      listens = true;
      control.send("listening " + running.address() + " " + (running.metrics_address().empty() ? "-" : running.metrics_address()));
    }
    if (running.draining() && running.idle() && !std::exchange(told, true)) control.send("idle");
  };
  running.server().watch(control.descriptor(), [&] {
    while (const auto message = control.receive(milliseconds(0))) {
      if (message->words[0] == "drain" || message->words[0] == "stop") running.drain();
      if (message->words[0] == "stop") running.stop_by(Clock::now() + farewell);
    }
    if (control.closed()) ::_exit(exit_failed);
  });
  // The supervisor alone decides; a terminal's Ctrl-C reaches it, not us.
  running.server().on_signal({SIGTERM, SIGINT}, [&](int) {
    running.drain();
    running.stop_by(Clock::now() + farewell);
  });
  running.run();
  return exit_ok;
}

}  // namespace althing::actors
