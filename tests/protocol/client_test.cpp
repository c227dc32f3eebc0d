// The client against a server that behaves: streams, errors, credit, cancellation. client_faults_test.cpp has the servers that do not.
#include "protocol/client/client.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/protocol/client_server.hpp"

namespace althing::protocol {
namespace {

using namespace tests;
using wire::Accepted;
using wire::Done;
using wire::ErrorReply;
using Words = std::vector<std::string>;

TEST(Client, says_hello_and_keeps_the_welcome) {
  ScriptedServer server("first");
  for (const auto encoding : {wire::Encoding::capnp, wire::Encoding::json}) {
    ClientOptions options = options_for(server.endpoint());
    options.encoding = encoding;
    options.name = "test/1";
    auto client = std::async(std::launch::async, [&] { return Client::connect(options); });
    const auto hello = server.hear(patience);
    ASSERT_TRUE(hello.has_value());
    EXPECT_EQ(hello->encoding, encoding);
    const auto& message = std::get<wire::Hello>(hello->message);
    EXPECT_EQ(message.client_name, "test/1");
    EXPECT_GE(message.client_id.size(), 32U);
    server.say(hello->from, server.welcome(), encoding);
    const auto result = client.get();
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->server().server_instance, "first");
    EXPECT_EQ(result->server().model, "tiny");
    EXPECT_EQ(result->open_streams(), 0U);
  }
}

TEST(Client, names_that_it_gives_requests_are_no_other_clients) {
  std::set<std::string> names;
  for (int i = 0; i < 2; ++i) {
    ScriptedServer server("first");
    Story first, second;
    Client client = connected(server, options_for(server.endpoint()));
    names.insert(client.submit(request(""), first.handler()).value());
    names.insert(client.submit(request(""), second.handler()).value());
  }
  EXPECT_EQ(names.size(), 4U);
}

TEST(Client, streams_in_order_and_ends_once) {
  ScriptedServer server("first");
  for (const auto encoding : {wire::Encoding::capnp, wire::Encoding::json}) {
    ClientOptions options = options_for(server.endpoint());
    options.encoding = encoding;
    Client client = connected(server, options);
    Story story;
    const auto id = client.submit(request(""), story.handler());
    ASSERT_TRUE(id.ok()) << id.error().message;
    EXPECT_EQ(client.open_streams(), 1U);
    const auto submit = expect<wire::Submit>(server, client);
    ASSERT_TRUE(submit.has_value());
    EXPECT_EQ(submit->second.request_id, *id);
    server.say(submit->first, Accepted{*id, 3, 9}, encoding);
    server.say(submit->first, text_delta(*id, 1, "Hello"), encoding);
    server.say(submit->first, text_delta(*id, 2, " world"), encoding);
    server.say(submit->first, Done{*id, 3, FinishReason::stop, {3, 2, 0}, {}, false}, encoding);
    EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
    EXPECT_EQ(story.words, (Words{"accepted", "Hello", " world", "done"}));
    // What comes after the end is nobody's.
    server.say(submit->first, text_delta(*id, 4, "ghost"), encoding);
    server.say(submit->first, wire::Pong{1, "first", ""}, encoding);
    client.poll(std::chrono::milliseconds(50));
    EXPECT_EQ(story.words.size(), 4U);
  }
}

TEST(Client, many_streams_do_not_mix) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  std::vector<Story> stories(20);
  for (std::size_t i = 0; i < stories.size(); ++i) ASSERT_TRUE(client.submit(request("r" + std::to_string(i) + "x"), stories[i].handler()).ok());
  std::string peer;
  for (std::size_t i = 0; i < stories.size(); ++i) {
    const auto submit = expect<wire::Submit>(server, client);
    ASSERT_TRUE(submit.has_value());
    peer = submit->first;
  }
  for (std::uint64_t sequence = 1; sequence <= 5; ++sequence)
    for (std::size_t i = 0; i < stories.size(); ++i) server.say(peer, text_delta("r" + std::to_string(i) + "x", sequence, std::to_string(i)));
  for (std::size_t i = 0; i < stories.size(); ++i) server.say(peer, Done{"r" + std::to_string(i) + "x", 6, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  for (std::size_t i = 0; i < stories.size(); ++i) {
    const std::string n = std::to_string(i);
    EXPECT_EQ(stories[i].words, (Words{n, n, n, n, n, "done"}));
  }
}

TEST(Client, hands_on_the_servers_error) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story refused, broken;
  ASSERT_TRUE(client.submit(request("refused"), refused.handler()).ok());
  ASSERT_TRUE(client.submit(request("broken"), broken.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  server.say(submit->first, ErrorReply{"refused", 0, {ErrorCode::too_large, "3 tokens are over the limit of 2", "prompt_tokens"}});
  server.say(submit->first, Accepted{"broken", 3, 1});
  server.say(submit->first, text_delta("broken", 1, "a"));
  server.say(submit->first, ErrorReply{"broken", 2, {ErrorCode::nonfinite, "NaN", ""}});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  ASSERT_TRUE(refused.error.has_value());
  EXPECT_EQ(*refused.error, (Error{ErrorCode::too_large, "3 tokens are over the limit of 2", "prompt_tokens"}));
  EXPECT_EQ(broken.words, (Words{"accepted", "a", "error nonfinite"}));
}

TEST(Client, grants_what_the_handler_consumed) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  ASSERT_TRUE(client.submit(request("r", 4), story.handler()).ok());
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit.has_value());
  EXPECT_EQ(submit->second.credit, 4U);
  std::uint64_t sequence = 0;
  for (std::uint32_t credit = 4; sequence < 40;) {
    ASSERT_GT(credit, 0U);
    for (; credit > 0; --credit) {
      ++sequence;
      server.say(submit->first, text_delta("r", sequence, "x"));
    }
    const auto grant = expect<wire::Grant>(server, client);
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->second.request_id, "r");
    credit += grant->second.credit;
  }
  EXPECT_TRUE(poll_until(client, [&] { return story.words.size() >= 40; }));
}

TEST(Client, cancels_by_name_and_at_its_end) {
  ScriptedServer server("first");
  {
    Client client = connected(server, options_for(server.endpoint()));
    Story story;
    ASSERT_TRUE(client.submit(request("mine"), story.handler()).ok());
    ASSERT_TRUE(client.submit(request("left"), story.handler()).ok());
    client.cancel("unknown");
    client.cancel("mine");
    const auto cancel = expect<wire::Cancel>(server, client);
    ASSERT_TRUE(cancel.has_value());
    EXPECT_EQ(cancel->second.request_id, "mine");
    server.say(cancel->first, Done{"mine", 1, FinishReason::cancelled, {}, {}, false});
    EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 1; }));
  }
  const auto last = server.hear(patience);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(std::get<wire::Cancel>(last->message).request_id, "left");
}

TEST(Client, a_handler_may_submit_and_cancel) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  Story second;
  ASSERT_TRUE(client
                  .submit(request("same"),
                          [&](const StreamEvent& event) {
                            if (std::holds_alternative<Done>(event)) {
                              EXPECT_TRUE(client.submit(request("same"), second.handler()).ok());
                            }
                          })
                  .ok());
  EXPECT_EQ(client.submit(request("same"), second.handler()).error().code, ErrorCode::invalid_argument);
  const auto first = expect<wire::Submit>(server, client);
  ASSERT_TRUE(first.has_value());
  server.say(first->first, Done{"same", 1, FinishReason::stop, {}, {}, false});
  ASSERT_TRUE(expect<wire::Submit>(server, client).has_value());
  server.say(first->first, text_delta("same", 1, "again"));
  server.say(first->first, Done{"same", 2, FinishReason::stop, {}, {}, false});
  EXPECT_TRUE(poll_until(client, [&] { return client.open_streams() == 0; }));
  EXPECT_EQ(second.words, (Words{"again", "done"}));
}

TEST(Client, does_not_send_what_the_server_would_not_read) {
  ScriptedServer server("first");
  Client client = connected(server, options_for(server.endpoint()));
  wire::Submit submit = request("r");
  submit.prompt_tokens.assign(1 << 19, 1);
  Story story;
  EXPECT_EQ(client.submit(submit, story.handler()).error().code, ErrorCode::too_large);
  EXPECT_EQ(client.open_streams(), 0U);
}

TEST(Client, a_caller_that_grants_itself_is_sent_no_more_than_it_granted) {
  ScriptedServer server("one");
  Client client = connected(server, options_for(server.endpoint()));
  Story story;
  wire::Submit wanted;
  wanted.request_id = "r";
  wanted.prompt_tokens = {1};
  wanted.credit = 4;
  ASSERT_TRUE(client.submit(wanted, story.handler(), Grants::by_caller));
  const auto submit = expect<wire::Submit>(server, client);
  ASSERT_TRUE(submit);
  server.say(submit->first, wire::Accepted{"r", 1, 1});
  for (std::uint64_t i = 1; i <= 4; ++i) server.say(submit->first, wire::Delta{"r", i, 0, {wire::Text{0, "w"}}, {}});
  for (const auto deadline = Clock::now() + patience; story.words.size() < 5 && Clock::now() < deadline;) client.poll(std::chrono::milliseconds(1));
  client.grant("r", 3);
  client.grant("nobody", 3);
  const auto grant = expect<wire::Grant>(server, client);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->second.credit, 3U) << "the first grant is the caller's: four deltas were handled before it";
  // Of a new connection it gets what it does not hold still.
  server.say(submit->first, wire::ErrorReply{"", 0, {ErrorCode::unavailable, "say hello first", ""}});
  const auto hello = expect<wire::Hello>(server, client);
  ASSERT_TRUE(hello);
  server.say(hello->first, server.welcome());
  const auto again = expect<wire::Grant>(server, client);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->second.credit, 3U);
}

TEST(Client, opened_without_waiting_it_greets_when_polled_and_knows_how_things_stand) {
  ScriptedServer server("one");
  auto opened = Client::open(options_for(server.endpoint()));
  ASSERT_TRUE(opened.ok());
  Client client = std::move(*opened);
  EXPECT_FALSE(client.standing().welcomed);
  Story story;
  wire::Submit wanted;
  wanted.request_id = "r";
  wanted.prompt_tokens = {1};
  EXPECT_EQ(client.submit(wanted, story.handler()).error().code, ErrorCode::unavailable);
  const auto hello = expect<wire::Hello>(server, client);
  ASSERT_TRUE(hello);
  server.say(hello->first, server.welcome());
  for (const auto deadline = Clock::now() + patience; !client.standing().welcomed && Clock::now() < deadline;)
    client.poll(std::chrono::milliseconds(1));
  EXPECT_EQ(client.server().model, "tiny");
  EXPECT_EQ(client.standing().state, "");
  const auto ping = expect<wire::Ping>(server, client);
  ASSERT_TRUE(ping);
  server.say(ping->first, wire::Pong{ping->second.nonce, "one", "recovering"});
  for (const auto deadline = Clock::now() + patience; client.standing().state.empty() && Clock::now() < deadline;)
    client.poll(std::chrono::milliseconds(1));
  EXPECT_EQ(client.standing().state, "recovering");
  EXPECT_TRUE(client.standing().current);
  EXPECT_EQ(client.standing().owing.count(), 0);
}

}  // namespace
}  // namespace althing::protocol
