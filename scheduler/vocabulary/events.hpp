// What happens to the scheduler core (past tense), and what it orders. `on(event)` turns one event into effects and nothing else;
// time comes in as Tick. Every accepted request gets exactly one Finished.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing {

struct Submitted {
  RequestId request;
  std::vector<TokenId> prompt;
  SamplingParameters sampling;
  std::uint64_t deadline_ms = 0;          // on the clock of Ticked; 0: none
  std::vector<std::uint32_t> boundaries;  // prompt positions where messages end, ascending: where prefixes may be shared
};

// The client gave up, or the frontend did for it; `error` is what its Finished will carry.
struct Cancelled {
  RequestId request;
  Error error;
};

// One rank's answer stands for all: every rank draws the same token. An answer of an old epoch is ignored.
struct StepDone {
  StepResult result;
};

// A complete membership under a new epoch; steps may be planned. Running sequences are recomputed from their tokens.
struct RanksReady {
  EpochId epoch;
};

// Steps of `epoch` and before will never finish. Sequences return to waiting and keep their tokens.
struct RanksLost {
  EpochId epoch;
};

struct Ticked {
  std::uint64_t now_ms = 0;  // monotonic
};

// Accept nothing more, finish what runs.
struct DrainStarted {};

using Event = std::variant<Submitted, Cancelled, StepDone, RanksReady, RanksLost, Ticked, DrainStarted>;

enum class FinishReason : std::uint8_t { stop, length, cancelled, error };

constexpr std::string_view name_of(FinishReason reason) {
  constexpr std::string_view names[] = {"stop", "length", "cancelled", "error"};
  return names[static_cast<int>(reason)];
}

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t preemptions = 0;

  friend bool operator==(const Usage&, const Usage&) = default;
};

struct Accepted {
  RequestId request;
  friend bool operator==(const Accepted&, const Accepted&) = default;
};

struct Rejected {
  RequestId request;
  Error error;
  friend bool operator==(const Rejected&, const Rejected&) = default;
};

struct RunStep {
  StepPlan plan;
  friend bool operator==(const RunStep&, const RunStep&) = default;
};

// Completion tokens first … first+tokens.size()-1 of a request (0 is the first generated token), each reported once.
struct TokensDrawn {
  RequestId request;
  std::uint32_t first = 0;
  std::vector<TokenId> tokens;
  friend bool operator==(const TokensDrawn&, const TokensDrawn&) = default;
};

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::stop;
  Usage usage;
  Error error;  // set when reason is cancelled or error
  friend bool operator==(const Finished&, const Finished&) = default;
};

using Effect = std::variant<Accepted, Rejected, RunStep, TokensDrawn, Finished>;

}  // namespace althing
