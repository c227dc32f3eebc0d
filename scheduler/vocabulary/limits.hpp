// Every bound of the serving path, in one place. A default here is what `althing serve` uses unless told otherwise;
// check_limits says which relation between two bounds does not hold.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing {

inline constexpr std::uint32_t choices_bound = 256;  // what choices_max may be at most

struct Limits {
  // The engine.
  std::uint32_t rows_max = 64;               // sequences in one step
  std::uint32_t step_tokens_max = 512;       // tokens in one step (chunked prefill shares them with decode)
  std::uint32_t prefill_chunk_max = 256;     // prompt tokens of one sequence in one step
  std::uint32_t steps_in_flight_max = 2;     // planned and not yet done
  std::uint32_t speculation_tokens_max = 0;  // guessed behind a sequence's next token, and verified in the same step; 0: nothing is guessed
  bool draft_model = false;                  // the ranks guess too, by a smaller model, where a plan asks them to
  // Admission.
  std::uint32_t sequences_max = 256;        // accepted and not finished: running and waiting
  std::uint32_t tenant_sequences_max = 0;   // of them, one tenant's; 0: all
  std::uint32_t priority_ms = 10'000;       // how much earlier a request counts as having come, for each step of its priority
  std::uint32_t deadline_near_ms = 30'000;  // a request counts as having come so long before its deadline, if it came later
  std::uint32_t context_tokens_max = 2048;  // prompt + completion of one request; the model's own limit at most
  std::uint32_t completion_tokens_max = 2048;
  std::uint32_t stop_tokens_max = 24;         // that end a request: its own, and those that end a turn
  std::uint32_t own_stop_tokens_max = 16;     // its own
  std::uint32_t stop_strings_max = 16;        // of one request …
  std::uint32_t stop_string_bytes_max = 256;  // … each
  std::uint32_t logit_bias_max = 1024;        // tokens with a bias in one request
  std::uint32_t choices_max = 16;             // completions of one prompt in one request
  // Traces of routing.
  std::uint32_t traces_max = 32;              // sequences that are traced at a time; 0: none ever
  std::uint32_t trace_top_m_max = 32;         // logits that are told of each token and layer
  std::uint32_t trace_bytes_max = 32u << 20;  // kept of one request's trace, about; a longer one ends the request
  // Clients.
  std::uint32_t sessions_max = 1024;
  std::uint32_t requests_per_session_max = 256;       // open at a time, of a client
  std::uint32_t gateway_requests_max = 1024;          // likewise of one that asks for others: a gateway
  std::uint32_t frame_bytes_max = 4u << 20;           // one message from a client
  std::uint32_t messages_max = 1024;                  // messages in one submit
  std::uint32_t tools_max = 128;                      // functions in one submit
  std::uint32_t text_bytes_max = 1u << 20;            // one text field
  std::uint32_t name_bytes_max = 128;                 // one id, name, recipient or channel
  std::uint32_t session_buffer_bytes_max = 1u << 20;  // unsent bytes kept for one client before it counts as a slow reader
  std::uint32_t session_silence_ms_max = 15'000;      // a client that sends nothing (not even a ping) for this long is gone
  std::uint32_t credit_stall_ms_max = 30'000;         // a stream whose credit stays at zero for this long is cancelled
  std::uint32_t delta_interval_ms = 10;               // deltas are coalesced for this long; the first token goes at once
  std::uint32_t delta_tokens_max = 32;                // or until this many tokens wait
};

inline Status check_limits(const Limits& l) {
  const auto at_most = [](std::uint64_t small, const char* small_name, std::uint64_t large, const char* large_name) -> Status {
    if (small <= large) return Ok{};
    return Error{ErrorCode::invalid_argument,
                 std::string(small_name) + " is " + std::to_string(small) + " and must not be over " + large_name + ", which is " +
                     std::to_string(large) + "; lower the first or raise the second",
                 small_name};
  };
  if (l.rows_max == 0) return Error{ErrorCode::invalid_argument, "rows_max is 0; at least one row is needed", "rows_max"};
  if (l.steps_in_flight_max == 0 || l.steps_in_flight_max > 2)
    return Error{ErrorCode::invalid_argument, "steps_in_flight_max is " + std::to_string(l.steps_in_flight_max) + "; use 1 or 2",
                 "steps_in_flight_max"};
  // Every running row must be able to decode in the same step.
  if (auto s = at_most(l.rows_max, "rows_max", l.step_tokens_max, "step_tokens_max"); !s) return s;
  if (auto s = at_most(l.rows_max, "rows_max", l.sequences_max, "sequences_max"); !s) return s;
  if (l.priority_ms > 3'600'000 || l.deadline_near_ms > 3'600'000)
    return Error{ErrorCode::invalid_argument, "priority_ms and deadline_near_ms are at most 3600000, an hour", "priority_ms"};
  if (auto s = at_most(1, "1", l.prefill_chunk_max, "prefill_chunk_max"); !s) return s;
  if (auto s = at_most(l.prefill_chunk_max, "prefill_chunk_max", l.step_tokens_max, "step_tokens_max"); !s) return s;
  if (l.choices_max == 0 || l.choices_max > choices_bound)
    return Error{ErrorCode::invalid_argument, "choices_max is " + std::to_string(l.choices_max) + "; use 1 to " + std::to_string(choices_bound),
                 "choices_max"};
  if (auto s = at_most(1, "1", l.requests_per_session_max, "requests_per_session_max"); !s) return s;
  if (auto s = at_most(l.text_bytes_max, "text_bytes_max", l.frame_bytes_max, "frame_bytes_max"); !s) return s;
  return Ok{};
}

}  // namespace althing
