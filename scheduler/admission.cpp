// Who gets in. A request that could never finish is refused here, before any page is taken, with the numbers that say why; what is accepted
// always fits the pool when it runs alone, which is what makes preemption free of deadlock.
#include <algorithm>
#include <cmath>
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
  if (sequences.contains(event.request))
    return invalid("request", "request " + std::to_string(event.request.value) + " is already being served; an id may not be used twice");
  if (draining) return Error{ErrorCode::draining, "the server is stopping and takes no new requests; send it to another one", {}};
  if (auto error = prompt_refusal(event, config)) return error;
  if (auto error = sampling_refusal(event.sampling, config.limits)) return error;
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
  if (sequences.size() >= config.limits.sequences_max)
    return Error{ErrorCode::busy,
                 std::to_string(sequences.size()) + " requests are being served and " + std::to_string(config.limits.sequences_max) +
                     " is the most; try again later",
                 {}};
  return std::nullopt;
}

void Core::State::submit(const Submitted& event) {
  if (auto error = refusal(event)) {
    effects.emplace_back(Rejected{event.request, *std::move(error)});
    return;
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->number = sequences_accepted++;
  sequence->request = event.request;
  sequence->prompt_count = static_cast<std::uint32_t>(event.prompt.size());
  sequence->tokens = event.prompt;
  sequence->sampling = event.sampling;
  sequence->sampling.completion_tokens_max = completion_tokens_max(event);
  sequence->deadline_ms = event.deadline_ms;
  sequence->tables.resize(config.kv.groups.size());
  waiting.push_back(sequence.get());
  sequences.emplace(event.request, std::move(sequence));
  effects.emplace_back(Accepted{event.request});
}

}  // namespace althing::scheduler
