// See the header.
#include "protocol/openai/responses_reply.hpp"

#include <utility>

#include "protocol/openai/message_parts.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

// The word for an item's text in the names of its events.
const char* text_word(MessageKind kind) { return kind == MessageKind::reasoning ? "reasoning_text" : "output_text"; }

}  // namespace

ResponsesReply::ResponsesReply(ReplyHead head, ReplyRules rules, IdMaker make_id)
    : head_(std::move(head)), rules_(std::move(rules)), make_id_(std::move(make_id)), id_(make_id_("resp")) {}

Json ResponsesReply::part_of(const Item& item, bool with_content) const {
  const std::string text = with_content ? item.text : "";
  if (item.kind == MessageKind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", with_content ? item.logprobs : Json::array()}};
}

Json ResponsesReply::json_of(const Item& item, bool with_content) const {
  if (item.kind == MessageKind::call)
    return {{"id", item.id},           {"type", "function_call"}, {"status", item.status},
            {"call_id", item.call_id}, {"name", item.name},       {"arguments", with_content ? item.text : ""}};
  Json content = with_content ? Json::array({part_of(item, true)}) : Json::array();
  if (item.kind == MessageKind::reasoning)
    return {{"id", item.id}, {"type", "reasoning"}, {"status", item.status}, {"summary", Json::array()}, {"content", std::move(content)}};
  return {{"id", item.id},
          {"type", "message"},
          {"status", item.status},
          {"role", "assistant"},
          {"phase", item.preamble ? "commentary" : "final_answer"},
          {"content", std::move(content)}};
}

Json ResponsesReply::response() const {
  Json output = Json::array();
  for (const Item& item : items_) output.push_back(json_of(item, true));
  Json json = {{"id", id_},
               {"object", "response"},
               {"created_at", head_.created},
               {"status", status_},
               {"background", false},
               {"error", error_},
               {"incomplete_details", incomplete_details_},
               {"model", head_.model},
               {"output", std::move(output)}};
  for (const auto& [member, value] : head_.repeated.items()) json[member] = value;
  json["usage"] = usage_;
  return json;
}

void ResponsesReply::say(const char* type, Json members, Events& out) {
  Json event = {{"type", std::string("response.") + type}, {"sequence_number", sequence_++}};
  for (auto& [member, value] : members.items()) event[member] = std::move(value);
  out.push_back(std::move(event));
}

Json ResponsesReply::place() const {
  Json json = {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
  if (items_.back().kind != MessageKind::call) json["content_index"] = 0;
  return json;
}

void ResponsesReply::begin(Events& out) {
  say("created", {{"response", response()}}, out);
  say("in_progress", {{"response", response()}}, out);
}

void ResponsesReply::open(const wire::MessageStarted& message, MessageKind kind, Events& out) {
  Item item;
  item.kind = kind;
  item.preamble = message.channel == "commentary";
  item.id = make_id_(kind == MessageKind::reasoning ? "rs" : kind == MessageKind::call ? "fc" : "msg");
  if (kind == MessageKind::call) {
    item.call_id = make_id_("call");
    item.name = function_of(message.recipient);
  }
  items_.push_back(std::move(item));
  open_ = true;
  say("output_item.added", {{"output_index", items_.size() - 1}, {"item", json_of(items_.back(), false)}}, out);
  if (kind == MessageKind::call) return;
  Json part = place();
  part["part"] = part_of(items_.back(), false);
  say("content_part.added", std::move(part), out);
}

void ResponsesReply::push(const wire::DeltaEvent& event, Events& out, Json logprobs) {
  if (const auto* started = std::get_if<wire::MessageStarted>(&event)) {
    if (open_) close("completed", out);
    const MessageKind kind = kind_of(*started, rules_.declared, rules_.calls_wanted, rules_.only_final);
    silent_ = kind == MessageKind::nothing;
    if (!silent_) open(*started, kind, out);
    return;
  }
  const auto* text = std::get_if<wire::Text>(&event);
  if (silent_ || !open_) return;
  Item& item = items_.back();
  item.logprobs.insert(item.logprobs.end(), logprobs.begin(), logprobs.end());
  if (text == nullptr) return;
  item.text += text->text;
  Json delta = place();
  delta["delta"] = text->text;
  if (item.kind == MessageKind::content) delta["logprobs"] = std::move(logprobs);
  if (item.kind == MessageKind::call) return say("function_call_arguments.delta", std::move(delta), out);
  say((std::string(text_word(item.kind)) + ".delta").c_str(), std::move(delta), out);
}

void ResponsesReply::close(const char* status, Events& out) {
  open_ = false;
  Item& item = items_.back();
  item.status = status;
  Json done = place();
  if (item.kind == MessageKind::call) {
    done["name"] = item.name;
    done["arguments"] = item.text;
    say("function_call_arguments.done", std::move(done), out);
  } else {
    Json part = done;
    done["text"] = item.text;
    if (item.kind == MessageKind::content) done["logprobs"] = item.logprobs;
    say((std::string(text_word(item.kind)) + ".done").c_str(), std::move(done), out);
    part["part"] = part_of(item, true);
    say("content_part.done", std::move(part), out);
  }
  say("output_item.done", {{"output_index", items_.size() - 1}, {"item", json_of(item, true)}}, out);
}

void ResponsesReply::finish(const char* type, Events& out) {
  if (open_) close(status_ == "completed" ? "completed" : "incomplete", out);
  say(type, {{"response", response()}}, out);
}

void ResponsesReply::end(FinishReason reason, const ReplyUsage& usage, Events& out) {
  usage_ = {{"input_tokens", usage.input_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.output_tokens},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
            {"total_tokens", std::uint64_t{usage.input_tokens} + usage.output_tokens}};
  const bool cut = reason == FinishReason::length;
  status_ = cut ? "incomplete" : "completed";
  if (cut) incomplete_details_ = {{"reason", "max_output_tokens"}};
  finish(status_.c_str(), out);
}

void ResponsesReply::fail(const std::string& code, const std::string& message, Events& out) {
  status_ = "failed";
  error_ = {{"code", code}, {"message", message}};
  finish("failed", out);
}

std::vector<harmony::Message> ResponsesReply::messages() const {
  std::vector<harmony::Message> all;
  for (const Item& item : items_) {
    if (item.kind == MessageKind::call) {
      if (item.status == "completed") all.push_back(call_message(item.name, item.text));
    } else if (!item.text.empty()) {
      all.push_back(assistant_message(item.kind == MessageKind::reasoning ? "analysis" : item.preamble ? "commentary" : "final", item.text));
    }
  }
  return all;
}

CallNames ResponsesReply::calls() const {
  CallNames names;
  for (const Item& item : items_)
    if (item.kind == MessageKind::call && item.status == "completed") names[item.call_id] = item.name;
  return names;
}

}  // namespace althing::protocol::openai
