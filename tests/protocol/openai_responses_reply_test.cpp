// Events of the Responses API: their order and what they say, for written, real, broken and random streams, in every chunking.
#include "protocol/openai/responses_reply.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <random>
#include <sstream>

#include "protocol/wire/delta_stream.hpp"
#include "tests/protocol/harmony_support.hpp"
#include "tests/protocol/responses_events.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using wire::DeltaEvent;
using wire::MessageEnded;
using wire::MessageStarted;

IdMaker counting_ids() {
  return [next = std::make_shared<int>(0)](std::string_view kind) { return std::string(kind) + "_" + std::to_string((*next)++); };
}

ResponsesReply reply_with(ReplyRules rules = {}) {
  return {{1'700'000'000, "tiny", {{"instructions", nullptr}, {"tools", Json::array()}, {"store", true}}}, std::move(rules), counting_ids()};
}

DeltaEvent started(const char* channel, const char* recipient = "", harmony::Role role = harmony::Role::assistant) {
  return MessageStarted{0, role, channel, recipient, ""};
}
DeltaEvent said(std::string text) { return wire::Text{0, std::move(text)}; }
DeltaEvent ended() { return MessageEnded{0}; }

struct Told {
  std::vector<Json> events;
  Json response;

  std::vector<std::string> types() const {
    std::vector<std::string> all;
    for (const Json& event : events) all.push_back(event["type"].get<std::string>().substr(9));
    return all;
  }
};

Told tell(const std::vector<DeltaEvent>& events, FinishReason reason = FinishReason::stop, ReplyRules rules = {}) {
  ResponsesReply reply = reply_with(std::move(rules));
  Told told;
  reply.begin(told.events);
  for (const DeltaEvent& event : events) reply.push(event, told.events);
  if (reason == FinishReason::error) {
    reply.fail("nonfinite", "The logits were not finite.", told.events);
  } else {
    reply.end(reason, {10, 7, 3, 0}, told.events);
  }
  told.response = reply.response();
  return told;
}

TEST(OpenAiResponsesReplyTest, reasoning_preamble_call_and_answer_have_their_events_in_order) {
  const Told told = tell({started("analysis"), said("I "), said("think"), ended(), started("commentary"), said("Wait."), ended(),
                          started("commentary", "functions.f"), said("{}"), ended(), started("final"), said("Done"), ended()});
  EXPECT_EQ(told.types(), (std::vector<std::string>{"created",
                                                    "in_progress",
                                                    "output_item.added",
                                                    "content_part.added",
                                                    "reasoning_text.delta",
                                                    "reasoning_text.delta",
                                                    "reasoning_text.done",
                                                    "content_part.done",
                                                    "output_item.done",
                                                    "output_item.added",
                                                    "content_part.added",
                                                    "output_text.delta",
                                                    "output_text.done",
                                                    "content_part.done",
                                                    "output_item.done",
                                                    "output_item.added",
                                                    "function_call_arguments.delta",
                                                    "function_call_arguments.done",
                                                    "output_item.done",
                                                    "output_item.added",
                                                    "content_part.added",
                                                    "output_text.delta",
                                                    "output_text.done",
                                                    "content_part.done",
                                                    "output_item.done",
                                                    "completed"}));
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
  const Json& output = told.response["output"];
  ASSERT_EQ(output.size(), 4U);
  EXPECT_EQ(output[0]["content"][0], (Json{{"type", "reasoning_text"}, {"text", "I think"}}));
  EXPECT_EQ(output[1]["phase"], "commentary");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(output[2]["arguments"], "{}");
  EXPECT_EQ(output[3]["phase"], "final_answer");
  EXPECT_EQ(output[3]["content"][0]["text"], "Done");
  EXPECT_EQ(told.response["usage"]["total_tokens"], 17);
  EXPECT_EQ(told.response["created_at"], 1'700'000'000);
  EXPECT_EQ(told.response["store"], true);
}

TEST(OpenAiResponsesReplyTest, messages_that_say_nothing_have_all_events_but_deltas) {
  const Told told = tell({started("analysis"), ended(), started("commentary", "functions.f"), ended(), started("final"), ended()});
  EXPECT_EQ(told.types(), (std::vector<std::string>{"created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.done",
                                                    "content_part.done", "output_item.done", "output_item.added", "function_call_arguments.done",
                                                    "output_item.done", "output_item.added", "content_part.added", "output_text.done",
                                                    "content_part.done", "output_item.done", "completed"}));
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
}

TEST(OpenAiResponsesReplyTest, nothing_generated_is_a_response_without_output) {
  const Told told = tell({});
  EXPECT_EQ(told.types(), (std::vector<std::string>{"created", "in_progress", "completed"}));
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
}

TEST(OpenAiResponsesReplyTest, what_is_cut_at_the_token_limit_is_incomplete) {
  for (const bool with_end : {true, false}) {
    std::vector<DeltaEvent> events = {started("analysis"), said("why"), ended(), started("commentary", "functions.f"), said("{\"a\":")};
    if (with_end) events.push_back(ended());
    const Told told = tell(events, FinishReason::length);
    EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
    EXPECT_EQ(told.types().back(), "incomplete");
    EXPECT_EQ(told.response["status"], "incomplete");
    EXPECT_EQ(told.response["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(told.response["output"][0]["status"], "completed");
    EXPECT_EQ(told.response["output"][1]["status"], "incomplete");
    EXPECT_EQ(told.response["output"][1]["arguments"], "{\"a\":");
  }
}

TEST(OpenAiResponsesReplyTest, a_failure_closes_the_open_item_and_says_why) {
  const Told told = tell({started("final"), said("hal")}, FinishReason::error);
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
  EXPECT_EQ(told.response["status"], "failed");
  EXPECT_EQ(told.response["error"], (Json{{"code", "nonfinite"}, {"message", "The logits were not finite."}}));
  EXPECT_EQ(told.response["output"][0]["status"], "incomplete");
}

TEST(OpenAiResponsesReplyTest, undeclared_tools_and_strange_authors_are_no_items) {
  const std::vector<DeltaEvent> events = {started("analysis", "python"),
                                          said("1+1"),
                                          ended(),
                                          started("final", "", harmony::Role::user),
                                          said("me"),
                                          ended(),
                                          started("final"),
                                          said("2"),
                                          ended()};
  const Told told = tell(events);
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
  ASSERT_EQ(told.response["output"].size(), 1U);
  EXPECT_EQ(told.response["output"][0]["content"][0]["text"], "2");
  const Told declared = tell(events, FinishReason::stop, {{"python"}, true});
  EXPECT_EQ(declared.response["output"][0]["type"], "function_call");
  EXPECT_EQ(declared.response["output"][0]["name"], "python");
}

TEST(OpenAiResponsesReplyTest, without_calls_wanted_a_call_is_text) {
  const Told told = tell({started("commentary", "functions.f"), said("{}"), ended()}, FinishReason::stop, {{}, false});
  EXPECT_EQ(tests::wrong_events(told.events, told.response), "");
  EXPECT_EQ(told.response["output"][0]["type"], "message");
  EXPECT_EQ(told.response["output"][0]["phase"], "commentary");
}

TEST(OpenAiResponsesReplyTest, history_holds_what_was_said_and_whole_calls) {
  ResponsesReply reply = reply_with();
  std::vector<Json> events;
  reply.begin(events);
  for (const DeltaEvent& event : {started("analysis"), said("hm"), started("final"), started("commentary", "functions.f"), said("{}"),
                                  started("commentary", "functions.g"), said("{")})
    reply.push(event, events);
  reply.end(FinishReason::length, {}, events);
  const auto messages = reply.messages();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].channel, "analysis");
  EXPECT_EQ(messages[1].recipient, "functions.f");
  const Json output = reply.response()["output"];
  EXPECT_EQ(reply.calls(), (CallNames{{output[2]["call_id"], "f"}}));
}

// ---- token streams

std::vector<DeltaEvent> events_of(const std::vector<TokenId>& tokens, std::size_t chunk) {
  wire::DeltaStream stream(tests::o200k_format());
  std::vector<DeltaEvent> all, some;
  const auto flush = [&] {
    all.insert(all.end(), some.begin(), some.end());
    some.clear();
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    stream.push(tokens[i], some);
    if ((i + 1) % chunk == 0) flush();
  }
  stream.finish(some);
  flush();
  return all;
}

// What the cases say of chats, from items.
void expect_as_chat(const std::string& name, const Json& expected, const Json& output) {
  std::string reasoning, content;
  Json calls = Json::array();
  for (const Json& item : output) {
    if (item["type"] == "function_call") {
      calls.push_back({{"name", item["name"]}, {"arguments", item["arguments"]}});
      continue;
    }
    std::string& text = item["type"] == "reasoning" ? reasoning : content;
    const std::string more = item["content"][0]["text"];
    if (!text.empty() && !more.empty()) text += "\n";
    text += more;
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json found = {{"reasoning", or_null(reasoning)}, {"content", or_null(content)}, {"tool_calls", calls.empty() ? Json() : calls}};
  for (const auto& [member, value] : found.items()) EXPECT_EQ(value, expected.value(member, value)) << name << ", " << member;
}

TEST(OpenAiResponsesReplyTest, every_case_of_a_chat_is_a_good_stream_in_every_chunking) {
  std::ifstream file(ALTHING_SOURCE_DIR "/tests/data/harmony_cases.json");
  const Json cases = Json::parse(file)["cases"];
  int streams = 0;
  for (const Json& one : cases) {
    const Json& input = one["input"];
    const std::string form = input.value("form", "");
    if (form != "openai_chat_parse" && form != "openai_chat_delta") continue;
    std::vector<TokenId> tokens;
    if (input.contains("tokens")) tokens = input["tokens"].get<std::vector<TokenId>>();
    for (const Json& chunk : input.value("chunks", Json::array()))
      for (const Json& token : chunk["tokens"]) tokens.push_back(token.get<TokenId>());
    ReplyRules rules;
    for (const Json& function : input.value("declared_functions", Json::array())) rules.declared.insert(function);
    const FinishReason reason = input.value("engine_finish", "stop") == "length" ? FinishReason::length : FinishReason::stop;
    Json first;
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, tokens.size()}) {
      const Told told = tell(events_of(tokens, chunk), reason, rules);
      EXPECT_EQ(tests::wrong_events(told.events, told.response), "") << one["name"] << " in chunks of " << chunk;
      if (chunk == 1) first = told.response;
      EXPECT_EQ(told.response, first) << one["name"] << " in chunks of " << chunk;
      ++streams;
    }
    if (form == "openai_chat_parse") expect_as_chat(one["name"], one["expected"], first["output"]);
  }
  EXPECT_GE(streams, 150);
}

TEST(OpenAiResponsesReplyTest, ten_thousand_random_streams_are_good_ones) {
  std::mt19937_64 random(20260815);
  const auto any = [&](std::initializer_list<const char*> of) { return *(of.begin() + static_cast<std::ptrdiff_t>(random() % of.size())); };
  int items = 0;
  for (int stream = 0; stream < 10'000; ++stream) {
    std::vector<DeltaEvent> events;
    for (std::uint64_t i = 0, messages = random() % 6; i < messages; ++i) {
      events.push_back(started(any({"", "analysis", "commentary", "final", "final?"}),
                               any({"", "", "", "functions.f", "g", "assistant", "python", "browser.open", "pythons"}),
                               random() % 12 == 0 ? harmony::Role::tool : harmony::Role::assistant));
      for (std::uint64_t j = 0, texts = random() % 5; j < texts; ++j) events.push_back(said(any({"a", "\n", "\"}", "\xE2\x82\xAC", "<|end|>"})));
      if (random() % 8 != 0) events.push_back(ended());
      if (random() % 50 == 0) events.push_back(said("stray"));
    }
    const FinishReason reason = random() % 4 == 0 ? FinishReason::length : random() % 8 == 0 ? FinishReason::error : FinishReason::stop;
    const Told told = tell(events, reason, random() % 2 == 0 ? ReplyRules{} : ReplyRules{{"python", "f"}, random() % 2 == 0});
    items += static_cast<int>(told.response["output"].size());
    ASSERT_EQ(tests::wrong_events(told.events, told.response), "") << "stream " << stream << " of seed 20260815";
  }
  EXPECT_GT(items, 10'000);
}

TEST(OpenAiResponsesReplyTest, the_checker_notices_every_event_that_is_missing_doubled_or_moved) {
  const Told told = tell(
      {started("analysis"), said("I"), ended(), started("commentary", "functions.f"), said("{}"), ended(), started("final"), said("x"), ended()});
  ASSERT_EQ(tests::wrong_events(told.events, told.response), "");
  const auto renumbered = [](std::vector<Json> events) {
    for (std::size_t i = 0; i < events.size(); ++i) events[i]["sequence_number"] = i;
    return events;
  };
  for (std::size_t i = 0; i < told.events.size(); ++i) {
    std::vector<Json> missing = told.events, doubled = told.events, moved = told.events;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    doubled.insert(doubled.begin() + static_cast<std::ptrdiff_t>(i), told.events[i]);
    EXPECT_NE(tests::wrong_events(missing, told.response), "") << i;
    EXPECT_NE(tests::wrong_events(renumbered(missing), told.response), "") << i;
    EXPECT_NE(tests::wrong_events(renumbered(doubled), told.response), "") << i;
    if (i + 1 == told.events.size()) continue;
    std::swap(moved[i], moved[i + 1]);
    EXPECT_NE(tests::wrong_events(renumbered(moved), told.response), "") << i;
  }
}

}  // namespace
}  // namespace althing::protocol::openai
