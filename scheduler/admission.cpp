// Who gets in. A request that could never finish is refused here, before any page is taken, with the numbers that say why; what is accepted
// always fits the pool when it runs alone, which is what makes preemption free of deadlock.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

Error invalid(const char* field, std::string message) { return Error{ErrorCode::invalid_argument, std::move(message), field}; }

std::string text(float number) { return std::to_string(number); }

// What changes logits before the draw. Comparisons are written so that NaN fails them.
std::optional<Error> adjustment_refusal(const SamplingParameters& s, const CoreConfig& config) {
  if (!(s.repetition_penalty > 0.0F && s.repetition_penalty <= 10.0F))
    return invalid("repetition_penalty", "repetition_penalty is " + text(s.repetition_penalty) + "; use more than 0 (1: none) and at most 10");
  if (!(s.presence_penalty >= -2.0F && s.presence_penalty <= 2.0F))
    return invalid("presence_penalty", "presence_penalty is " + text(s.presence_penalty) + "; use -2 to 2");
  if (!(s.frequency_penalty >= -2.0F && s.frequency_penalty <= 2.0F))
    return invalid("frequency_penalty", "frequency_penalty is " + text(s.frequency_penalty) + "; use -2 to 2");
  if (s.logit_bias.size() > config.limits.logit_bias_max)
    return invalid("logit_bias", std::to_string(s.logit_bias.size()) + " tokens have a bias and at most " +
                                     std::to_string(config.limits.logit_bias_max) + " may have one");
  for (std::size_t i = 0; i < s.logit_bias.size(); ++i) {
    const TokenBias& entry = s.logit_bias[i];
    const std::string name = "the bias of token " + std::to_string(entry.token);
    if (entry.token >= config.vocabulary)
      return invalid("logit_bias",
                     "a bias is given for token " + std::to_string(entry.token) + "; ids end at " + std::to_string(config.vocabulary - 1));
    if (i > 0 && entry.token <= s.logit_bias[i - 1].token)
      return invalid("logit_bias", name + " is not behind that of token " + std::to_string(s.logit_bias[i - 1].token) + "; tokens ascend");
    if (!(entry.bias >= -100.0F && entry.bias <= 100.0F)) return invalid("logit_bias", name + " is " + text(entry.bias) + "; use -100 to 100");
  }
  if (s.top_logprobs > logprobs_top_max)
    return invalid("logprobs", "logprobs of the " + std::to_string(s.top_logprobs) + " most likely tokens were asked for; use 0 to " +
                                   std::to_string(logprobs_top_max));
  return std::nullopt;
}

std::optional<Error> sampling_refusal(const SamplingParameters& s, const CoreConfig& config) {
  const Limits& limits = config.limits;
  if (!(s.temperature >= 0.0F && s.temperature <= 2.0F))
    return invalid("temperature", "temperature is " + text(s.temperature) + "; use 0 (greedy) to 2");
  if (!(s.top_p > 0.0F && s.top_p <= 1.0F)) return invalid("top_p", "top_p is " + text(s.top_p) + "; use more than 0 and at most 1");
  if (!(s.min_p >= 0.0F && s.min_p <= 1.0F)) return invalid("min_p", "min_p is " + text(s.min_p) + "; use 0 to 1");
  if (s.completion_tokens_max == 0) return invalid("completion_tokens_max", "completion_tokens_max is 0; ask for 1 token or more");
  if (s.stop_tokens.size() > limits.stop_tokens_max)
    return invalid("stop_tokens", std::to_string(s.stop_tokens.size()) + " stop tokens were given and at most " +
                                      std::to_string(limits.stop_tokens_max) + " are taken");
  for (const TokenId token : s.stop_tokens)
    if (token >= config.vocabulary)
      return invalid("stop_tokens", "stop token " + std::to_string(token) + " does not exist; ids end at " + std::to_string(config.vocabulary - 1));
  return adjustment_refusal(s, config);
}

std::optional<Error> choices_refusal(const Submitted& event, const Limits& limits) {
  if (limits.tenant_sequences_max > 0 && event.choices > limits.tenant_sequences_max)
    return Error{ErrorCode::too_large,
                 std::to_string(event.choices) + " choices need as many sequences and a tenant may have " +
                     std::to_string(limits.tenant_sequences_max) + " at most; ask for fewer",
                 "n"};
  if (event.choices == 0 || event.choices > limits.choices_max)
    return invalid("n", std::to_string(event.choices) + " choices were asked for; use 1 to " + std::to_string(limits.choices_max));
  if (event.choices > 1 && !event.drawn.empty())
    return invalid("drawn",
                   std::to_string(event.choices) + " choices cannot share " + std::to_string(event.drawn.size()) + " drawn tokens; submit each");
  const std::uint64_t after = std::numeric_limits<std::uint64_t>::max() - event.request.value;
  if (event.choices - 1 > after)
    return invalid("request", "request " + std::to_string(event.request.value) + " leaves ids for " + std::to_string(after) +
                                  " further choices and " + std::to_string(event.choices - 1) + " are needed");
  if (event.choices > limits.sequences_max)
    return Error{ErrorCode::too_large,
                 std::to_string(event.choices) + " choices need as many sequences and the server serves " + std::to_string(limits.sequences_max) +
                     " at most; ask for fewer",
                 "n"};
  return std::nullopt;
}

std::optional<Error> prompt_refusal(const Submitted& event, const CoreConfig& config) {
  if (event.prompt.empty()) return invalid("prompt", "the prompt holds no token; send at least one");
  if (event.prompt.size() >= config.limits.context_tokens_max)
    return Error{ErrorCode::too_large,
                 "the prompt has " + std::to_string(event.prompt.size()) + " tokens and the context holds " +
                     std::to_string(config.limits.context_tokens_max) + ", of which the completion needs one at least; shorten the prompt",
                 "prompt"};
  for (std::size_t i = 0; i < event.prompt.size(); ++i)
    if (event.prompt[i] >= config.vocabulary)
      return invalid("prompt", "token " + std::to_string(i) + " of the prompt is " + std::to_string(event.prompt[i]) + "; ids end at " +
                                   std::to_string(config.vocabulary - 1));
  for (const TokenId token : event.drawn)
    if (token >= config.vocabulary)
      return invalid("drawn", "a drawn token is " + std::to_string(token) + "; ids end at " + std::to_string(config.vocabulary - 1));
  std::uint32_t previous = 0;
  for (const std::uint32_t boundary : event.boundaries) {
    if (boundary < previous || boundary > event.prompt.size())
      return invalid("boundaries", "boundary " + std::to_string(boundary) + " follows " + std::to_string(previous) + " in a prompt of " +
                                       std::to_string(event.prompt.size()) + " tokens; boundaries ascend and lie within the prompt");
    previous = boundary;
  }
  return std::nullopt;
}

// A priority is a head start, and a deadline that is near is one too: whoever came long enough ago is never overtaken.
std::int64_t arrival_ms(const Submitted& event, std::uint64_t now_ms, const Limits& limits) {
  const auto time = [](std::uint64_t ms) { return static_cast<std::int64_t>(std::min(ms, std::uint64_t{1} << 62)); };
  const std::int64_t at = time(now_ms) - std::int64_t{event.priority} * limits.priority_ms;
  return event.deadline_ms == 0 ? at : std::min(at, time(event.deadline_ms) - limits.deadline_near_ms);
}

}  // namespace

// A trace is made by the rank that everybody waits for, and kept by the core: what all of them together cost has a bound.
std::optional<Error> Core::State::trace_refusal(const Submitted& event) const {
  if (event.trace_top_m == 0) return std::nullopt;
  const Limits& limits = config.limits;
  if (limits.traces_max == 0)
    return Error{ErrorCode::unsupported, "this server traces no routing (--traces-max is 0); leave trace_top_m out, or start it with more",
                 "trace_top_m"};
  if (event.trace_top_m > limits.trace_top_m_max)
    return Error{ErrorCode::too_large,
                 "trace_top_m is " + std::to_string(event.trace_top_m) + " and " + std::to_string(limits.trace_top_m_max) + " is the most",
                 "trace_top_m"};
  const auto traced =
      static_cast<std::uint64_t>(std::count_if(sequences.begin(), sequences.end(), [](const auto& entry) { return entry.second->trace_top_m > 0; }));
  if (event.choices > limits.traces_max)
    return Error{ErrorCode::too_large,
                 std::to_string(event.choices) + " choices need as many traces and " + std::to_string(limits.traces_max) +
                     " is the most; ask for fewer choices, or start the server with a larger --traces-max",
                 "trace_top_m"};
  if (traced + event.choices > limits.traces_max)
    return Error{ErrorCode::busy,
                 std::to_string(traced) + " sequences are being traced, this request needs " + std::to_string(event.choices) + " more, and " +
                     std::to_string(limits.traces_max) + " is the most; try again later, or without trace_top_m",
                 "trace_top_m"};
  return std::nullopt;
}

std::uint32_t Core::State::request_tokens_max() const {
  // The last draw is reported but never computed, so it needs no place.
  return std::min(config.limits.context_tokens_max, needs.positions_fitting() + 1);
}

// REQUIRES: the prompt leaves room for one token in the context.
std::uint32_t Core::State::completion_tokens_max(const Submitted& event) const {
  const std::uint32_t room = config.limits.context_tokens_max - static_cast<std::uint32_t>(event.prompt.size());
  return std::min({event.sampling.completion_tokens_max, config.limits.completion_tokens_max, room});
}

std::optional<Error> Core::State::refusal(const Submitted& event) const {
  if (auto error = choices_refusal(event, config.limits)) return error;
  const auto taken = sequences.lower_bound(event.request);
  if (taken != sequences.end() && taken->first.value - event.request.value < event.choices)
    return invalid("request", "request " + std::to_string(taken->first.value) + " is already being served; an id may not be used twice");
  if (draining) return Error{ErrorCode::draining, "the server is stopping and takes no new requests; send it to another one", {}};
  if (auto error = prompt_refusal(event, config)) return error;
  if (auto error = sampling_refusal(event.sampling, config)) return error;
  if (event.drawn.size() > completion_tokens_max(event))
    return invalid("drawn", std::to_string(event.drawn.size()) + " tokens were drawn already and " + std::to_string(completion_tokens_max(event)) +
                                " are the most that this request may have");
  const std::uint64_t tokens = event.prompt.size() + std::uint64_t{completion_tokens_max(event)};
  if (tokens > request_tokens_max())
    return Error{ErrorCode::too_large,
                 "prompt and completion need room for " + std::to_string(tokens) + " tokens and the KV pool holds " +
                     std::to_string(request_tokens_max()) +
                     " of one request; shorten the prompt, lower completion_tokens_max or give the KV cache more memory",
                 "prompt"};
  if (event.deadline_ms != 0 && event.deadline_ms <= now_ms)
    return Error{ErrorCode::deadline,
                 "the deadline of " + std::to_string(event.deadline_ms) + " ms had passed on arrival at " + std::to_string(now_ms) + " ms",
                 "deadline_ms"};
  if (event.priority < priority_min || event.priority > priority_max)
    return invalid("priority", "priority is " + std::to_string(event.priority) + "; use " + std::to_string(priority_min) + " to " +
                                   std::to_string(priority_max) + ", where the higher goes first");
  if (auto error = trace_refusal(event)) return error;
  return busy_refusal(event);
}

std::optional<Error> Core::State::busy_refusal(const Submitted& event) const {
  const auto busy = [&](const std::string& whose, std::uint64_t there, std::uint32_t most, const EndTimes& ends) -> std::optional<Error> {
    if (there + event.choices <= most) return std::nullopt;
    const std::uint32_t wait = ends.wait_ms(there + event.choices - most);
    const std::string when = wait == 0 ? "later" : "in about " + std::to_string(wait) + " ms";
    return Error{ErrorCode::busy,
                 std::to_string(there) + " sequences " + whose + "are being served, this request needs " + std::to_string(event.choices) +
                     " more, and " + std::to_string(most) + " is the most; try again " + when,
                 {},
                 wait};
  };
  if (auto error = busy("", sequences.size(), config.limits.sequences_max, fair.ends())) return error;
  if (config.limits.tenant_sequences_max == 0) return std::nullopt;
  const Tenant* const tenant = fair.find(event.tenant);
  return busy("of this tenant ", tenant == nullptr ? 0 : tenant->sequences, config.limits.tenant_sequences_max,
              tenant == nullptr ? EndTimes() : tenant->ends);
}

void Core::State::submit(const Submitted& event) {
  if (auto error = refusal(event)) {
    effects.emplace_back(Rejected{event.request, *std::move(error)});
    return;
  }
  effects.emplace_back(Accepted{event.request});
  for (std::uint32_t i = 0; i < event.choices; ++i) {
    Sequence& accepted = begin(event, i);
    // The core that drew these may have died between the last token and the end that it means.
    if (event.drawn.empty()) continue;
    claim_restorable(accepted);
    end_if_complete(accepted);
  }
}

Sequence& Core::State::begin(const Submitted& event, std::uint32_t choice) {
  auto sequence = std::make_unique<Sequence>();
  sequence->number = sequences_accepted++;
  sequence->request = RequestId{event.request.value + choice};
  sequence->prompt_count = static_cast<std::uint32_t>(event.prompt.size());
  sequence->tokens = event.prompt;
  sequence->tokens.insert(sequence->tokens.end(), event.drawn.begin(), event.drawn.end());
  sequence->sampling = event.sampling;
  sequence->sampling.choice += choice;
  sequence->sampling.completion_tokens_max = completion_tokens_max(event);
  sequence->deadline_ms = event.deadline_ms;
  sequence->trace_top_m = event.trace_top_m;
  sequence->constrained = event.constrained;
  sequence->draws_ready = event.draws_ready;
  sequence->salt = event.salt;
  sequence->priority = event.priority;
  sequence->arrival_ms = arrival_ms(event, now_ms, config.limits);
  sequence->boundaries = event.boundaries;
  sequence->boundaries.push_back(sequence->prompt_count);
  sequence->first_choice = event.request;
  sequence->tables.resize(config.kv.groups.size());
  if (mirrors_pages()) {
    sequence->chain = TokenChain(mirror_seed, config.mirror_identity);
    sequence->mirror.resize(config.kv.groups.size());
  }
  // All but the last draw was computed, by a core that is gone.
  if (!event.drawn.empty()) {
    sequence->computed_most = sequence->charged = sequence->known() - 1;
    sequence->may_restore = mirrors_pages();
  }
  Sequence& begun = *sequence;
  fair.enter(begun, event.tenant);
  if (begun.deadline_ms != 0) deadlines.emplace(begun.deadline_ms, begun.request);
  sequences.emplace(begun.request, std::move(sequence));
  return begun;
}

}  // namespace althing::scheduler
