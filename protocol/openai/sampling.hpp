// How the next token is drawn and where it ends, as OpenAI's clients write it: one function from a request's members to wire::Sampling, for every
// route that generates. Nulls count as absent, because client libraries send them unasked.
#pragma once

#include <nlohmann/json.hpp>

#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

inline constexpr float default_temperature = 1.0F;  // OpenAI's; the engine's own is 0

// Read here: temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, stop, seed, n,
// max_completion_tokens or max_tokens, ignore_eos; not logprobs, which every route asks for in words of its own. `max_tokens_default`: for requests
// that say nothing; 0: the engine's own. Ranges that the engine knows are its business.
// Errors: invalid_argument (wrong kind or range); field is the member's name.
Result<wire::Sampling> sampling_from(const nlohmann::ordered_json& body, std::uint32_t max_tokens_default = 0);

// How many most likely tokens to tell beside each drawn one, 0 … logprobs_top_max; nothing where logprobs are not asked for. Chats ask by `logprobs`,
// a boolean, and `top_logprobs`; completions by `logprobs`, a number. Errors: invalid_argument.
Result<std::optional<std::uint32_t>> chat_logprobs_from(const nlohmann::ordered_json& body);
Result<std::optional<std::uint32_t>> completion_logprobs_from(const nlohmann::ordered_json& body);
// Such a number by itself; nothing when it is absent.
Result<std::optional<std::uint32_t>> top_count_from(const nlohmann::ordered_json& body, const char* member);

// `service_tier`: what is in no hurry or in a great one, among the requests of its tenant; other tiers are all the same here. Errors:
// invalid_argument.
Result<std::int32_t> priority_from(const nlohmann::ordered_json& body);

// The engine's error in the words of an HTTP request: its fields have other names.
Error in_request_terms(Error error);

}  // namespace althing::protocol::openai
