// What happens to the scheduler core (past tense), and what it orders. `on(event)` turns one event into effects and nothing else;
// time comes in as Tick. Every accepted request gets exactly one Finished.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing {

struct Submitted {
  RequestId request;
  std::vector<TokenId> prompt;
  SamplingParameters sampling;
  std::uint64_t deadline_ms = 0;          // on the clock of Ticked; 0: none
  std::vector<std::uint32_t> boundaries;  // prompt positions where messages end, ascending: where prefixes may be shared
  // Completion tokens that are known already, because another core drew them before it died. They are not reported again; the request goes on behind
  // them, exactly as after a preemption.
  std::vector<TokenId> drawn;
  // So many completions of the prompt, taken all or none. They are the requests request … request + choices - 1, drawn as sampling.choice and the
  // ones after it: each has its own row, tokens and Finished. Accepted or Rejected is one and names the first. REQUIRES: 1 when something was drawn.
  std::uint32_t choices = 1;
  std::uint32_t trace_top_m = 0;  // RowSetup's, for each choice
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

// A page that every rank of a DP group has in its mirror.
struct MirroredPage {
  DpGroup dp_group;
  MirrorSlot slot;
  PageKey key;

  friend bool operator==(const MirroredPage&, const MirroredPage&) = default;
};

// What a membership keeps KV in. It may be another one than the last membership's, when there are fewer ranks or more of them again.
struct KvShape {
  std::uint32_t dp_groups = 1;
  KvLayout layout;                 // of each group's pool
  std::uint32_t mirror_slots = 0;  // CoreConfig's, as the two above
  std::uint64_t mirror_identity = 0;

  friend bool operator==(const KvShape&, const KvShape&) = default;
};

// A complete membership under a new epoch; steps may be planned. Running sequences come back from the mirror as far as it goes, and are recomputed
// from their tokens behind that. A request that no pool of the new shape can hold ends.
struct RanksReady {
  EpochId epoch;
  std::optional<KvShape> shape = std::nullopt;  // none: as before
  PageKey mirror_seed{};                        // the secret of the keys; another one makes other keys of the same tokens
  std::vector<MirroredPage> mirrored{};         // ascending by group and slot
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
