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

std::optional<Error> sampling_refusal(const SamplingParameters& s, const Limits& limits) {
  // Comparisons are written so that NaN fails them.
  if (!(s.temperature >= 0.0F && s.temperature <= 2.0F))
    return invalid("temperature", "temperature is " + std::to_string(s.temperature) + "; use 0 (greedy) to 2");
  if (!(s.top_p > 0.0F && s.top_p <= 1.0F)) return invalid("top_p", "top_p is " + std::to_string(s.top_p) + "; use more than 0 and at most 1");
  if (!(s.min_p >= 0.0F && s.min_p <= 1.0F)) return invalid("min_p", "min_p is " + std::to_string(s.min_p) + "; use 0 to 1");
  if (s.completion_tokens_max == 0) return invalid("completion_tokens_max", "completion_tokens_max is 0; ask for 1 token or more");
  if (s.stop_tokens.size() > limits.stop_tokens_max)
    return invalid("stop_tokens", std::to_string(s.stop_tokens.size()) + " stop tokens were given and at most " +
                                      std::to_string(limits.stop_tokens_max) + " are taken");
  return std::nullopt;
}

std::optional<Error> choices_refusal(const Submitted& event, const Limits& limits) {
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
  if (auto error = sampling_refusal(event.sampling, config.limits)) return error;
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
  if (auto error = trace_refusal(event)) return error;
  if (sequences.size() + event.choices > config.limits.sequences_max)
    return Error{ErrorCode::busy,
                 std::to_string(sequences.size()) + " sequences are being served, this request needs " + std::to_string(event.choices) +
                     " more, and " + std::to_string(config.limits.sequences_max) + " is the most; try again later",
                 {}};
  return std::nullopt;
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
  sequence->tables.resize(config.kv.groups.size());
  if (mirrors_pages()) {
    sequence->chain = TokenChain(mirror_seed, config.mirror_identity);
    sequence->mirror.resize(config.kv.groups.size());
  }
  // All but the last draw was computed, by a core that is gone.
  if (!event.drawn.empty()) {
    sequence->computed_most = sequence->known() - 1;
    sequence->may_restore = mirrors_pages();
  }
  Sequence& begun = *sequence;
  waiting.push_back(sequence.get());
  sequences.emplace(begun.request, std::move(sequence));
  return begun;
}

}  // namespace althing::scheduler
