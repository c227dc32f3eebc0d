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
      {R"({"type":"submit","request_id":"r","prompt_tokens":[1],"tenant":7})", "tenant"},
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

TEST(WireJson, floats_are_written_as_short_as_they_can_be) {
  Submit submit = tests::token_submit();
  submit.sampling.temperature = 0.7F;
  EXPECT_NE(tests::json_of(ClientMessage(submit)).find("\"temperature\":0.7}"), std::string::npos) << tests::json_of(ClientMessage(submit));
}

}  // namespace
}  // namespace althing::protocol::wire
