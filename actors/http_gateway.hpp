// The HTTP gateway as a process: of `althing gateway`, beside any server, or as a child of `althing serve --http`. It speaks to clients over HTTP and
// to the server as a client over ZeroMQ, so an HTTP stream lives through whatever a ZeroMQ client's would: also the death of the server's core.
#pragma once

#include <cstdint>
#include <string>

#include "actors/commands/connect.hpp"
#include "actors/settings.hpp"

namespace althing::actors {

struct HttpGatewaySettings {
  ConnectSettings server;
  std::string listen = "127.0.0.1:8080";
  ServeSettings engine;  // model and tokenizer of it, and how to log
  std::string api_keys;  // "": nobody needs one
  std::string metrics;   // HOST:PORT; "": at /metrics of a loopback listener only
  std::uint32_t connections_max = 1024;
  std::uint32_t responses_max = 4096, responses_mib = 128;  // that are kept for the Responses API
  std::uint32_t keep_alive_ms = 15'000;                     // 0: resting streams say nothing
  std::uint32_t drain_seconds = 10;
  std::string ready_file;
};

// Until SIGTERM and the end of what is open. Returns the exit code.
int run_http_gateway(const HttpGatewaySettings& settings);
// The child's part of `serve --http`: the supervisor says when to drain and to stop.
int run_http_child(const ServeSettings& settings);

}  // namespace althing::actors
