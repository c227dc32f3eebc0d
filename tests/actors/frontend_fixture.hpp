// One stream's frontend between a pretend scheduler and a pretend gateway, under a virtual clock.
#pragma once

#include <map>
#include <set>
#include "actors/frontend_actor.hpp"

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {

namespace wire = protocol::wire;
using std::chrono::milliseconds;

// Stands where the scheduler stands and keeps what it is asked.
struct Asked {
  std::vector<Submitted> submitted;
  std::vector<CancelRequest> cancelled;
  std::vector<StopRequest> stopped{};
  std::vector<AllowDraws> allowed{};
  std::vector<std::shared_ptr<const std::string>> masks{};  // that came with submits
};

inline caf::behavior pretend_scheduler(caf::event_based_actor*, std::shared_ptr<Asked> asked) {
  return {
      [=](const SubmitRequest& request) {
        asked->submitted.push_back(request.submitted);
        asked->masks.push_back(request.mask);
      },
      [=](const AllowDraws& allowed) { asked->allowed.push_back(allowed); },
      [=](const CancelRequest& request) { asked->cancelled.push_back(request); },
      [=](const StopRequest& request) { asked->stopped.push_back(request); },
  };
}

class FrontendActorTest : public testing::Test {
 protected:
  FrontendActorTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    auto tokenizer = protocol::Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    shared_->format = *protocol::harmony::Format::of(*tokenizer);
    shared_->stop_tokens = shared_->format->stop_tokens({});
    shared_->metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    shared_->linger = milliseconds(1000);
    scheduler_ = system_.spawn(pretend_scheduler, asked_);
    shared_->scheduler = scheduler_;
    gateway_ = system_.spawn(recorder, heard_);
  }
  ~FrontendActorTest() override {
    for (const caf::actor& actor : {frontend_, scheduler_, gateway_})
      if (actor) caf::anon_send_exit(actor, caf::exit_reason::kill);
    coordinator_.run();
  }

  void settle() {
    while (coordinator_.try_run_once()) {
    }
  }
  void pass(milliseconds time) {
    coordinator_.advance_time(time);
    settle();
  }
  template <class Message>
  void say(Message message) {
    caf::anon_send(frontend_, std::move(message));
    settle();
  }
  void start(std::uint32_t credit = 0, bool return_tokens = true, std::uint32_t choices = 1, std::uint32_t trace_top_m = 0,
             const wire::Sampling& sampling = {}, const std::optional<wire::Grammar>& grammar = std::nullopt) {
    wire::Submit submit;
    submit.grammar = grammar;
    submit.sampling = sampling;
    submit.request_id = "r";
    submit.messages = {{protocol::harmony::Role::user, {}, {}, {}, {}, {protocol::harmony::TextContent{"hello"}}}};
    submit.credit = credit;
    submit.return_tokens = return_tokens;
    submit.sampling.n = choices;
    submit.trace_top_m = trace_top_m;
    frontend_ = system_.spawn(frontend_actor, std::shared_ptr<const FrontendShared>(shared_),
                              FrontendStart{RequestId{1}, "client", std::move(submit), gateway_, std::chrono::steady_clock::now()});
    settle();
  }
  void draw(std::string_view text, std::uint32_t choice = 0) {
    const auto tokens = shared_->format.tokenizer()->encode_with_special(text);
    std::vector<TokenLogprobs> logprobs;
    for (std::size_t i = 0; tells_logprobs_ && i < tokens.size(); ++i) logprobs.push_back(logprobs_of(tokens[i], drawn_[choice] + i));
    say(TokensDrawn{RequestId{1 + choice}, drawn_[choice], tokens, preemptions_, logprobs});
    drawn_[choice] += static_cast<std::uint32_t>(tokens.size());
  }
  void finish(std::uint32_t choice = 0, FinishReason reason = FinishReason::stop, Error error = {}) {
    say(Finished{RequestId{1 + choice}, reason, {3, drawn_[choice], choice}, std::move(error)});
  }

  // Of the token's place, so that one that came to another would be found.
  static TokenLogprobs logprobs_of(TokenId token, std::size_t index) {
    return {token, -0.5F - static_cast<float>(index), {{token, -0.25F}, {token + 1, -1.5F}}};
  }

  std::vector<wire::Delta> deltas() const {
    std::vector<wire::Delta> found;
    for (const auto& message : heard_->to_client)
      if (const auto* delta = std::get_if<wire::Delta>(&message)) found.push_back(*delta);
    return found;
  }
  std::string text(std::uint32_t choice = 0) const {
    std::string all;
    for (const wire::Delta& delta : deltas())
      for (const wire::DeltaEvent& event : delta.events)
        if (const auto* piece = std::get_if<wire::Text>(&event); piece != nullptr && delta.choice == choice) all += piece->text;
    return all;
  }
  int ends() const {
    int count = 0;
    for (const auto& message : heard_->to_client)
      count += std::holds_alternative<wire::Done>(message) || std::holds_alternative<wire::ErrorReply>(message);
    return count;
  }
  ErrorCode error_code() const {
    const auto* error = std::get_if<wire::ErrorReply>(&heard_->to_client.back());
    return error == nullptr ? ErrorCode::internal : error->error.code;
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  std::shared_ptr<FrontendShared> shared_ = std::make_shared<FrontendShared>();
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  caf::actor scheduler_, gateway_, frontend_;
  std::map<std::uint32_t, std::uint32_t> drawn_;  // by choice
  bool tells_logprobs_ = false;
  std::uint32_t preemptions_ = 0;
};

}  // namespace althing::actors::tests
