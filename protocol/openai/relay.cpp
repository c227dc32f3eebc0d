// See the header.
#include "protocol/openai/relay.hpp"

#include <algorithm>
#include <utility>

namespace althing::protocol::openai {
namespace {

// A line that begins with a colon is a comment to whoever reads server-sent events.
constexpr std::string_view keep_alive_comment = ": keep-alive\n\n";
constexpr std::uint32_t settle_at = Relay::credit / 2;

http::Response stream_head() {
  http::Response head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}};
  return head;
}

}  // namespace

Relay::Relay(RelayHost& host, std::shared_ptr<http::Exchange> exchange, Job job, std::function<void(const TokenCounts&)> on_over)
    : host_(host), exchange_(std::move(exchange)), job_(std::move(job)), on_over_(std::move(on_over)) {}

void Relay::start() {
  // The client holds the relay for as long as the stream lives; the exchange must not, since the relay holds it.
  exchange_->on_drained = [self = weak_from_this()] {
    if (const auto relay = self.lock()) relay->drained();
  };
  exchange_->on_gone = [self = weak_from_this()] {
    if (const auto relay = self.lock()) relay->gone();
  };
  choices_ = job_.submit.sampling.n;
  std::vector<wire::Submit> submits = std::move(job_.others);
  submits.insert(submits.begin(), std::move(job_.submit));
  for (wire::Submit& each : submits)
    if (auto status = submit(std::move(each)); !status) return fail(status.error());
}

Status Relay::submit(wire::Submit submit) {
  submit.credit = credit;
  submit.return_tokens = true;  // so that a request that is broken off is counted too
  const std::size_t part = parts_.size();
  auto id = host_.client.submit(
      std::move(submit),
      [self = shared_from_this(), part](const StreamEvent& event) {
        if (!self->over_) std::visit([&](const auto& said) { self->on(part, said); }, event);
      },
      Grants::by_caller);
  if (!id) return id.error();
  parts_.push_back({std::move(*id)});
  return Ok{};
}

void Relay::on(std::size_t part, const wire::Accepted& accepted) {
  if (std::exchange(parts_[part].accepted, true)) return;
  counts_.prompt += accepted.prompt_tokens;
  if (!std::all_of(parts_.begin(), parts_.end(), [](const Part& each) { return each.accepted; })) return;
  begun_ = true;
  if (job_.stream) exchange_->start(stream_head());
  spoke_ = std::chrono::steady_clock::now();
  write(job_.answer->begin());
  for (const auto& [of, delta] : std::exchange(early_, {})) tell(of, delta);
}

void Relay::on(std::size_t part, wire::Delta delta) {
  counts_.completion += delta.tokens.size();
  if (std::exchange(first_, false)) host_.observer.first_event(std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count());
  delta.choice += static_cast<std::uint32_t>(part) * choices_;
  ++parts_[part].held;
  if (begun_)
    tell(part, delta);
  else
    early_.emplace_back(part, std::move(delta));
}

void Relay::tell(std::size_t part, const wire::Delta& delta) {
  write(job_.answer->push(delta));
  // What has no words, or goes into a whole answer, waits for nobody.
  if (!job_.stream || !exchange_->has_output()) settle(parts_[part]);
}

void Relay::write(std::string_view words) {
  if (!job_.stream || words.empty()) return;
  exchange_->write(words);
  spoke_ = std::chrono::steady_clock::now();
}

void Relay::keep_alive(std::chrono::steady_clock::time_point now, std::chrono::milliseconds silence) {
  // Before the first word nobody knows yet which status the answer has; and a client that does not read needs no more to read.
  if (over_ || !begun_ || !job_.stream || exchange_->has_output() || now - spoke_ < silence) return;
  exchange_->write(keep_alive_comment);
  spoke_ = now;
}

// Of all parts as of one request.
wire::Done Relay::ends() const {
  if (parts_.size() == 1) return *parts_[0].done;
  wire::Done all;
  for (const Part& part : parts_) {
    const wire::Done& done = *part.done;
    all.usage.prompt_tokens += done.usage.prompt_tokens;
    all.usage.completion_tokens += done.usage.completion_tokens;
    all.usage.preemptions += done.usage.preemptions;
    all.reasoning_tokens += done.reasoning_tokens;
    all.layout_changed = all.layout_changed || done.layout_changed;
    if (done.choices.empty())
      all.choices.push_back({done.reason, done.usage.completion_tokens, done.usage.preemptions, std::nullopt, done.stop_string});
    else
      all.choices.insert(all.choices.end(), done.choices.begin(), done.choices.end());
  }
  return all;
}

void Relay::on(std::size_t part, const wire::Done& done) {
  on(part, wire::Accepted{"", done.usage.prompt_tokens, 0});  // whoever has ended was accepted, whatever became of that message
  parts_[part].done = done;
  if (!begun_ || !std::all_of(parts_.begin(), parts_.end(), [](const Part& each) { return each.done.has_value(); })) return;
  const wire::Done all = ends();
  counts_ = {all.usage.prompt_tokens, all.usage.completion_tokens, all.reasoning_tokens};
  const auto last = job_.answer->end(all);
  if (!last) return fail(last.error());
  if (job_.stream) {
    exchange_->write(*last);
    exchange_->finish();
  } else {
    http::Response whole;
    whole.body = *last;
    exchange_->respond(whole);
  }
  over();
}

void Relay::on(std::size_t part, const Error& error) {
  parts_[part].done.emplace();  // nothing is left to cancel of it
  fail(error);
}

void Relay::fail(const Error& error) {
  cancel_parts();
  const http::ErrorReply reply = http::reply_for(job_.in_terms(error));
  host_.observer.rejected(reply.status == 400 ? Rejection::invalid : Rejection::engine);
  if (exchange_->started()) {
    exchange_->write(job_.answer->fail(reply));
    exchange_->finish();
  } else {
    exchange_->respond(http::to_response(reply));
  }
  over();
}

void Relay::end(const Error& why) {
  if (!over_) fail(why);
}

void Relay::cancel_parts() {
  for (const Part& part : parts_)
    if (!part.done) host_.client.cancel(part.id);
}

void Relay::drained() {
  if (over_) return;
  bool granted = false;
  for (Part& part : parts_) granted = settle(part) || granted;
  if (granted) host_.pump();
}

// Half of the credit at a time: the engine never runs dry while the client reads, and not every delta is answered.
bool Relay::settle(Part& part) {
  if (part.done || part.held < settle_at) return false;
  host_.client.grant(part.id, std::exchange(part.held, 0));
  return true;
}

void Relay::gone() {
  if (over_) return;
  cancel_parts();
  over();
  host_.pump();
}

void Relay::over() {
  over_ = true;
  host_.observer.tokens(counts_);
  if (const auto tell = std::exchange(on_over_, nullptr)) tell(counts_);
}

}  // namespace althing::protocol::openai
