// One of every wire message, with every field set to something that is not its default, for the tests of the codec.
#pragma once

#include <string>
#include <vector>

#include "protocol/wire/codec.hpp"

namespace althing::tests {

inline protocol::harmony::Message text_message(protocol::harmony::Role role, std::string text) {
  protocol::harmony::Message message;
  message.role = role;
  message.content.emplace_back(protocol::harmony::TextContent{std::move(text)});
  return message;
}

inline protocol::harmony::Function weather_function() {
  protocol::harmony::Function function;
  function.name = "get_current_weather";
  function.description = "Get the weather for a city.";
  // Not in alphabetical order on purpose: the order must survive.
  function.parameters = nlohmann::ordered_json::parse(
      R"({"type":"object","properties":{"unit":{"type":"string","enum":["celsius","fahrenheit"]},"city":{"type":"string"}},"required":["city"]})");
  return function;
}

inline protocol::wire::Submit chat_submit() {
  namespace harmony = protocol::harmony;
  protocol::wire::Submit submit;
  submit.request_id = "r-1";
  harmony::Message system;
  system.role = harmony::Role::system;
  harmony::SystemContent content;
  content.reasoning_effort = harmony::ReasoningEffort::high;
  content.conversation_start_date = "2025-06-28";
  system.content.emplace_back(content);
  harmony::Message developer;
  developer.role = harmony::Role::developer;
  harmony::DeveloperContent instructions;
  instructions.instructions = "Be brief.";
  instructions.tools.emplace_back("functions", harmony::ToolNamespace{"functions", std::nullopt, {weather_function()}});
  developer.content.emplace_back(instructions);
  harmony::Message call = text_message(harmony::Role::assistant, R"({"city":"Brüssel"})");
  call.channel = "commentary";
  call.recipient = "functions.get_current_weather";
  call.content_type = "<|constrain|>json";
  call.tokens = {200'005, 7, 4'294'967'295U, 200'012};
  harmony::Message answer = text_message(harmony::Role::tool, R"({"temperature":20})");
  answer.name = "functions.get_current_weather";
  answer.recipient = "assistant";
  answer.channel = "commentary";
  submit.messages = {system, developer, text_message(harmony::Role::user, "Wie warm ist es in Brüssel? 🌡"), call, answer};
  harmony::Function extra;
  extra.name = "where_am_i";
  extra.description = "Returns the user's place.";
  submit.tools = {extra};
  submit.reasoning_effort = harmony::ReasoningEffort::low;
  submit.sampling = {0.7F, 0.9F, 0.05F, 40U, 18446744073709551615ULL, 128U, true, 1, 1.1F, 0.5F, -0.25F};
  submit.sampling.logit_bias = {{7, -100.0F}, {3, 0.1F}};
  submit.sampling.stop = {"\n\n", "Brüssel"};
  submit.sampling.stop_tokens = {5, 200'012};
  submit.sampling.logprobs = 3;
  submit.timeout_ms = 30'000;
  submit.credit = 16;
  submit.return_tokens = true;
  submit.trace_top_m = 4;
  submit.tenant = "team-7.Blue_";
  submit.priority = -3;
  return submit;
}

inline protocol::wire::Submit token_submit() {
  protocol::wire::Submit submit;
  submit.request_id = "raw";
  submit.prompt_tokens = {200006, 1428, 0, 4294967295U};
  return submit;
}

inline protocol::wire::Submit choices_submit() {
  protocol::wire::Submit submit = token_submit();
  submit.sampling.n = 3;
  return submit;
}

inline std::vector<protocol::wire::ClientMessage> client_samples() {
  using namespace protocol::wire;
  return {Hello{1, 3, "0123456789abcdef0123456789abcdef", "althing-cli/0.1"},
          chat_submit(),
          token_submit(),
          choices_submit(),
          Cancel{"r-1"},
          Resume{"r-1", 18446744073709551615ULL},
          Grant{"r-1", 8},
          Ping{9007199254740993ULL}};
}

inline StepRouting routing_sample() {
  StepRouting routing;
  routing.step = StepId{12};
  routing.epoch = EpochId{3};
  routing.start = 40;
  routing.recomputed = 1;
  routing.layers = 2;
  routing.top_m = 2;
  routing.experts_per_token = 1;
  routing.tokens = {7, 200'006};
  routing.nanoseconds = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 1'000'000'000'000}};
  for (std::uint32_t i = 0; i < 8; ++i) routing.logits.push_back({i, 1.5F - static_cast<float>(i)});
  routing.experts = {{5, 5, 1, 3, 2, PairFate::replica, 0, 0.75F},
                     {4, 2, 0, 1, 4, PairFate::rerouted, 0, 1.0F},
                     {2, 2, 0, 0, 0, PairFate::dropped, 0, 0.0F},
                     {1, 1, 0, 0, 1, PairFate::chosen, 0, 0.1F}};
  return routing;
}

inline std::vector<protocol::wire::ServerMessage> server_samples() {
  using namespace protocol::wire;
  std::vector<ServerMessage> samples = {
      Welcome{1, "b2f1c9", "gpt-oss-20b", 131072, 4194304, 15000},
      protocol::wire::Accepted{"r-1", 68, 18446744073709551615ULL},
      Delta{"r-1",
            1,
            2,
            {MessageStarted{0, protocol::harmony::Role::assistant, "commentary", "functions.get_current_weather", "<|constrain|>json"},
             Text{0, "{\"city\":\"Brüssel\"}"}, MessageEnded{0}},
            {12606, 815}},
      Delta{"r-1", 2, 0, {}, {12606}, {routing_sample(), routing_sample()}},
      Delta{"r-1", 3, 0, {}, {12606}, {}, {{12606, -0.1F, {{12606, -0.1F}, {815, -2.5F}}}, {815, -3.4e38F, {}}}},
      Done{"r-1", 2, FinishReason::length, {68, 25, 1}, {}},
      Done{"r-2",
           9,
           FinishReason::error,
           {68, 30, 1},
           {{FinishReason::stop, 20, 0, {}},
            {FinishReason::error, 10, 1, Error{ErrorCode::nonfinite, "NaN", "logits"}},
            {FinishReason::length, 0, 0, {}},
            {FinishReason::stop, 7, 0, {}, 15}}},
      Done{"r-1", 2, FinishReason::stop, {68, 25, 0}, {}, false, 0},
      Done{"r-1", 2, FinishReason::stop, {68, 25, 0}, {}, true},
      Done{"r-1", 2, FinishReason::stop, {68, 25, 0, 48, PrefixMiss::boundary}, {}},
      Done{"r-1", 2, FinishReason::stop, {68, 25, 0}, {}, false, std::nullopt, 17},
      ErrorReply{"r-1", 3, {ErrorCode::slow_reader, "the client did not read", "credit"}},
      ErrorReply{"", 0, {ErrorCode::unavailable, "say hello first", ""}},
      Pong{7, "b2f1c9", ""},
      Pong{8, "b2f1c9", "recovering"}};
  for (int i = 0; i < error_code_count; ++i) samples.push_back(ErrorReply{"r", 1, {static_cast<ErrorCode>(i), "m", "f"}});
  samples.push_back(ErrorReply{"r", 0, {ErrorCode::busy, "full", "", 1500}});
  for (const auto reason : {FinishReason::stop, FinishReason::cancelled, FinishReason::error}) samples.push_back(Done{"r", 1, reason, {}, {}});
  return samples;
}

inline constexpr protocol::wire::Encoding encodings[] = {protocol::wire::Encoding::capnp, protocol::wire::Encoding::json};

// Two messages are the same when their JSON is: it holds every field.
template <class Message>
std::string json_of(const Message& message) {
  return protocol::wire::encode(message, protocol::wire::Encoding::json);
}

}  // namespace althing::tests
