// An actor that ends, throws or is told nonsense: who waits for it hears an error at once, its neighbours live on. With a real gateway, a real socket
// and real clients; only the scheduler is pretended, so that nothing else can end a stream. Exceptions end the process, which is tested in one of its
// own.
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "actors/exit_codes.hpp"
#include "actors/gateway_actor.hpp"
#include "actors/guard.hpp"
#include "actors/logging.hpp"
#include "actors/monitor_actor.hpp"
#include "protocol/client/client.hpp"
#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {
namespace {

namespace wire = protocol::wire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Takes every request, and keeps who waits for it.
struct Taken {
  std::mutex mutex;
  std::map<std::uint64_t, caf::actor> frontends;
  std::vector<std::uint64_t> cancelled;

  caf::actor frontend(std::uint64_t id) {
    const std::lock_guard lock(mutex);
    const auto it = frontends.find(id);
    return it == frontends.end() ? caf::actor() : it->second;
  }
};

caf::behavior taking_scheduler(caf::event_based_actor* self, std::shared_ptr<Taken> taken) {
  guard(self);
  return {
      [=](const SubmitRequest& request) {
        const std::lock_guard lock(taken->mutex);
        taken->frontends[request.submitted.request.value] = request.frontend;
        self->send(request.frontend, Accepted{request.submitted.request});
      },
      [=](const CancelRequest& request) {
        const std::lock_guard lock(taken->mutex);
        taken->cancelled.push_back(request.request.value);
      },
  };
}

class ActorFailuresTest : public testing::Test {
 protected:
  ActorFailuresTest() {
    auto tokenizer = protocol::Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
    auto shared = std::make_shared<FrontendShared>();
    shared->format = *protocol::harmony::Format::of(*tokenizer);
    shared->metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    shared->scheduler = scheduler_ = system_.spawn(taking_scheduler, taken_);
    auto socket = wire::RouterSocket::bind("tcp://127.0.0.1:0", shared->limits);
    const std::string endpoint = socket->endpoint();
    GatewayOptions options;
    options.model = "test";
    options.instance = "one";
    gateway_ = system_.spawn<Gateway, caf::detached>(std::move(*socket), std::shared_ptr<const FrontendShared>(shared), std::move(options));
    format_ = shared->format;
    client_.emplace(*protocol::Client::connect({.endpoint = endpoint, .limits = {}}));
  }
  ~ActorFailuresTest() override {
    client_.reset();
    caf::scoped_actor self{system_};
    for (const caf::actor& actor : {gateway_, scheduler_}) {
      self->send_exit(actor, caf::exit_reason::user_shutdown);
      self->wait_for(actor);
    }
  }

  struct Told {
    std::string text;
    std::optional<Error> error;
    bool done = false;
    Clock::time_point ended;
  };
  void submit(const std::string& id) {
    wire::Submit submit;
    submit.request_id = id;
    submit.prompt_tokens = {1, 2, 3};
    const auto submitted = client_->submit(submit, [this, id](const protocol::StreamEvent& event) {
      Told& told = told_[id];
      if (const auto* delta = std::get_if<wire::Delta>(&event))
        for (const TokenId token : delta->tokens) told.text += std::to_string(token) + " ";
      if (const auto* error = std::get_if<Error>(&event)) told.error = *error;
      told.done = told.done || std::holds_alternative<wire::Done>(event);
      if (told.error || told.done) told.ended = Clock::now();
    });
    ASSERT_TRUE(submitted.ok());
  }
  template <class Condition>
  void poll_until(const char* what, Condition condition) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      ASSERT_LT(Clock::now(), deadline) << what;
      client_->poll(milliseconds(2));
    }
  }
  // Ids are given in the order of submits.
  caf::actor frontend(std::uint64_t id) {
    poll_until("the scheduler has it", [&] { return taken_->frontend(id) != nullptr; });
    return taken_->frontend(id);
  }
  void draw(std::uint64_t id, std::uint32_t first, TokenId token) { caf::anon_send(frontend(id), TokensDrawn{RequestId{id}, first, {token}}); }

  LocalSystemConfig config_;
  caf::actor_system system_{config_};
  std::shared_ptr<Taken> taken_ = std::make_shared<Taken>();
  caf::actor scheduler_, gateway_;
  protocol::chat::ChatFormat format_;
  std::optional<protocol::Client> client_;
  std::map<std::string, Told> told_;
};

TEST_F(ActorFailuresTest, the_client_of_a_stream_that_ends_without_a_word_hears_so_and_its_neighbour_goes_on) {
  submit("lost");
  submit("neighbour");
  draw(1, 0, 5);
  draw(2, 0, 6);
  poll_until("both speak", [&] { return !told_["lost"].text.empty() && !told_["neighbour"].text.empty(); });
  const auto killed = Clock::now();
  caf::anon_send_exit(frontend(1), caf::exit_reason::kill);
  poll_until("the client hears", [&] { return told_["lost"].error.has_value(); });
  EXPECT_EQ(told_["lost"].error->code, ErrorCode::internal);
  EXPECT_NE(told_["lost"].error->message.find("'lost'"), std::string::npos) << told_["lost"].error->message;
  const auto took = std::chrono::duration<double, std::milli>(told_["lost"].ended - killed).count();
  RecordProperty("milliseconds", std::to_string(took));
  EXPECT_LT(took, 1000) << "at once, and not when some time is over";
  draw(2, 1, 7);
  caf::anon_send(frontend(2), Finished{RequestId{2}, FinishReason::length, {3, 2, 0}, {}});
  poll_until("the neighbour ends", [&] { return told_["neighbour"].done; });
  EXPECT_EQ(told_["neighbour"].text, "6 7 ");
  // The id is free again.
  submit("lost");
  draw(3, 0, 8);
  poll_until("the same id again", [&] { return told_["lost"].text.ends_with("8 "); });
}

TEST_F(ActorFailuresTest, a_stream_that_ends_as_it_should_is_no_failure) {
  submit("fine");
  caf::anon_send(frontend(1), Finished{RequestId{1}, FinishReason::length, {3, 0, 0}, {}});
  poll_until("it ends", [&] { return told_["fine"].done; });
  caf::anon_send_exit(frontend(1), caf::exit_reason::user_shutdown);
  submit("next");
  draw(2, 0, 5);
  poll_until("the next one speaks", [&] { return !told_["next"].text.empty(); });
  EXPECT_FALSE(told_["fine"].error.has_value());
}

TEST_F(ActorFailuresTest, nonsense_is_dropped_and_answered_by_nobody) {
  submit("r");
  caf::scoped_actor self{system_};
  // Requests with a message that nobody understands: an error as the answer would end whoever sent it, silence would let it wait.
  for (const caf::actor& actor : {frontend(1), scheduler_, gateway_}) {
    int errors = 0;
    self->request(actor, milliseconds(300), std::string("what is this?"))
        .receive([] {}, [&](const caf::error& error) { errors += error != caf::sec::request_timeout; });
    EXPECT_EQ(errors, 0);
    self->send(actor, 3.5);
  }
  draw(1, 0, 5);
  poll_until("it goes on", [&] { return !told_["r"].text.empty(); });
  EXPECT_FALSE(told_["r"].error.has_value());
}

TEST_F(ActorFailuresTest, a_scheduler_that_ends_is_told_to_every_client) {
  submit("a");
  submit("b");
  frontend(2);
  caf::anon_send_exit(scheduler_, caf::exit_reason::kill);
  poll_until("both hear", [&] { return told_["a"].error && told_["b"].error; });
  for (const char* id : {"a", "b"}) EXPECT_EQ(told_[id].error->code, ErrorCode::internal);
}

// Whoever asks a monitor that is not there any more gets an error then, not after the time that it would wait.
TEST_F(ActorFailuresTest, a_question_to_an_actor_that_is_gone_fails_at_once) {
  auto metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
  const caf::actor monitor = system_.spawn(monitor_actor, MonitorOptions{metrics});
  caf::scoped_actor self{system_};
  const auto ask = [&] {
    bool failed = false;
    self->request(monitor, std::chrono::seconds(20), ReadinessQuery{})
        .receive([](const ReadinessAnswer&) {}, [&](const caf::error&) { failed = true; });
    return failed;
  };
  EXPECT_FALSE(ask()) << "the control: while it lives it answers";
  self->send_exit(monitor, caf::exit_reason::kill);
  self->wait_for(monitor);
  const auto asked = Clock::now();
  EXPECT_TRUE(ask());
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - asked).count(), 5.0);
}

// An exception is a bug of ours, and its actor's state is not to be trusted: the whole process ends with its code, and what it served is taken over
// by the next one (tests/end_to_end/core_death_test.py shows that half).
TEST(ActorExceptionDeathTest, an_exception_ends_the_process_with_its_code) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        start_logging(LogLevel::error, false, "thrower");  // to standard error, as in a server
        LocalSystemConfig config;
        caf::actor_system system{config};
        const caf::actor thrower = system.spawn([](caf::event_based_actor* self) -> caf::behavior {
          guard(self);
          return {[](int) { throw std::runtime_error("a bug"); }};
        });
        caf::anon_send(thrower, 1);
        caf::scoped_actor self{system};
        self->wait_for(thrower);
      },
      testing::ExitedWithCode(exit_internal), "a bug");
}

}  // namespace
}  // namespace althing::actors::tests
