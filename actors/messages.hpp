// What actors say to each other: plain values, no tensor, pointer or reader inside. Messages that cross processes (core <-> ranks) have an
// `inspect` and a CAF type id; the rest stay inside the core process and are marked local, so CAF refuses to send them elsewhere.
#pragma once

#include <bit>
#include <caf/actor.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/type_id.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/usage_record.hpp"
#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/placement.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"

namespace althing {

template <class Inspector, class Tag, class Representation>
typename Inspector::result_type inspect(Inspector& f, Id<Tag, Representation>& x) {
  return f(x.value);
}
// Floats travel as their bits: CAF 0.17 turns subnormal numbers into garbage on the way.
struct FloatBits {
  explicit FloatBits(float& target) : value(target), bits(std::bit_cast<std::uint32_t>(target)) {}
  ~FloatBits() { value = std::bit_cast<float>(bits); }
  FloatBits(const FloatBits&) = delete;
  FloatBits& operator=(const FloatBits&) = delete;

  float& value;
  std::uint32_t bits;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenBias& x) {
  FloatBits bias(x.bias);
  return f(caf::meta::type_name("TokenBias"), x.token, bias.bits);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SamplingParameters& x) {
  FloatBits temperature(x.temperature), top_p(x.top_p), min_p(x.min_p);
  FloatBits repetition(x.repetition_penalty), presence(x.presence_penalty), frequency(x.frequency_penalty);
  return f(caf::meta::type_name("Sampling"), temperature.bits, top_p.bits, x.top_k, min_p.bits, x.seed, x.choice, x.completion_tokens_max,
           x.stop_tokens, x.ignore_stop, repetition.bits, presence.bits, frequency.bits, x.logit_bias, x.logprobs, x.top_logprobs);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Grid& x) {
  return f(caf::meta::type_name("Grid"), x.world, x.dp, x.tp, x.ep, x.replicas);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowSetup& x) {
  return f(caf::meta::type_name("RowSetup"), x.row, x.request, x.sampling, x.dp_group, x.trace_top_m, x.tokens, x.prompt_count, x.drafted);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PageGrant& x) {
  return f(caf::meta::type_name("PageGrant"), x.row, x.group, x.first, x.pages, x.kept);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeftPage& x) {
  return f(caf::meta::type_name("LeftPage"), x.dp_group, x.page);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PageKey& x) {
  return f(caf::meta::type_name("PageKey"), x.high, x.low);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SlotOfGroup& x) {
  return f(caf::meta::type_name("SlotOfGroup"), x.dp_group, x.slot);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, MirrorPage& x) {
  return f(caf::meta::type_name("MirrorPage"), x.dp_group, x.group, x.page, x.slot, x.key);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, MirroredPage& x) {
  return f(caf::meta::type_name("MirroredPage"), x.dp_group, x.slot, x.key);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowWork& x) {
  return f(caf::meta::type_name("RowWork"), x.row, x.start, x.count, x.tokens, x.sample, x.draws, x.mask, x.guesses);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepPlan& x) {
  return f(caf::meta::type_name("StepPlan"), x.step, x.epoch, x.snapshot, x.base, x.cleared, x.set, x.pages, x.scrub, x.forget, x.restore, x.work,
           x.mirror);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DrawnToken& x) {
  return f(caf::meta::type_name("DrawnToken"), x.row, x.request, x.token, x.nonfinite);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RowGuesses& x) {
  return f(caf::meta::type_name("RowGuesses"), x.row, x.request, x.tokens);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepResult& x) {
  return f(caf::meta::type_name("StepResult"), x.step, x.epoch, x.drawn, x.unrestored, x.counts, x.routing, x.logprobs, x.guesses);
}

namespace actors {

// --- core -> rank ---

// Asks a rank's pulse for its status.
struct Probe {
  std::uint64_t sent_ms = 0;  // the core's monotonic clock, given back in the answer
};

// --- rank -> core ---

// The rank holds its weights and has joined the communicator of `epoch`. The epoch's grid travels with it: so the core can never plan for another one
// than the ranks compute in.
struct RankReady {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
  caf::actor actor;  // takes plans
  caf::actor pulse;  // answers probes, also while a step is being computed
  Grid grid{};
  PageKey mirror_seed{};                 // of its mirror, and what that holds
  std::vector<MirroredPage> mirrored{};  // ascending by slot
};
struct RankStatus {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
  std::uint64_t probe_sent_ms = 0;
  bool busy = false;           // steps are in flight …
  std::uint64_t progress = 0;  // … and this grows while they are computed
  // Layer-major, cumulative since the rank's process started; empty where step results carry counts.
  std::vector<std::uint64_t> expert_tokens;
  std::vector<std::uint64_t> mirror_pages{};  // likewise: copied, skipped, restored, missing, corrupt
};
// A plan could not be run; the rank is alive and waits for a new epoch.
struct StepFailed {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  bool refused = false;  // the plan itself was wrong for this rank; it would be again
  std::string reason;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Probe& x) {
  return f(caf::meta::type_name("Probe"), x.sent_ms);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankReady& x) {
  return f(caf::meta::type_name("RankReady"), x.rank, x.epoch, x.actor, x.pulse, x.grid, x.mirror_seed, x.mirrored);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankStatus& x) {
  return f(caf::meta::type_name("RankStatus"), x.rank, x.epoch, x.probe_sent_ms, x.busy, x.progress, x.expert_tokens, x.mirror_pages);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepFailed& x) {
  return f(caf::meta::type_name("StepFailed"), x.rank, x.epoch, x.step, x.refused, x.reason);
}

// --- inside the core process ---

// Frontend -> scheduler. `frontend` hears Accepted or Rejected, TokensDrawn*, Finished.
struct SubmitRequest {
  Submitted submitted;
  std::uint64_t timeout_ms = 0;  // 0: none; the scheduler turns it into a deadline on its own clock
  caf::actor frontend;
  UsageLabel label{};
  // Of a constrained request: what completion token draws_ready - 1 of each choice may be; null: any.
  std::shared_ptr<const std::string> mask{};
};
// Gateway -> scheduler: what a dead core left of one request, a submission for each choice that has not ended. Together they are one request for
// whoever counts.
struct ResubmitRequest {
  std::vector<SubmitRequest> choices;        // not empty
  FinishReason reason = FinishReason::stop;  // the gravest of choices that had ended …
  ErrorCode code = ErrorCode::internal;      // … that came with it
};
// Frontend -> scheduler: its text ended it, with this many completion tokens.
struct StopRequest {
  RequestId request;
  std::uint32_t completion_tokens = 0;
};
// Frontend -> scheduler: completion tokens below `until` of a constrained request can be drawn. The mask is of the last of them; null: any token.
struct AllowDraws {
  RequestId request;
  std::uint32_t until = 0;
  std::shared_ptr<const std::string> mask;
};
struct CancelRequest {
  RequestId request;
  Error error;
};

// Scheduler -> frontend, before the first tokens that ranks of this TP degree drew for it: bits depend on it.
struct DrawnUnder {
  std::uint32_t tp = 0;
};

// Scheduler -> frontend, before what the step drew for it: a section of StepResult::routing of an accepted step. Reading it is no work for whoever
// plans steps.
struct Routed {
  RequestId request;
  StepId step;
  EpochId epoch;
  std::uint32_t start = 0, count = 0;  // of the section
  std::uint32_t recomputed = 0;        // StepRouting's
  std::string body;
};

// Supervisor (through the control channel) -> scheduler.
struct MembershipLost {
  std::uint64_t epoch = 0;  // this one and all before are over
  std::uint32_t rank = 0;
  std::string cause;  // exit, frozen, error, core
};

// Likewise: nothing is wrong, but a better membership is to be had, so this epoch is over.
struct MembershipGrows {
  std::uint64_t epoch = 0;
};

// Frontend -> gateway: for the client, wherever it is connected now.
struct ToClient {
  std::string client_id;
  std::uint32_t attachment = 0;  // the newest that the frontend has heard of
  protocol::wire::ServerMessage message;
};
// Gateway -> frontend.
struct ClientGrant {
  std::uint32_t credit = 0;
};
// Everything after `last_sequence` again. What was on its way under an older attachment is not passed on, so nothing comes twice or out of order.
struct ClientResume {
  std::uint64_t last_sequence = 0;
  std::uint32_t attachment = 0;
};
struct ClientCancel {
  Error error;
};
// Frontend -> gateway, last of all: the stream may be forgotten.
struct StreamClosed {
  std::string client_id;
  std::string request_id;
  std::uint32_t attachment = 0;  // a newer one that the gateway knows of will not be answered any more
  caf::actor frontend;
};

// Scheduler -> monitor, a few times a second. Times are ages in milliseconds at the moment of sending.
struct StatusReport {
  bool ready = false;  // a complete membership exists
  bool draining = false;
  std::uint64_t epoch = 0;
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::vector<std::optional<std::uint64_t>> rank_age_ms;  // since each rank last made progress; none: it is absent
  bool grown = false;                                     // the membership before this one was given up for it, and not lost
  // For people who watch: what serves now, rank by rank; a rank that is absent has epoch 0.
  Grid grid{};
  std::vector<std::uint64_t> rank_epoch{};
  struct PoolUse {
    std::uint32_t used = 0;
    std::uint32_t total = 0;
  };
  std::vector<PoolUse> pools{};  // KV pages, by DP group
};
// Scheduler -> monitor: from now on steps are counted that this membership computed.
struct CountingUnder {
  std::uint64_t epoch = 0;
  Grid grid;
};
// Scheduler -> monitor: StepResult::counts of a step that was accepted. Adding them up is no work for whoever plans steps.
struct StepCounted {
  std::string counts;
};
// Whoever asks -> monitor, as a request; the answer is a ReadinessAnswer.
struct ReadinessQuery {};
struct ReadinessAnswer {
  bool ready = false;
  std::string json;
};
// Likewise, for the live page; the answer is a LiveAnswer.
struct LiveQuery {};
struct LiveAnswer {
  std::string json;
};

}  // namespace actors
}  // namespace althing

CAF_BEGIN_TYPE_ID_BLOCK(althing, first_custom_type_id)
CAF_ADD_TYPE_ID(althing, (althing::StepPlan))
CAF_ADD_TYPE_ID(althing, (althing::StepResult))
CAF_ADD_TYPE_ID(althing, (althing::actors::Probe))
CAF_ADD_TYPE_ID(althing, (althing::actors::RankReady))
CAF_ADD_TYPE_ID(althing, (althing::actors::RankStatus))
CAF_ADD_TYPE_ID(althing, (althing::actors::StepFailed))
CAF_ADD_ATOM(althing, althing::actors, tick_beat, "beat")
CAF_ADD_ATOM(althing, althing::actors, probe_beat, "probebeat")
CAF_ADD_ATOM(althing, althing::actors, flush_beat, "flush")
CAF_ADD_ATOM(althing, althing::actors, linger_over, "lingerover")
CAF_ADD_ATOM(althing, althing::actors, drain_atom, "drain")
CAF_ADD_ATOM(althing, althing::actors, stop_atom, "stop")
CAF_END_TYPE_ID_BLOCK(althing)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::SubmitRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ResubmitRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::StopRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::AllowDraws)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::CancelRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::MembershipLost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::MembershipGrows)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::DrawnUnder)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::Routed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ToClient)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ClientGrant)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ClientResume)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ClientCancel)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::StreamClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::StatusReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::CountingUnder)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::StepCounted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::UsageRecord)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ReadinessQuery)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::ReadinessAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::LiveQuery)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::actors::LiveAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::Accepted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::Rejected)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::TokensDrawn)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(althing::Finished)
