// One stream: it renders a conversation, submits it, turns drawn tokens into typed deltas, numbers and keeps them until the stream is over and a
// while longer (so that a client can resume), and obeys the client's credit. It ends every stream with exactly one Done or ErrorReply.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "monitoring/metrics.hpp"
#include "protocol/harmony/format.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {

// What all streams of a server share.
struct FrontendShared {
  protocol::harmony::Format format;
  std::vector<TokenId> stop_tokens;  // that end a turn
  Limits limits;
  std::shared_ptr<monitoring::Metrics> metrics;
  caf::actor scheduler;
  std::chrono::milliseconds linger{10'000};  // how long a finished stream can be resumed
};

struct FrontendStart {
  RequestId request;  // fresh
  std::string client_id;
  protocol::wire::Submit submit;
  caf::actor gateway;  // hears ToClient and StreamClosed
  std::chrono::steady_clock::time_point received;
};

class Frontend {
 public:
  static inline const char* name = "frontend";

  void start(caf::event_based_actor* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start);

  void accepted();
  void rejected(Rejected& rejected);
  void drawn(const TokensDrawn& drawn);
  void finished(const Finished& finished);
  void grant(std::uint32_t credit);
  void resume(const ClientResume& resume);
  void cancel(const Error& error);
  void flush_due();
  void scheduler_down();
  void close();
  void beat();

 private:
  using Clock = std::chrono::steady_clock;

  Result<Submitted> render();
  Result<SamplingParameters> sampling() const;
  void flush();
  bool may_send() const { return !counted_ || credit_ > 0; }
  void end(protocol::wire::ServerMessage last);
  void end(protocol::wire::ServerMessage last, std::chrono::milliseconds linger);
  void send_log(std::size_t from);
  void to_client(protocol::wire::ServerMessage message);

  caf::event_based_actor* self_ = nullptr;
  std::shared_ptr<const FrontendShared> shared_;
  FrontendStart start_;
  std::optional<protocol::wire::DeltaStream> deltas_;  // absent for raw token requests
  std::vector<protocol::wire::DeltaEvent> pending_events_;
  std::vector<TokenId> pending_tokens_;
  std::size_t pending_count_ = 0;  // tokens that wait to be sent
  std::size_t pending_bytes_ = 0;
  std::vector<protocol::wire::ServerMessage> log_;  // log_[i] has sequence i+1: deltas, then the end
  std::optional<protocol::wire::Accepted> accepted_;
  std::optional<Finished> waiting_end_;  // finished, but text still waits for credit
  std::uint32_t prompt_tokens_ = 0;
  std::uint64_t seed_ = 0;
  bool counted_ = false;  // the client counts credit
  std::uint64_t credit_ = 0;
  bool flush_scheduled_ = false;
  bool ended_ = false;
  std::uint32_t attachment_ = 0;
  Clock::time_point stalled_since_;
  Clock::time_point last_token_;
};

caf::behavior frontend_actor(caf::stateful_actor<Frontend>* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start);

}  // namespace althing::actors
