// Puts a server with a synthetic engine under load, and checks every byte of what it says.
//
//   load streams --model FOLDER [--zmq ENDPOINT N] [--http HOST:PORT N] [--words N] [--sessions N] [--core N] [--json]
//   load streams --model FOLDER --zmq ENDPOINT N --workload KIND [--rate N] [--seed N] …
//   load latency --model FOLDER --zmq ENDPOINT [--metrics HOST:PORT] [--seconds N] [--core N] [--echo-core N] [--json]
//
// The server is `althing serve FOLDER --device synthetic …`, of the same build; FOLDER may hold a tokenizer only. tests/bench/load.py starts both,
// each on a core of its own, and adds what the server used.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "actors/descriptor_reserve.hpp"
#include "actors/engine_setup.hpp"
#include "actors/synthetic_words.hpp"
#include "tests/bench/load/expected.hpp"
#include "tests/bench/load/latency.hpp"
#include "tests/bench/load/sse_streams.hpp"
#include "tests/bench/load/zmq_streams.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using namespace althing::load;
using Clock = std::chrono::steady_clock;

constexpr const char* usage =
    "load streams --model FOLDER [--zmq ENDPOINT N] [--http HOST:PORT N] [--words N] [--sessions N] [--core N] [--json]\n"
    "       load streams --model FOLDER --zmq ENDPOINT N --workload KIND [--rate N] [--seed N] [--words N] ...\n"
    "       load latency --model FOLDER --zmq ENDPOINT [--metrics HOST:PORT] [--seconds N] [--core N] [--echo-core N] [--json]\n"
    "Load on a server of --device synthetic, every byte checked: many streams at once, or one-token requests beside a bare ROUTER.\n"
    "--workload: not at once, but as steady, poisson, bursts, prefixes, agents, tails or mixed clients ask, N a second (--rate, 50), with answers of "
    "--words at most.";

struct Options {
  std::string mode, model, zmq, http, metrics, served_model, workload;
  std::uint32_t zmq_streams = 0, http_streams = 0, words = 128, sessions = 40;
  std::uint32_t vocabulary = UINT32_MAX, rate = 50, seed = 1;
  double seconds = 5;
  int core = -1, echo_core = 0;
  double within = 300;
  bool json = false;
};

Options options_of(int argc, char** argv) {
  Options o;
  o.mode = argc > 1 ? argv[1] : "";
  const auto text = [&](int& i) { return std::string(i + 1 < argc ? argv[++i] : ""); };
  const auto number = [&](int& i) { return static_cast<std::uint32_t>(std::strtoul(text(i).c_str(), nullptr, 10)); };
  for (int i = 2; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") o.json = true;
    if (flag == "--model") o.model = text(i);
    if (flag == "--served-model") o.served_model = text(i);
    if (flag == "--vocabulary") o.vocabulary = number(i);
    if (flag == "--metrics") o.metrics = text(i);
    if (flag == "--workload") o.workload = text(i);
    if (flag == "--rate") o.rate = number(i);
    if (flag == "--seed") o.seed = number(i);
    if (flag == "--words") o.words = number(i);
    if (flag == "--sessions") o.sessions = number(i);
    if (flag == "--core") o.core = static_cast<int>(number(i));
    if (flag == "--echo-core") o.echo_core = static_cast<int>(number(i));
    if (flag == "--seconds") o.seconds = number(i);
    if (flag == "--within") o.within = number(i);
    if (flag == "--zmq") o.zmq = text(i), o.zmq_streams = o.mode == "streams" ? number(i) : 0;
    if (flag == "--http") o.http = text(i), o.http_streams = number(i);
  }
  return o;
}

int complain(const std::string& why) {
  std::fprintf(stderr, "load: %s\n", why.c_str());
  return 1;
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) std::fprintf(stderr, "load: there is no core %d to run on; running anywhere\n", core);
}

// A descriptor a stream: as many as the system allows, and says so.
void raise_limit(bool json) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t before = limit.rlim_cur;
  actors::raise_descriptor_limit();
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (!json)
    std::printf("descriptors: %llu, raised from %llu (RLIMIT_NOFILE)\n", static_cast<unsigned long long>(limit.rlim_cur),
                static_cast<unsigned long long>(before));
}

void figure(bool json, const char* name, double value, const char* unit) {
  if (json)
    std::printf(R"({"figure": "%s", "value": %.6g, "unit": "%s"})"
                "\n",
                name, value, unit);
  else
    std::printf("%-24s %12.1f %s\n", name, value, unit);
}

void tell(const char* kind, const Tally& tally, bool json) {
  const std::string name(kind);
  figure(json, (name + "_streams_whole").c_str(), tally.whole, "streams");
  figure(json, (name + "_streams_failed").c_str(), tally.failed, "streams");
  figure(json, (name + "_streams_open_at_once").c_str(), tally.open_most, "streams");
  if (!tally.first_failure.empty()) std::fprintf(stderr, "load: %s\n", tally.first_failure.c_str());
}

// Lengths in words, and so that the longest conversation fits a small context.
workload::Spec spec_of(const Options& o, workload::Kind kind) {
  workload::Spec spec;
  spec.kind = kind;
  spec.asks = o.zmq_streams;
  spec.tenants = std::min(o.sessions, 6u);
  spec.distance_us = std::max(1'000'000u / o.rate, 1u);
  spec.prompt_mean = 12;
  spec.prompt_max = 48;
  spec.answer_mean = std::max(o.words / 4, 1u);
  spec.answer_max = o.words;
  return spec;
}

void tell_first_deltas(std::vector<double> first_deltas, bool json) {
  if (first_deltas.empty()) return;
  std::sort(first_deltas.begin(), first_deltas.end());
  figure(json, "first_delta_p50", first_deltas[first_deltas.size() / 2], "us");
  figure(json, "first_delta_p99", first_deltas[first_deltas.size() * 99 / 100], "us");
}

int run_streams(const Options& o, const Speech& speech) {
  std::unique_ptr<ZmqStreams> zmq;
  std::unique_ptr<SseStreams> sse;
  const auto began = Clock::now();
  std::vector<workload::Ask> asks;
  if (!o.workload.empty()) {
    const auto kind = workload::kind_of(o.workload);
    if (!kind) return complain("there is no workload '" + o.workload + "'; use steady, poisson, bursts, prefixes, agents, tails or mixed");
    if (o.zmq_streams == 0 || o.http_streams > 0 || o.rate == 0) return complain("a workload needs --zmq ENDPOINT N, no --http, and a --rate over 0");
    asks = workload::asks_of(spec_of(o, *kind), o.seed);
  }
  if (o.zmq_streams > 0)
    zmq = std::make_unique<ZmqStreams>(speech, o.zmq, o.zmq_streams, std::min(o.sessions, o.zmq_streams), o.words, std::move(asks));
  if (o.http_streams > 0) sse = std::make_unique<SseStreams>(speech, o.http, o.served_model, o.http_streams, o.words);
  const auto until = began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(o.within));
  const auto over = [&] { return (!zmq || zmq->tally().over()) && (!sse || sse->tally().over()); };
  while (!over() && Clock::now() < until) {
    const bool zmq_busy = zmq && zmq->pump();
    const bool sse_busy = sse && sse->pump();
    if (zmq_busy || sse_busy) continue;
    if (sse && !sse->tally().over())
      sse->pump(1);
    else if (zmq)
      zmq->wait(std::chrono::milliseconds(1));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  const Tally none;
  const Tally &by_zmq = zmq ? zmq->tally() : none, &by_sse = sse ? sse->tally() : none;
  if (zmq) tell("zmq", by_zmq, o.json);
  if (zmq) tell_first_deltas(zmq->first_deltas(), o.json);
  if (sse) tell("sse", by_sse, o.json);
  figure(o.json, "streamed_tokens", static_cast<double>(by_zmq.tokens + by_sse.tokens), "tokens");
  figure(o.json, "stream_seconds", seconds, "s");
  figure(o.json, "streamed_rate", static_cast<double>(by_zmq.tokens + by_sse.tokens) / seconds, "tok/s");
  if (!over()) return complain("streams are missing after " + std::to_string(seconds) + " s");
  const bool clean = by_zmq.first_failure.empty() && by_sse.first_failure.empty();
  return by_zmq.whole == by_zmq.asked && by_sse.whole == by_sse.asked && clean ? 0 : 1;
}

int run_latency(const Options& o, const Speech& speech) {
  const auto latency = measure_latency(speech, o.zmq, o.metrics, o.seconds, o.echo_core);
  if (!latency) return complain(latency.error().message);
  figure(o.json, "saturation", latency->saturation, "requests/s");
  for (const auto& [name, at] : {std::pair<std::string, const AtRate&>{"", latency->half}, {"idle_", latency->idle}}) {
    const auto tell = [&](const char* what, double value, const char* unit) { figure(o.json, (name + what).c_str(), value, unit); };
    tell("rate", at.rate, "requests/s");
    tell("first_delta_p50", at.server.p50, "us");
    tell("first_delta_p99", at.server.p99, "us");
    tell("engine_step_mean", at.engine_us, "us");
    tell("echo_p50", at.echo.p50, "us");
    tell("echo_p99", at.echo.p99, "us");
    tell("added_p50_over_echo", at.ratio(), "ratio");
    tell("added_p99_over_echo", (at.server.p99 - at.engine_us) / at.echo.p99, "ratio");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (tests::helped(argc, argv, usage)) return 0;
  const Options o = options_of(argc, argv);
  if ((o.mode != "streams" && o.mode != "latency") || o.model.empty()) return complain(std::string("usage: ") + usage);
  raise_limit(o.json);
  pin(o.core);
  actors::ServeSettings settings;
  settings.model = o.model;
  auto format = actors::chat_format(settings);
  if (!format) return complain(format.error().message);
  const auto* harmony = format->harmony();
  auto script = actors::script_of(*harmony, o.vocabulary);
  if (!script) return complain(script.error().message);
  const Speech speech{std::move(*script), *harmony};
  return o.mode == "streams" ? run_streams(o, speech) : run_latency(o, speech);
}
