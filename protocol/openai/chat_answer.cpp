// See the header.
#include "protocol/openai/chat_answer.hpp"

#include <utility>

#include "protocol/openai/sse.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

void append(ReplyPiece& to, ReplyPiece piece) {
  to.reasoning += piece.reasoning;
  to.content += piece.content;
  for (ToolCallPiece& call : piece.tool_calls) {
    if (call.name) {
      to.tool_calls.push_back(std::move(call));
    } else if (call.index < to.tool_calls.size()) {
      to.tool_calls[call.index].arguments += call.arguments;
    }
  }
}

Json content_of(Json logprobs) { return {{"content", std::move(logprobs)}, {"refusal", nullptr}}; }

}  // namespace

ChatAnswer::ChatAnswer(AnswerHead head, const ChatRequest& request, const chat::ChatFormat& format)
    : head_(std::move(head)), stream_(request.stream), include_usage_(request.include_usage), include_reasoning_(request.include_reasoning) {
  chunk_head_ = "data: " + text_of(frame("chat.completion.chunk"));
  chunk_head_.back() = ',';  // the brace: members follow
  chunk_head_ += R"("choices":[{"index":)";
  for (std::uint32_t i = 0; i < request.submit.sampling.n; ++i) {
    choices_.push_back({ChatReply(request.declared, request.calls_wanted, request.submit.grammar.has_value()), {}});
    if (request.submit.sampling.logprobs)
      choices_.back().logprobs.emplace(format, request.declared, request.calls_wanted, request.submit.grammar.has_value());
  }
}

std::string ChatAnswer::call_id(std::size_t choice, std::uint32_t call) const {
  return "call_" + head_.key + "_" + std::to_string(choice) + "_" + std::to_string(call);
}

Json ChatAnswer::frame(const char* object) const {
  return {{"id", "chatcmpl-" + head_.key}, {"object", object}, {"created", head_.created}, {"model", head_.model}};
}

std::string ChatAnswer::chunk(std::size_t choice, Chunk chunk) const {
  Json json = frame("chat.completion.chunk");
  json["choices"] = Json::array({{{"index", choice},
                                  {"delta", std::move(chunk.delta)},
                                  {"logprobs", std::move(chunk.logprobs)},
                                  {"finish_reason", std::move(chunk.finish_reason)}}});
  if (include_usage_) json["usage"] = nullptr;
  return event_of(json);
}

// Almost every chunk of every stream is one of these, so it is written straight to text; chunk() makes the same of it.
std::string ChatAnswer::text_chunk(std::size_t choice, std::string_view member, std::string_view text) const {
  std::string event;
  event.reserve(chunk_head_.size() + text.size() + 128);
  event += chunk_head_;
  event += std::to_string(choice);
  event += R"(,"delta":{")";
  event += member;
  event += "\":";
  wire::append_quoted(event, text);
  event += R"(},"logprobs":null,"finish_reason":null}])";
  if (include_usage_) event += R"(,"usage":null)";
  event += "}\n\n";
  return event;
}

std::string ChatAnswer::begin() {
  std::string events;
  for (std::size_t i = 0; stream_ && i < choices_.size(); ++i) events += chunk(i, {{{"role", "assistant"}, {"content", ""}}, {}, {}});
  return events;
}

// `message`: the number of the one that the piece is of.
std::string ChatAnswer::chunks_of(std::size_t choice, ReplyPiece piece, std::uint32_t message) {
  std::string events;
  auto& logprobs = choices_[choice].logprobs;
  if (!piece.reasoning.empty()) events += text_chunk(choice, "reasoning", piece.reasoning);
  if (!piece.content.empty() && !logprobs) events += text_chunk(choice, "content", piece.content);
  if (!piece.content.empty() && logprobs) events += chunk(choice, {{{"content", std::move(piece.content)}}, {}, content_of(logprobs->take(message))});
  for (ToolCallPiece& call : piece.tool_calls) {
    Json json = {{"index", call.index}};
    if (call.name) {
      json["id"] = call_id(choice, call.index);
      json["type"] = "function";
      json["function"]["name"] = *call.name;
    }
    json["function"]["arguments"] = std::move(call.arguments);
    events += chunk(choice, {{{"tool_calls", Json::array({std::move(json)})}}, {}, {}});
  }
  return events;
}

std::string ChatAnswer::push(const wire::Delta& delta) {
  if (delta.choice >= choices_.size()) return "";
  Choice& choice = choices_[delta.choice];
  if (choice.logprobs)
    for (const TokenLogprobs& told : delta.logprobs) choice.logprobs->push(told);
  std::string events;
  // A piece an event: reasoning, content and calls come in the order in which the model wrote them.
  for (const wire::DeltaEvent& event : delta.events) {
    choice.reply.push(event);
    ReplyPiece piece = choice.reply.take();
    if (!include_reasoning_) piece.reasoning.clear();
    if (!stream_)
      append(choice.whole, std::move(piece));
    else
      events += chunks_of(delta.choice, std::move(piece), std::visit([](const auto& said) { return said.index; }, event));
  }
  return events;
}

Json ChatAnswer::message_of(std::size_t choice) const {
  const ReplyPiece& whole = choices_[choice].whole;
  Json message = {{"role", "assistant"}, {"content", whole.content.empty() ? Json() : Json(whole.content)}, {"refusal", nullptr}};
  if (!whole.reasoning.empty()) message["reasoning"] = whole.reasoning;
  for (const ToolCallPiece& call : whole.tool_calls)
    message["tool_calls"].push_back(
        {{"id", call_id(choice, call.index)}, {"type", "function"}, {"function", {{"name", call.name.value_or("")}, {"arguments", call.arguments}}}});
  return message;
}

Result<std::string> ChatAnswer::end(const wire::Done& done) {
  std::string events;
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const auto ended = end_of(done, i);
    if (!ended) return ended.error();
    const std::string reason = choices_[i].reply.finish_reason(*ended);
    auto& told = choices_[i].logprobs;
    Json logprobs = told ? told->take_all() : Json();
    if (stream_) {
      events += chunk(i, {Json::object(), reason, logprobs.empty() ? Json() : content_of(std::move(logprobs))});
    } else {
      choices.push_back(
          {{"index", i}, {"message", message_of(i)}, {"logprobs", told ? content_of(std::move(logprobs)) : Json()}, {"finish_reason", reason}});
    }
  }
  Json json = frame(stream_ ? "chat.completion.chunk" : "chat.completion");
  json["choices"] = std::move(choices);
  json["usage"] = usage_of(done);
  if (!stream_) return text_of(json);
  if (include_usage_) events += event_of(json);
  return events + std::string(last_event);
}

std::string ChatAnswer::fail(const http::ErrorReply& error) { return event_of(http::to_json(error)); }

Result<Job> chat_job(const Json& body, AnswerHead head, const chat::ChatFormat& format) {
  auto request = chat_request_from(body);
  if (!request) return std::move(request).error();
  auto answer = std::make_unique<ChatAnswer>(std::move(head), *request, format);
  return Job{std::move(request->submit), request->stream, std::move(answer)};
}

}  // namespace althing::protocol::openai
