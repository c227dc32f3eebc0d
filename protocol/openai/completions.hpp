// The older completions: a raw prompt, text or token ids, continued without any chat format. Text is made here from the tokens that come back. Pure.
// Logprobs are of the tokens that the text is made of, so control tokens that are no part of it are left out. In a stream they come with the chunk in
// which a token's text ends, or the last one.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "protocol/openai/job.hpp"
#include "protocol/tokenizer/detokenizer.hpp"
#include "protocol/tokenizer/tokenizer.hpp"

namespace althing::protocol::openai {

inline constexpr std::uint32_t completion_tokens_default = 16;  // OpenAI's
inline constexpr std::size_t prompts_max = 64;                  // of one request; each is one to the engine

struct CompletionForm {
  bool stream = false, include_usage = false;
  bool skip_special_tokens = true;          // control tokens are not part of the text
  std::vector<std::string> echo;            // the prompts' texts, when they are to be part of the answer
  std::uint32_t n = 1;                      // choices of each prompt
  std::optional<std::uint32_t> logprobs{};  // so many most likely tokens beside each
  std::uint32_t prompts = 1;                // choice n * i is the first one of prompt i
};

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(AnswerHead head, CompletionForm form, std::shared_ptr<const Tokenizer> tokenizer);

  std::string begin() override;
  std::string push(const wire::Delta& delta) override;
  Result<std::string> end(const wire::Done& done) override;
  std::string fail(const http::ErrorReply& error) override;

 private:
  struct Choice {
    Detokenizer detokenizer;
    std::string whole;
    std::uint64_t characters = 0;  // of the text so far: Unicode's code points
    nlohmann::ordered_json logprobs{};
  };

  nlohmann::ordered_json frame(nlohmann::ordered_json choices) const;
  std::string chunk(std::size_t choice, std::string text, const nlohmann::ordered_json& finish_reason);
  void tell(Choice& choice, const TokenLogprobs& told) const;
  nlohmann::ordered_json take_logprobs(Choice& choice) const;
  std::string say(std::size_t choice, std::string text);

  AnswerHead head_;
  CompletionForm form_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Choice> choices_;
};

// The whole of the route. `prompt` is one text, in which control tokens may stand by name, or a list of token ids, or a list of such. Errors:
// invalid_argument, unsupported; field is the member.
Result<Job> completion_job(const nlohmann::ordered_json& body, AnswerHead head, const std::shared_ptr<const Tokenizer>& tokenizer);

// Token ids from JSON. Errors: invalid_argument, naming the first that is none or that the vocabulary has not.
Result<std::vector<TokenId>> token_ids_from(const nlohmann::ordered_json& list, const std::string& member, const Tokenizer& tokenizer);

}  // namespace althing::protocol::openai
