// The tiny model's held-out conversations: prompts come out id for id as it was trained on them, and what it answered reads as messages.
#include <gtest/gtest.h>

#include <fstream>

#include "protocol/harmony/parser.hpp"
#include "protocol/harmony/render.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;
using tests::must;
using tests::tiny_format;

std::vector<Json> conversations() {
  std::ifstream file(ALTHING_SOURCE_DIR "/examples/models/tiny/conversations.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

bool agrees(const Json& line, AnalysisHistory policy) {
  const auto conversation = must(conversation_from_json(line.at("messages")));
  const auto rendered = must(render_for_completion(tiny_format(), conversation, Role::assistant, {policy}));
  return rendered.tokens == line.at("prompt_ids").get<std::vector<TokenId>>();
}

TEST(HarmonyTiny, prompts_agree_id_for_id) {
  const auto lines = conversations();
  ASSERT_EQ(lines.size(), 200u);
  std::size_t upstream = 0, finished = 0, keep = 0;
  for (const Json& line : lines) {
    // The prompts were made with the reference renderer's policy.
    const bool same = agrees(line, AnalysisHistory::upstream);
    EXPECT_TRUE(same) << "conversation " << line.at("id");
    upstream += same;
    finished += agrees(line, AnalysisHistory::drop_finished_turns);
    keep += agrees(line, AnalysisHistory::keep);
  }
  std::printf("of %zu prompts agree: upstream %zu, drop_finished_turns %zu, keep %zu\n", lines.size(), upstream, finished, keep);
}

TEST(HarmonyTiny, completions_parse_and_render_back) {
  const Format& format = tiny_format();
  for (const Json& line : conversations()) {
    const auto tokens = line.at("completion_ids").get<std::vector<TokenId>>();
    const auto messages = parse_messages(format, tokens, Role::assistant);
    ASSERT_TRUE(messages) << "conversation " << line.at("id") << ": " << messages.error().message;
    ASSERT_FALSE(messages->empty());
    const Message& last = messages->back();
    EXPECT_EQ(tokens.back() == format.call, last.recipient.has_value()) << "conversation " << line.at("id");
    if (last.recipient) {
      EXPECT_TRUE(last.recipient->starts_with("functions.")) << "conversation " << line.at("id");
      continue;  // the model writes the channel before the recipient; the renderer writes it after
    }
    auto again = must(render_for_training(format, {*messages}, {AnalysisHistory::keep})).tokens;
    if (!format.is_message_stop(tokens.back())) again.pop_back();  // one completion ran into its limit
    // The prompt had <|start|>assistant already.
    EXPECT_EQ(std::vector<TokenId>(again.begin() + 2, again.end()), tokens) << "conversation " << line.at("id");
  }
}

}  // namespace
}  // namespace althing::protocol::harmony
