// See the header.
#include "protocol/openai/responses_answer.hpp"

#include <iterator>
#include <utility>

#include "protocol/openai/sse.hpp"
#include "protocol/openai/turn_tokens.hpp"

namespace althing::protocol::openai {
namespace {

// rs_0123…_2: all ids of one answer have its key, and a number of their own but for the response.
IdMaker ids_of(const AnswerHead& head) {
  return [key = head.key, made = std::make_shared<std::uint32_t>(0)](std::string_view kind) {
    std::string id = std::string(kind) + "_" + key;
    if (kind != "resp") id += "_" + std::to_string((*made)++);
    return id;
  };
}

std::string words_of(const ResponsesReply::Events& events) {
  std::string words;
  for (const nlohmann::ordered_json& event : events) words += "event: " + event["type"].get<std::string>() + "\n" + event_of(event);
  return words;
}

std::optional<ContentLogprobs> told_of(const ResponsesRequest& request, const chat::ChatFormat& format) {
  if (!request.submit.sampling.logprobs) return std::nullopt;
  return ContentLogprobs(format, request.declared, request.calls_wanted, request.submit.grammar.has_value());
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(const AnswerHead& head, ResponsesRequest request, Keeping keeping, chat::ChatFormat format)
    : stream_(request.stream),
      store_(request.store),
      input_(std::move(request.input)),
      keeping_(std::move(keeping)),
      format_(std::move(format)),
      make_id_(ids_of(head)),
      logprobs_(told_of(request, format_)),
      reply_({head.created, head.model, std::move(request.repeated)},
             {std::move(request.declared), request.calls_wanted, request.submit.grammar.has_value()}, make_id_) {}

std::string ResponsesAnswer::begin() {
  ResponsesReply::Events events;
  reply_.begin(events);
  return stream_ ? words_of(events) : "";
}

std::string ResponsesAnswer::push(const wire::Delta& delta) {
  ResponsesReply::Events events;
  if (logprobs_)
    for (const TokenLogprobs& told : delta.logprobs) logprobs_->push(told);
  for (const wire::DeltaEvent& event : delta.events) {
    // The tokens of a whole delta are known by now, also those of a message that has yet to begin.
    const bool begins = std::holds_alternative<wire::MessageStarted>(event);
    const std::uint32_t index = std::visit([](const auto& said) { return said.index; }, event);
    reply_.push(event, events, logprobs_ && !begins ? logprobs_->take(index) : nlohmann::ordered_json::array());
  }
  if (store_) tokens_.insert(tokens_.end(), delta.tokens.begin(), delta.tokens.end());
  return stream_ ? words_of(events) : "";
}

void ResponsesAnswer::keep() {
  KeptResponse kept{reply_.response(), std::move(input_.listed), std::move(input_.messages), std::move(input_.calls)};
  name_items(kept.input, make_id_);
  std::vector<harmony::Message> generated = reply_.messages();
  if (format_.harmony() != nullptr) add_tokens(*format_.harmony(), tokens_, generated);
  std::move(generated.begin(), generated.end(), std::back_inserter(kept.messages));
  kept.calls.merge(reply_.calls());
  // One that is too large for the store is still a good answer; who asks for it later is told that it is not there.
  (void)keeping_.store->keep(keeping_.owner, std::move(kept));
}

Result<std::string> ResponsesAnswer::end(const wire::Done& done) {
  const auto ended = end_of(done, 0);
  if (!ended) return ended.error();
  ResponsesReply::Events events;
  reply_.end(*ended, {done.usage.prompt_tokens, done.usage.completion_tokens, done.reasoning_tokens, done.usage.cached_tokens}, events);
  if (store_) keep();
  return stream_ ? words_of(events) : text_of(reply_.response());
}

std::string ResponsesAnswer::fail(const http::ErrorReply& error) {
  ResponsesReply::Events events;
  // The API has a closed list of codes, and clients read it strictly; our own is worth a word all the same.
  const char* code = error.status == 429 ? "rate_limit_exceeded" : error.status < 500 ? "invalid_prompt" : "server_error";
  reply_.fail(code, error.code.empty() ? error.message : error.message + " (" + error.code + ")", events);
  return words_of(events);
}

Result<Job> responses_job(const nlohmann::ordered_json& body, const AnswerHead& head, Keeping keeping, const chat::ChatFormat& format) {
  auto request = responses_request_from(body, *keeping.store, keeping.owner);
  if (!request) return std::move(request).error();
  Job job{std::move(request->submit), request->stream, nullptr, in_responses_terms};
  request->submit.sampling.logprobs = job.submit.sampling.logprobs;
  job.answer = std::make_unique<ResponsesAnswer>(head, std::move(*request), std::move(keeping), format);
  return job;
}

}  // namespace althing::protocol::openai
