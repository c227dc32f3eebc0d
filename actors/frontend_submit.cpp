// What a frontend makes of a client's submit: the rendered prompt and the parameters of the draws, for the scheduler and for the token log.
#include <algorithm>
#include <random>
#include <utility>

#include "actors/frontend_actor.hpp"
#include "actors/rank_stamps.hpp"
#include "protocol/wire/conversation.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

Result<Submitted> Frontend::render() {
  Submitted submitted;
  submitted.request = start_.request;
  submitted.choices = start_.submit.sampling.n;
  submitted.trace_top_m = start_.submit.trace_top_m;
  submitted.priority = start_.submit.priority;
  auto parameters = sampling();
  if (!parameters) return parameters.error();
  submitted.sampling = std::move(*parameters);
  if (!start_.submit.prompt_tokens.empty()) {
    submitted.prompt = start_.submit.prompt_tokens;
    return submitted;
  }
  auto rendered = shared_->format->render(start_.submit, wire::today());
  if (!rendered) return rendered.error();
  submitted.prompt = std::move(rendered->tokens);
  submitted.boundaries = std::move(rendered->boundaries);
  return submitted;
}

Result<SamplingParameters> Frontend::sampling() const {
  const wire::Sampling& wanted = start_.submit.sampling;
  SamplingParameters parameters;
  parameters.temperature = wanted.temperature.value_or(0.0F);
  parameters.top_p = wanted.top_p.value_or(1.0F);
  parameters.top_k = wanted.top_k.value_or(0);
  parameters.min_p = wanted.min_p.value_or(0.0F);
  parameters.seed = wanted.seed ? *wanted.seed : random_seed();
  parameters.completion_tokens_max = wanted.completion_tokens_max.value_or(shared_->limits.completion_tokens_max);
  // What ends a turn may be ignored; what the client names, never.
  if (!wanted.ignore_stop) parameters.stop_tokens = shared_->stop_tokens;
  parameters.stop_tokens.insert(parameters.stop_tokens.end(), wanted.stop_tokens.begin(), wanted.stop_tokens.end());
  parameters.ignore_stop = wanted.ignore_stop && wanted.stop_tokens.empty();
  parameters.repetition_penalty = wanted.repetition_penalty.value_or(1.0F);
  parameters.presence_penalty = wanted.presence_penalty.value_or(0.0F);
  parameters.frequency_penalty = wanted.frequency_penalty.value_or(0.0F);
  parameters.logit_bias = wanted.logit_bias;
  std::sort(parameters.logit_bias.begin(), parameters.logit_bias.end(), [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  parameters.logprobs = wanted.logprobs.has_value();
  parameters.top_logprobs = wanted.logprobs.value_or(0);
  return parameters;
}

// The client's, then what ends a turn of the chat format.
std::vector<std::string> Frontend::stop_strings() const {
  std::vector<std::string> all = start_.submit.sampling.stop;
  if (!start_.submit.prompt_tokens.empty() || start_.submit.sampling.ignore_stop) return all;
  const std::vector<std::string>& more = shared_->format->stop_strings();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Before the scheduler hears of the request: what it accepts can be taken over from then on.
Status Frontend::open_log(const Submitted& submitted) {
  if (!shared_->token_log) return Ok{};
  const wire::Submit& submit = start_.submit;
  LoggedSubmit entry{start_.client_id,     submit.request_id,
                     submitted.prompt,     submitted.boundaries,
                     submitted.sampling,   !submit.prompt_tokens.empty(),
                     submit.return_tokens, submitted.choices,
                     submit.credit,        submit.timeout_ms > 0 ? monotonic_ns() + std::uint64_t{submit.timeout_ms} * 1'000'000 : 0,
                     submit.trace_top_m};
  entry.tenant = submit.tenant;
  entry.priority = submit.priority;
  entry.owner = start_.owner;
  entry.grammar = submit.grammar;
  entry.has_tools = !submit.tools.empty();
  entry.stop = stop_strings();
  entry.client_stops = client_stops_;
  // A delta that holds nothing else takes a piece at least, and pieces have an eighth more of it than what they were cut from, at most; and each
  // choice has one at its end.
  if (submit.trace_top_m > 0)
    entry.traced_cuts_max =
        shared_->limits.trace_bytes_max / 8 * 9 / static_cast<std::uint32_t>(wire::DeltaLog::routing_piece_bytes) + 1 + submitted.choices;
  // As the scheduler clips it; what it will refuse needs no room.
  const std::size_t context = shared_->limits.context_tokens_max;
  const std::size_t room = context - std::min(context, submitted.prompt.size());
  const std::size_t most = std::min<std::size_t>({submitted.sampling.completion_tokens_max, shared_->limits.completion_tokens_max, room});
  auto opened = shared_->token_log->open(entry, static_cast<std::uint32_t>(most));
  if (!opened) return opened.error();
  stream_log_ = std::move(*opened);
  return Ok{};
}

}  // namespace althing::actors
