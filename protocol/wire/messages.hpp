// The wire protocol as plain values: what clients and server say to each other over ZeroMQ. protocol/wire.capnp is the binary form,
// docs/protocol.md the JSON twin; both carry exactly these fields. All limits of scheduler/vocabulary/limits.hpp are checked while decoding.
//
// Frames: DEALER/ROUTER multipart [empty]? [header: "ALT1" + one byte 'c' (Cap'n Proto) or 'j' (JSON)] [body].
// A client opens with Hello, the server answers Welcome. Request ids are chosen by the client and are idempotent per client_id:
// submitting the same id again attaches to the running request instead of starting another.
// Server to client: Accepted, then Delta* with sequence 1, 2, 3 …, then exactly one Done or ErrorReply (which takes the next sequence number).
// Credit: a stream may send `credit` deltas (0: no limit by count); Grant adds to it. Without credit, text waits and is coalesced.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/harmony/message.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/logprobs.hpp"
#include "scheduler/vocabulary/routing_trace.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing::protocol::wire {

inline constexpr std::uint32_t version = 1;      // the newest this build speaks
inline constexpr std::uint32_t version_min = 1;  // the oldest

// --- client to server ---

struct Hello {
  std::uint32_t version_min = wire::version_min;
  std::uint32_t version_max = wire::version;
  std::string client_id;    // random, 16 to 128 bytes, secret to this client: whoever knows it can resume its requests
  std::string client_name;  // for logs, e.g. "althing-cli/0.1"
};

struct Sampling {
  std::optional<float> temperature, top_p, min_p;
  std::optional<std::uint32_t> top_k;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint32_t> completion_tokens_max;
  bool ignore_stop = false;  // tokens that end a turn do not end it; what is named here does
  std::uint32_t n = 1;       // completions (choices) of the same prompt, in one stream
  std::optional<float> repetition_penalty{}, presence_penalty{}, frequency_penalty{};
  std::vector<TokenBias> logit_bias{};      // each token once
  std::vector<std::string> stop{};          // text that ends a choice, and is not sent
  std::vector<TokenId> stop_tokens{};       // likewise tokens, which are sent
  std::optional<std::uint32_t> logprobs{};  // deltas also tell the logprob of each token, and those of so many most likely ones
};

// What the text of an answer must be (docs/structured-output.md).
enum class GrammarKind : std::uint8_t { json_schema, json_object, regex };
inline constexpr std::uint32_t grammar_kind_count = 3;
struct Grammar {
  GrammarKind kind = GrammarKind::json_object;
  std::string text;  // the schema as JSON text, or the expression; "" for json_object
  friend bool operator==(const Grammar&, const Grammar&) = default;
};

struct Submit {
  std::string request_id;
  // Either a conversation …
  std::vector<harmony::Message> messages;
  std::vector<harmony::Function> tools;                      // callable as functions.NAME
  std::optional<harmony::ReasoningEffort> reasoning_effort;  // for the default system message
  // … or raw token ids (then the stream carries token ids and no parsed messages).
  std::vector<TokenId> prompt_tokens;
  Sampling sampling;
  std::uint32_t timeout_ms = 0;  // 0: none
  std::uint32_t credit = 0;
  bool return_tokens = false;        // deltas also carry the generated ids
  std::uint32_t trace_top_m = 0;     // deltas also tell where tokens were routed, with so many of the router's logits; 0: they do not
  std::string tenant;                // whose request it is, for accounting and a fair share: 1 to 64 of A-Z a-z 0-9 . _ -; "": "default"
  std::int32_t priority = 0;         // among the requests of its tenant, priority_min to priority_max; the higher goes first
  std::optional<Grammar> grammar{};  // of the answer: the final channel's text, or all of it where the format has no channels
};

struct Cancel {
  std::string request_id;
};
struct Resume {
  std::string request_id;
  std::uint64_t last_sequence = 0;  // everything after it is sent again
};
struct Grant {
  std::string request_id;
  std::uint32_t credit = 0;
};
struct Ping {
  std::uint64_t nonce = 0;
};

using ClientMessage = std::variant<Hello, Submit, Cancel, Resume, Grant, Ping>;

// --- server to client ---

struct Welcome {
  std::uint32_t version = wire::version;
  std::string server_instance;  // of the process, or of the one whose requests it took over; another one knows none of them
  std::string model;
  std::uint32_t context_tokens_max = 0;
  std::uint32_t frame_bytes_max = 0;
  std::uint32_t session_silence_ms_max = 0;  // ping more often than this
};

struct Accepted {
  std::string request_id;
  std::uint32_t prompt_tokens = 0;
  std::uint64_t seed = 0;
};

// One generated Harmony message begins: everything its header says.
struct MessageStarted {
  std::uint32_t index = 0;  // 0, 1, 2 … within the choice
  harmony::Role role = harmony::Role::assistant;
  std::string channel, recipient, content_type;  // "" when absent
};
struct Text {
  std::uint32_t index = 0;
  std::string text;  // valid UTF-8, never empty
};
struct MessageEnded {
  std::uint32_t index = 0;
};
using DeltaEvent = std::variant<MessageStarted, Text, MessageEnded>;

struct Delta {
  std::string request_id;
  std::uint64_t sequence = 0;
  std::uint32_t choice = 0;  // which of the n completions all of this belongs to
  std::vector<DeltaEvent> events;
  std::vector<TokenId> tokens;
  // What was computed for the choice since the delta before: in the order of steps, not necessarily all of it that led to these tokens.
  std::vector<StepRouting> routing{};
  std::vector<TokenLogprobs> logprobs{};  // of the tokens that this delta is made of, one a token, when they were asked for
};

// How one of several choices ended.
struct ChoiceEnd {
  FinishReason reason = FinishReason::stop;
  std::uint32_t completion_tokens = 0;
  std::uint32_t preemptions = 0;
  std::optional<Error> error;                  // set when the reason is error
  std::optional<std::uint32_t> stop_string{};  // index of the request's stop string that ended it
};

struct Done {
  std::string request_id;
  std::uint64_t sequence = 0;
  FinishReason reason = FinishReason::stop;  // with several choices the gravest of theirs
  Usage usage;                               // the prompt once, completions of all choices together
  std::vector<ChoiceEnd> choices = {};       // by choice; empty when n is 1
  // The server lost ranks, or got them back, and some tokens were drawn by ranks that split attention otherwise than those before. Nothing is
  // missing, but the same request may give other tokens.
  bool layout_changed = false;
  std::optional<std::uint32_t> stop_string{};  // as ChoiceEnd's, when n is 1
  // Of the completion's tokens, those after which an analysis message was open, or one on commentary to a recipient. 0 for raw prompts.
  std::uint32_t reasoning_tokens = 0;
};

struct ErrorReply {
  std::string request_id;  // "" when it is about the session
  std::uint64_t sequence = 0;
  Error error;
};

struct Pong {
  std::uint64_t nonce = 0;
  std::string server_instance;
  std::string state;  // starting, ready, silent, recovering or draining; "": the server does not tell
};

using ServerMessage = std::variant<Welcome, Accepted, Delta, Done, ErrorReply, Pong>;

}  // namespace althing::protocol::wire
