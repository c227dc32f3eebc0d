// The codec on messages it must carry unchanged, and on bytes it must refuse without harm.
#include "protocol/wire/codec.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "tests/protocol/wire_samples.hpp"

namespace althing::protocol::wire {
namespace {

using tests::client_samples;
using tests::encodings;
using tests::json_of;
using tests::server_samples;

const Limits limits = [] {
  Limits l;
  l.context_tokens_max = 131072;
  return l;
}();

TEST(WireHeader, names_version_and_encoding) {
  EXPECT_EQ(header_of(Encoding::capnp), "ALT1c");
  EXPECT_EQ(header_of(Encoding::json), "ALT1j");
  for (const auto encoding : encodings) EXPECT_EQ(*encoding_of(header_of(encoding)), encoding);
  for (const char* other : {"ALT2c", "ALT0j", "ALT17j"}) EXPECT_EQ(encoding_of(other).error().code, ErrorCode::version) << other;
  EXPECT_EQ(encoding_of("ALT1x").error().code, ErrorCode::unsupported);
  for (const char* other : {"", "A", "ALT", "ALT1", "ALTc", "alt1c", "ALTxc", "HTTP/1.1", "ALT99999999999999999999c", "ALT-1c"})
    EXPECT_EQ(encoding_of(other).error().code, ErrorCode::corrupt) << other;
}

TEST(WireCodec, client_messages_survive_both_encodings) {
  for (const auto encoding : encodings)
    for (const auto& sample : client_samples()) {
      std::string id;
      const auto decoded = decode_client(encode(sample, encoding), encoding, limits, &id);
      ASSERT_TRUE(decoded.ok()) << decoded.error().message << json_of(sample);
      EXPECT_EQ(json_of(*decoded), json_of(sample));
      EXPECT_EQ(encode(*decoded, encoding), encode(sample, encoding));
    }
}

TEST(WireCodec, server_messages_survive_both_encodings) {
  for (const auto encoding : encodings)
    for (const auto& sample : server_samples()) {
      const auto decoded = decode_server(encode(sample, encoding), encoding, limits);
      ASSERT_TRUE(decoded.ok()) << decoded.error().message << json_of(sample);
      EXPECT_EQ(json_of(*decoded), json_of(sample));
      EXPECT_EQ(encode(*decoded, encoding), encode(sample, encoding));
    }
}

TEST(WireCodec, fields_arrive_where_they_belong) {
  for (const auto encoding : encodings) {
    const auto decoded = decode_client(encode(ClientMessage(tests::chat_submit()), encoding), encoding, limits);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    const auto& submit = std::get<Submit>(*decoded);
    EXPECT_EQ(submit.request_id, "r-1");
    ASSERT_EQ(submit.messages.size(), 5U);
    EXPECT_EQ(std::get<harmony::SystemContent>(submit.messages[0].content[0]).reasoning_effort, harmony::ReasoningEffort::high);
    EXPECT_EQ(std::get<harmony::DeveloperContent>(submit.messages[1].content[0]).tools[0].second.functions[0].parameters->dump(),
              tests::weather_function().parameters->dump());
    EXPECT_EQ(submit.messages[3].recipient, "functions.get_current_weather");
    EXPECT_EQ(submit.messages[3].content_type, "<|constrain|>json");
    EXPECT_EQ(submit.messages[4].role, harmony::Role::tool);
    EXPECT_EQ(submit.sampling.seed, 18446744073709551615ULL);
    EXPECT_EQ(submit.sampling.temperature, 0.7F);
    EXPECT_EQ(submit.sampling.repetition_penalty, 1.1F);
    EXPECT_EQ(submit.sampling.presence_penalty, 0.5F);
    EXPECT_EQ(submit.sampling.frequency_penalty, -0.25F);
    EXPECT_EQ(submit.sampling.logit_bias, (std::vector<TokenBias>{{7, -100.0F}, {3, 0.1F}}));
    EXPECT_EQ(submit.sampling.stop, (std::vector<std::string>{"\n\n", "Brüssel"}));
    EXPECT_EQ(submit.sampling.stop_tokens, (std::vector<TokenId>{5, 200'012}));
    EXPECT_EQ(submit.sampling.logprobs, 3U);
    EXPECT_EQ(submit.credit, 16U);
    EXPECT_TRUE(submit.return_tokens);
    EXPECT_EQ(submit.trace_top_m, 4U);
    EXPECT_EQ(submit.tenant, "team-7.Blue_");
    EXPECT_EQ(submit.priority, -3);
    EXPECT_FALSE(submit.tools[0].parameters.has_value());
  }
}

TEST(WireCodec, absent_numbers_stay_absent) {
  for (const auto encoding : encodings) {
    const auto decoded = decode_client(encode(ClientMessage(tests::token_submit()), encoding), encoding, limits);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    const Sampling& s = std::get<Submit>(*decoded).sampling;
    EXPECT_FALSE(s.temperature || s.top_p || s.min_p || s.top_k || s.seed || s.completion_tokens_max || s.ignore_stop);
    EXPECT_FALSE(s.repetition_penalty || s.presence_penalty || s.frequency_penalty || s.logprobs);
    EXPECT_TRUE(s.logit_bias.empty() && s.stop.empty() && s.stop_tokens.empty());
    EXPECT_FALSE(std::get<Submit>(*decoded).reasoning_effort.has_value());
  }
}

TEST(WireCodec, routing_comes_back_to_the_last_bit_and_what_is_not_finite_stays_so) {
  for (const auto encoding : encodings) {
    Delta delta{"r", 1, 0, {}, {}, {tests::routing_sample()}};
    auto decoded = decode_server(encode(ServerMessage(delta), encoding), encoding, limits);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(std::get<Delta>(*decoded).routing, delta.routing);
    delta.routing[0].logits[1].logit = NAN;
    delta.routing[0].experts[0].weight = NAN;
    decoded = decode_server(encode(ServerMessage(delta), encoding), encoding, limits);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_TRUE(std::isnan(std::get<Delta>(*decoded).routing[0].logits[1].logit));
    EXPECT_TRUE(std::isnan(std::get<Delta>(*decoded).routing[0].experts[0].weight));
  }
}

TEST(WireCodec, logprobs_come_back_to_the_last_bit) {
  Delta delta{"r", 1, 0, {}, {5}, {}, {{5, -1.17549435e-38F, {{5, -0.1F}, {6, -0.30000001F}, {7, -1e30F}}}}};
  for (const auto encoding : encodings) {
    const auto decoded = decode_server(encode(ServerMessage(delta), encoding), encoding, limits);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(std::get<Delta>(*decoded).logprobs, delta.logprobs);
  }
}

TEST(WireCodec, routing_whose_lists_do_not_fit_each_other_is_refused) {
  const auto refused = [](const auto& change) {
    for (const auto encoding : encodings) {
      Delta delta{"r", 1, 0, {}, {}, {tests::routing_sample(), tests::routing_sample()}};
      change(delta.routing[1]);
      const auto decoded = decode_server(encode(ServerMessage(delta), encoding), encoding, limits);
      ASSERT_FALSE(decoded.ok());
      EXPECT_EQ(decoded.error().code, ErrorCode::corrupt);
      EXPECT_EQ(decoded.error().field, "routing[1]");
    }
  };
  refused([](StepRouting& r) { r.tokens.pop_back(); });
  refused([](StepRouting& r) { r.logits.pop_back(); });
  refused([](StepRouting& r) { r.experts.push_back({}); });
  refused([](StepRouting& r) { r.nanoseconds.pop_back(); });
  refused([](StepRouting& r) { r.layers = 0xffff'ffff; });
  refused([](StepRouting& r) { r.recomputed = 3; });
  Submit submit = tests::token_submit();
  submit.trace_top_m = limits.trace_top_m_max + 1;
  for (const auto encoding : encodings)
    EXPECT_EQ(decode_client(encode(ClientMessage(submit), encoding), encoding, limits).error().field, "trace_top_m");
}

TEST(WireCodec, a_tenant_is_a_short_plain_name_or_nobody) {
  Submit submit = tests::token_submit();
  const auto read = [&](Encoding encoding) { return decode_client(encode(ClientMessage(submit), encoding), encoding, limits); };
  for (const auto encoding : encodings) {
    submit.tenant = "";
    EXPECT_EQ(std::get<Submit>(*read(encoding)).tenant, "");
    submit.tenant = std::string(64, 'a');
    EXPECT_EQ(std::get<Submit>(*read(encoding)).tenant, submit.tenant);
    submit.tenant = std::string(65, 'a');
    EXPECT_EQ(read(encoding).error().code, ErrorCode::too_large);
    EXPECT_EQ(read(encoding).error().field, "tenant");
    for (const char* name : {"a b", "a/b", "a\"b", "a\n", "\xc3\xa9", "{}", "a,b"}) {
      submit.tenant = name;
      ASSERT_FALSE(read(encoding).ok()) << name;
      EXPECT_EQ(read(encoding).error().code, ErrorCode::invalid_argument) << name;
      EXPECT_EQ(read(encoding).error().field, "tenant") << name;
    }
  }
}

TEST(WireCodec, a_grammar_is_one_of_its_kinds_or_none) {
  Submit submit = tests::token_submit();
  const auto read = [&](Encoding encoding) { return decode_client(encode(ClientMessage(submit), encoding), encoding, limits); };
  for (const auto encoding : encodings) {
    for (const Grammar& grammar :
         {Grammar{GrammarKind::json_schema, R"({"type":"object","properties":{"z":{},"a":{}}})"}, Grammar{GrammarKind::json_schema, "true"},
          Grammar{GrammarKind::json_object, ""}, Grammar{GrammarKind::regex, "[a-z]+é\\d"}}) {
      submit.grammar = grammar;
      ASSERT_TRUE(read(encoding).ok()) << read(encoding).error().message;
      EXPECT_EQ(std::get<Submit>(*read(encoding)).grammar, grammar) << "the order of a schema's members is kept";
    }
    submit.grammar.reset();
    EXPECT_FALSE(std::get<Submit>(*read(encoding)).grammar);
    submit.grammar = {GrammarKind::regex, std::string(limits.text_bytes_max + 1, 'a')};
    EXPECT_EQ(read(encoding).error().code, ErrorCode::too_large);
  }
}

// ZeroMQ hands out buffers at any address, and Cap'n Proto reads whole words.
TEST(WireCodec, misaligned_input_reads_the_same) {
  for (const auto encoding : encodings) {
    const std::string body = encode(ClientMessage(tests::chat_submit()), encoding);
    const auto buffer = std::make_unique<char[]>(body.size() + 8);
    for (std::size_t offset = 0; offset < 8; ++offset) {
      std::memcpy(buffer.get() + offset, body.data(), body.size());
      const auto decoded = decode_client({buffer.get() + offset, body.size()}, encoding, limits);
      ASSERT_TRUE(decoded.ok()) << offset << decoded.error().message;
      EXPECT_EQ(encode(*decoded, encoding), body);
    }
  }
}

TEST(WireCodec, a_truncated_body_is_refused) {
  for (const auto encoding : encodings) {
    for (const auto& sample : client_samples()) {
      const std::string body = encode(sample, encoding);
      for (std::size_t length = 0; length < body.size(); ++length)
        EXPECT_FALSE(decode_client(std::string_view(body).substr(0, length), encoding, limits).ok()) << length << " of " << json_of(sample);
    }
    for (const auto& sample : server_samples()) {
      const std::string body = encode(sample, encoding);
      for (std::size_t length = 0; length < body.size(); ++length)
        EXPECT_FALSE(decode_server(std::string_view(body).substr(0, length), encoding, limits).ok()) << length << " of " << json_of(sample);
    }
  }
}

TEST(WireCodec, trailing_bytes_are_refused) {
  for (const auto encoding : encodings)
    for (const std::string& tail : {std::string(1, '\0'), std::string(8, '\0'), std::string("{}      "), std::string(4096, 'x')})
      EXPECT_EQ(decode_client(encode(ClientMessage(Ping{3}), encoding) + tail, encoding, limits).error().code, ErrorCode::corrupt);
}

// Whatever a flipped bit makes of a message, it is decoded or refused; what is decoded can be encoded and decoded again.
TEST(WireCodec, flipped_bits_do_no_harm) {
  for (const auto encoding : encodings) {
    for (const auto& sample : client_samples()) {
      std::string body = encode(sample, encoding);
      for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
        body[bit / 8] = static_cast<char>(body[bit / 8] ^ (1 << (bit % 8)));
        const auto decoded = decode_client(body, encoding, limits);
        if (decoded) {
          EXPECT_TRUE(decode_client(encode(*decoded, encoding), encoding, limits).ok()) << bit << json_of(*decoded);
        }
        body[bit / 8] = static_cast<char>(body[bit / 8] ^ (1 << (bit % 8)));
      }
    }
    for (const auto& sample : server_samples()) {
      std::string body = encode(sample, encoding);
      for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
        body[bit / 8] = static_cast<char>(body[bit / 8] ^ (1 << (bit % 8)));
        const auto decoded = decode_server(body, encoding, limits);
        if (decoded) {
          EXPECT_TRUE(decode_server(encode(*decoded, encoding), encoding, limits).ok()) << bit << json_of(*decoded);
        }
        body[bit / 8] = static_cast<char>(body[bit / 8] ^ (1 << (bit % 8)));
      }
    }
  }
}

std::string bytes_of(capnp::MessageBuilder& builder) {
  const auto words = capnp::messageToFlatArray(builder);
  return std::string(words.asChars().begin(), words.asChars().size());
}

// A frame as a later version may send it: more words and pointers than this build knows, `kind` as the union's discriminant.
std::string later_frame(std::uint16_t kind, std::uint64_t word1) {
  capnp::MallocMessageBuilder builder;
  auto frame = builder.getRoot<capnp::AnyPointer>().initAsAnyStruct(6, 5);
  auto data = frame.getDataSection();
  std::memcpy(data.begin(), &kind, sizeof kind);
  std::memset(data.begin() + 16, 0xff, data.size() - 16);
  frame.getPointerSection()[0].setAs<capnp::Text>("later-1");
  frame.getPointerSection()[4].setAs<capnp::Text>("a field of the future");
  auto body = frame.getPointerSection()[1].initAsAnyStruct(3, 2);
  std::memcpy(body.getDataSection().begin(), &word1, sizeof word1);
  body.getPointerSection()[1].setAs<capnp::Text>("another one");
  return bytes_of(builder);
}

TEST(WireCodec, later_fields_are_ignored) {
  std::string id;
  const auto resume = decode_client(later_frame(3, 42), Encoding::capnp, limits, &id);
  ASSERT_TRUE(resume.ok()) << resume.error().message;
  EXPECT_EQ(std::get<Resume>(*resume).last_sequence, 42U);
  EXPECT_EQ(std::get<Resume>(*resume).request_id, "later-1");
  const auto json =
      decode_client(R"({"type":"resume","later":{"a":[1,2]},"request_id":"later-1","last_sequence":"42","x":null})", Encoding::json, limits);
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(json_of(*json), json_of(*resume));
}

TEST(WireCodec, an_unknown_kind_is_unsupported_and_names_its_request) {
  for (const std::uint16_t kind : {std::uint16_t{6}, std::uint16_t{7}, std::uint16_t{65535}}) {
    std::string id;
    EXPECT_EQ(decode_client(later_frame(kind, 0), Encoding::capnp, limits, &id).error().code, ErrorCode::unsupported) << kind;
    EXPECT_EQ(id, "later-1");
  }
  std::string id;
  EXPECT_EQ(decode_client(R"({"type":"dance","request_id":"later-1"})", Encoding::json, limits, &id).error().code, ErrorCode::unsupported);
  EXPECT_EQ(id, "later-1");
  EXPECT_EQ(decode_server(R"({"type":"dance"})", Encoding::json, limits).error().code, ErrorCode::unsupported);
  EXPECT_EQ(decode_server(R"({"type":"delta","request_id":"r","sequence":1,"events":[{"type":"image"}]})", Encoding::json, limits).error().code,
            ErrorCode::unsupported);
  // In a server frame the sequence number fills the first word, and the discriminant follows.
  std::string pong = encode(ServerMessage(Pong{1, "i", ""}), Encoding::capnp);
  ASSERT_EQ(pong[24], 5);
  pong[24] = 77;
  EXPECT_EQ(decode_server(pong, Encoding::capnp, limits).error().code, ErrorCode::unsupported);
}

TEST(WireCodec, an_unknown_error_code_counts_as_internal) {
  const auto json =
      decode_server(R"({"type":"error","request_id":"r","sequence":1,"error":{"code":"gremlins","message":"m"}})", Encoding::json, limits);
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(std::get<ErrorReply>(*json).error.code, ErrorCode::internal);
}

// Many pointers to one text make a short message long. The traversal limit stops the reader at the length of the body.
TEST(WireCodec, amplification_is_refused) {
  capnp::MallocMessageBuilder builder;
  auto frame = builder.getRoot<capnp::AnyPointer>().initAsAnyStruct(1, 2);
  const std::uint16_t hello = 0;
  std::memcpy(frame.getDataSection().begin(), &hello, sizeof hello);
  auto body = frame.getPointerSection()[1].initAsAnyStruct(1, 2);
  body.getPointerSection()[0].setAs<capnp::Text>(std::string(100, 'a').c_str());
  std::string bytes = bytes_of(builder);
  ASSERT_TRUE(decode_client(bytes, Encoding::capnp, limits).ok());
  // Word 0 is the segment table, 1 the root pointer, 2 data, 3-4 the frame's pointers, 5 data of hello, 6-7 its pointers. Pointer 7 gets pointer 6's
  // target, which lies one word nearer to it.
  std::uint64_t pointer = 0;
  std::memcpy(&pointer, &bytes[48], sizeof pointer);
  pointer -= 4;
  std::memcpy(&bytes[56], &pointer, sizeof pointer);
  const auto decoded = decode_client(bytes, Encoding::capnp, limits);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::corrupt) << decoded.error().message;
  EXPECT_NE(decoded.error().message.find("limit"), std::string::npos) << decoded.error().message;
}

// A list of structs without any words takes no room on the wire, however long it says it is.
TEST(WireCodec, a_list_of_nothing_is_bounded) {
  capnp::MallocMessageBuilder builder;
  auto frame = builder.getRoot<capnp::AnyPointer>().initAsAnyStruct(1, 2);
  const std::uint16_t submit = 1;
  std::memcpy(frame.getDataSection().begin(), &submit, sizeof submit);
  frame.getPointerSection()[0].setAs<capnp::Text>("r");
  auto body = frame.getPointerSection()[1].initAsAnyStruct(4, 4);
  body.getPointerSection()[0].initAsAnyList(capnp::ElementSize::VOID, (1U << 29) - 1);
  const auto decoded = decode_client(bytes_of(builder), Encoding::capnp, limits);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::corrupt) << decoded.error().message;
}

}  // namespace
}  // namespace althing::protocol::wire
