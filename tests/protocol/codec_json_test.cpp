// What only the JSON form can get wrong: kinds of members, keys twice, depth, large numbers, and texts that are slow to read.
#include <gtest/gtest.h>

#include <ctime>

#include "protocol/wire/codec.hpp"
#include "protocol/wire/json_text.hpp"
#include "tests/protocol/wire_samples.hpp"

namespace althing::protocol::wire {
namespace {

Result<ClientMessage> read(const std::string& body) { return decode_client(body, Encoding::json, Limits{}); }

TEST(WireJson, large_numbers_come_as_numbers_or_strings) {
  for (const char* seed : {"18446744073709551615", "\"18446744073709551615\"", "0", "\"0\"", "9007199254740993"}) {
    const auto decoded = read(std::string(R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":{"seed":)") + seed + "}}");
    ASSERT_TRUE(decoded.ok()) << seed << decoded.error().message;
    EXPECT_EQ("\"" + std::to_string(*std::get<Submit>(*decoded).sampling.seed) + "\"", seed[0] == '"' ? seed : "\"" + std::string(seed) + "\"");
  }
  for (const char* seed : {"-1", "1.5", "18446744073709551616", "\"18446744073709551616\"", "\"\"", "\" 1\"", "\"1x\"", "true", "[1]", "1e3"})
    EXPECT_FALSE(read(std::string(R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":{"seed":)") + seed + "}}").ok()) << seed;
}

TEST(WireJson, members_of_the_wrong_kind_are_named) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"submit","request_id":"r","messages":{}})", "messages"},
      {R"({"type":"submit","request_id":7,"prompt_tokens":[1]})", "request_id"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"credit":-1})", "credit"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"credit":4294967296})", "credit"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"return_tokens":"yes"})", "return_tokens"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":{"temperature":"hot"}})", "sampling.temperature"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":{"temperature":1e300}})", "sampling.temperature"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":[]})", "sampling"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"trace_top_m":true})", "trace_top_m"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"priority":1.5})", "priority"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"priority":18446744073709551615})", "priority"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"priority":5})", "priority"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"priority":-5})", "priority"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"tenant":7})", "tenant"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"grammar":"x"})", "grammar"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"grammar":{}})", "grammar"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"grammar":{"regex":"a","json_object":true}})", "grammar"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"grammar":{"regex":5}})", "grammar.regex"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1,-2]})", "prompt_tokens"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[4294967296]})", "prompt_tokens"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":["1"]})", "prompt_tokens"},
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"tools":[5]})", "tools[0]"},
      {R"({"type":"submit","request_id":"r","messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","parameters":"{}"}]})",
       "tools[0].parameters"},
      {R"({"type":"submit","request_id":"r","messages":[{"role":"user","content":"x"}],"reasoning_effort":"extreme"})", "reasoning_effort"},
      {R"({"type":"ping","nonce":{}})", "nonce"},
      {"[]", "type"},
      {"7", "type"},
  };
  for (const auto& [body, field] : cases) {
    const auto decoded = read(body);
    ASSERT_FALSE(decoded.ok()) << body;
    EXPECT_EQ(decoded.error().code, ErrorCode::invalid_argument) << body;
    EXPECT_EQ(decoded.error().field, field) << decoded.error().message;
  }
}

TEST(WireJson, errors_inside_messages_say_which_message) {
  const auto decoded = read(R"({"type":"submit","request_id":"r","messages":[{"role":"user","content":"x"},{"role":"martian","content":"y"}]})");
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().field.rfind("messages[1]", 0), 0U) << decoded.error().field;
}

TEST(WireJson, a_key_twice_is_refused) {
  EXPECT_EQ(read(R"({"type":"ping","nonce":1,"nonce":2})").error().code, ErrorCode::corrupt);
  EXPECT_EQ(read(R"({"type":"ping","later":{"a":1,"b":2,"a":3}})").error().code, ErrorCode::corrupt);
}

TEST(WireJson, null_counts_as_absent) {
  const auto decoded =
      read(R"({"type":"submit","request_id":"r","messages":null,"prompt_tokens":[1],"tools":null,"sampling":{"seed":null},"credit":null})");
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_FALSE(std::get<Submit>(*decoded).sampling.seed.has_value());
}

TEST(WireJson, depth_is_bounded) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(64), 64).ok());
  EXPECT_EQ(parse_json(nested(65), 64).error().code, ErrorCode::corrupt);
  EXPECT_EQ(parse_json(nested(100'000), 64).error().code, ErrorCode::corrupt);
  EXPECT_EQ(parse_json(std::string(100'000, '['), 64).error().code, ErrorCode::corrupt);
  EXPECT_EQ(depth_of(*parse_json(nested(64), 64)), 64U);
  EXPECT_EQ(depth_of(*parse_json(R"({"a":{"b":1},"c":2})", 64)), 2U);
  EXPECT_EQ(depth_of(*parse_json("7", 64)), 0U);
}

TEST(WireJson, not_json_is_corrupt) {
  for (const char* body : {"", " ", "{", "{\"type\":\"ping\"", "{'type':'ping'}", "{\"type\":\"ping\"}x", "{\"type\":\"ping\"}{}", "nul",
                           "{\"a\":NaN}", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "\xef\xbb\xbf[", "{\"a\":1e999}"})
    EXPECT_EQ(read(body).error().code, ErrorCode::corrupt) << body;
}

// Looking each key up in a list of all of them would take 10^10 steps here. The clock is that of the processor: other programs do not count.
TEST(WireJson, an_object_with_many_members_is_read_in_linear_time) {
  std::string body = R"({"type":"ping","nonce":7)";
  for (int i = 0; i < 300'000; ++i) body += ",\"k" + std::to_string(i) + "\":0";
  body += "}";
  const std::clock_t start = std::clock();
  const auto decoded = decode_client(body, Encoding::json, [] {
    Limits l;
    l.frame_bytes_max = 1u << 24;
    return l;
  }());
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10);
}

// Deltas are written by hand: as the library would write what it reads there, whatever texts hold.
TEST(WireJson, a_delta_is_written_as_the_library_writes_it) {
  const std::string texts[] = {
      "plain", " ", "\"quoted\\ \n", "tab\t bell\a nul" + std::string(1, '\0'), "\x7f", "gr\u00fc\u00dfe", "\U0001F600 \u2028", "/slash/ <b> & '"};
  for (const std::string& text : texts) {
    Delta delta{
        "r-1", 7, 2, {MessageStarted{0, harmony::Role::assistant, "final", "", ""}, Text{0, text}, Text{1, text + text}, MessageEnded{0}}, {}};
    for (const std::vector<TokenId>& tokens : {std::vector<TokenId>{}, std::vector<TokenId>{5}, std::vector<TokenId>{0, 4294967295U}}) {
      delta.tokens = tokens;
      const std::string body = encode(ServerMessage(delta), Encoding::json);
      EXPECT_EQ(nlohmann::ordered_json::parse(body).dump(), body);
      const auto read = decode_server(body, Encoding::json, Limits{});
      ASSERT_TRUE(read.ok()) << body << ": " << read.error().message;
      EXPECT_EQ(std::get<Text>(std::get<Delta>(*read).events[2]).text, text + text);
      EXPECT_EQ(std::get<Delta>(*read).tokens, tokens);
    }
    delta.sequence = 1ULL << 60;
    EXPECT_NE(encode(ServerMessage(delta), Encoding::json).find("\"sequence\":\"1152921504606846976\","), std::string::npos);
  }
  // What is no UTF-8 is replaced.
  const std::string broken = encode(ServerMessage(Delta{"r", 1, 0, {Text{0, "a\xff"}}, {}}), Encoding::json);
  EXPECT_NE(broken.find("a\xEF\xBF\xBD"), std::string::npos) << broken;
}

TEST(WireJson, floats_are_written_as_short_as_they_can_be) {
  Submit submit = tests::token_submit();
  submit.sampling.temperature = 0.7F;
  EXPECT_NE(tests::json_of(ClientMessage(submit)).find("\"temperature\":0.7}"), std::string::npos) << tests::json_of(ClientMessage(submit));
}

}  // namespace
}  // namespace althing::protocol::wire
