// The frontend of one stream: see the header.
#include "actors/frontend_actor.hpp"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "actors/guard.hpp"
#include "actors/logging.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/wire/conversation.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace harmony = protocol::harmony;
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[16] = "";
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

std::size_t bytes_of(const std::vector<wire::DeltaEvent>& events) {
  std::size_t bytes = 0;
  for (const wire::DeltaEvent& event : events)
    if (const auto* text = std::get_if<wire::Text>(&event)) bytes += text->text.size();
  return bytes;
}

}  // namespace

void Frontend::start(caf::event_based_actor* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start) {
  self_ = self;
  shared_ = std::move(shared);
  start_ = std::move(start);
  counted_ = start_.submit.credit > 0;
  credit_ = start_.submit.credit;
  self_->monitor(shared_->scheduler);
  auto submitted = render();
  if (!submitted) {
    shared_->metrics->request_rejected(submitted.error().code);
    end(wire::ErrorReply{start_.submit.request_id, 0, submitted.error()}, std::chrono::milliseconds(0));
    return;
  }
  prompt_tokens_ = static_cast<std::uint32_t>(submitted->prompt.size());
  seed_ = submitted->sampling.seed;
  if (start_.submit.prompt_tokens.empty()) deltas_.emplace(shared_->format);
  log(LogLevel::info, "request",
      {{"request", start_.request.value}, {"id", start_.submit.request_id}, {"prompt_tokens", prompt_tokens_}, {"seed", seed_}});
  self_->send(shared_->scheduler, SubmitRequest{std::move(*submitted), start_.submit.timeout_ms, caf::actor_cast<caf::actor>(self_)});
}

Result<Submitted> Frontend::render() {
  Submitted submitted;
  submitted.request = start_.request;
  auto parameters = sampling();
  if (!parameters) return parameters.error();
  submitted.sampling = std::move(*parameters);
  if (!start_.submit.prompt_tokens.empty()) {
    submitted.prompt = start_.submit.prompt_tokens;
    return submitted;
  }
  auto conversation = wire::conversation_of(start_.submit, today());
  if (!conversation) return conversation.error();
  auto rendered = harmony::render_for_completion(shared_->format, *conversation, harmony::Role::assistant, {});
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
  parameters.stop_tokens = shared_->stop_tokens;
  parameters.ignore_stop = wanted.ignore_stop;
  return parameters;
}

void Frontend::accepted() {
  accepted_ = wire::Accepted{start_.submit.request_id, prompt_tokens_, seed_};
  to_client(*accepted_);
}

// What was never accepted can be tried again at once under the same id, so it does not linger.
void Frontend::rejected(Rejected& rejected) {
  end(wire::ErrorReply{start_.submit.request_id, 0, std::move(rejected.error)}, std::chrono::milliseconds(0));
}

void Frontend::drawn(const TokensDrawn& drawn) {
  if (ended_) return;
  const auto now = Clock::now();
  if (drawn.first == 0)
    shared_->metrics->first_token(std::chrono::duration<double>(now - start_.received).count());
  else
    shared_->metrics->inter_token(std::chrono::duration<double>(now - last_token_).count());
  last_token_ = now;
  for (const TokenId token : drawn.tokens) {
    if (deltas_) deltas_->push(token, pending_events_);
    if (!deltas_ || start_.submit.return_tokens) pending_tokens_.push_back(token);
    ++pending_count_;
  }
  pending_bytes_ = bytes_of(pending_events_);
  if (pending_bytes_ + pending_tokens_.size() * sizeof(TokenId) > shared_->limits.session_buffer_bytes_max) {
    cancel(Error{ErrorCode::slow_reader,
                 "the client gave no credit and " + std::to_string(pending_bytes_) + " bytes wait; grant credit or read faster", ""});
    return;
  }
  const bool first = log_.empty();
  if (first || pending_count_ >= shared_->limits.delta_tokens_max) {
    flush();
  } else if (!flush_scheduled_) {
    flush_scheduled_ = true;
    self_->delayed_send(self_, std::chrono::milliseconds(shared_->limits.delta_interval_ms), flush_beat_v);
  }
}

void Frontend::flush_due() {
  flush_scheduled_ = false;
  if (!ended_) flush();
}

void Frontend::flush() {
  if (pending_events_.empty() && pending_tokens_.empty()) return;
  if (!may_send()) {
    if (stalled_since_ == Clock::time_point{}) {
      stalled_since_ = Clock::now();
      self_->delayed_send(self_, std::chrono::milliseconds(shared_->limits.credit_stall_ms_max), tick_beat_v);
    }
    return;
  }
  if (counted_) --credit_;
  stalled_since_ = {};
  wire::Delta delta{start_.submit.request_id, log_.size() + 1, std::exchange(pending_events_, {}), std::exchange(pending_tokens_, {})};
  pending_count_ = 0;
  pending_bytes_ = 0;
  log_.emplace_back(std::move(delta));
  to_client(log_.back());
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
  if (ended_) return;
  if (deltas_) {
    deltas_->finish(pending_events_);
    if (deltas_->repairs() > 0) log(LogLevel::warning, "harmony_repaired", {{"request", start_.request.value}, {"repairs", deltas_->repairs()}});
  }
  flush();
  const bool whole = finished.reason == FinishReason::stop || finished.reason == FinishReason::length;
  if (whole && (!pending_events_.empty() || !pending_tokens_.empty())) {
    // Text still waits for credit; the end comes after it. An error does not wait: its reader is owed no more text.
    waiting_end_ = finished;
    return;
  }
  const std::string& id = start_.submit.request_id;
  if (whole)
    end(wire::Done{id, 0, finished.reason, finished.usage});
  else
    end(wire::ErrorReply{id, 0, finished.error});
}

void Frontend::grant(std::uint32_t credit) {
  if (!counted_) return;
  // Saturating: a client that grants without end has simply lifted the limit.
  credit_ = std::min<std::uint64_t>(credit_ + credit, std::uint64_t{1} << 32);
  if (ended_) return;
  flush();
  if (waiting_end_) {
    const Finished finished_now = *std::exchange(waiting_end_, std::nullopt);
    finished(finished_now);
  }
}

void Frontend::resume(const ClientResume& resume) {
  attachment_ = resume.attachment;
  if (resume.last_sequence == 0 && accepted_) to_client(*accepted_);
  // Whoever has everything, or claims more, hears the end again.
  const auto last = static_cast<std::size_t>(std::min<std::uint64_t>(resume.last_sequence, log_.size()));
  send_log(ended_ && last == log_.size() ? last - 1 : last);
}

void Frontend::cancel(const Error& error) {
  if (ended_) return;
  self_->send(shared_->scheduler, CancelRequest{start_.request, error});
  // A cancelled stream owes its reader no more text, only the end.
  if (error.code == ErrorCode::slow_reader || waiting_end_) end(wire::ErrorReply{start_.submit.request_id, 0, error});
}

void Frontend::scheduler_down() {
  end(wire::ErrorReply{start_.submit.request_id, 0, Error{ErrorCode::internal, "the scheduler ended; submit the request again", ""}});
  self_->quit();
}

void Frontend::end(wire::ServerMessage last) { end(std::move(last), shared_->linger); }

void Frontend::end(wire::ServerMessage last, std::chrono::milliseconds linger) {
  if (ended_) return;
  ended_ = true;
  const std::uint64_t sequence = log_.size() + 1;
  std::visit(
      [&](auto& message) {
        if constexpr (requires { message.sequence; }) message.sequence = sequence;
      },
      last);
  log_.push_back(std::move(last));
  to_client(log_.back());
  self_->delayed_send(self_, linger, linger_over_v);
}

void Frontend::close() {
  self_->send(start_.gateway, StreamClosed{start_.client_id, start_.submit.request_id, attachment_, caf::actor_cast<caf::actor>(self_)});
  self_->quit();
}

void Frontend::send_log(std::size_t from) {
  for (std::size_t i = from; i < log_.size(); ++i) to_client(log_[i]);
}

void Frontend::to_client(wire::ServerMessage message) { self_->send(start_.gateway, ToClient{start_.client_id, attachment_, std::move(message)}); }

caf::behavior frontend_actor(caf::stateful_actor<Frontend>* self, std::shared_ptr<const FrontendShared> shared, FrontendStart start) {
  guard(self);
  Frontend& frontend = self->state;
  self->set_down_handler([&frontend](caf::down_msg&) { frontend.scheduler_down(); });
  frontend.start(self, std::move(shared), std::move(start));
  return {
      [&frontend](const Accepted&) { frontend.accepted(); },
      [&frontend](Rejected& rejected) { frontend.rejected(rejected); },
      [&frontend](const TokensDrawn& drawn) { frontend.drawn(drawn); },
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
