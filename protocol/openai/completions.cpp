// See the header.
#include "protocol/openai/completions.hpp"

#include <algorithm>
#include <utility>

#include "protocol/openai/content_logprobs.hpp"
#include "protocol/openai/sampling.hpp"
#include "protocol/openai/sse.hpp"
#include "protocol/wire/json_members.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

Error invalid(const std::string& member, const std::string& why) { return {ErrorCode::invalid_argument, member + " " + why, member}; }
Error unsupported(const std::string& member, const std::string& why) { return {ErrorCode::unsupported, member + " " + why, member}; }

Result<std::vector<TokenId>> prompt_from(const Json& prompt, const std::string& member, const Tokenizer& tokenizer) {
  if (prompt.is_array()) return token_ids_from(prompt, member, tokenizer);
  if (!prompt.is_string()) return invalid(member, "is neither a text nor a list of token ids");
  // Whoever writes a raw prompt writes all that the model sees, control tokens too; by ids they could be sent anyway.
  return tokenizer.encode_with_special(prompt.get_ref<const std::string&>());
}

// One at least, none of them empty.
Result<std::vector<std::vector<TokenId>>> prompts_from(const Json& body, const Tokenizer& tokenizer) {
  const auto found = body.find("prompt");
  if (found == body.end() || found->is_null()) return invalid("prompt", "is missing; send a text, a list of token ids, or a list of such");
  const bool list = found->is_array() && !found->empty() && ((*found)[0].is_string() || (*found)[0].is_array());
  if (list && found->size() > prompts_max)
    return invalid(
        "prompt", "holds " + std::to_string(found->size()) + " prompts, and " + std::to_string(prompts_max) + " are the most; send several requests");
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < (list ? found->size() : 1); ++i) {
    const std::string member = list ? "prompt[" + std::to_string(i) + "]" : "prompt";
    auto prompt = prompt_from(list ? (*found)[i] : *found, member, tokenizer);
    if (!prompt) return std::move(prompt).error();
    if (prompt->empty()) return invalid(member, "is empty; the model needs one token at least to go on from");
    prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

// Offsets count as Python does.
std::uint64_t characters_of(std::string_view text) {
  return static_cast<std::uint64_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::optional<Error> refused(const Json& body, std::uint32_t n) {
  const auto given = [&](const char* member) { return body.contains(member) && !body[member].is_null(); };
  if (given("suffix") && !(body["suffix"].is_string() && body["suffix"].get_ref<const std::string&>().empty()))
    return unsupported("suffix", "is not supported; the model only continues texts");
  if (given("best_of") && body["best_of"] != n) return unsupported("best_of", "is not n; choices are not ranked here, ask for as many as you want");
  return std::nullopt;
}

}  // namespace

Result<std::vector<TokenId>> token_ids_from(const Json& list, const std::string& member, const Tokenizer& tokenizer) {
  if (!list.is_array()) return invalid(member, "is not a list of token ids");
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string at = member + "[" + std::to_string(i) + "]";
    const bool counts = list[i].is_number_integer() && (list[i].is_number_unsigned() || list[i].get<std::int64_t>() >= 0);
    if (!counts || list[i].get<std::uint64_t>() >= tokenizer.vocabulary_size())
      return invalid(at, "is no token id; they are whole numbers below " + std::to_string(tokenizer.vocabulary_size()));
    tokens.push_back(list[i].get<TokenId>());
  }
  return tokens;
}

CompletionAnswer::CompletionAnswer(AnswerHead head, CompletionForm form, std::shared_ptr<const Tokenizer> tokenizer)
    : head_(std::move(head)), form_(std::move(form)), tokenizer_(std::move(tokenizer)) {
  for (std::uint32_t i = 0; i < form_.n * form_.prompts; ++i) {
    choices_.push_back({Detokenizer(tokenizer_), ""});
    take_logprobs(choices_.back());
  }
}

Json CompletionAnswer::frame(Json choices) const {
  return {{"id", "cmpl-" + head_.key},
          {"object", "text_completion"},
          {"created", head_.created},
          {"model", head_.model},
          {"choices", std::move(choices)}};
}

// Of a token that is a part of the text; its text is not in `characters` yet.
void CompletionAnswer::tell(Choice& choice, const TokenLogprobs& told) const {
  Json& to = choice.logprobs;
  to["tokens"].push_back(token_text(*tokenizer_, told.token));
  to["token_logprobs"].push_back(told.logprob);
  to["text_offset"].push_back(choice.characters);
  if (form_.logprobs == 0U) return;
  Json top = Json::object();
  for (const TokenLogprob& likely : told.top)
    if (std::string text = token_text(*tokenizer_, likely.token); !top.contains(text)) top[text] = likely.logprob;  // pieces of characters look alike
  to["top_logprobs"].push_back(std::move(top));
}

// What has been told since the last time; null where nobody asked.
Json CompletionAnswer::take_logprobs(Choice& choice) const {
  if (!form_.logprobs) return nullptr;
  const Json list = Json::array();
  return std::exchange(choice.logprobs,
                       {{"tokens", list}, {"token_logprobs", list}, {"top_logprobs", form_.logprobs == 0U ? Json() : list}, {"text_offset", list}});
}

std::string CompletionAnswer::chunk(std::size_t choice, std::string text, const Json& finish_reason) {
  Json logprobs = take_logprobs(choices_[choice]);
  Json json =
      frame(Json::array({{{"index", choice}, {"text", std::move(text)}, {"logprobs", std::move(logprobs)}, {"finish_reason", finish_reason}}}));
  if (form_.include_usage) json["usage"] = nullptr;
  return event_of(json);
}

std::string CompletionAnswer::say(std::size_t choice, std::string text) {
  if (text.empty()) return "";
  if (form_.stream) return chunk(choice, std::move(text), nullptr);
  choices_[choice].whole += text;
  return "";
}

std::string CompletionAnswer::begin() {
  std::string events;
  for (std::size_t i = 0; i < choices_.size() && !form_.echo.empty(); ++i) events += say(i, form_.echo[i / form_.n]);
  return events;
}

std::string CompletionAnswer::push(const wire::Delta& delta) {
  if (delta.choice >= choices_.size()) return "";
  Choice& choice = choices_[delta.choice];
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    choice.characters += characters_of(piece);
  };
  for (std::size_t i = 0; i < delta.tokens.size(); ++i) {
    if (form_.skip_special_tokens && tokenizer_->is_special(delta.tokens[i])) continue;
    if (form_.logprobs && i < delta.logprobs.size()) tell(choice, delta.logprobs[i]);
    add(choice.detokenizer.push(delta.tokens[i]));
  }
  // In front of a stop string, of a token that holds some of it.
  for (const wire::DeltaEvent& event : delta.events)
    if (const auto* rest = std::get_if<wire::Text>(&event)) add(choice.detokenizer.finish() + rest->text);
  return say(delta.choice, std::move(text));
}

Result<std::string> CompletionAnswer::end(const wire::Done& done) {
  std::string events;
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const auto ended = end_of(done, i);
    if (!ended) return ended.error();
    events += say(i, choices_[i].detokenizer.finish());
    if (form_.stream) {
      events += chunk(i, "", name_of(*ended));
    } else {
      choices.push_back({{"index", i}, {"text", choices_[i].whole}, {"logprobs", take_logprobs(choices_[i])}, {"finish_reason", name_of(*ended)}});
    }
  }
  Json json = frame(std::move(choices));
  json["usage"] = usage_of(done);
  if (!form_.stream) return text_of(json);
  if (form_.include_usage) events += event_of(json);
  return events + std::string(last_event);
}

std::string CompletionAnswer::fail(const http::ErrorReply& error) { return event_of(http::to_json(error)); }

Result<Job> completion_job(const Json& body, AnswerHead head, const std::shared_ptr<const Tokenizer>& tokenizer) {
  std::optional<Error> error;
  const wire::JsonMembers members(body, "", error);
  CompletionForm form;
  form.stream = members.boolean("stream");
  if (const Json* options = members.object("stream_options"))
    form.include_usage = wire::JsonMembers(*options, "stream_options.", error).boolean("include_usage");
  const bool echo = members.boolean("echo");
  if (const Json* skip = members.find("skip_special_tokens"); skip != nullptr) form.skip_special_tokens = members.boolean("skip_special_tokens");
  if (error) return std::move(*error);
  auto sampling = sampling_from(body, completion_tokens_default);
  if (!sampling) return std::move(sampling).error();
  if (auto why = refused(body, sampling->n)) return std::move(*why);
  auto logprobs = completion_logprobs_from(body);
  if (!logprobs) return std::move(logprobs).error();
  // Quietly telling less than was asked for would ruin a measurement.
  if (*logprobs && echo)
    return unsupported("logprobs", "and echo ask for the logprobs of the prompt, which are not computed; leave one of the two out");
  form.logprobs = sampling->logprobs = *logprobs;
  form.n = sampling->n;
  auto prompts = prompts_from(body, *tokenizer);
  if (!prompts) return std::move(prompts).error();
  form.prompts = static_cast<std::uint32_t>(prompts->size());
  for (std::size_t i = 0; echo && i < prompts->size(); ++i) {
    auto text = tokenizer->decode((*prompts)[i]);
    if (!text) return std::move(text).error();
    form.echo.push_back(std::move(*text));
  }
  Job job;
  job.stream = form.stream;
  job.submit.sampling = std::move(*sampling);
  const auto priority = priority_from(body);
  if (!priority) return priority.error();
  job.submit.priority = *priority;
  // Each as if it came alone, so it is answered as it would be alone: the same seed too.
  job.others.assign(prompts->size() - 1, job.submit);
  for (std::size_t i = 0; i < prompts->size(); ++i) (i == 0 ? job.submit : job.others[i - 1]).prompt_tokens = std::move((*prompts)[i]);
  job.answer = std::make_unique<CompletionAnswer>(std::move(head), std::move(form), tokenizer);
  return job;
}

}  // namespace althing::protocol::openai
