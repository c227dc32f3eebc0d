// Bodies of HTTP requests, through all that happens to them on this side of the engine: read, rendered, answered from ids that somebody generated,
// and gone on from. The first byte chooses the route; behind a first zero byte stand the ids. A job that was made must have what every job has, every
// answer must be JSON, and whatever was generated, the next turn of a response must be rendered.
#include <cstdint>
#include <string_view>

#include "protocol/harmony/render.hpp"
#include "protocol/openai/chat_answer.hpp"
#include "protocol/openai/completions.hpp"
#include "protocol/openai/response_store.hpp"
#include "protocol/openai/responses_answer.hpp"
#include "protocol/openai/tokens.hpp"
#include "protocol/wire/conversation.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "protocol/wire/json_text.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using fuzz::require;
using Json = nlohmann::ordered_json;

constexpr const char* date = "2026-01-02";
const openai::AnswerHead head{"0123456789abcdef01234567", 1, "m"};

const harmony::Format& format() { return fuzz::small_format(); }

void check_error(const Error& error) {
  const http::ErrorReply reply = http::reply_for(openai::in_request_terms(error));
  require(!reply.message.empty() && reply.status >= 400, "a refusal says why");
  require(Json::accept(http::to_response(reply).body), "a refusal is JSON");
}

// Events of a stream, or one JSON text.
void check_words(std::string_view words, bool stream) {
  if (!stream) return require(Json::accept(words), "an answer is JSON");
  while (!words.empty()) {
    const std::size_t end = words.find("\n\n");
    require(end != std::string_view::npos, "events end in an empty line");
    std::string_view event = words.substr(0, end);
    words.remove_prefix(end + 2);
    if (event.starts_with("event: ")) event.remove_prefix(event.find('\n') + 1);
    require(event.starts_with("data: ") && event.find('\n') == std::string_view::npos, "an event is one line of data");
    event.remove_prefix(6);
    require(event == "[DONE]" || Json::accept(event), "an event's data is JSON");
  }
}

// As the engine tells it: `cut` ids a delta.
std::vector<wire::Delta> deltas_of(const std::vector<TokenId>& ids, const wire::Submit& submit, std::size_t cut) {
  std::vector<wire::Delta> deltas;
  for (std::uint32_t choice = 0; choice < submit.sampling.n && choice < 3; ++choice) {
    wire::DeltaStream stream(format());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i % cut == 0) deltas.push_back({"r", deltas.size() + 1, choice, {}, {}});
      stream.push(ids[i], deltas.back().events);
      deltas.back().tokens.push_back(ids[i]);
      if (submit.sampling.logprobs) deltas.back().logprobs.push_back({ids[i], -0.5F, {{ids[i], -0.5F}, {static_cast<TokenId>(i % 270), -1.0F}}});
    }
    deltas.push_back({"r", deltas.size() + 1, choice, {}, {}});
    stream.finish(deltas.back().events);
  }
  return deltas;
}

wire::Done done_of(const std::vector<TokenId>& ids, std::uint32_t n) {
  wire::Done done;
  done.request_id = "r";
  done.reason = ids.size() % 3 == 0 ? FinishReason::length : ids.size() % 31 == 5 ? FinishReason::error : FinishReason::stop;
  done.usage = {7, static_cast<std::uint32_t>(ids.size()), 0};
  if (n > 1) done.choices.resize(n, {done.reason, 1, 0, std::nullopt, std::nullopt});
  return done;
}

// The conversation that the engine renders. True when it was rendered.
bool render(const wire::Submit& submit) {
  if (submit.messages.empty()) return false;
  const auto conversation = wire::conversation_of(submit, date);
  if (!conversation) return check_error(conversation.error()), false;
  const auto rendered = harmony::render_for_completion(format(), *conversation, harmony::Role::assistant, {});
  if (!rendered) return check_error(rendered.error()), false;
  return true;
}

// True when the answer has ended well.
bool run(openai::Job& job, const std::vector<TokenId>& ids) {
  require(job.submit.messages.empty() != job.submit.prompt_tokens.empty() && job.submit.sampling.n > 0, "a job asks for something");
  std::string words = job.answer->begin();
  require(job.stream || words.empty(), "a whole answer says nothing before its end");
  const std::uint32_t n = job.submit.sampling.n;
  for (const wire::Delta& delta : deltas_of(ids, job.submit, 1 + ids.size() % 5)) words += job.answer->push(delta);
  const auto end = job.answer->end(done_of(ids, n));
  if (end)
    words += *end;
  else if (job.stream)
    words += job.answer->fail(http::reply_for(end.error()));
  if (end || job.stream) check_words(words, job.stream);
  return end.ok();
}

// A response, what is kept of it, and the turn after it.
void respond(const Json& body, const std::vector<TokenId>& ids) {
  const auto store = std::make_shared<openai::ResponseStore>();
  auto job = openai::responses_job(body, head, {store, "o"}, format());
  if (!job) return check_error(job.error());
  const bool first_rendered = render(job->submit);
  if (!run(*job, ids) || store->size() == 0) return;
  const std::string id = "resp_" + head.key;
  const auto kept = store->get("o", id);
  require(kept.ok() && !store->get("p", id), "a response is its owner's");
  if (const auto query = openai::items_query_from("limit=2&order=asc&after=" + id); query) (void)store->input_items("o", id, *query);
  require(store->input_items("o", id, {}).ok(), "what came in is listed");
  for (const Json& item : (*kept)["output"]) require(store->item("o", item["id"]).has_value(), "an item is found by its id");
  Json next = {{"input", "go on"}, {"previous_response_id", id}};
  if (body.contains("tools")) next["tools"] = body["tools"];
  auto second = openai::responses_job(next, {"1123456789abcdef01234567", 2, "m"}, {store, "o"}, format());
  require(second.ok(), "a response can be gone on from");
  require(render(second->submit) || !first_rendered, "the next turn is rendered, whatever was generated");
  require(store->remove("o", id).ok() && store->size() == 0 && store->bytes() == 0, "a response is removed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 16384) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  const std::vector<TokenId> ids = fuzz::ids_of(text.substr(std::min(zero + 1, text.size())));
  if (data[0] % 6 == 5) {
    if (const auto query = openai::items_query_from(text); query) require(query->limit >= 1 && query->limit <= 100, "a page has a bound");
    return 0;
  }
  const auto body = wire::parse_json(text.substr(0, zero), wire::json_depth_max);
  if (!body || !body->is_object()) return 0;
  if (data[0] % 6 == 2) {
    const auto told = openai::tokenize(*body, format(), 1, date);
    told ? require(told->at("count") == told->at("tokens").size(), "tokens are counted") : check_error(told.error());
  } else if (data[0] % 6 == 3) {
    const auto told = openai::detokenize(*body, *format().tokenizer);
    told ? require(told->at("prompt").is_string(), "a prompt is text") : check_error(told.error());
  } else if (data[0] % 6 == 4) {
    respond(*body, ids);
  } else {
    auto job = data[0] % 6 == 0 ? openai::chat_job(*body, head, format()) : openai::completion_job(*body, head, format().tokenizer);
    if (!job) return check_error(job.error()), 0;
    render(job->submit);
    run(*job, ids);
  }
  return 0;
}
