// The client against servers that are silent, restart, repeat, lose or garble: every stream still ends exactly once, and what it heard is in order.
#include <gtest/gtest.h>

#include "protocol/client/client.hpp"
#include "protocol/client/stream_order.hpp"
#include "tests/protocol/client_server.hpp"

namespace althing::protocol {
namespace {

using namespace tests;
using std::chrono::milliseconds;
using wire::Accepted;
using wire::Done;
using wire::ErrorReply;
using Words = std::vector<std::string>;

const ErrorReply hello_first{"", 0, {ErrorCode::unavailable, "say hello first", ""}};

TEST(ClientFaults, nobody_at_the_endpoint) {
  std::string endpoint;
  {
    ScriptedServer gone("gone");
    endpoint = gone.endpoint();
  }
  ClientOptions options = options_for(endpoint);
  options.timeout = milliseconds(100);
  const auto client = Client::connect(options);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().code, ErrorCode::unavailable);
  EXPECT_NE(client.error().message.find(endpoint), std::string::npos);
  EXPECT_NE(client.error().message.find("althing serve"), std::string::npos);
}

TEST(ClientFaults, wrong_options_are_named) {
  for (const char* endpoint : {"", "127.0.0.1:4550", "smoke://here", "tcp://127.0.0.1:notaport"})
    EXPECT_EQ(Client::connect(options_for(endpoint)).error().field, "endpoint") << endpoint;
  ClientOptions options = options_for("tcp://127.0.0.1:4550");
  options.timeout = milliseconds(0);
  EXPECT_EQ(Client::connect(options).error().field, "timeout");
}

TEST(ClientFaults, a_server_of_another_version) {
  ScriptedServer server("later");
  const auto answered = [&](const std::vector<std::string>& parts) {
    auto client = std::async(std::launch::async, [&] { return Client::connect(options_for(server.endpoint())); });
    const auto hello = server.hear(patience);
    server.say_raw(hello->from, parts);
    return client.get();
  };
  auto welcome = server.welcome();
  welcome.version = 7;
  EXPECT_EQ(answered({"ALT1c", wire::encode(wire::ServerMessage(welcome), wire::Encoding::capnp)}).error().code, ErrorCode::version);
  EXPECT_EQ(answered({"ALT2c", "whatever it says"}).error().code, ErrorCode::version);
  const ErrorReply refusal{"", 0, {ErrorCode::version, "this server speaks 2 to 3", "version_max"}};
  EXPECT_EQ(answered({"ALT1c", wire::encode(wire::ServerMessage(refusal), wire::Encoding::capnp)}).error(), refusal.error);
}

TEST(ClientFaults, a_server_that_is_starting_is_asked_again) {
  ScriptedServer server("first");
  auto client = std::async(std::launch::async, [&] { return Client::connect(options_for(server.endpoint())); });
  for (int i = 0; i < 2; ++i) {
    const auto hello = server.hear(patience);
    ASSERT_TRUE(hello.has_value());
    server.say(hello->from, ErrorReply{"", 0, {ErrorCode::unavailable, "loading the model", ""}});
  }
  const auto hello = server.hear(patience);
  ASSERT_TRUE(hello.has_value());
  server.say(hello->from, server.welcome());
  EXPECT_TRUE(client.get().ok());
}

TEST(ClientFaults, a_silent_server_ends_every_stream) {
  ScriptedServer server("first");
  ClientOptions options = options_for(server.endpoint());
  options.timeout = milliseconds(300);
  Client client = connected(server, options);
  Story accepted, waiting;
  ASSERT_TRUE(client.submit(request("accepted"), accepted.handler()).ok());
  ASSERT_TRUE(client.submit(request("waiting"), waiting.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  server.say(submit->first, Accepted{"accepted", 3, 1});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(accepted.words, (Words{"accepted", "error unavailable"}));
  EXPECT_EQ(waiting.words, (Words{"error unavailable"}));
  EXPECT_NE(waiting.error->message.find(server.endpoint()), std::string::npos);
  // It answers again: new requests work.
  Story later;
  ASSERT_TRUE(client.submit(request("later"), later.handler()).ok());
  std::optional<Heard> heard;
  do heard = server.hear(patience);
  while (heard && !(std::holds_alternative<wire::Submit>(heard->message) && std::get<wire::Submit>(heard->message).request_id == "later"));
  server.say(submit->first, Done{"later", 1, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(later.words, (Words{"done"}));
}

// A client that was busy elsewhere cannot say that the server was silent: it has not asked.
TEST(ClientFaults, a_client_that_does_not_poll_blames_nobody) {
  ScriptedServer server("first");
  ClientOptions options = options_for(server.endpoint());
  options.timeout = milliseconds(50);
  Client client = connected(server, options);
  Story story;
  ASSERT_TRUE(client.submit(request("r", 1), story.handler()).ok());
  const auto submit = server.hear(patience);
  ASSERT_TRUE(submit.has_value());
  server.say(submit->from, Accepted{"r", 3, 1});
  server.say(submit->from, text_delta("r", 1, "a"));
  ASSERT_TRUE(poll_until(client, [&] { return story.words.size() == 2; }));
  const auto busy_until = Clock::now() + milliseconds(120);
  while (Clock::now() < busy_until) {
    const auto heard = server.hear(milliseconds(10));
    if (heard && std::holds_alternative<wire::Ping>(heard->message)) server.say(heard->from, server.pong(1));
  }
  client.poll(milliseconds(0));
  EXPECT_EQ(client.open_streams(), 1U);
}

// The port is the same, the process is not: one stream had begun and is lost, the other one had not and starts anew.
TEST(ClientFaults, a_restarted_server_that_knows_nothing) {
  auto first = std::make_optional<ScriptedServer>("first");
  const std::string endpoint = first->endpoint();
  Client client = connected(*first, options_for(endpoint));
  Story begun, fresh;
  ASSERT_TRUE(client.submit(request("begun"), begun.handler()).ok());
  const auto submit = expect<wire::Submit>(*first, client);
  ASSERT_TRUE(submit.has_value());
  first->say(submit->first, Accepted{"begun", 3, 1});
  first->say(submit->first, text_delta("begun", 1, "half a"));
  ASSERT_TRUE(poll_until(client, [&] { return begun.words.size() == 2; }));
  first.reset();
  ASSERT_TRUE(client.submit(request("fresh"), fresh.handler()).ok());
  ScriptedServer second("second", endpoint);
  bool greeted = false;
  int submits = 0;
  for (const auto deadline = Clock::now() + patience; client.open_streams() > 0 && Clock::now() < deadline;) {
    client.poll(milliseconds(1));
    const auto heard = second.hear(milliseconds(1));
    if (!heard) continue;
    if (std::holds_alternative<wire::Hello>(heard->message)) {
      greeted = true;
      second.say(heard->from, second.welcome());
    } else if (!greeted) {
      second.say(heard->from, hello_first);
    } else if (const auto* resume = std::get_if<wire::Resume>(&heard->message)) {
      EXPECT_EQ(resume->request_id, "begun");
      EXPECT_EQ(resume->last_sequence, 1U);
      second.say(heard->from, ErrorReply{"begun", 0, {ErrorCode::not_found, "no such request", "request_id"}});
    } else if (const auto* again = std::get_if<wire::Submit>(&heard->message)) {
      EXPECT_EQ(again->request_id, "fresh");
      if (submits++ > 0) continue;
      second.say(heard->from, Accepted{"fresh", 3, 1});
      second.say(heard->from, Done{"fresh", 1, FinishReason::stop, {}, {}, false});
    }
  }
  EXPECT_EQ(begun.words, (Words{"accepted", "half a", "error core_lost"}));
  EXPECT_EQ(fresh.words, (Words{"accepted", "done"}));
  EXPECT_EQ(client.server().server_instance, "second");
}

TEST(ClientFaults, a_restarted_server_that_resumes) {
  auto first = std::make_optional<ScriptedServer>("first");
  const std::string endpoint = first->endpoint();
  Client client = connected(*first, options_for(endpoint));
  Story story;
  ASSERT_TRUE(client.submit(request("r", 8), story.handler()).ok());
  const auto submit = expect<wire::Submit>(*first, client);
  ASSERT_TRUE(submit.has_value());
  first->say(submit->first, Accepted{"r", 3, 1});
  first->say(submit->first, text_delta("r", 1, "a"));
  first->say(submit->first, text_delta("r", 2, "b"));
  ASSERT_TRUE(poll_until(client, [&] { return story.words.size() == 3; }));
  first.reset();
  ScriptedServer second("second", endpoint);
  const auto ping = expect<wire::Ping>(second, client);
  ASSERT_TRUE(ping.has_value());
  // Everything that came before Hello is refused, about the session or about the request.
  second.say(ping->first, hello_first);
  second.say(ping->first, ErrorReply{"r", 0, hello_first.error});
  second.say(ping->first, ErrorReply{"r", 0, hello_first.error});
  const auto hello = expect<wire::Hello>(second, client);
  ASSERT_TRUE(hello.has_value());
  second.say(hello->first, second.welcome());
  const auto resume = expect<wire::Resume>(second, client);
  ASSERT_TRUE(resume.has_value());
  EXPECT_EQ(resume->second.last_sequence, 2U);
  const auto grant = expect<wire::Grant>(second, client);  // what was granted to the first server is not known to the second
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->second.credit, 8U);
  second.say(resume->first, Accepted{"r", 3, 1});
  second.say(resume->first, text_delta("r", 2, "b"));
  second.say(resume->first, text_delta("r", 3, "c"));
  second.say(resume->first, Done{"r", 4, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(story.words, (Words{"accepted", "a", "b", "c", "done"}));
}

// The next process under the same name: nothing that it says tells that it is another, so the new connection must be enough.
TEST(ClientFaults, a_new_connection_is_greeted_without_being_told) {
  auto first = std::make_optional<ScriptedServer>("same");
  const std::string endpoint = first->endpoint();
  Client client = connected(*first, options_for(endpoint));
  Story story;
  ASSERT_TRUE(client.submit(request("r", 8), story.handler()).ok());
  const auto submit = expect<wire::Submit>(*first, client);
  ASSERT_TRUE(submit.has_value());
  first->say(submit->first, Accepted{"r", 3, 1});
  first->say(submit->first, text_delta("r", 1, "a"));
  ASSERT_TRUE(poll_until(client, [&] { return story.words.size() == 2; }));
  first.reset();
  ScriptedServer second("same", endpoint);
  const auto hello = expect<wire::Hello>(second, client);
  ASSERT_TRUE(hello.has_value());
  second.say(hello->first, second.welcome());
  const auto resume = expect<wire::Resume>(second, client);
  ASSERT_TRUE(resume.has_value());
  EXPECT_EQ(resume->second.last_sequence, 1U);
  second.say(resume->first, text_delta("r", 2, "b"));
  second.say(resume->first, Done{"r", 3, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(story.words, (Words{"accepted", "a", "b", "done"}));
}

TEST(ClientFaults, a_resume_that_came_too_soon_is_tried_again_but_not_for_ever) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  ASSERT_TRUE(client.submit(request("r"), story.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  server.say(submit->first, Accepted{"r", 3, 1});
  server.say(submit->first, text_delta("r", 2, "b"));  // without the first
  const ErrorReply busy{"r", 0, {ErrorCode::busy, "this request was resumed just now", ""}};
  int resumes = 0;
  for (const auto deadline = Clock::now() + patience; client.open_streams() > 0 && Clock::now() < deadline;) {
    client.poll(milliseconds(1));
    const auto heard = server.hear(milliseconds(1));
    if (!heard) continue;
    if (const auto* ping = std::get_if<wire::Ping>(&heard->message)) server.say(heard->from, server.pong(ping->nonce));
    if (!std::holds_alternative<wire::Resume>(heard->message)) continue;
    ++resumes;
    server.say(heard->from, busy);
  }
  EXPECT_EQ(resumes, 21);
  EXPECT_EQ(story.words, (Words{"accepted", "error busy"}));
}

TEST(ClientFaults, a_pong_of_another_instance_makes_the_client_greet_again) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  const auto ping = expect<wire::Ping>(server, client);
  ASSERT_TRUE(ping.has_value());
  server.say(ping->first, wire::Pong{ping->second.nonce, "second", ""});
  EXPECT_TRUE(expect<wire::Hello>(server, client).has_value());
}

TEST(ClientFaults, duplicates_are_dropped_and_gaps_resumed) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  ASSERT_TRUE(client.submit(request("r"), story.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  const std::string& peer = submit->first;
  server.say(peer, Accepted{"r", 3, 1});
  server.say(peer, Accepted{"r", 3, 1});
  server.say(peer, text_delta("r", 1, "1"));
  server.say(peer, text_delta("r", 1, "1"));
  server.say(peer, text_delta("r", 2, "2"));
  server.say(peer, text_delta("r", 1, "1"));
  server.say(peer, text_delta("r", 5, "5"));
  server.say(peer, Done{"r", 6, FinishReason::stop, {}, {}, false});
  const auto resume = expect<wire::Resume>(server, client);
  ASSERT_TRUE(resume.has_value());
  EXPECT_EQ(resume->second.last_sequence, 2U);
  EXPECT_EQ(client.open_streams(), 1U);
  for (std::uint64_t i = 3; i <= 5; ++i) server.say(peer, text_delta("r", i, std::to_string(i)));
  server.say(peer, Done{"r", 6, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(story.words, (Words{"accepted", "1", "2", "3", "4", "5", "done"}));
}

TEST(ClientFaults, malformed_frames_are_survived) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  ASSERT_TRUE(client.submit(request("r"), story.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  const std::string& peer = submit->first;
  server.say(peer, Accepted{"r", 3, 1});
  server.say(peer, text_delta("r", 1, "1"));
  server.say_raw(peer, {"ALT1c", "not a message"});
  ASSERT_TRUE(expect<wire::Resume>(server, client).has_value());
  server.say(peer, text_delta("r", 2, "2"));
  server.say_raw(peer, {"ALT1j", R"({"type":"weather of tomorrow"})"});  // from a later version: not an error
  server.say_raw(peer, {"ALT1j", "[[[[["});
  server.say_raw(peer, {"one part"});
  server.say_raw(peer, {"", "ALT1c", wire::encode(wire::ServerMessage(text_delta("r", 3, "3")), wire::Encoding::capnp)});
  server.say_raw(peer, {"a", "b", "c", "d", "e", "f"});
  server.say(peer, text_delta("r", 4, "4"), wire::Encoding::json);
  server.say(peer, Done{"r", 5, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(story.words, (Words{"accepted", "1", "2", "3", "4", "done"}));
}

TEST(ClientFaults, a_gap_that_stays_ends_the_stream) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  ASSERT_TRUE(client.submit(request("r"), story.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  server.say(submit->first, Accepted{"r", 3, 1});
  for (int i = 0; i < 3; ++i) {
    server.say(submit->first, text_delta("r", 3, "3"));
    ASSERT_TRUE(expect<wire::Resume>(server, client).has_value());
  }
  server.say(submit->first, text_delta("r", 3, "3"));
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(story.words, (Words{"accepted", "error corrupt"}));
}

TEST(StreamOrder, delivers_each_number_once_and_in_order) {
  using Verdict = StreamOrder::Verdict;
  StreamOrder order;
  EXPECT_EQ(order.on(0), Verdict::ignore);
  EXPECT_EQ(order.on(1), Verdict::deliver);
  EXPECT_EQ(order.on(3), Verdict::resume);
  EXPECT_EQ(order.on(4), Verdict::ignore);  // sent before the server heard us
  EXPECT_EQ(order.on(3), Verdict::resume);  // the server began again, without 2
  EXPECT_EQ(order.on(2), Verdict::deliver);
  EXPECT_EQ(order.last(), 2U);
  EXPECT_EQ(order.on(2), Verdict::ignore);
  for (int i = 0; i < StreamOrder::resume_attempts_max; ++i) EXPECT_EQ(order.on_unreadable(), Verdict::resume);
  EXPECT_EQ(order.on_unreadable(), Verdict::broken);
}

}  // namespace
}  // namespace althing::protocol
