// A stream made again from its log says what it said before, whatever cut it into deltas and wherever its core died: over every Harmony case of the
// golden file, and message by message with the frontend actor.
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/frontend_actor.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/actors/actor_fixture.hpp"
#include "tests/actors/token_log_fixture.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::actors::tests {
namespace {

namespace wire = protocol::wire;
using althing::tests::o200k_format;
using std::chrono::milliseconds;

// Completions as a model writes them, whole and broken: the tokens of all cases that parse some.
std::vector<std::pair<std::string, std::vector<TokenId>>> golden_streams() {
  std::ifstream file(ALTHING_SOURCE_DIR "/tests/data/harmony_cases.json");
  std::vector<std::pair<std::string, std::vector<TokenId>>> streams;
  const auto golden = nlohmann::json::parse(file);
  for (const auto& item : golden.at("cases")) {
    if (!item.at("input").contains("tokens")) continue;
    auto tokens = item.at("input").at("tokens").get<std::vector<TokenId>>();
    // Ids that are in no vocabulary end a request in the scheduler; no frontend ever sees one.
    std::erase_if(tokens, [](TokenId id) { return id >= token_log::word_marks; });
    streams.emplace_back(item.at("name"), std::move(tokens));
  }
  return streams;
}

std::vector<std::string> encoded(const wire::DeltaLog& deltas) {
  std::vector<std::string> lines;
  for (const wire::ServerMessage& message : deltas.messages()) lines.push_back(wire::encode(message, wire::Encoding::json));
  return lines;
}

// What a frontend does, without actors: each token is logged and pushed, and here and there a delta is cut. `cut_of` stands for time and credit.
struct Teller {
  wire::DeltaLog deltas{"r", o200k_format(), true};
  StreamLog log;

  void token(TokenId id, bool cut) {
    log.tokens(std::span(&id, 1));
    deltas.push(id);
    if (cut) this->cut();
  }
  void cut() {
    if (!deltas.pending()) return;
    log.cut();
    deltas.cut();
  }
  void end() {
    log.closed({});
    deltas.close();
    cut();
  }
};

TEST(StreamRebuild, golden_streams_say_the_same_after_a_death_at_any_token) {
  const auto streams = golden_streams();
  ASSERT_GT(streams.size(), 50u);
  std::size_t deaths = 0;
  for (const auto& [name, tokens] : streams) {
    for (const std::uint32_t every : {1u, 3u, 1000u}) {
      const auto cut_of = [&](std::size_t i) { return i % every == every - 1 || i == 0; };
      TokenLogFixture f(std::size_t{64} << 10);
      Teller lone;
      lone.log = f.open(logged_submit("r", 2000));
      lone.log.accepted();
      std::vector<Bytes> images{f.image()};
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        lone.token(tokens[i], cut_of(i));
        images.push_back(f.image());
      }
      lone.end();
      for (std::size_t died = 0; died < images.size(); ++died) {
        const token_log::Contents contents = token_log::read(images[died]);
        ASSERT_EQ(contents.requests.size(), 1u);
        Teller next;
        replay(contents.requests[0].story, next.deltas);
        for (std::size_t i = died; i < tokens.size(); ++i) next.token(tokens[i], cut_of(i));
        next.end();
        ASSERT_EQ(encoded(next.deltas), encoded(lone.deltas)) << name << " after " << died << " tokens, cut every " << every;
        ++deaths;
      }
    }
  }
  EXPECT_GT(deaths, 1000u);
}

struct Asked {
  std::vector<SubmitRequest> submitted;
  std::vector<CancelRequest> cancelled;
  std::vector<StopRequest> stopped{};
};

caf::behavior pretend_scheduler(caf::event_based_actor*, std::shared_ptr<Asked> asked) {
  return {
      [=](const SubmitRequest& request) { asked->submitted.push_back(request); },
      [=](const CancelRequest& request) { asked->cancelled.push_back(request); },
      [=](const StopRequest& request) { asked->stopped.push_back(request); },
  };
}

// A frontend over a log; die() leaves what SIGKILL would, and the same fixture is the next core then.
class FrontendRebuildTest : public testing::Test {
 protected:
  FrontendRebuildTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    shared_->format = o200k_format();
    shared_->metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    shared_->token_log = log_.log;
    shared_->scheduler = scheduler_ = system_.spawn(pretend_scheduler, asked_);
    gateway_ = system_.spawn(recorder, heard_);
  }
  ~FrontendRebuildTest() override {
    actors_.insert(actors_.end(), {scheduler_, gateway_});
    for (const caf::actor& actor : actors_) caf::anon_send_exit(actor, caf::exit_reason::kill);
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
    caf::anon_send(actors_.back(), std::move(message));
    settle();
  }
  void spawn(FrontendStart start) {
    actors_.push_back(system_.spawn(frontend_actor, std::shared_ptr<const FrontendShared>(shared_), std::move(start)));
    settle();
  }
  void start(std::uint32_t credit = 0, std::uint32_t timeout_ms = 0, const wire::Sampling& sampling = {}) {
    wire::Submit submit;
    submit.sampling = sampling;
    submit.request_id = "r";
    submit.messages = {{protocol::harmony::Role::user, {}, {}, {}, {}, {protocol::harmony::TextContent{"hello"}}}};
    submit.credit = credit;
    submit.timeout_ms = timeout_ms;
    submit.return_tokens = true;
    submit.sampling.completion_tokens_max = 200;
    spawn({RequestId{1}, "a client nobody can guess", std::move(submit), gateway_, std::chrono::steady_clock::now()});
    say(Accepted{RequestId{1}});
  }
  void draw(std::string_view text) {
    const auto tokens = shared_->format.tokenizer()->encode_with_special(text);
    std::vector<TokenLogprobs> logprobs;
    for (std::size_t i = 0; tells_logprobs_ && i < tokens.size(); ++i)
      logprobs.push_back({tokens[i], -1e-3F * static_cast<float>(drawn_ + i), {{tokens[i], -0.1F}, {0xFFFF'FFFFu, -2.5F}}});
    say(TokensDrawn{RequestId{1}, drawn_, tokens, 0, logprobs});
    drawn_ += static_cast<std::uint32_t>(tokens.size());
    drawn_ids_.insert(drawn_ids_.end(), tokens.begin(), tokens.end());
  }
  void finish() { say(Finished{RequestId{1}, FinishReason::stop, {3, drawn_, 0}, {}}); }

  // The core dies; the next one has the stream, and the client asks for everything after `last`.
  void die_and_resume(std::uint64_t last) {
    taken_.push_back(TokenLogFixture::next_core({shared_->token_log->bytes().begin(), shared_->token_log->bytes().end()}));
    ASSERT_EQ(taken_.back().streams.size(), 1u);
    shared_ = std::make_shared<FrontendShared>(*shared_);
    shared_->token_log = taken_.back().log;
    heard_->to_client.clear();
    auto left = std::make_shared<LoggedStream>(std::move(taken_.back().streams[0]));
    FrontendStart start{RequestId{1}, left->read.submit.client_id, {}, gateway_, std::chrono::steady_clock::now(), left};
    start.submit.request_id = "r";
    auto again = resubmission_of(left->read, RequestId{1}).choices;
    if (!again.empty()) again_ = std::move(again[0]);
    spawn(std::move(start));
    heard_->to_client.clear();  // nobody is attached: the gateway would not pass it on
    say(Accepted{RequestId{1}});
    say(ClientResume{last, 1});
  }

  std::vector<std::string> heard() const {
    std::vector<std::string> lines;
    for (const auto& message : heard_->to_client) lines.push_back(wire::encode(message, wire::Encoding::json));
    return lines;
  }
  template <class Message>
  int count() const {
    return static_cast<int>(
        std::count_if(heard_->to_client.begin(), heard_->to_client.end(), [](const auto& m) { return std::holds_alternative<Message>(m); }));
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  TokenLogFixture log_;
  std::shared_ptr<FrontendShared> shared_ = std::make_shared<FrontendShared>();
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::vector<TokenLog::TakenOver> taken_;
  std::optional<SubmitRequest> again_;
  caf::actor scheduler_, gateway_;
  std::vector<caf::actor> actors_;
  std::uint32_t drawn_ = 0;
  std::vector<TokenId> drawn_ids_;
  bool tells_logprobs_ = false;
};

TEST_F(FrontendRebuildTest, the_client_hears_the_same_messages_again_and_then_the_rest) {
  start();
  draw("<|channel|>final<|message|>A");
  draw(" b");
  pass(milliseconds(20));
  draw(" c");
  pass(milliseconds(20));
  const auto before = heard();
  ASSERT_EQ(count<wire::Delta>(), 3);
  die_and_resume(0);
  EXPECT_EQ(heard(), before) << "accepted and three deltas, byte for byte";
  die_and_resume(2);
  EXPECT_EQ(heard(), (std::vector<std::string>{before.back()}));
  draw(" d");
  pass(milliseconds(20));
  draw("<|return|>");
  finish();
  ASSERT_EQ(count<wire::Done>(), 1);
  EXPECT_EQ(std::get<wire::Delta>(heard_->to_client[1]).sequence, 4u);
  const auto end = heard().back();
  die_and_resume(5);
  EXPECT_EQ(heard().back(), end) << "also the end comes again";
}

TEST_F(FrontendRebuildTest, the_scheduler_gets_the_request_as_it_was_with_the_tokens_so_far) {
  start(0, 60'000);
  draw("<|channel|>final<|message|>A b c");
  ASSERT_EQ(asked_->submitted.size(), 1u);
  const SubmitRequest first = asked_->submitted[0];
  die_and_resume(0);
  EXPECT_EQ(again_->submitted.prompt, first.submitted.prompt);
  EXPECT_EQ(again_->submitted.sampling, first.submitted.sampling) << "the seed that was drawn too";
  EXPECT_EQ(again_->submitted.boundaries, first.submitted.boundaries);
  EXPECT_EQ(again_->submitted.drawn, drawn_ids_);
  EXPECT_GT(again_->timeout_ms, 30'000u) << "the time that is left";
  EXPECT_LE(again_->timeout_ms, 60'001u);
  EXPECT_EQ(asked_->submitted.size(), 1u) << "the frontend itself does not submit again";
}

TEST_F(FrontendRebuildTest, tokens_that_no_delta_held_are_sent_by_the_next_core) {
  start();
  draw("<|channel|>final<|message|>A");
  draw(" b");  // waits to be sent with others
  ASSERT_EQ(count<wire::Delta>(), 1);
  die_and_resume(1);
  ASSERT_EQ(count<wire::Delta>(), 1);
  const auto& delta = std::get<wire::Delta>(heard_->to_client[0]);
  EXPECT_EQ(delta.sequence, 2u);
  EXPECT_EQ(std::get<wire::Text>(delta.events[0]).text, " b");
}

TEST_F(FrontendRebuildTest, logprobs_are_told_again_bit_for_bit) {
  wire::Sampling sampling;
  sampling.logprobs = 2;
  start(0, 0, sampling);
  tells_logprobs_ = true;
  draw("<|channel|>final<|message|>A");
  draw(" b");
  pass(milliseconds(20));
  const auto before = heard();
  ASSERT_EQ(std::get<wire::Delta>(heard_->to_client.back()).logprobs.size(), 1u);
  die_and_resume(0);
  EXPECT_EQ(heard(), before);
  EXPECT_EQ(again_->submitted.sampling.top_logprobs, 2u) << "and the rest comes with them, too";
  draw(" c");  // in no delta yet
  die_and_resume(2);
  ASSERT_EQ(count<wire::Delta>(), 1);
  EXPECT_EQ(std::get<wire::Delta>(heard_->to_client[0]).logprobs.at(0).token, drawn_ids_.back());
}

TEST_F(FrontendRebuildTest, text_that_was_held_is_held_by_the_next_core_and_may_become_a_match_there) {
  wire::Sampling sampling;
  sampling.stop = {"b c d"};
  start(0, 0, sampling);
  draw("<|channel|>final<|message|>A");
  draw(" b");
  draw(" c");
  pass(milliseconds(20));
  const auto before = heard();
  die_and_resume(0);
  EXPECT_EQ(heard(), before);
  draw(" d");
  ASSERT_EQ(count<wire::Done>(), 1);
  const auto& done = std::get<wire::Done>(heard_->to_client.back());
  EXPECT_EQ(done.stop_string, 0u);
  EXPECT_EQ(done.usage.completion_tokens, drawn_);
  for (const std::string& line : heard()) EXPECT_EQ(line.find("\"text\":\" b"), std::string::npos) << line;
}

TEST_F(FrontendRebuildTest, a_stream_that_its_text_ended_is_over_for_the_next_core) {
  wire::Sampling sampling;
  sampling.stop = {"xyz", " c"};
  start(1, 0, sampling);
  draw("<|channel|>final<|message|>A");
  draw(" b c d");  // its delta waits for credit
  EXPECT_EQ(asked_->stopped.size(), 1u);
  EXPECT_EQ(count<wire::Done>(), 0);
  die_and_resume(1);
  EXPECT_FALSE(again_.has_value()) << "there is nothing to compute";
  say(ClientGrant{1});
  ASSERT_EQ(count<wire::Done>(), 1);
  const auto& done = std::get<wire::Done>(heard_->to_client.back());
  EXPECT_EQ(done.reason, FinishReason::stop);
  EXPECT_EQ(done.stop_string, 1u);
  EXPECT_EQ(done.usage.completion_tokens, drawn_ - 1);
  const auto& delta = std::get<wire::Delta>(heard_->to_client.front());
  EXPECT_EQ(std::get<wire::Text>(delta.events.at(0)).text, " b");
  const std::string end = heard().back();
  die_and_resume(3);
  EXPECT_EQ(heard().back(), end);
}

TEST_F(FrontendRebuildTest, credit_that_was_left_is_left) {
  start(2);
  draw("<|channel|>final<|message|>A");
  say(ClientGrant{1});  // 3 in all, 1 used
  die_and_resume(1);
  EXPECT_EQ(count<wire::Delta>(), 0);
  for (const char* word : {" b", " c", " d", " e"}) {
    draw(word);
    pass(milliseconds(20));
  }
  EXPECT_EQ(count<wire::Delta>(), 2) << "the other two";
  die_and_resume(3);
  EXPECT_EQ(count<wire::Delta>(), 0) << "none is left";
  say(ClientGrant{8});
  EXPECT_EQ(count<wire::Delta>(), 1);
}

TEST_F(FrontendRebuildTest, an_end_that_waits_for_credit_still_waits) {
  start(1);
  draw("<|channel|>final<|message|>A");
  draw(" b<|return|>");
  finish();
  EXPECT_EQ(count<wire::Done>(), 0);
  die_and_resume(1);
  EXPECT_FALSE(again_.has_value()) << "there is nothing to compute";
  EXPECT_EQ(heard().size(), 0u);
  say(ClientGrant{1});
  EXPECT_EQ(count<wire::Delta>(), 1);
  ASSERT_EQ(count<wire::Done>(), 1);
  EXPECT_EQ(std::get<wire::Done>(heard_->to_client.back()).sequence, 3u);
}

TEST_F(FrontendRebuildTest, a_stream_that_is_over_is_forgotten_when_nobody_can_ask_for_it_any_more) {
  shared_->linger = milliseconds(1000);
  start();
  draw("<|channel|>final<|message|>A<|return|>");
  finish();
  die_and_resume(0);
  EXPECT_EQ(token_log::read(shared_->token_log->bytes()).requests.size(), 1u);
  pass(milliseconds(1000));
  EXPECT_EQ(heard_->closed, 2) << "of both cores";
  EXPECT_TRUE(token_log::read(shared_->token_log->bytes()).requests.empty());
}

TEST_F(FrontendRebuildTest, a_deadline_that_passed_meanwhile_waits_for_the_client_as_any_end) {
  start(0, 60'000);
  draw("<|channel|>final<|message|>A");
  die_and_resume(1);
  say(Rejected{RequestId{1}, Error{ErrorCode::deadline, "too late", "deadline_ms"}});
  pass(milliseconds(100));
  EXPECT_EQ(heard_->closed, 0);
  say(ClientResume{1, 2});
  EXPECT_EQ(count<wire::ErrorReply>(), 2) << "when it came, and again";
}

TEST_F(FrontendRebuildTest, what_the_scheduler_refuses_is_not_kept) {
  wire::Submit submit;
  submit.request_id = "r";
  submit.prompt_tokens = {1, 2};
  spawn({RequestId{1}, "a client nobody can guess", submit, gateway_, std::chrono::steady_clock::now()});
  say(Rejected{RequestId{1}, Error{ErrorCode::busy, "full", ""}});
  EXPECT_TRUE(TokenLogFixture::next_core({log_.log->bytes().begin(), log_.log->bytes().end()}).streams.empty());
  pass(milliseconds(1));
  EXPECT_TRUE(token_log::read(log_.log->bytes()).requests.empty());
}

TEST_F(FrontendRebuildTest, without_room_in_the_log_a_request_is_refused_before_the_scheduler_hears_of_it) {
  std::vector<StreamLog> others;
  for (auto other = log_.log->open(logged_submit("x", 2000), 2000); other; other = log_.log->open(logged_submit("x", 2000), 2000))
    others.push_back(std::move(*other));
  wire::Submit submit;
  submit.request_id = "r";
  submit.prompt_tokens = {1, 2};
  spawn({RequestId{1}, "a client nobody can guess", submit, gateway_, std::chrono::steady_clock::now()});
  EXPECT_TRUE(asked_->submitted.empty());
  ASSERT_EQ(count<wire::ErrorReply>(), 1);
  EXPECT_EQ(std::get<wire::ErrorReply>(heard_->to_client[0]).error.code, ErrorCode::busy);
}

}  // namespace
}  // namespace althing::actors::tests
