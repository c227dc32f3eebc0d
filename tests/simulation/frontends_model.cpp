// Streams of the server's side: see the header.
#include "tests/simulation/frontends_model.hpp"

#include <algorithm>
#include <utility>

namespace althing::tests {
namespace {

constexpr std::uint32_t delta_tokens_max = 32;
constexpr Timeline::Time credit_stall_us = 2'000'000, come_back_us = 3'000'000;

// NaN is a choice's own failure; any other is the stream's.
bool fails_stream(const std::optional<StreamEnd>& end) {
  return end && (end->reason == FinishReason::error || end->reason == FinishReason::cancelled) && end->code != ErrorCode::nonfinite;
}

ToClient error_reply(Error error) { return {ToClient::Kind::error, 0, 0, {}, {}, std::move(error)}; }

}  // namespace

void FrontendsModel::open(std::uint32_t number, const StreamRequest& request, const std::vector<std::uint32_t>& heard, std::uint32_t room) {
  if (const auto known = streams_.find(number); known != streams_.end()) {
    Stream& stream = known->second;
    stream.attached = true;
    stream.credit = room;
    stream.stalled_since = 0;
    if (stream.accepted) say(number, stream, {});
    for (std::size_t choice = 0; choice < stream.choices.size(); ++choice) stream.choices[choice].sent = heard[choice];
    if (!stream.ended) return conclude(number, stream);
    // Its end is said when it has all of the text.
    flush(number, stream);
    return say(number, stream, stream.last);
  }
  Stream& stream = streams_[number];
  stream.request = request;
  stream.order = next_order_++;
  stream.choices.resize(request.submitted.choices);
  stream.credit = request.credit;
  if (request.timeout_ms > 0) stream.deadline = stage_.time.now() + request.timeout_ms * 1000;
  submit(number, stream);
}

// A client that has not come back yet hears all of it when it does.
void FrontendsModel::say(std::uint32_t number, const Stream& stream, ToClient message) {
  if (stream.attached) links_.to_client(number, std::move(message));
}

void FrontendsModel::submit(std::uint32_t number, Stream& stream) {
  const auto choices = static_cast<std::uint32_t>(stream.choices.size());
  stream.id = RequestId{next_request_};
  next_request_ += choices;
  for (std::uint32_t choice = 0; choice < choices; ++choice) owners_[RequestId{stream.id.value + choice}] = {number, choice};
  Submitted submitted = stream.request.submitted;
  submitted.request = stream.id;
  if (submitted.constrained) submitted.draws_ready = 1;
  links_.submit(std::move(submitted), stream.request.timeout_ms);
}

void FrontendsModel::hear(const Effect& effect) {
  const auto owner_of = [this](RequestId request) {
    const auto found = owners_.find(request);
    return found == owners_.end() ? std::nullopt : std::optional(found->second);
  };
  if (const auto* accepted = std::get_if<Accepted>(&effect)) {
    const auto owner = owner_of(accepted->request);
    if (!owner || streams_[owner->number].ended || std::exchange(streams_[owner->number].accepted, true)) return;
    say(owner->number, streams_[owner->number], {});
  } else if (const auto* refused = std::get_if<Rejected>(&effect)) {
    if (const auto owner = owner_of(refused->request)) rejected(owner->number, refused->error);
  } else if (const auto* tokens = std::get_if<TokensDrawn>(&effect)) {
    if (const auto owner = owner_of(tokens->request)) drawn(owner->number, owner->choice, *tokens);
  } else if (const auto* over = std::get_if<Finished>(&effect)) {
    if (const auto owner = owner_of(over->request)) finished(owner->number, owner->choice, *over);
  }
}

// What was never accepted can be tried again at once under the same id.
void FrontendsModel::rejected(std::uint32_t number, const Error& error) {
  Stream& stream = streams_[number];
  if (stream.ended) return;
  if (stream.accepted) {
    cancel_open(stream, error);
    return end(number, stream, error_reply(error));
  }
  links_.to_client(number, error_reply(error));
  streams_.erase(number);
}

void FrontendsModel::drawn(std::uint32_t number, std::uint32_t which, const TokensDrawn& drawn) {
  Stream& stream = streams_[number];
  Choice& choice = stream.choices[which];
  if (stream.ended || choice.end) return;
  if (drawn.first != choice.tokens.size())
    return stage_.fail("a frontend hears token " + std::to_string(drawn.first) + " and has " + std::to_string(choice.tokens.size()));
  choice.tokens.insert(choice.tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
  decide(drawn.request, stream, static_cast<std::uint32_t>(choice.tokens.size()));
  const auto stop_at = stream.request.stop_at;
  if (stop_at && choice.tokens.size() >= *stop_at + (plant_ == Plant::stop_too_late ? 1 : 0)) {
    if (plant_ != Plant::stop_too_late) choice.tokens.resize(*stop_at);
    choice.end = StreamEnd{FinishReason::stop, {}, static_cast<std::uint32_t>(choice.tokens.size())};
    links_.stop(RequestId{stream.id.value + which}, *stop_at);
  }
  conclude(number, stream);
}

// What the next token of a constrained choice may be, and sometimes that some more behind it may be any: then they need no further word.
void FrontendsModel::decide(RequestId request, const Stream& stream, std::uint32_t tokens) {
  if (!stream.request.submitted.constrained) return;
  const std::uint32_t free = stage_.dice.one_in(4) ? stage_.dice.between(1, 6) : 0;
  links_.allow(request, tokens + 1 + free);
}

void FrontendsModel::finished(std::uint32_t number, std::uint32_t which, const Finished& finished) {
  Stream& stream = streams_[number];
  Choice& choice = stream.choices[which];
  if (stream.ended || choice.end) return;
  if (plant_ == Plant::end_untold && stage_.dice.one_in(20)) return;
  choice.end = StreamEnd{finished.reason, finished.error.code, finished.usage.completion_tokens};
  if (!fails_stream(choice.end)) return conclude(number, stream);
  cancel_open(stream, finished.error);
  end(number, stream, error_reply(finished.error));
}

// Without credit for all, choices take turns: the one that had to wait is the first to go on.
void FrontendsModel::flush(std::uint32_t number, Stream& stream) {
  const bool counted = stream.request.credit > 0 && plant_ != Plant::credit_ignored;
  const auto count = static_cast<std::uint32_t>(stream.choices.size());
  for (std::uint32_t i = 0, first = stream.next_choice; i < count;) {
    const std::uint32_t which = (first + i) % count;
    Choice& choice = stream.choices[which];
    const auto pending = static_cast<std::uint32_t>(choice.tokens.size()) - choice.sent;
    if (pending == 0) {
      ++i;
      continue;
    }
    if (counted && stream.credit == 0) {
      stream.next_choice = which;
      return watch_stall(number, stream);
    }
    if (counted) --stream.credit;
    stream.stalled_since = 0;
    const std::uint32_t tokens = std::min(pending, delta_tokens_max);
    choice.sent += tokens;
    const auto first_token = choice.tokens.begin() + choice.sent - tokens;
    say(number, stream, {ToClient::Kind::delta, which, choice.sent - tokens, {first_token, first_token + tokens}, {}, {}});
  }
}

void FrontendsModel::watch_stall(std::uint32_t number, Stream& stream) {
  if (stream.stalled_since != 0) return;
  stream.stalled_since = stage_.time.now();
  stage_.time.after(credit_stall_us, [this, number, since = stream.stalled_since] {
    const auto found = streams_.find(number);
    if (found == streams_.end() || found->second.ended || found->second.stalled_since != since) return;
    cancel(number, Error{ErrorCode::slow_reader, "the client gave no credit", {}});
  });
}

void FrontendsModel::conclude(std::uint32_t number, Stream& stream) {
  flush(number, stream);
  std::vector<StreamEnd> ends;
  bool text_waits = false, some_whole = false;
  for (const Choice& choice : stream.choices) {
    if (!choice.end) return;
    ends.push_back(*choice.end);
    text_waits = text_waits || choice.sent < choice.tokens.size();
    some_whole = some_whole || choice.end->reason != FinishReason::error;
  }
  if (!some_whole) return end(number, stream, error_reply(Error{ends[0].code, "every choice failed", {}}));
  // Text that waits for credit is owed before the end.
  stream.waiting_end = text_waits;
  if (!text_waits) end(number, stream, {ToClient::Kind::done, 0, 0, {}, std::move(ends), {}});
}

void FrontendsModel::grant(std::uint32_t number, std::uint32_t credit) {
  const auto found = streams_.find(number);
  if (found == streams_.end() || found->second.ended) return;
  found->second.credit += credit;
  conclude(number, found->second);
}

void FrontendsModel::cancel(std::uint32_t number, const Error& error) {
  const auto found = streams_.find(number);
  if (found == streams_.end() || found->second.ended) return;
  Stream& stream = found->second;
  cancel_open(stream, error);
  if (error.code == ErrorCode::slow_reader || stream.waiting_end) end(number, stream, error_reply(error));
}

void FrontendsModel::cancel_open(const Stream& stream, const Error& error) {
  for (std::uint32_t choice = 0; choice < stream.choices.size(); ++choice)
    if (!stream.choices[choice].end) links_.cancel(RequestId{stream.id.value + choice}, error);
}

void FrontendsModel::end(std::uint32_t number, Stream& stream, ToClient last) {
  if (std::exchange(stream.ended, true)) return;
  stream.last = std::move(last);
  say(number, stream, stream.last);
}

void FrontendsModel::core_died() {
  owners_.clear();
  next_request_ = 1;
  // Its client, which has no `accepted`, submits it again.
  std::erase_if(streams_, [](const auto& entry) { return !entry.second.accepted; });
}

// In the order of acceptance.
void FrontendsModel::restore() {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> left;
  for (const auto& [number, stream] : streams_)
    if (!stream.ended) left.emplace_back(stream.order, number);
  std::sort(left.begin(), left.end());
  for (const auto& [order, number] : left) {
    Stream& stream = streams_[number];
    stream.attached = false;
    ++restored_;
    if (plant_ == Plant::resubmission_lost && stage_.dice.one_in(4)) continue;
    resubmit(number, stream);
    stage_.time.after(come_back_us, [this, n = number, id = stream.id] {
      const auto found = streams_.find(n);
      if (found != streams_.end() && found->second.id == id && !found->second.attached)
        cancel(n, Error{ErrorCode::cancelled, "the client did not come back", {}});
    });
  }
}

void FrontendsModel::resubmit(std::uint32_t number, Stream& stream) {
  stream.id = RequestId{next_request_};
  next_request_ += stream.choices.size();
  stream.stalled_since = 0;
  for (std::uint32_t which = 0; which < stream.choices.size(); ++which) {
    const Choice& choice = stream.choices[which];
    if (choice.end) continue;
    Submitted submitted = stream.request.submitted;
    submitted.request = RequestId{stream.id.value + which};
    submitted.sampling.choice += which;
    submitted.choices = 1;
    submitted.drawn = choice.tokens;
    if (submitted.constrained) submitted.draws_ready = static_cast<std::uint32_t>(choice.tokens.size()) + 1;
    if (plant_ == Plant::resubmission_untold && !submitted.drawn.empty()) submitted.drawn.pop_back();
    owners_[submitted.request] = {number, which};
    const Timeline::Time now = stage_.time.now();
    // One that has passed meanwhile still ends by the scheduler's clock, as any other.
    const std::uint64_t timeout_ms = stream.deadline == 0 ? 0 : stream.deadline > now ? (stream.deadline - now) / 1000 + 1 : 1;
    links_.resubmit(submitted, timeout_ms);
  }
  conclude(number, stream);
}

bool FrontendsModel::idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.second.ended; });
}

}  // namespace althing::tests
