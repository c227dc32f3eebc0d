// How much later a first token comes because of everything around the engine: requests of one token over one ZeroMQ session, first as many as the
// server takes, then half as many a second and a few a second, in turns with a bare ROUTER that sends back what it gets.
#pragma once

#include <cstdint>
#include <string>

#include "tests/bench/load/expected.hpp"

namespace althing::load {

struct Percentiles {
  double p50 = 0, p99 = 0;  // microseconds
};

// At one rate.
struct AtRate {
  double rate = 0;       // requests a second
  Percentiles server;    // from a submit's due time to its first delta …
  double engine_us = 0;  // … of which the engine has its steps: their mean, as the server's metrics say
  Percentiles echo;      // the same bytes to a bare ROUTER and back

  double ratio() const { return (server.p50 - engine_us) / echo.p50; }
};

struct Latency {
  double saturation = 0;  // requests a second
  AtRate half;            // of that
  AtRate idle;            // so few that each has the server for itself
};

// `metrics` is HOST:PORT of the server's; "" takes the engine's time for nothing. The echo runs on `echo_core`. Errors: what the server says.
Result<Latency> measure_latency(const Speech& speech, const std::string& endpoint, const std::string& metrics, double seconds, int echo_core);

}  // namespace althing::load
