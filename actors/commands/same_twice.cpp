// See the header.
#include "actors/commands/same_twice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "actors/commands/generate.hpp"
#include "actors/exit_codes.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

constexpr const char* question = "Write three short sentences about the sea, then add 17 and 25 and say what comes out.";
constexpr std::uint32_t tokens_max = 48, company = 3, other_chunk = 7;

// The largest distance of what two computations say of the same experts.
double distance(const std::vector<RouterLogit>& a, const std::vector<RouterLogit>& b) {
  double most = 0;
  for (const RouterLogit& mine : a) {
    const auto same = std::find_if(b.begin(), b.end(), [&](const RouterLogit& other) { return other.expert == mine.expert; });
    const double other = same != b.end() ? same->logit : b.empty() ? std::numeric_limits<double>::infinity() : b.back().logit;
    const double apart = std::abs(mine.logit - other);
    most = std::max(most, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
  }
  return most;
}

Result<AnswerBits> answer(GenerateSettings settings) {
  AnswerBits bits;
  std::optional<Error> failure;
  bool answered = false;
  const int code = answer_here(
      settings,
      [&](const protocol::chat::ChatFormat& format) {
        auto submit = request_of(settings, format);
        if (!submit) return submit;
        submit->trace_top_m = Limits{}.trace_top_m_max;
        submit->return_tokens = true;
        return submit;
      },
      [&](const wire::ServerMessage& message) {
        if (const auto* delta = std::get_if<wire::Delta>(&message)) bits.take(*delta);
        if (const auto* error = std::get_if<wire::ErrorReply>(&message)) failure = error->error;
        answered = failure || std::holds_alternative<wire::Done>(message);
        return answered ? std::optional<int>(exit_ok) : std::nullopt;
      });
  if (failure) return *failure;
  if (!answered)
    return Error{ErrorCode::unavailable, "it could not be computed (exit code " + std::to_string(code) + "); the reason is said above", "model"};
  return bits;
}

}  // namespace

void AnswerBits::take(const wire::Delta& delta) {
  if (delta.choice != 0) return;
  drawn_.insert(drawn_.end(), delta.tokens.begin(), delta.tokens.end());
  for (const StepRouting& part : delta.routing) {
    // A prompt ends where the first step of one token begins.
    if (part.tokens.size() == 1 && first_drawn_ == 0) first_drawn_ = part.start;
    for (std::uint32_t t = 0; t < part.tokens.size(); ++t)
      for (std::uint32_t l = 0; l < part.layers; ++l) {
        const auto from = part.logits.begin() + static_cast<std::ptrdiff_t>((std::size_t{t} * part.layers + l) * part.top_m);
        logits_[{part.start + t, l}].assign(from, from + part.top_m);
      }
  }
}

AnswerBits::Difference AnswerBits::against(const AnswerBits& other) const {
  Difference found;
  while (found.drawn_alike < drawn_.size() && found.drawn_alike < other.drawn_.size() && drawn_[found.drawn_alike] == other.drawn_[found.drawn_alike])
    ++found.drawn_alike;
  found.draws_differ = found.drawn_alike < std::max(drawn_.size(), other.drawn_.size());
  const std::uint32_t prompt = std::max(first_drawn_, other.first_drawn_);
  for (const auto& [at, mine] : logits_) {
    const auto theirs = other.logits_.find(at);
    if (theirs == other.logits_.end() || at.first >= prompt + found.drawn_alike) continue;
    ++found.routed;
    const double apart = std::max(distance(mine, theirs->second), distance(theirs->second, mine));
    if (apart > found.router_logits) found.router_logits = apart, found.position = at.first, found.layer = at.second;
  }
  return found;
}

TwiceFinding judge(const AnswerBits::Difference& d, const ServeSettings& settings) {
  if (d.same())
    return {TwiceFinding::Kind::same, "one prompt twice, alone and in company: " + std::to_string(d.drawn_alike) + " tokens and " +
                                          std::to_string(d.routed) + " router decisions are the same, bit by bit"};
  std::string detail = "one prompt twice, alone and in company: ";
  if (d.router_logits > 0)
    detail += "router logits differ by up to " + std::to_string(d.router_logits) + " (position " + std::to_string(d.position) + ", layer " +
              std::to_string(d.layer) + "); ";
  detail += d.draws_differ ? "tokens differ behind the first " + std::to_string(d.drawn_alike) : "tokens are the same";
  if (settings.capacity_policy != "none") {
    detail += "; --capacity-policy makes a token's experts depend on what else is in its step: leave it out where answers must repeat";
  } else {
    detail += "; nothing of Althing's should do this: run althing verify on the model, check the machine's memory, and report it";
  }
  const bool slightly = !d.draws_differ && d.router_logits <= router_difference_max;
  return {slightly ? TwiceFinding::Kind::differs_slightly : TwiceFinding::Kind::differs, detail};
}

Result<TwiceFinding> same_twice(const ServeSettings& settings) {
  GenerateSettings ask;
  ask.engine = settings;
  ask.prompt = question;
  ask.ask.sampling.seed = 7;
  ask.ask.sampling.temperature = 1.0F;
  ask.ask.sampling.ignore_stop = true;
  ask.ask.sampling.completion_tokens_max = tokens_max;
  auto alone = answer(ask);
  if (!alone) return alone.error();
  ask.engine.limits.prefill_chunk_max = other_chunk;
  ask.ask.sampling.n = 1 + company;
  auto beside = answer(ask);
  if (!beside) return beside.error();
  return judge(alone->against(*beside), settings);
}

}  // namespace althing::actors
