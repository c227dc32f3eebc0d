// Every limit, at its value and one over, in both encodings; ranges of numbers; UTF-8.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "protocol/wire/check.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/protocol/wire_samples.hpp"

namespace althing::protocol::wire {
namespace {

using harmony::Role;
using tests::encodings;
using tests::text_message;

Limits small() {
  Limits l;
  l.messages_max = 5;
  l.tools_max = 4;
  l.text_bytes_max = 300;
  l.name_bytes_max = 40;
  l.context_tokens_max = 64;
  l.completion_tokens_max = 32;
  return l;
}

Submit one_message() {
  Submit submit;
  submit.request_id = "r";
  submit.messages = {text_message(Role::user, "hello")};
  return submit;
}

harmony::Function named(const std::string& name) {
  harmony::Function function;
  function.name = name;
  return function;
}

harmony::Message developer_with(std::size_t functions) {
  harmony::DeveloperContent content;
  harmony::ToolNamespace space{"functions", std::nullopt, {}};
  for (std::size_t i = 0; i < functions; ++i) space.functions.push_back(named("f" + std::to_string(i)));
  content.tools.emplace_back("functions", space);
  harmony::Message message;
  message.role = Role::developer;
  message.content.emplace_back(content);
  return message;
}

struct Case {
  const char* name;
  std::size_t at_most;
  ClientMessage (*make)(std::size_t count);
};

ClientMessage with(void (*change)(Submit&, std::size_t), std::size_t n) {
  Submit submit = one_message();
  change(submit, n);
  return submit;
}

const Case cases[] = {
    {"messages", 5, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages.assign(k, text_message(Role::user, "x")); }, n); }},
    {"parts", 5,
     [](std::size_t n) {
       return with([](Submit& s, std::size_t k) { s.messages[0].content.assign(k, harmony::Content(harmony::TextContent{"x"})); }, n);
     }},
    {"tools", 4, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.tools.assign(k, named("f")); }, n); }},
    {"tools in a message", 4, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages = {developer_with(k)}; }, n); }},
    {"tools in both places", 2,
     [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages = {developer_with(2)}, s.tools.assign(k, named("f")); }, n); }},
    {"text", 300,
     [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0] = text_message(Role::user, std::string(k, 'x')); }, n); }},
    {"description", 300,
     [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.tools = {named("f")}, s.tools[0].description.assign(k, 'x'); }, n); }},
    {"parameters", 300,
     [](std::size_t n) {
       return with(
           [](Submit& s, std::size_t k) {
             s.tools = {named("f")}, s.tools[0].parameters = nlohmann::ordered_json::object({{"type", std::string(k - 11, 'x')}});
           },
           n);
     }},
    {"function name", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.tools = {named(std::string(k, 'x'))}; }, n); }},
    {"channel", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0].channel = std::string(k, 'x'); }, n); }},
    {"recipient", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0].recipient = std::string(k, 'x'); }, n); }},
    {"author", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0].name = std::string(k, 'x'); }, n); }},
    {"content type", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0].content_type = std::string(k, 'x'); }, n); }},
    {"ids of a message", 64, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages[0].tokens.assign(k, 7); }, n); }},
    {"submit id", 40, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.request_id.assign(k, 'x'); }, n); }},
    {"prompt", 64, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.messages.clear(), s.prompt_tokens.assign(k, 7); }, n); }},
    {"completion", 32,
     [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.completion_tokens_max = static_cast<std::uint32_t>(k); }, n); }},
    {"choices", 16, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.n = static_cast<std::uint32_t>(k); }, n); }},
    {"logprobs", 20, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.logprobs = static_cast<std::uint32_t>(k); }, n); }},
    {"stop strings", 16, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.stop.assign(k, "x"); }, n); }},
    {"bytes of a stop string", 256, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.stop = {std::string(k, 'x')}; }, n); }},
    {"stop tokens", 16, [](std::size_t n) { return with([](Submit& s, std::size_t k) { s.sampling.stop_tokens.assign(k, 7); }, n); }},
    {"biases", 1024,
     [](std::size_t n) {
       return with(
           [](Submit& s, std::size_t k) {
             for (TokenId t = 0; t < k; ++t) s.sampling.logit_bias.push_back({t, 1.0F});
           },
           n);
     }},
    {"cancel id", 40, [](std::size_t n) { return ClientMessage(Cancel{std::string(n, 'x')}); }},
    {"resume id", 40,
     [](std::size_t n) {
       return ClientMessage(Resume{std::string(n, 'x'), 1});
     }},
    {"grant id", 40,
     [](std::size_t n) {
       return ClientMessage(Grant{std::string(n, 'x'), 1});
     }},
    {"client id", 40,
     [](std::size_t n) {
       return ClientMessage(Hello{1, 1, std::string(n, 'x'), "c"});
     }},
    {"client name", 40,
     [](std::size_t n) {
       return ClientMessage(Hello{1, 1, std::string(16, 'x'), std::string(n, 'x')});
     }},
};

TEST(WireLimits, the_limit_itself_is_accepted_and_one_more_is_not) {
  for (const auto encoding : encodings)
    for (const Case& c : cases) {
      const auto at = decode_client(encode(c.make(c.at_most), encoding), encoding, small());
      EXPECT_TRUE(at.ok()) << c.name << ": " << (at.ok() ? "" : at.error().message);
      const auto over = decode_client(encode(c.make(c.at_most + 1), encoding), encoding, small());
      ASSERT_FALSE(over.ok()) << c.name;
      EXPECT_EQ(over.error().code, ErrorCode::too_large) << c.name << ": " << over.error().message;
      EXPECT_NE(over.error().message.find("over the limit of "), std::string::npos) << over.error().message;
    }
}

TEST(WireLimits, a_frame_may_be_as_long_as_the_limit_and_not_longer) {
  for (const auto encoding : encodings) {
    const std::string body = encode(ClientMessage(one_message()), encoding);
    Limits limits;
    limits.frame_bytes_max = static_cast<std::uint32_t>(body.size());
    EXPECT_TRUE(decode_client(body, encoding, limits).ok());
    limits.frame_bytes_max -= 1;
    EXPECT_EQ(decode_client(body, encoding, limits).error().code, ErrorCode::too_large);
    EXPECT_EQ(decode_server(body, encoding, limits).error().code, ErrorCode::too_large);
  }
}

TEST(WireLimits, ids_are_neither_short_nor_strange) {
  const ClientMessage bad[] = {Hello{1, 1, std::string(15, 'x'), ""}, Cancel{""},        Cancel{"a\nb"},
                               Grant{std::string("a\0b", 3), 1},      Resume{"\x7f", 1}, Hello{2, 1, std::string(16, 'x'), ""}};
  for (const auto encoding : encodings)
    for (const auto& message : bad) {
      std::string id;
      const auto decoded = decode_client(encode(message, encoding), encoding, Limits{}, &id);
      ASSERT_FALSE(decoded.ok()) << tests::json_of(message);
      EXPECT_EQ(decoded.error().code, ErrorCode::invalid_argument);
      EXPECT_EQ(id, "");
    }
}

TEST(WireLimits, sampling_stays_in_range) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  struct Range {
    std::optional<float> Sampling::*member;
    std::vector<float> good, bad;
  };
  const Range ranges[] = {{&Sampling::temperature, {0.0F, 0.5F, 2.0F}, {-0.1F, 2.1F, nan, inf, -inf}},
                          {&Sampling::top_p, {1e-6F, 1.0F}, {0.0F, -1.0F, 1.1F, nan, inf}},
                          {&Sampling::min_p, {0.0F, 1.0F}, {-0.1F, 1.1F, nan, inf}},
                          {&Sampling::repetition_penalty, {1e-6F, 1.0F, 10.0F}, {0.0F, -1.0F, 10.1F, nan, inf}},
                          {&Sampling::presence_penalty, {-2.0F, 0.0F, 2.0F}, {-2.1F, 2.1F, nan, inf, -inf}},
                          {&Sampling::frequency_penalty, {-2.0F, 0.0F, 2.0F}, {-2.1F, 2.1F, nan, inf, -inf}}};
  for (const Range& range : ranges)
    for (const auto encoding : encodings) {
      Submit submit = one_message();
      for (const float value : range.good) {
        submit.sampling.*range.member = value;
        const auto decoded = decode_client(encode(ClientMessage(submit), encoding), encoding, Limits{});
        ASSERT_TRUE(decoded.ok()) << value << decoded.error().message;
        EXPECT_EQ(std::get<Submit>(*decoded).sampling.*range.member, value);
      }
      for (const float value : range.bad) {
        if (encoding == Encoding::json && !std::isfinite(value)) continue;  // JSON cannot say it
        submit.sampling.*range.member = value;
        const auto decoded = decode_client(encode(ClientMessage(submit), encoding), encoding, Limits{});
        ASSERT_FALSE(decoded.ok()) << value;
        EXPECT_EQ(decoded.error().code, ErrorCode::invalid_argument);
      }
    }
  Submit none = one_message();
  none.sampling.completion_tokens_max = 0;
  for (const auto encoding : encodings)
    EXPECT_EQ(decode_client(encode(ClientMessage(none), encoding), encoding, Limits{}).error().field, "sampling.completion_tokens_max");
}

TEST(WireLimits, biases_and_stop_strings_are_refused_by_name) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto encoding : encodings) {
    const auto field = [&](auto change) {
      Submit submit = one_message();
      change(submit.sampling);
      const auto decoded = decode_client(encode(ClientMessage(submit), encoding), encoding, Limits{});
      return decoded ? std::string() : decoded.error().field;
    };
    EXPECT_EQ(field([](Sampling& s) { s.logit_bias = {{5, -100.0F}, {4, 100.0F}}; }), "") << "in any order";
    EXPECT_EQ(field([](Sampling& s) { s.logit_bias = {{5, -100.1F}}; }), "sampling.logit_bias[5]");
    EXPECT_EQ(field([](Sampling& s) { s.logit_bias = {{5, 0.0F}, {7, 1e20F}}; }), "sampling.logit_bias[7]");
    EXPECT_EQ(field([](Sampling& s) { s.stop = {"a", ""}; }), "sampling.stop[1]");
    if (encoding == Encoding::json) continue;  // which can say neither of these
    EXPECT_EQ(field([&](Sampling& s) { s.logit_bias = {{5, nan}}; }), "sampling.logit_bias[5]");
    EXPECT_EQ(field([](Sampling& s) { s.logit_bias = {{5, 1.0F}, {6, 1.0F}, {5, 2.0F}}; }), "sampling.logit_bias");
    EXPECT_EQ(field([](Sampling& s) { s.stop = {"\xff"}; }), "sampling.stop[0]");
  }
  const auto field = [](const std::string& sampling) {
    const auto decoded =
        decode_client(R"({"type":"submit","request_id":"r","prompt_tokens":[1],"sampling":{)" + sampling + "}}", Encoding::json, Limits{});
    return decoded ? std::string() : decoded.error().field;
  };
  EXPECT_EQ(field(R"("logit_bias":{"0":1,"17":-2.5})"), "");
  for (const char* key : {"x", "", "-1", "01", "1.0", "4294967296"})
    EXPECT_EQ(field("\"logit_bias\":{\"" + std::string(key) + "\":1}"), "sampling.logit_bias") << key;
  EXPECT_EQ(field(R"("logit_bias":{"1":"2"})"), "sampling.logit_bias");
  EXPECT_EQ(field(R"("logit_bias":[1])"), "sampling.logit_bias");
  EXPECT_EQ(field(R"("logit_bias":{"1":1e300})"), "sampling.logit_bias[1]");
  EXPECT_EQ(field(R"("stop":"x")"), "sampling.stop");
  EXPECT_EQ(field(R"("stop":["x",1])"), "sampling.stop");
  EXPECT_EQ(field(R"("stop_tokens":[-1])"), "sampling.stop_tokens");
  EXPECT_EQ(field(R"("logprobs":true)"), "sampling.logprobs");
}

TEST(WireLimits, a_server_tells_no_more_logprobs_than_can_be_asked_for) {
  for (const auto encoding : encodings) {
    Delta delta{"r", 1, 0, {}, {1}, {}, {{1, -1.0F, std::vector<TokenLogprob>(20)}}};
    EXPECT_TRUE(decode_server(encode(ServerMessage(delta), encoding), encoding, Limits{}).ok());
    delta.logprobs[0].top.emplace_back();
    EXPECT_FALSE(decode_server(encode(ServerMessage(delta), encoding), encoding, Limits{}).ok());
  }
}

TEST(WireLimits, a_submit_is_a_conversation_or_tokens) {
  Submit neither = one_message(), both = one_message(), tools = one_message(), effort = one_message();
  neither.messages.clear();
  both.prompt_tokens = {1};
  tools.messages.clear(), tools.prompt_tokens = {1}, tools.tools = {named("f")};
  effort.messages.clear(), effort.prompt_tokens = {1}, effort.reasoning_effort = harmony::ReasoningEffort::low;
  for (const auto encoding : encodings)
    for (const auto* submit : {&neither, &both, &tools, &effort}) {
      std::string id;
      EXPECT_EQ(decode_client(encode(ClientMessage(*submit), encoding), encoding, Limits{}, &id).error().code, ErrorCode::invalid_argument);
      EXPECT_EQ(id, "r");
    }
}

TEST(WireLimits, text_must_be_utf8) {
  for (const std::string& bad : {std::string("\xff"), std::string("a\xc3"), std::string("\xed\xa0\x80"), std::string("\xc0\xaf")}) {
    Submit submit = one_message();
    submit.messages[0] = text_message(Role::user, bad);
    const auto decoded = decode_client(encode(ClientMessage(submit), Encoding::capnp), Encoding::capnp, Limits{});
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().field, "messages[0].content[0].text");
    const std::string json = R"({"type":"submit","request_id":"r","messages":[{"role":"user","content":")" + bad + R"("}]})";
    EXPECT_EQ(decode_client(json, Encoding::json, Limits{}).error().code, ErrorCode::corrupt);
    // A server whose text is broken sends replacement characters rather than nothing.
    const auto delta = decode_server(encode(ServerMessage(Delta{"r", 1, 0, {Text{0, bad}}, {}}), Encoding::json), Encoding::json, Limits{});
    ASSERT_TRUE(delta.ok()) << delta.error().message;
    EXPECT_NE(std::get<Text>(std::get<Delta>(*delta).events[0]).text.find("\xef\xbf\xbd"), std::string::npos);
    EXPECT_FALSE(decode_server(encode(ServerMessage(Delta{"r", 1, 0, {Text{0, bad}}, {}}), Encoding::capnp), Encoding::capnp, Limits{}).ok());
  }
}

TEST(WireLimits, no_choice_at_all_is_refused_and_an_absent_number_is_one) {
  Submit none = one_message();
  none.sampling.n = 0;
  for (const auto encoding : encodings) {
    const auto decoded = decode_client(encode(ClientMessage(none), encoding), encoding, Limits{});
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().field, "sampling.n");
  }
  const auto absent = decode_client(R"({"type":"submit","request_id":"r","messages":[{"role":"user","content":"x"}]})", Encoding::json, Limits{});
  ASSERT_TRUE(absent.ok());
  EXPECT_EQ(std::get<Submit>(*absent).sampling.n, 1u);
}

TEST(WireLimits, choices_that_a_server_names_are_bounded) {
  for (const auto encoding : encodings) {
    EXPECT_TRUE(decode_server(encode(ServerMessage(Delta{"r", 1, choices_bound - 1, {}, {1}}), encoding), encoding, Limits{}).ok());
    EXPECT_FALSE(decode_server(encode(ServerMessage(Delta{"r", 1, choices_bound, {}, {1}}), encoding), encoding, Limits{}).ok());
    Done done{"r", 1, FinishReason::stop, {}, std::vector<ChoiceEnd>(choices_bound)};
    EXPECT_TRUE(decode_server(encode(ServerMessage(done), encoding), encoding, Limits{}).ok());
    done.choices.emplace_back();
    EXPECT_FALSE(decode_server(encode(ServerMessage(done), encoding), encoding, Limits{}).ok());
  }
}

TEST(WireLimits, schemas_have_bounded_depth_in_both_encodings) {
  for (const auto encoding : encodings)
    for (const bool inside : {true, false}) {
      nlohmann::ordered_json schema = nlohmann::ordered_json::object();
      for (int depth = 1; depth < 48 + (inside ? 0 : 1); ++depth) schema = nlohmann::ordered_json::object({{"items", schema}});
      Submit submit = one_message();
      submit.tools = {named("f")};
      submit.tools[0].parameters = schema;
      EXPECT_EQ(decode_client(encode(ClientMessage(submit), encoding), encoding, Limits{}).ok(), inside);
    }
}

TEST(WireLimits, a_schema_is_an_object_and_a_namespace_stands_once) {
  Submit number = one_message(), twice = one_message();
  number.tools = {named("f")};
  number.tools[0].parameters = 5;
  twice.messages = {developer_with(1)};
  auto& tools = std::get<harmony::DeveloperContent>(twice.messages[0].content[0]).tools;
  tools.push_back(tools[0]);
  for (const auto encoding : encodings) {
    const auto decoded = decode_client(encode(ClientMessage(number), encoding), encoding, Limits{});
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().field, "tools[0].parameters");
  }
  EXPECT_EQ(decode_client(encode(ClientMessage(twice), Encoding::capnp), Encoding::capnp, Limits{}).error().code, ErrorCode::invalid_argument);
}

TEST(WireLimits, what_a_model_wrote_may_be_longer_than_a_name) {
  const MessageStarted started{0, Role::assistant, std::string(1000, 'c'), std::string(1000, 'r'), std::string(1000, 't')};
  for (const auto encoding : encodings)
    EXPECT_TRUE(decode_server(encode(ServerMessage(Delta{"r", 1, 0, {started}, {}}), encoding), encoding, Limits{}).ok());
}

}  // namespace
}  // namespace althing::protocol::wire
