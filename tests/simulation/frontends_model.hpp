// Frontends and the token log as actors/frontend_actor.cpp has them, without text: a stream's tokens are logged before its client hears of them, it
// says more only while its client has credit, it ends where its stop string stands, and when the core dies the next one goes on from the log. A delta
// is a run of tokens of one choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "tests/simulation/planted_core.hpp"
#include "tests/simulation/stage.hpp"

namespace althing::tests {

// How a choice, or a stream, ended.
struct StreamEnd {
  FinishReason reason = FinishReason::stop;
  ErrorCode code = ErrorCode::internal;  // set with cancelled and error
  std::uint32_t tokens = 0;
};

// What a client hears. `ends` has one entry a choice in the end of a stream that is whole; else `error` says why it is not.
struct ToClient {
  enum class Kind : std::uint8_t { accepted, delta, done, error } kind = Kind::accepted;
  std::uint32_t choice = 0, first = 0;
  std::vector<TokenId> tokens{};
  std::vector<StreamEnd> ends{};
  Error error{};
};

// What a client asks for.
struct StreamRequest {
  Submitted submitted;                   // its id is the server's business
  std::uint64_t timeout_ms = 0;          // 0: none
  std::uint32_t credit = 0;              // 0: it does not count
  std::optional<std::uint32_t> stop_at;  // a stop string stands there in every choice, behind so many tokens
};

class FrontendsModel {
 public:
  struct Links {
    std::function<void(Submitted submitted, std::uint64_t timeout_ms)> submit;
    std::function<void(const Submitted& submitted, std::uint64_t timeout_ms)> resubmit;  // before the shell hears of anything else
    std::function<void(RequestId request, const Error& error)> cancel;
    std::function<void(RequestId request, std::uint32_t tokens)> stop;
    std::function<void(RequestId request, std::uint32_t until)> allow;  // draws of a constrained one
    std::function<void(std::uint32_t number, ToClient message)> to_client;
  };

  FrontendsModel(Stage& stage, Links links, Plant plant) : stage_(stage), links_(std::move(links)), plant_(plant) {}

  // A client's request by its own number: a new one, or one that it comes back for, with so many tokens heard of each choice, and room for so many
  // deltas.
  void open(std::uint32_t number, const StreamRequest& request, const std::vector<std::uint32_t>& heard, std::uint32_t room);
  void grant(std::uint32_t number, std::uint32_t credit);
  void cancel(std::uint32_t number, const Error& error);
  // The core says.
  void hear(const Effect& effect);
  // The core has died; and there is another one.
  void core_died();
  void restore();

  bool idle() const;  // every stream has ended
  std::uint64_t restored() const { return restored_; }

 private:
  struct Choice {
    std::vector<TokenId> tokens;
    std::uint32_t sent = 0;
    std::optional<StreamEnd> end;
  };
  struct Stream {
    StreamRequest request;
    RequestId id;  // of choice 0, in the core that lives
    std::uint64_t order = 0;
    Timeline::Time deadline = 0;
    std::vector<Choice> choices;
    std::uint64_t credit = 0;
    bool accepted = false, attached = true, ended = false, waiting_end = false;
    ToClient last;  // once it has ended
    Timeline::Time stalled_since = 0;
    std::uint32_t next_choice = 0;
  };
  struct Owner {
    std::uint32_t number = 0, choice = 0;
  };

  void say(std::uint32_t number, const Stream& stream, ToClient message);
  void submit(std::uint32_t number, Stream& stream);
  void resubmit(std::uint32_t number, Stream& stream);
  void drawn(std::uint32_t number, std::uint32_t choice, const TokensDrawn& drawn);
  void decide(RequestId request, const Stream& stream, std::uint32_t tokens);
  void finished(std::uint32_t number, std::uint32_t choice, const Finished& finished);
  void rejected(std::uint32_t number, const Error& error);
  void flush(std::uint32_t number, Stream& stream);
  void conclude(std::uint32_t number, Stream& stream);
  void watch_stall(std::uint32_t number, Stream& stream);
  void cancel_open(const Stream& stream, const Error& error);
  void end(std::uint32_t number, Stream& stream, ToClient last);

  Stage& stage_;
  Links links_;
  Plant plant_;
  std::map<std::uint32_t, Stream> streams_;  // the token log, and what frontends know besides
  std::map<RequestId, Owner> owners_;        // in the core that lives
  std::uint64_t next_request_ = 1, next_order_ = 0, restored_ = 0;
};

}  // namespace althing::tests
