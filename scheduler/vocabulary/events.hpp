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
#include "scheduler/vocabulary/logprobs.hpp"
#include "scheduler/vocabulary/plan.hpp"
#include "scheduler/vocabulary/prefix_miss.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing {

// A request of priority p waits as though it had come p * Limits::priority_ms earlier, so none waits for ever.
inline constexpr std::int32_t priority_min = -4, priority_max = 4;

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
  PageKey salt{};                 // pages are shared among requests of one salt, and never between two
  TenantId tenant{};              // tenants with work share the server's tokens evenly
  std::int32_t priority = 0;      // among the requests of its tenant, priority_min to priority_max; the higher goes first
  // Somebody outside decides what each draw may yield, and DrawsReady tells of it: no token is drawn before. The first draws_ready completion tokens
  // of each choice are decided already.
  bool constrained = false;
  std::uint32_t draws_ready = 0;
};

// The client gave up, or the frontend did for it; `error` is what its Finished will carry.
struct Cancelled {
  RequestId request;
  Error error;
};

// What the request has said is complete at its completion token completion_tokens - 1: whoever reads the text found a stop string there. It ends as
// `stop`, and what was drawn behind that counts for nothing.
struct Stopped {
  RequestId request;
  std::uint32_t completion_tokens = 0;
};

// What the completion tokens below `until` of a constrained request may be is decided: they can be drawn. What was said before stays.
struct DrawsReady {
  RequestId request;
  std::uint32_t until = 0;
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

using Event = std::variant<Submitted, Cancelled, StepDone, RanksReady, RanksLost, Ticked, DrainStarted, Stopped, DrawsReady>;

enum class FinishReason : std::uint8_t { stop, length, cancelled, error };

constexpr std::string_view name_of(FinishReason reason) {
  constexpr std::string_view names[] = {"stop", "length", "cancelled", "error"};
  return names[static_cast<int>(reason)];
}

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t preemptions = 0;
  std::uint32_t cached_tokens = 0;     // of the prompt, that were there already when it was first given a row
  PrefixMiss miss = PrefixMiss::none;  // why there were no more

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
  std::uint32_t preemptions = 0;  // of the request, so far
  // One a token where they were asked for. The core leaves them empty: whoever has the step's result fills them in.
  std::vector<TokenLogprobs> logprobs{};
  std::uint32_t cached_tokens = 0;     // Usage's …
  PrefixMiss miss = PrefixMiss::none;  // … both
  friend bool operator==(const TokensDrawn&, const TokensDrawn&) = default;
};

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::stop;
  Usage usage;
  Error error;  // set when reason is cancelled or error
  friend bool operator==(const Finished&, const Finished&) = default;
};

enum class PreemptionCause : std::uint8_t {
  pages,  // an older one needs a page
  share,  // another tenant has less than its share of rows or pages
};
inline constexpr int preemption_cause_count = 2;

constexpr std::string_view name_of(PreemptionCause cause) {
  constexpr std::string_view names[preemption_cause_count] = {"pages", "share"};
  return names[static_cast<int>(cause)];
}

// A running request gave its row and its pages to `by` and waits again; nobody downstream has to do anything.
struct Preempted {
  RequestId request;
  RequestId by;
  PreemptionCause cause = PreemptionCause::pages;
  std::uint32_t tokens = 0;  // computed so far; what is not found again when it comes back is computed anew
  friend bool operator==(const Preempted&, const Preempted&) = default;
};

using Effect = std::variant<Accepted, Rejected, RunStep, TokensDrawn, Finished, Preempted>;

}  // namespace althing
