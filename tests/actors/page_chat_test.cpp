// Questions of the page as they may come: what is read, and what is refused by name. Whole streams are tests/end_to_end/page_test.py's.
#include "actors/page_chat.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace althing::actors {
namespace {

using testing::HasSubstr;

const Limits limits;

TEST(PageQuestion, is_a_submit) {
  const auto question = page_question_of(
      R"({"tab":"0123456789abcdef","reasoning_effort":"high","sampling":{"temperature":0.5,"completion_tokens_max":7},
          "messages":[{"role":"user","content":"hi <|start|>"},{"role":"assistant","channel":"final","content":"yes"},{"role":"user","content":"go"}]})",
      limits);
  ASSERT_TRUE(question.ok()) << question.error().message;
  EXPECT_EQ(question->tab, "0123456789abcdef");
  EXPECT_EQ(question->submit.messages.size(), 3u);
  EXPECT_EQ(question->submit.messages[1].channel, "final");
  EXPECT_EQ(question->submit.reasoning_effort, protocol::harmony::ReasoningEffort::high);
  EXPECT_EQ(question->submit.sampling.completion_tokens_max, 7u);
  EXPECT_GT(question->submit.credit, 0u) << "a browser that does not read costs the server a bounded amount";
  EXPECT_TRUE(question->submit.tools.empty());
}

TEST(PageQuestion, is_refused_by_name) {
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])";
  const auto refusal = [&](const std::string& body) {
    const auto question = page_question_of(body, limits);
    return question.ok() ? Error{ErrorCode::internal, "it was taken", ""} : question.error();
  };
  for (const char* body : {"", "{", "[]", "7", "null", "\"x\"", "{\"tab\":\"a\",\"tab\":\"b\"}", "\xff"})
    EXPECT_EQ(refusal(body).code, ErrorCode::corrupt) << body;
  for (const char* tab : {"", R"("tab":"short",)", R"("tab":7,)", R"("tab":"with space and more",)", R"("tab":"<script>alert",)"})
    EXPECT_EQ(refusal(std::string("{") + tab + messages + "}").code, ErrorCode::invalid_argument) << tab;
  const std::string tab = R"({"tab":"0123456789abcdef",)";
  EXPECT_EQ(refusal(tab + R"("request_id":"stolen",)" + messages + "}").field, "request_id");
  EXPECT_EQ(refusal(tab + R"("prompt_tokens":[1,2],)" + messages + "}").field, "prompt_tokens");
  EXPECT_EQ(refusal(tab + R"("timeout_ms":1,)" + messages + "}").field, "timeout_ms");
  EXPECT_EQ(refusal(tab + R"("sampling":{"n":2},)" + messages + "}").field, "sampling.n");
  EXPECT_EQ(refusal(tab + R"("sampling":{"temperature":9},)" + messages + "}").code, ErrorCode::invalid_argument);
  EXPECT_FALSE(page_question_of(tab.substr(0, tab.size() - 1) + "}", limits).ok()) << "no messages at all";
  EXPECT_EQ(refusal(tab + messages + "}").message, "it was taken") << "and what is right is taken";
}

}  // namespace
}  // namespace althing::actors
