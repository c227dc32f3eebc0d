// See the header.
#include "tests/bench/load/latency.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "actors/http_get.hpp"
#include "tests/bench/load/zmq_streams.hpp"

namespace althing::load {
namespace wire = protocol::wire;
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t open_most = 250;           // a session may have 256; what cannot be asked when it is due still counts from then on
constexpr double idle_rate = 200;                // requests a second
constexpr std::uint32_t at_once = 64;            // open while saturation is measured
constexpr std::chrono::milliseconds slice{500};  // of one side, then it is the other's turn
constexpr std::chrono::seconds answer_within{20};
constexpr std::chrono::milliseconds settle_time{200};  // of a side before its slice counts

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))]; };
  return {at(0.5), at(0.99)};
}

// The sum and the count of a histogram of the server's metrics page.
struct StepTimes {
  double seconds = 0, steps = 0;
};
StepTimes step_times(const std::string& metrics) {
  StepTimes times;
  if (metrics.empty()) return times;
  const auto address = monitoring::parse_loopback_address(metrics);
  const auto page = address ? actors::http_get(*address, "/metrics", std::chrono::milliseconds(5000)) : Result<actors::HttpAnswer>(address.error());
  if (!page) return times;
  const auto number = [&](const std::string& name) {
    const std::size_t at = page->body.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::strtod(page->body.c_str() + at + name.size() + 2, nullptr);
  };
  return {number("althing_step_seconds_sum"), number("althing_step_seconds_count")};
}

// A ROUTER that sends back what it gets, on a core of its own choice.
class Echo {
 public:
  explicit Echo(int core) {
    std::promise<std::string> bound;
    auto endpoint = bound.get_future();
    thread_ = std::thread([this, core, &bound] { run(core, bound); });
    endpoint_ = endpoint.get();
  }
  ~Echo() {
    over_ = true;
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  void run(int core, std::promise<std::string>& bound) const {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(core), &set);
    ::sched_setaffinity(0, sizeof set, &set);  // ZeroMQ's own thread inherits it
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvtimeo, 50);
    socket.bind("tcp://127.0.0.1:*");
    bound.set_value(socket.get(zmq::sockopt::last_endpoint));
    while (!over_) {
      std::vector<zmq::message_t> frames;
      if (zmq::recv_multipart(socket, std::back_inserter(frames))) zmq::send_multipart(socket, frames);
    }
  }

  std::atomic<bool> over_{false};
  std::string endpoint_;
  std::thread thread_;
};

class Asker {
 public:
  Asker(const Speech& speech, const std::string& endpoint)
      : word_(speech.script.ids().words.front()), session_(context_, endpoint, fresh_client_id()) {}

  Status greet() {
    const auto until = Clock::now() + answer_within;
    while (Clock::now() < until)
      if (const auto message = session_.receive()) {
        if (std::holds_alternative<wire::Welcome>(*message)) return Ok{};
        if (const auto* error = std::get_if<wire::ErrorReply>(&*message)) return error->error;
      }
    return Error{ErrorCode::unavailable, "the server did not say welcome", ""};
  }

  void ask(Clock::time_point due) {
    wire::Submit submit;
    submit.request_id = "l" + std::to_string(++asked_);
    submit.prompt_tokens = {word_};
    submit.sampling.seed = 1;
    submit.sampling.completion_tokens_max = 1;
    submit.sampling.ignore_stop = true;
    open_[submit.request_id] = due;
    session_.send(submit);
  }

  // Hears what has come, and tells of each first delta when it was due. True when something came.
  Result<bool> hear(const std::function<void(Clock::time_point due)>& first) {
    const auto message = session_.receive();
    if (!message) return false;
    if (const auto* delta = std::get_if<wire::Delta>(&*message)) {
      if (const auto at = open_.find(delta->request_id); at != open_.end() && delta->sequence == 1) first(at->second);
    } else if (const auto* done = std::get_if<wire::Done>(&*message)) {
      open_.erase(done->request_id);
    } else if (const auto* error = std::get_if<wire::ErrorReply>(&*message)) {
      return error->error;
    }
    return true;
  }
  std::size_t open() const { return open_.size(); }

 private:
  zmq::context_t context_;
  TokenId word_;
  Session session_;
  std::uint64_t asked_ = 0;
  std::unordered_map<std::string, Clock::time_point> open_;
};

Result<double> saturation(Asker& asker, double seconds) {
  std::uint64_t ended = 0;
  const auto began = Clock::now(), until = began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < until) {
    while (asker.open() < at_once) asker.ask(Clock::now());
    const std::size_t before = asker.open();
    auto heard = asker.hear([](auto) {});
    if (!heard) return heard.error();
    ended += before - asker.open();
  }
  const double rate = static_cast<double>(ended) / std::chrono::duration<double>(Clock::now() - began).count();
  while (asker.open() > 0)
    if (auto heard = asker.hear([](auto) {}); !heard) return heard.error();
  return rate;
}

// Something that is asked and answers, at a rate, for a slice; what comes of the first part of it does not count.
struct Side {
  std::function<void(Clock::time_point due)> ask;
  std::function<Result<bool>(const std::function<void(Clock::time_point)>&)> hear;
  std::function<std::size_t()> open;
  std::vector<double> microseconds{};
};

Status run_slice(Side& side, double rate) {
  const auto began = Clock::now(), counts = began + settle_time, until = counts + slice;
  const auto gap = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1.0 / rate));
  auto due = began;
  while (Clock::now() < until + answer_within) {
    const auto now = Clock::now();
    if (due < until && now >= due && side.open() < open_most) {
      side.ask(due);
      due += gap;
      continue;
    }
    auto heard = side.hear([&](Clock::time_point asked) {
      if (asked >= counts) side.microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - asked).count());
    });
    if (!heard) return heard.error();
    if (due >= until && !*heard && side.open() == 0) return Ok{};
  }
  return Error{ErrorCode::unavailable, "answers are missing", ""};
}

Side echo_side(zmq::socket_t& socket, std::uint32_t& open) {
  const std::string header = "ALT1c", body(200, 'x');  // about a submit of one token
  return {[&socket, &open, header, body](Clock::time_point due) {
            std::string stamped = body;
            const auto ticks = due.time_since_epoch().count();
            stamped.replace(0, sizeof ticks, reinterpret_cast<const char*>(&ticks), sizeof ticks);
            socket.send(zmq::buffer(header), zmq::send_flags::sndmore);
            socket.send(zmq::buffer(stamped), zmq::send_flags::none);
            ++open;
          },
          [&socket, &open](const std::function<void(Clock::time_point)>& first) -> Result<bool> {
            zmq::message_t head, back;
            if (!socket.recv(head, zmq::recv_flags::dontwait)) return false;
            static_cast<void>(socket.recv(back, zmq::recv_flags::none));
            Clock::rep ticks = 0;
            std::copy_n(back.data<char>(), sizeof ticks, reinterpret_cast<char*>(&ticks));
            first(Clock::time_point(Clock::duration(ticks)));
            --open;
            return true;
          },
          [&open] { return std::size_t{open}; }};
}

}  // namespace

Result<Latency> measure_latency(const Speech& speech, const std::string& endpoint, const std::string& metrics, double seconds, int echo_core) {
  Asker asker(speech, endpoint);
  if (auto status = asker.greet(); !status) return status.error();
  // Once unmeasured: pages that are touched first, tables that grow.
  if (auto warm = saturation(asker, std::min(seconds, 1.0)); !warm) return warm.error();
  auto most = saturation(asker, seconds);
  if (!most) return most.error();
  Latency latency;
  latency.saturation = *most;

  const Echo echo(echo_core);
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(echo.endpoint());
  std::uint32_t echoes_open = 0;
  Side bare = echo_side(socket, echoes_open);
  Side server{[&](Clock::time_point due) { asker.ask(due); }, [&](const auto& first) { return asker.hear(first); }, [&] { return asker.open(); }};
  for (AtRate* at : {&latency.half, &latency.idle}) {
    at->rate = at == &latency.half ? *most / 2 : idle_rate;
    const StepTimes before = step_times(metrics);
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds * 2));
    do {
      for (Side* side : {&server, &bare})
        if (auto status = run_slice(*side, at->rate); !status) return status.error();
    } while (Clock::now() < until);
    const StepTimes after = step_times(metrics);
    if (after.steps > before.steps) at->engine_us = 1e6 * (after.seconds - before.seconds) / (after.steps - before.steps);
    at->server = percentiles(std::exchange(server.microseconds, {}));
    at->echo = percentiles(std::exchange(bare.microseconds, {}));
  }
  return latency;
}

}  // namespace althing::load
