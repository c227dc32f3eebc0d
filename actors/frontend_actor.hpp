// One stream: it renders a conversation, submits it, turns drawn tokens into typed deltas, numbers and keeps them until the stream is over and a
// while longer (so that a client can resume), and obeys the client's credit. It ends every stream with exactly one Done or ErrorReply. A stream may
// carry several choices: they share its numbers, its credit and its end, and a failure of one that is not its own (NaN is) is the stream's.
// Invariant: what a client hears was in the token log before, so a stream that another core left is made again with the same numbers.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/core_recovery.hpp"
#include "actors/messages.hpp"
#include "actors/token_log.hpp"
#include "monitoring/metrics.hpp"
#include "protocol/chat/chat_format.hpp"
#include "protocol/grammar/constrained_reply.hpp"
#include "protocol/wire/delta_log.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {

// What all streams of a server share.
struct FrontendShared {
  protocol::chat::ChatFormat format;
  std::vector<TokenId> stop_tokens;  // that end a turn
  Limits limits;
  std::shared_ptr<monitoring::Metrics> metrics;
  caf::actor scheduler;
  std::chrono::milliseconds linger{10'000};  // how long a finished stream can be resumed
  std::shared_ptr<TokenLog> token_log;       // null: a stream does not survive its core
  std::shared_ptr<CoreRecovery> recovery;    // null when no core died before this one
  // Of the model's vocabulary; null where the engine draws what it likes, and no grammar can be held.
  std::shared_ptr<protocol::grammar::GrammarLibrary> grammars{};
};

struct FrontendStart {
  RequestId request;  // fresh, and the n-1 ids after it: one for each choice
  std::string client_id;
  protocol::wire::Submit submit;
  caf::actor gateway;  // hears ToClient and StreamClosed
  std::chrono::steady_clock::time_point received;
  // What a dead core left of this request; null for a new one. Of `submit` only the request id is used then, and somebody else submits the rest.
  std::shared_ptr<LoggedStream> left = nullptr;
  std::string owner{};  // the key of the client, for the next core; "" where clients have none
};

// The messages of a stream made again, with the same numbers, from what the log kept of it. A trace is not: deltas of a `traced` one that held
// nothing else come back empty. REQUIRES: `deltas` is new.
// `logprobs`: one for each token of the story, or none.
void replay(const std::vector<std::uint32_t>& story, protocol::wire::DeltaLog& deltas, bool traced = false,
            const std::vector<TokenLogprobs>& logprobs = {});

// What the scheduler is asked to do about a request that a dead core left, with a time limit if there was one: one submission, without a frontend
// yet, for each choice that has not ended; maybe none. `request` is the id of choice 0.
ResubmitRequest resubmission_of(const token_log::Read& left, RequestId request);

class Frontend {
 public:
  static inline const char* name = "frontend";

  void start(caf::event_based_actor* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start);

  void accepted(RequestId request);
  void rejected(Rejected& rejected);
  void drawn_under(std::uint32_t tp);
  void drawn(const TokensDrawn& drawn);
  void routed(Routed& routed);
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

  void restore();
  bool note_tp(std::uint32_t tp);
  Result<Submitted> render();
  Result<SamplingParameters> sampling() const;
  std::vector<std::string> stop_strings() const;
  Status open_log(const Submitted& submitted);
  Status constrain(const protocol::wire::Grammar& asked, bool raw, bool has_tools, std::size_t choices);
  Status constrain_submit(Submitted& submitted, protocol::grammar::Mask& mask);
  void restore_grammar(const token_log::Read& read);
  bool push_constrained(std::uint32_t choice, TokenId token);
  void allow(std::uint32_t choice);
  std::uint32_t choice_of(RequestId request) const { return static_cast<std::uint32_t>(request.value - start_.request.value); }
  void stop(std::uint32_t choice, const Usage& usage);
  void flush();
  void conclude();
  void cancel_open(const Error& error);
  bool text_waits() const;
  bool may_send() const { return !counted_ || credit_ > 0; }
  void end(protocol::wire::ServerMessage last);
  void end(protocol::wire::ServerMessage last, std::chrono::milliseconds linger);
  void send_from(std::size_t from);
  void to_client(protocol::wire::ServerMessage message);

  caf::event_based_actor* self_ = nullptr;
  std::shared_ptr<const FrontendShared> shared_;
  FrontendStart start_;
  std::optional<protocol::wire::DeltaLog> deltas_;  // set by start()
  std::uint32_t client_stops_ = 0;                  // of its stop strings so many, the first, are the client's
  StreamLog stream_log_;
  std::optional<protocol::wire::Accepted> accepted_;
  std::vector<std::optional<LoggedEnd>> choices_;  // how each ended; set by start()
  std::vector<Clock::time_point> last_token_;      // by choice
  struct Constrained {
    std::unique_ptr<protocol::grammar::ConstrainedReply> reply;
    std::uint32_t drawn = 0;  // completion tokens
  };
  std::vector<Constrained> constrained_;  // by choice; empty without a grammar
  bool waits_to_allow_ = false;           // a dead core's stream: the scheduler must know of it first
  bool first_token_seen_ = false;
  std::uint32_t next_cut_ = 0;  // the choice whose text has waited longest for credit
  bool waiting_end_ = false;    // all choices ended, but text still waits for credit
  std::uint32_t prompt_tokens_ = 0;
  std::uint64_t seed_ = 0;
  std::uint32_t tp_ = 0;         // under which the stream's tokens were drawn at first; 0: none were
  bool layout_changed_ = false;  // some were drawn under another
  bool logprobs_ = false;        // tokens come with theirs
  bool traced_ = false;
  std::uint32_t traces_due_ = 0;  // choices that their text ended, of whose traces more may come
  bool counted_ = false;          // the client counts credit
  std::uint64_t credit_ = 0;
  bool flush_scheduled_ = false;
  Clock::time_point last_cut_;    // by the actors' clock
  std::size_t traced_bytes_ = 0;  // of routing, so far
  bool trace_over_ = false;       // there was too much of it, or it made no sense: the stream is about to end
  bool ended_ = false;
  std::uint32_t attachment_ = 0;
  Clock::time_point stalled_since_;
};

caf::behavior frontend_actor(caf::stateful_actor<Frontend>* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start);

}  // namespace althing::actors
