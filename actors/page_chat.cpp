// See page_chat.hpp.
#include "actors/page_chat.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "monitoring/http_pages.hpp"
#include "protocol/client/client.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

constexpr std::size_t body_depth_max = 16;
constexpr std::uint32_t credit = 64;  // deltas on their way to a browser that has not taken them: a slow one costs the server no more
constexpr std::chrono::milliseconds poll_interval{100};
constexpr std::chrono::seconds cancel_wait{2};

bool is_tab(const std::string& tab) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'; };
  return tab.size() >= 8 && tab.size() <= 64 && std::all_of(tab.begin(), tab.end(), plain);
}

Error invalid(const std::string& why, const std::string& field) { return {ErrorCode::invalid_argument, why, field}; }

}  // namespace

Result<PageQuestion> page_question_of(const std::string& body, const Limits& limits) {
  auto members = wire::parse_json(body, body_depth_max);
  if (!members) return members.error();
  if (!members->is_object()) return Error{ErrorCode::corrupt, "a question is a JSON object", ""};
  PageQuestion question;
  auto submit = *members;
  submit.clear();
  submit["type"] = "submit";
  submit["request_id"] = "page";
  submit["credit"] = credit;
  for (const auto& [name, value] : members->items()) {
    if (name == "tab" && value.is_string())
      question.tab = value.template get<std::string>();
    else if (name == "messages" || name == "reasoning_effort" || name == "sampling")
      submit[name] = value;
    else
      return invalid("a question has the members tab, messages, reasoning_effort and sampling, and not this one",
                     name.substr(0, limits.name_bytes_max));
  }
  if (!is_tab(question.tab)) return invalid("tab must be 8 to 64 letters, digits or dashes", "tab");
  // Read as the server reads it from anybody, so that what it would refuse is refused with the same words.
  auto decoded = wire::decode_client(submit.dump(), wire::Encoding::json, limits);
  if (!decoded) return decoded.error();
  question.submit = std::move(std::get<wire::Submit>(*decoded));
  if (question.submit.sampling.n > 1) return invalid("the page shows one answer; leave n out", "sampling.n");
  return question;
}

Status PageChat::answer(const std::string& body, monitoring::EventReader& reader) {
  auto question = page_question_of(body, limits_);
  if (!question) return question.error();
  const std::string tab = question->tab;
  {
    const std::lock_guard lock(mutex_);
    if (!tabs_.insert(tab).second)
      return Error{ErrorCode::busy, "this tab has an answer that is still streaming; stop it, or wait for its end", "tab"};
  }
  Status status = stream(std::move(question->submit), reader);
  const std::lock_guard lock(mutex_);
  tabs_.erase(tab);
  return status;
}

Status PageChat::stream(wire::Submit submit, monitoring::EventReader& reader) const {
  auto client = protocol::Client::connect({.endpoint = endpoint_, .name = "althing-page/" ALTHING_VERSION, .limits = limits_, .keys = keys_});
  if (!client) return client.error();
  bool over = false, read = true;
  const auto tell = [&](const wire::ServerMessage& message) { read = read && reader.send(wire::encode(message, wire::Encoding::json)); };
  auto id = client->submit(std::move(submit), [&](const protocol::StreamEvent& event) {
    over = over || std::holds_alternative<wire::Done>(event) || std::holds_alternative<Error>(event);
    if (const auto* accepted = std::get_if<wire::Accepted>(&event)) tell(*accepted);
    if (const auto* delta = std::get_if<wire::Delta>(&event)) tell(*delta);
    if (const auto* done = std::get_if<wire::Done>(&event)) tell(*done);
    if (const auto* error = std::get_if<Error>(&event)) read = read && reader.send(monitoring::error_event(*error));
  });
  if (!id) return id.error();
  while (!over && (read = read && reader.reads())) client->poll(poll_interval);
  // Its pages come back at once, and not only when the server misses the client.
  if (!over) client->cancel(*id);
  for (const auto until = std::chrono::steady_clock::now() + cancel_wait; !over && std::chrono::steady_clock::now() < until;)
    client->poll(poll_interval);
  return Ok{};
}

}  // namespace althing::actors
