// The frontend of one stream: see the header.
#include "actors/frontend_actor.hpp"

#include <algorithm>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"
#include "actors/rank_stamps.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

// Whoever grants more has simply lifted the limit.
constexpr std::uint64_t credit_max = std::uint64_t{1} << 32;

// NaN is a choice's own failure; any other is the stream's, since deadline, cancellation and the server's troubles concern all choices alike.
bool fails_stream(const std::optional<LoggedEnd>& end) { return end && end->error && end->error->code != ErrorCode::nonfinite; }

bool is_whole(FinishReason reason) { return reason == FinishReason::stop || reason == FinishReason::length; }

LoggedEnd logged(const Finished& finished) {
  return {finished.reason, finished.usage, is_whole(finished.reason) ? std::nullopt : std::optional<Error>(finished.error)};
}

LoggedEnd logged(const wire::ServerMessage& last) {
  if (const auto* done = std::get_if<wire::Done>(&last)) return {done->reason, done->usage, {}};
  return {FinishReason::error, {}, std::get<wire::ErrorReply>(last).error};
}

// The message that ends a stream whose choices ended so. REQUIRES: each of them has ended, or `failure` is set.
wire::ServerMessage last_message(const std::string& request_id, const std::vector<std::optional<LoggedEnd>>& choices,
                                 const std::optional<Error>& failure, bool layout_changed, std::uint32_t reasoning_tokens) {
  if (failure) return wire::ErrorReply{request_id, 0, *failure};
  if (std::all_of(choices.begin(), choices.end(), [](const auto& end) { return end->error.has_value(); }))
    return wire::ErrorReply{request_id, 0, *choices[0]->error};
  wire::Done done{
      request_id, 0, FinishReason::stop, {choices[0]->usage.prompt_tokens, 0, 0, choices[0]->usage.cached_tokens, choices[0]->usage.miss}, {}};
  // It would say what others have sent.
  if (done.usage.miss == PrefixMiss::tenant) done.usage.miss = PrefixMiss::cold;
  for (const auto& end : choices) {
    done.reason = std::max(done.reason, end->reason);
    done.usage.completion_tokens += end->usage.completion_tokens;
    done.usage.preemptions += end->usage.preemptions;
    if (choices.size() > 1) done.choices.push_back({end->reason, end->usage.completion_tokens, end->usage.preemptions, end->error, end->stop_string});
  }
  if (choices.size() == 1) done.stop_string = choices[0]->stop_string;
  done.layout_changed = layout_changed;
  done.reasoning_tokens = reasoning_tokens;
  return done;
}

}  // namespace

void replay(const std::vector<std::uint32_t>& story, wire::DeltaLog& deltas, bool traced, const std::vector<TokenLogprobs>& logprobs) {
  std::uint32_t choice = 0;
  auto told = logprobs.begin();
  for (const std::uint32_t word : story) {
    if (word < token_log::word_marks)
      deltas.push(word, choice, told == logprobs.end() ? std::nullopt : std::optional(*told++));
    else if (word == token_log::word_closed)
      deltas.close(choice);
    else if (word != token_log::word_cut)
      choice = token_log::is_tp(word) ? choice : word - token_log::word_choice;
    else if (traced || deltas.pending(choice))
      deltas.cut(choice);
  }
}

ResubmitRequest resubmission_of(const token_log::Read& left, RequestId request) {
  std::vector<std::vector<TokenId>> drawn(left.submit.choices);
  std::uint32_t choice = 0;
  for (const std::uint32_t word : left.story) {
    if (word < token_log::word_marks)
      drawn[choice].push_back(word);
    else if (token_log::is_choice(word, left.submit.choices))
      choice = word - token_log::word_choice;
  }
  ResubmitRequest request_left;
  if (left.ended || std::any_of(left.closed.begin(), left.closed.end(), fails_stream)) return request_left;
  for (choice = 0; choice < left.submit.choices; ++choice) {
    if (const auto& end = left.closed[choice]) {
      if (end->reason >= request_left.reason) request_left.reason = end->reason;
      if (end->error) request_left.code = end->error->code;
      continue;
    }
    SubmitRequest& again = request_left.choices.emplace_back();
    again.submitted.request = RequestId{request.value + choice};
    again.submitted.prompt = left.submit.prompt;
    again.submitted.sampling = left.submit.sampling;
    again.submitted.sampling.choice += choice;
    again.submitted.boundaries = left.submit.boundaries;
    again.submitted.trace_top_m = left.submit.trace_top_m;
    again.submitted.priority = left.submit.priority;
    again.submitted.constrained = left.submit.grammar.has_value();
    again.submitted.drawn = std::move(drawn[choice]);
    again.label = label_of(left.submit.request_id, left.submit.tenant);
    if (left.submit.deadline_ns == 0) continue;
    const std::uint64_t now = monotonic_ns();
    // One that has passed meanwhile still ends by the scheduler's clock, as any other.
    again.timeout_ms = left.submit.deadline_ns > now ? (left.submit.deadline_ns - now) / 1'000'000 + 1 : 1;
  }
  return request_left;
}

void Frontend::start(caf::event_based_actor* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start) {
  self_ = self;
  shared_ = std::move(shared);
  start_ = std::move(start);
  self_->monitor(shared_->scheduler);
  if (start_.left) return restore();
  counted_ = start_.submit.credit > 0;
  credit_ = start_.submit.credit;
  const bool raw = !start_.submit.prompt_tokens.empty();
  choices_.resize(start_.submit.sampling.n);
  last_token_.resize(choices_.size());
  client_stops_ = static_cast<std::uint32_t>(start_.submit.sampling.stop.size());
  deltas_.emplace(start_.submit.request_id, raw ? std::nullopt : std::optional(shared_->format), start_.submit.return_tokens,
                  start_.submit.sampling.n, wire::Stops{stop_strings(), shared_->format.tokenizer()});
  logprobs_ = start_.submit.sampling.logprobs.has_value();
  traced_ = start_.submit.trace_top_m > 0;
  auto submitted = render();
  SubmitRequest request;
  if (submitted && start_.submit.grammar)
    if (auto status = constrain_submit(*submitted, request.mask); !status) submitted = status.error();
  if (submitted)
    if (auto status = open_log(*submitted); !status) submitted = status.error();
  if (!submitted) {
    shared_->metrics->request_rejected(submitted.error().code);
    end(wire::ErrorReply{start_.submit.request_id, 0, submitted.error()}, std::chrono::milliseconds(0));
    return;
  }
  prompt_tokens_ = static_cast<std::uint32_t>(submitted->prompt.size());
  seed_ = submitted->sampling.seed;
  log(LogLevel::info, "request",
      {{"request", start_.request.value},
       {"id", start_.submit.request_id},
       {"prompt_tokens", prompt_tokens_},
       {"seed", seed_},
       {"choices", choices_.size()}});
  request.submitted = std::move(*submitted);
  request.timeout_ms = start_.submit.timeout_ms;
  request.frontend = caf::actor_cast<caf::actor>(self_);
  request.label = label_of(start_.submit.request_id, start_.submit.tenant);
  self_->send(shared_->scheduler, std::move(request));
}

// The same messages with the same numbers as in the core that died; then whatever it would have done next.
void Frontend::restore() {
  const token_log::Read& read = start_.left->read;
  stream_log_ = std::move(start_.left->log);
  client_stops_ = read.submit.client_stops;
  deltas_.emplace(read.submit.request_id, read.submit.raw ? std::nullopt : std::optional(shared_->format), read.submit.return_tokens,
                  read.submit.choices, wire::Stops{read.submit.stop, shared_->format.tokenizer()});
  logprobs_ = read.submit.sampling.logprobs;
  traced_ = read.submit.trace_top_m > 0;
  choices_ = read.closed;
  prompt_tokens_ = static_cast<std::uint32_t>(read.submit.prompt.size());
  seed_ = read.submit.sampling.seed;
  accepted_ = wire::Accepted{read.submit.request_id, prompt_tokens_, seed_};
  replay(read.story, *deltas_, traced_, read.logprobs);
  restore_grammar(read);
  for (const std::uint32_t word : read.story)
    if (token_log::is_tp(word)) note_tp(word - token_log::word_tp);
  counted_ = read.submit.credit > 0;
  const std::uint64_t used = deltas_->messages().size();
  credit_ = read.credit > used ? std::min(read.credit - used, credit_max) : 0;
  last_token_.assign(choices_.size(), Clock::now());
  first_token_seen_ = std::any_of(read.story.begin(), read.story.end(), [](std::uint32_t word) { return word < token_log::word_marks; });
  if (read.ended) {
    // Its client may have been cut off by the death, so the time in which it can be resumed begins again.
    ended_ = true;
    // A stream says how it ended after its choices do, so none is missing; but this is memory that a dead process wrote.
    for (auto& end : choices_)
      if (!end) end = read.ended;
    deltas_->end(last_message(read.submit.request_id, choices_, read.ended->error, layout_changed_, deltas_->reasoning_tokens()));
    self_->delayed_send(self_, shared_->linger, linger_over_v);
  } else {
    conclude();
  }
  start_.left.reset();
}

void Frontend::accepted(RequestId request) {
  if (waits_to_allow_ && !ended_) allow(choice_of(request));
  if (ended_ || accepted_) return;  // ended meanwhile, or accepted by the core that died, and told to the client
  stream_log_.accepted();
  accepted_ = wire::Accepted{start_.submit.request_id, prompt_tokens_, seed_};
  to_client(*accepted_);
}

// What was never accepted can be tried again at once under the same id, so it does not linger. What a dead core had accepted does: its deadline may
// have passed meanwhile, and its client is not back yet.
void Frontend::rejected(Rejected& rejected) {
  if (ended_) return;
  const bool known = accepted_.has_value();
  if (known) cancel_open(rejected.error);
  end(wire::ErrorReply{start_.submit.request_id, 0, std::move(rejected.error)}, known ? shared_->linger : std::chrono::milliseconds(0));
}

// Whether that is news to the log: which degree was the first, and that there was another.
bool Frontend::note_tp(std::uint32_t tp) {
  const bool first = tp_ == 0;
  if (first) tp_ = tp;
  return first || (tp != tp_ && !std::exchange(layout_changed_, true));
}

void Frontend::drawn_under(std::uint32_t tp) {
  if (!ended_ && note_tp(tp)) stream_log_.drawn_under(tp);
}

void Frontend::drawn(const TokensDrawn& drawn) {
  const std::uint32_t choice = choice_of(drawn.request);
  if (ended_ || choices_[choice]) return;  // or the text ended it, and the core had not heard of that
  const auto now = Clock::now();
  if (shared_->recovery) shared_->recovery->first_token();
  if (drawn.first > 0)
    shared_->metrics->inter_token(std::chrono::duration<double>(now - last_token_[choice]).count());
  else if (!std::exchange(first_token_seen_, true))
    shared_->metrics->first_token(std::chrono::duration<double>(now - start_.received).count());
  last_token_[choice] = now;
  if (logprobs_ && drawn.logprobs.size() != drawn.tokens.size()) {
    const Error error{ErrorCode::internal, "the ranks did not tell how likely the tokens were that they drew; please report this", "logprobs"};
    cancel_open(error);
    return end(wire::ErrorReply{start_.submit.request_id, 0, error});
  }
  std::size_t taken = 0;
  bool stopped = false;
  for (; taken < drawn.tokens.size() && !stopped; ++taken) {
    deltas_->push(drawn.tokens[taken], choice, logprobs_ ? std::optional(drawn.logprobs[taken]) : std::nullopt);
    stopped = push_constrained(choice, drawn.tokens[taken]) || deltas_->stopped(choice);
  }
  stream_log_.choose(choice);
  stream_log_.tokens(std::span(drawn.tokens).first(taken), std::span(drawn.logprobs).first(logprobs_ ? taken : 0), stopped);
  if (stopped)
    return stop(choice, {prompt_tokens_, drawn.first + static_cast<std::uint32_t>(taken), drawn.preemptions, drawn.cached_tokens, drawn.miss});
  if (!constrained_.empty()) allow(choice);
  if (ended_) return;
  if (const std::size_t bytes = deltas_->pending_bytes(); bytes > shared_->limits.session_buffer_bytes_max) {
    cancel(Error{ErrorCode::slow_reader, "the client gave no credit and " + std::to_string(bytes) + " bytes wait; grant credit or read faster", ""});
    return;
  }
  // Deltas have a distance. Tokens that are further apart than that have nothing to wait for, and need no timer.
  const auto since_cut = self_->clock().now() - last_cut_;
  const auto interval = std::chrono::milliseconds(shared_->limits.delta_interval_ms);
  if (!deltas_->was_cut(choice) || deltas_->pending_count(choice) >= shared_->limits.delta_tokens_max || since_cut >= interval) {
    flush();
  } else if (!flush_scheduled_) {
    flush_scheduled_ = true;
    self_->delayed_send(self_, std::chrono::duration_cast<std::chrono::nanoseconds>(interval - since_cut), flush_beat_v);
  }
}

// A stop string stands in what the choice says, or what its grammar wants is whole. For its client it ends here; what is being computed for it still
// counts in its trace only.
void Frontend::stop(std::uint32_t choice, const Usage& usage) {
  auto which = deltas_->stopped(choice);
  if (which && *which >= client_stops_) which.reset();  // the chat format's own
  choices_[choice] = LoggedEnd{FinishReason::stop, usage, {}, which};
  stream_log_.closed(*choices_[choice]);
  deltas_->close(choice);
  if (traced_) ++traces_due_;
  self_->send(shared_->scheduler, StopRequest{RequestId{start_.request.value + choice}, usage.completion_tokens});
  conclude();
}

void Frontend::routed(Routed& routed) {
  if (ended_ || trace_over_) return;
  auto routing = read_routing({routed.request.value, routed.start, routed.count, routed.body});
  if (routing) traced_bytes_ += bytes_of(*routing);
  trace_over_ = !routing || traced_bytes_ > shared_->limits.trace_bytes_max;
  if (!routing) return cancel(Error{ErrorCode::internal, "a rank's report of where tokens were routed cannot be read; please report this", ""});
  if (trace_over_)
    return cancel(Error{ErrorCode::too_large,
                        "the trace of this request is over " + std::to_string(shared_->limits.trace_bytes_max) +
                            " bytes; ask for fewer tokens, or with a smaller trace_top_m",
                        "trace_top_m"});
  routing->step = routed.step;
  routing->epoch = routed.epoch;
  routing->recomputed = routed.recomputed;
  const std::uint32_t choice = choice_of(routed.request);
  deltas_->push(std::move(*routing), choice);
  if (deltas_->pending(choice)) flush();
}

void Frontend::flush_due() {
  flush_scheduled_ = false;
  if (!ended_) flush();
}

// Without credit for all, choices take turns: the one that had to wait is the first to go on.
void Frontend::flush() {
  const auto count = static_cast<std::uint32_t>(choices_.size());
  for (std::uint32_t i = 0, first = next_cut_; i < count;) {
    const std::uint32_t choice = (first + i) % count;
    // What a delta has no room for goes with the next one at once.
    if (!deltas_->pending(choice)) {
      ++i;
      continue;
    }
    if (!may_send()) {
      next_cut_ = choice;
      if (stalled_since_ != Clock::time_point{}) return;
      stalled_since_ = Clock::now();
      self_->delayed_send(self_, std::chrono::milliseconds(shared_->limits.credit_stall_ms_max), tick_beat_v);
      return;
    }
    if (counted_) --credit_;
    stalled_since_ = {};
    stream_log_.choose(choice);
    stream_log_.cut();
    last_cut_ = self_->clock().now();
    to_client(deltas_->cut(choice));
  }
}

void Frontend::beat() {
  if (ended_ || stalled_since_ == Clock::time_point{}) return;
  const auto limit = std::chrono::milliseconds(shared_->limits.credit_stall_ms_max);
  const auto stalled = Clock::now() - stalled_since_;
  if (stalled < limit) {
    self_->delayed_send(self_, std::chrono::duration_cast<std::chrono::milliseconds>(limit - stalled) + std::chrono::milliseconds(1), tick_beat_v);
    return;
  }
  cancel(Error{ErrorCode::slow_reader, "the client gave no credit for " + std::to_string(shared_->limits.credit_stall_ms_max) + " ms", ""});
}

void Frontend::finished(const Finished& finished) {
  const std::uint32_t choice = choice_of(finished.request);
  if (ended_) return;
  if (choices_[choice]) {
    if (traces_due_ > 0) --traces_due_;
    return conclude();
  }
  choices_[choice] = logged(finished);
  stream_log_.choose(choice);
  stream_log_.closed(*choices_[choice]);
  deltas_->close(choice);
  conclude();
}

// What is due after one choice has ended, or after a core has: perhaps the end of the stream.
void Frontend::conclude() {
  flush();
  const auto failed = std::find_if(choices_.begin(), choices_.end(), fails_stream);
  if (failed != choices_.end()) {
    cancel_open(*(*failed)->error);
    return end(wire::ErrorReply{start_.submit.request_id, 0, *(*failed)->error});
  }
  if (traces_due_ > 0 || !std::all_of(choices_.begin(), choices_.end(), [](const auto& end) { return end.has_value(); })) return;
  const auto repairs = deltas_->repairs();
  std::string mended;
  for (std::size_t kind = 0; kind < repairs.size(); ++kind) {
    if (repairs[kind] == 0) continue;
    shared_->metrics->repaired(kind, repairs[kind]);
    mended += (mended.empty() ? "" : ",") + std::string(name_of(static_cast<protocol::harmony::Repair>(kind))) + ":" + std::to_string(repairs[kind]);
  }
  if (!mended.empty()) log(LogLevel::warning, "harmony_repaired", {{"request", start_.request.value}, {"repairs", mended}});
  wire::ServerMessage last = last_message(start_.submit.request_id, choices_, std::nullopt, layout_changed_, deltas_->reasoning_tokens());
  // Text that waits for credit is owed before the end, except before an error.
  waiting_end_ = std::holds_alternative<wire::Done>(last) && text_waits();
  if (!waiting_end_) end(std::move(last));
}

bool Frontend::text_waits() const {
  for (std::uint32_t choice = 0; choice < choices_.size(); ++choice)
    if (deltas_->pending(choice)) return true;
  return false;
}

void Frontend::grant(std::uint32_t credit) {
  if (!counted_) return;
  credit_ = std::min<std::uint64_t>(credit_ + credit, credit_max);
  if (ended_) return;
  stream_log_.credit(credit_ + deltas_->messages().size());
  conclude();
}

void Frontend::resume(const ClientResume& resume) {
  attachment_ = resume.attachment;
  if (resume.last_sequence == 0 && accepted_) to_client(*accepted_);
  // Whoever has everything, or claims more, hears the end again.
  const std::size_t size = deltas_->messages().size();
  const auto last = static_cast<std::size_t>(std::min<std::uint64_t>(resume.last_sequence, size));
  send_from(ended_ && last == size ? last - 1 : last);
}

void Frontend::cancel(const Error& error) {
  if (ended_) return;
  cancel_open(error);
  // A cancelled stream owes its reader no more text, only the end.
  if (error.code == ErrorCode::slow_reader || waiting_end_) end(wire::ErrorReply{start_.submit.request_id, 0, error});
}

void Frontend::cancel_open(const Error& error) {
  for (std::uint32_t choice = 0; choice < choices_.size(); ++choice)
    if (!choices_[choice]) self_->send(shared_->scheduler, CancelRequest{RequestId{start_.request.value + choice}, error});
}

void Frontend::scheduler_down() {
  end(wire::ErrorReply{start_.submit.request_id, 0, Error{ErrorCode::internal, "the scheduler ended; submit the request again", ""}});
  self_->quit();
}

void Frontend::end(wire::ServerMessage last) { end(std::move(last), shared_->linger); }

void Frontend::end(wire::ServerMessage last, std::chrono::milliseconds linger) {
  if (ended_) return;
  ended_ = true;
  stream_log_.ended(logged(last));
  to_client(deltas_->end(std::move(last)));
  self_->delayed_send(self_, linger, linger_over_v);
}

void Frontend::close() {
  self_->send(start_.gateway, StreamClosed{start_.client_id, start_.submit.request_id, attachment_, caf::actor_cast<caf::actor>(self_)});
  self_->quit();
}

void Frontend::send_from(std::size_t from) {
  for (std::size_t i = from; i < deltas_->messages().size(); ++i) to_client(deltas_->messages()[i]);
}

void Frontend::to_client(wire::ServerMessage message) { self_->send(start_.gateway, ToClient{start_.client_id, attachment_, std::move(message)}); }

caf::behavior frontend_actor(caf::stateful_actor<Frontend>* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start) {
  guard(self);
  Frontend& frontend = self->state;
  self->set_down_handler([&frontend](caf::down_msg&) { frontend.scheduler_down(); });
  frontend.start(self, std::move(shared), std::move(start));
  return {
      [&frontend](const Accepted& accepted) { frontend.accepted(accepted.request); },
      [&frontend](Rejected& rejected) { frontend.rejected(rejected); },
      [&frontend](const DrawnUnder& under) { frontend.drawn_under(under.tp); },
      [&frontend](const TokensDrawn& drawn) { frontend.drawn(drawn); },
      [&frontend](Routed& routed) { frontend.routed(routed); },
      [&frontend](const Finished& finished) { frontend.finished(finished); },
      [&frontend](const ClientGrant& grant) { frontend.grant(grant.credit); },
      [&frontend](const ClientResume& resume) { frontend.resume(resume); },
      [&frontend](const ClientCancel& cancel) { frontend.cancel(cancel.error); },
      [&frontend](flush_beat) { frontend.flush_due(); },
      [&frontend](tick_beat) { frontend.beat(); },
      [&frontend](linger_over) { frontend.close(); },
  };
}

}  // namespace althing::actors
