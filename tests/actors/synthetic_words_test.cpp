// A synthetic engine speaks a chat format's own tokens: its replies are whole conversations, with nothing to mend.
#include "actors/synthetic_words.hpp"

#include <gtest/gtest.h>

#include "actors/engine_setup.hpp"
#include "protocol/wire/delta_stream.hpp"

namespace althing::actors {
namespace {

namespace wire = protocol::wire;

protocol::harmony::Format tiny_format() {
  return *protocol::harmony::Format::of(*protocol::Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny"));
}

TEST(SyntheticWords, a_reply_parses_into_a_thought_and_an_answer_of_its_words) {
  const protocol::harmony::Format format = tiny_format();
  const gpu::SyntheticScript script = script_of(format, UINT32_MAX).value();
  for (const std::uint64_t seed : {std::uint64_t{0}, gpu::SyntheticScript::seed_of(7, 300), ~std::uint64_t{0}}) {
    wire::DeltaStream stream(format);
    std::vector<wire::DeltaEvent> events;
    for (const TokenId token : script.reply(seed)) stream.push(token, events);
    stream.finish(events);
    EXPECT_EQ(stream.repairs(), (std::array<std::uint32_t, protocol::harmony::repair_kinds>{}));
    ASSERT_EQ(events.size(), 6u) << seed;
    EXPECT_EQ(std::get<wire::MessageStarted>(events[0]).channel, "analysis");
    EXPECT_EQ(std::get<wire::MessageStarted>(events[3]).channel, "final");
    for (const std::uint32_t message : {0u, 1u}) {
      std::string text;
      const std::uint32_t words = message == 0 ? gpu::SyntheticScript::thought_words(seed) : gpu::SyntheticScript::answer_words(seed);
      for (std::uint32_t i = 0; i < words; ++i) text += *format.tokenizer->bytes_of(script.word(seed, message, i));
      EXPECT_EQ(std::get<wire::Text>(events[1 + 3 * message]).text, text);
    }
  }
}

TEST(SyntheticWords, a_vocabulary_without_the_formats_tokens_is_refused) {
  EXPECT_EQ(script_of(tiny_format(), 10).error().code, ErrorCode::unsupported);
}

TEST(SyntheticWords, an_engine_is_set_up_where_it_is_asked_for_and_says_so_in_its_name) {
  ServeSettings settings;
  settings.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
  settings.device = "synthetic";
  settings.synthetic_step_us = 70;
  const EngineSetup setup = set_up_engine(settings).value();
  EXPECT_EQ(setup.device, gpu::Device::synthetic);
  EXPECT_EQ(setup.synthetic_step.count(), 70);
  EXPECT_FALSE(setup.share_prefixes) << "it has no KV that another request could go on from";
  EXPECT_TRUE(setup.script);
  EXPECT_EQ(setup.kv_mirror_mib, 0u);
  EXPECT_EQ(setup.limits.rows_max, 256u);
  EXPECT_EQ(model_name(settings), "synthetic-tiny");
  // As the supervisor tells its children.
  settings.kv_mib = setup.kv_mib;
  EXPECT_EQ(set_up_engine(settings)->kv, setup.kv);
  settings.device = "cpu";
  EXPECT_EQ(check(settings).error().field, "synthetic-step-us");
  settings.synthetic_step_us = 0;
  EXPECT_FALSE(set_up_engine(settings)->script);
}

TEST(GatewayRequests, are_as_many_as_http_connections_unless_told_otherwise) {
  ServeSettings settings;
  settings.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
  settings.device = "cpu";
  settings.http_connections_max = 3000;
  EXPECT_EQ(set_up_engine(settings)->limits.gateway_requests_max, 3000u);
  settings.limits.gateway_requests_max = 7;
  EXPECT_EQ(set_up_engine(settings)->limits.gateway_requests_max, 7u);
}

}  // namespace
}  // namespace althing::actors
