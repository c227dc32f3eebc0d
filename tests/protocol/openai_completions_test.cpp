// Raw completions and the token routes, against the tiny model's tokenizer.
#include "protocol/openai/completions.hpp"

#include <gtest/gtest.h>

#include <map>

#include "protocol/openai/tokens.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto loaded = Tokenizer::of_model(ALTHING_SOURCE_DIR "/examples/models/tiny");
  return *loaded;
}
const AnswerHead head{"k", 1, "tiny"};
const std::string today = "2026-01-02";

Result<Job> job(const std::string& body) { return completion_job(Json::parse(body), head, tokenizer()); }

void refuses(const std::string& body, const std::string& field, ErrorCode code = ErrorCode::invalid_argument) {
  const auto made = job(body);
  ASSERT_FALSE(made.ok()) << body;
  EXPECT_EQ(made.error().field, field) << body;
  EXPECT_EQ(made.error().code, code) << body;
}

TEST(Completions, prompts_are_text_or_ids_alone_or_in_a_list) {
  const auto ids = tokenizer()->encode_with_special("hello<|end|>");
  for (const std::string& prompt :
       {std::string("\"hello<|end|>\""), std::string("[\"hello<|end|>\"]"), Json(ids).dump(), Json::array({ids}).dump()}) {
    const auto made = job("{\"prompt\": " + prompt + "}");
    ASSERT_TRUE(made.ok()) << prompt << made.error().message;
    EXPECT_EQ(made->submit.prompt_tokens, ids) << prompt;
    EXPECT_EQ(made->submit.sampling.completion_tokens_max, 16U) << "OpenAI's default";
  }
  refuses("{}", "prompt");
  refuses(R"({"prompt": null})", "prompt");
  refuses(R"({"prompt": ""})", "prompt");
  refuses(R"({"prompt": []})", "prompt");
  refuses(R"({"prompt": 5})", "prompt");
  refuses(R"({"prompt": [1, 2304]})", "prompt[1]");
  refuses(R"({"prompt": [-1]})", "prompt[0]");
  refuses(R"({"prompt": [1.5]})", "prompt[0]");
  refuses(R"({"prompt": ["a", ""]})", "prompt[1]");
  refuses(R"({"prompt": ["a", 5]})", "prompt[1]");
  refuses(R"({"prompt": [[1], [1, 2304]]})", "prompt[1][1]");
  refuses(R"({"prompt": [1, "a"]})", "prompt[1]");
  refuses("{\"prompt\": " + Json(std::vector<std::string>(prompts_max + 1, "a")).dump() + "}", "prompt");
  refuses(R"({"prompt": "a", "suffix": "b"})", "suffix", ErrorCode::unsupported);
  refuses(R"({"prompt": "a", "best_of": 2})", "best_of", ErrorCode::unsupported);
  refuses(R"({"prompt": "a", "logprobs": 1, "echo": true})", "logprobs", ErrorCode::unsupported);
  refuses(R"({"prompt": "a", "logprobs": true})", "logprobs");
  refuses(R"({"prompt": "a", "logprobs": 21})", "logprobs");
  refuses(R"({"prompt": "a", "stop": [""], "logprobs": -1})", "logprobs");
  EXPECT_EQ(job(R"({"prompt": "a", "logprobs": 2})")->submit.sampling.logprobs, 2U);
  EXPECT_EQ(job(R"({"prompt": "a", "logprobs": 0})")->submit.sampling.logprobs, 0U);
  EXPECT_FALSE(job(R"({"prompt": "a", "logprobs": false})")->submit.sampling.logprobs);
  refuses(R"({"prompt": "a", "echo": "yes"})", "echo");
  EXPECT_TRUE(job(R"({"prompt": "a", "best_of": 2, "n": 2, "suffix": null, "logprobs": null, "echo": null})").ok());
}

TEST(Completions, several_prompts_are_several_requests_with_the_same_sampling) {
  const auto made = job(R"({"prompt": ["hello", [1, 2], "what"], "n": 2, "seed": 7, "max_tokens": 5, "echo": true, "stream": true})");
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_EQ(made->others.size(), 2U);
  EXPECT_EQ(made->submit.prompt_tokens, tokenizer()->encode("hello"));
  EXPECT_EQ(made->others[0].prompt_tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(made->others[1].prompt_tokens, tokenizer()->encode("what"));
  for (const auto* submit : {&made->submit, &made->others[0], &made->others[1]}) {
    EXPECT_EQ(submit->sampling.n, 2U);
    EXPECT_EQ(submit->sampling.seed, 7U);
    EXPECT_EQ(submit->sampling.completion_tokens_max, 5U);
  }
  // Each choice begins with its own prompt.
  std::map<int, std::string> heard;
  const std::string bytes = made->answer->begin();
  for (std::size_t at = 0; at < bytes.size(); at = bytes.find("\n\n", at) + 2) {
    const Json event = Json::parse(bytes.substr(at + 6, bytes.find("\n\n", at) - at - 6));
    heard[event["choices"][0]["index"].get<int>()] += event["choices"][0]["text"].get<std::string>();
  }
  const std::string ids = *tokenizer()->decode(made->others[0].prompt_tokens);
  EXPECT_EQ(heard, (std::map<int, std::string>{{0, "hello"}, {1, "hello"}, {2, ids}, {3, ids}, {4, "what"}, {5, "what"}}));
}

TEST(Completions, text_is_whole_however_tokens_are_cut_and_control_tokens_are_none) {
  const std::string text = "naïve – 東京 👍 done";
  auto tokens = tokenizer()->encode(text);
  tokens.push_back(*tokenizer()->special("<|return|>"));
  for (const bool stream : {false, true})
    for (const std::size_t step : {1, 2, 3, 7, 100}) {
      CompletionAnswer answer(head, {stream, stream, true, {}, 1}, tokenizer());
      std::string bytes = answer.begin();
      for (std::size_t at = 0; at < tokens.size(); at += step)
        bytes += answer.push(
            {"r",
             1,
             0,
             {},
             {tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(std::min(at + step, tokens.size()))}});
      bytes += *answer.end({"r", 2, FinishReason::stop, {3, 9, 0}, {}});
      std::string heard;
      if (!stream) {
        const Json json = Json::parse(bytes);
        EXPECT_EQ(json["id"], "cmpl-k");
        EXPECT_EQ(json["usage"]["total_tokens"], 12);
        EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
        heard = json["choices"][0]["text"];
      }
      for (std::size_t at = 0; stream && bytes.compare(at, 12, "data: [DONE]") != 0; at = bytes.find("\n\n", at) + 2) {
        const Json event = Json::parse(bytes.substr(at + 6, bytes.find("\n\n", at) - at - 6));
        for (const Json& choice : event["choices"]) heard += choice["text"];
      }
      EXPECT_EQ(heard, text) << stream << step;
      if (stream) {
        EXPECT_TRUE(bytes.ends_with("data: [DONE]\n\n"));
      }
    }
}

TEST(Completions, logprobs_stand_beside_the_tokens_that_make_the_text) {
  const std::string text = "naïve 東京 👍 done";
  auto tokens = tokenizer()->encode(text);
  tokens.insert(tokens.begin() + 2, *tokenizer()->special("<|end|>"));
  const auto in_text =
      static_cast<std::size_t>(std::count_if(tokens.begin(), tokens.end(), [](TokenId token) { return !tokenizer()->is_special(token); }));
  for (const std::uint32_t top : {0U, 2U})
    for (const std::size_t step : {1, 2, 3, 100}) {
      CompletionAnswer answer(head, {true, false, true, {}, 1, top}, tokenizer());
      std::string bytes = answer.begin();
      for (std::size_t at = 0; at < tokens.size(); at += step) {
        wire::Delta delta{"r", 1, 0, {}, {}};
        for (std::size_t i = at; i < std::min(at + step, tokens.size()); ++i) {
          delta.tokens.push_back(tokens[i]);
          delta.logprobs.push_back({tokens[i], -1.5F, {}});
          if (top > 0) delta.logprobs.back().top = {{tokens[i], -0.5F}, {tokens[0], -2.5F}};
        }
        bytes += answer.push(delta);
      }
      bytes += *answer.end({"r", 2, FinishReason::stop, {3, 9, 0}, {}});
      std::size_t told = 0;
      std::string heard;
      int last_offset = 0;
      for (std::size_t at = 0; bytes.compare(at, 12, "data: [DONE]") != 0; at = bytes.find("\n\n", at) + 2) {
        const Json choice = Json::parse(bytes.substr(at + 6, bytes.find("\n\n", at) - at - 6))["choices"][0];
        const Json& logprobs = choice["logprobs"];
        heard += choice["text"];
        told += logprobs["tokens"].size();
        EXPECT_EQ(logprobs["token_logprobs"].size(), logprobs["tokens"].size());
        EXPECT_EQ(logprobs["text_offset"].size(), logprobs["tokens"].size());
        for (const int offset : logprobs["text_offset"]) {
          EXPECT_GE(offset, last_offset);
          last_offset = offset;
        }
        EXPECT_EQ(logprobs["top_logprobs"].is_null(), top == 0);
        if (top > 0) {
          EXPECT_EQ(logprobs["top_logprobs"].size(), logprobs["tokens"].size());
        }
      }
      EXPECT_EQ(told, in_text);
      EXPECT_EQ(heard, text);
      EXPECT_EQ(last_offset, 15 - static_cast<int>(tokenizer()->bytes_of(tokens.back())->size())) << "code points before the last token";
    }
}

TEST(Completions, text_in_front_of_a_stop_string_is_told_though_its_token_is_not) {
  CompletionAnswer answer(head, {false, false, true, {}, 1}, tokenizer());
  wire::Delta delta{"r", 1, 0, {wire::Text{0, " b"}}, tokenizer()->encode("alpha")};
  answer.push(delta);
  EXPECT_EQ(Json::parse(*answer.end({"r", 2, FinishReason::stop, {3, 9, 0}, {}}))["choices"][0]["text"], "alpha b");
}

TEST(Completions, an_echo_comes_first_in_every_choice) {
  auto made = job(R"({"prompt": "ab<|end|>", "echo": true, "n": 2})");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->answer->begin(), "");
  made->answer->push({"r", 1, 1, {}, tokenizer()->encode("c")});
  const Json json =
      Json::parse(*made->answer->end({"r", 2, FinishReason::length, {}, {{FinishReason::stop, 0, 0, {}}, {FinishReason::length, 1, 0, {}}}}));
  EXPECT_EQ(json["choices"][0]["text"], "ab<|end|>");
  EXPECT_EQ(json["choices"][1]["text"], "ab<|end|>c");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
}

TEST(Tokens, text_goes_to_ids_and_back) {
  const auto format = *harmony::Format::of(tokenizer());
  const auto made = tokenize({{"prompt", "hello wörld<|end|>"}, {"return_token_strs", true}}, format, 2048, today);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)["count"], (*made)["tokens"].size());
  EXPECT_EQ((*made)["max_model_len"], 2048);
  EXPECT_EQ((*made)["token_strs"].size(), (*made)["tokens"].size());
  EXPECT_EQ((*detokenize({{"tokens", (*made)["tokens"]}}, *tokenizer()))["prompt"], "hello wörld<|end|>");
  EXPECT_EQ(tokenize({{"prompt", 5}}, format, 1, today).error().field, "prompt");
  EXPECT_EQ(tokenize({{"x", 5}}, format, 1, today).error().field, "prompt");
  EXPECT_EQ(detokenize({{"tokens", {1, 99999}}}, *tokenizer()).error().field, "tokens[1]");
  EXPECT_EQ(detokenize(Json::object(), *tokenizer()).error().field, "tokens");
}

TEST(Tokens, messages_are_counted_as_chats_render_them) {
  const auto format = *harmony::Format::of(tokenizer());
  const auto made = tokenize(Json::parse(R"({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"})"), format, 2048, today);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const std::string text = (*detokenize({{"tokens", (*made)["tokens"]}}, *tokenizer()))["prompt"];
  EXPECT_NE(text.find("Current date: 2026-01-02"), std::string::npos) << text;
  EXPECT_NE(text.find("Reasoning: low"), std::string::npos);
  EXPECT_TRUE(text.ends_with("<|start|>user<|message|>hi<|end|><|start|>assistant")) << text;
}

}  // namespace
}  // namespace althing::protocol::openai
