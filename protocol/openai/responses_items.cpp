// See the header.
#include "protocol/openai/responses_items.hpp"

#include <utility>

#include "protocol/openai/message_parts.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;
using harmony::Message;
using harmony::Role;

constexpr std::string_view known_types = "message, reasoning, function_call, function_call_output and item_reference";

// The item's type; "" when it is none. A message need not say that it is one.
std::string type_of(const Json& item) {
  if (!item.is_object()) return "";
  const Json type = item.value("type", Json());
  if (type.is_string()) return type.get<std::string>();
  return type.is_null() && item.contains("role") ? "message" : "";
}

// Whether the message at `index` comes before a call of the same turn.
bool is_before_call(const Json& items, std::size_t index) {
  for (std::size_t i = index + 1; i < items.size(); ++i) {
    const std::string type = type_of(items[i]);
    if (type != "reasoning") return type == "function_call";
  }
  return false;
}

class ItemReader {
 public:
  ItemReader(const Json& items, const CallNames& earlier) : items_(items), earlier_(earlier) {}

  Status add(std::size_t index, const Place& at) {
    const Json& item = items_[index];
    const std::string type = type_of(item);
    if (type == "message") return add_message(index, at);
    if (type == "reasoning") return add_reasoning(item, at);
    if (type == "function_call") return add_call(item, at);
    if (type == "function_call_output") return add_output(item, at);
    if (type.empty()) return at.invalid("is not an item with a type; this server knows " + std::string(known_types));
    return (at / "type").unsupported("is '" + type + "'; this server knows " + std::string(known_types));
  }
  InputItems take() {
    read_.listed = std::move(listed_);
    return std::move(read_);
  }

 private:
  Status add_message(std::size_t index, const Place& at) {
    const Json& item = items_[index];
    const auto role = text_member(item, "role", at), phase = text_member(item, "phase", at);
    if (!role) return role.error();
    if (!phase) return phase.error();
    const bool of_assistant = *role == "assistant";
    const Json content = item.value("content", Json());
    if (content.is_null() && !of_assistant) return (at / "content").invalid("is missing");
    auto parts = texts_of(content, at / "content", OtherParts::refused);
    if (!parts) return parts.error();
    std::string text;
    for (const std::string& part : *parts) text += part;
    if (of_assistant) {
      if (!phase->empty() && *phase != "commentary" && *phase != "final_answer")
        return (at / "phase").invalid("is '" + *phase + "'; use commentary or final_answer");
      const bool preamble = phase->empty() ? is_before_call(items_, index) : *phase == "commentary";
      if (!text.empty()) read_.messages.push_back(assistant_message(preamble ? "commentary" : "final", text));
    } else if (*role == "user") {
      Message message;
      message.role = Role::user;
      for (std::string& part : *parts) message.content.emplace_back(harmony::TextContent{std::move(part)});
      read_.messages.push_back(std::move(message));
    } else if (*role == "system" || *role == "developer") {
      Message message;
      message.role = Role::developer;
      message.content.emplace_back(harmony::DeveloperContent{text, {}});
      read_.messages.push_back(std::move(message));
    } else {
      return (at / "role").invalid("is '" + *role + "'; use user, assistant, system or developer");
    }
    Json listed = item;
    listed["type"] = "message";
    if (content.is_string()) listed["content"] = Json::array({{{"type", of_assistant ? "output_text" : "input_text"}, {"text", text}}});
    list(std::move(listed));
    return Ok{};
  }

  Status add_reasoning(const Json& item, const Place& at) {
    const Json content = item.value("content", Json());
    if (!content.is_null() && !content.is_array()) return (at / "content").invalid("is not a list of parts");
    std::string all;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const Place part = (at / "content")[i];
      if (!content[i].is_object() || content[i].value("type", Json()) != "reasoning_text")
        return part.invalid("is not a part of type 'reasoning_text'");
      const auto text = text_member(content[i], "text", part);
      if (!text) return text.error();
      all += *text;
    }
    const auto sealed = text_member(item, "encrypted_content", at);
    if (!sealed) return sealed.error();
    // Going on without the reasoning that the client believes it has sent would be silent.
    if (all.empty() && !sealed->empty())
      return (at / "encrypted_content")
          .unsupported("was sealed by another server and cannot be read here; leave this item out, or send its text in content");
    if (!all.empty()) read_.messages.push_back(assistant_message("analysis", std::move(all)));
    list(item);
    return Ok{};
  }

  Status add_call(const Json& item, const Place& at) {
    auto name = text_member(item, "name", at);
    const auto arguments = text_member(item, "arguments", at), id = text_member(item, "call_id", at);
    for (const auto* member : {&std::as_const(name), &arguments, &id})
      if (!*member) return member->error();
    // Some servers leak header words into names; what follows a control token was never part of one.
    name->erase(std::min(name->find("<|"), name->size()));
    if (name->empty()) return (at / "name").invalid("is missing");
    if (id->empty()) return (at / "call_id").invalid("is missing; the output of the call refers to it");
    read_.calls[*id] = *name;
    read_.messages.push_back(call_message(*name, *arguments));
    list(item);
    return Ok{};
  }

  Status add_output(const Json& item, const Place& at) {
    const auto id = text_member(item, "call_id", at);
    if (!id) return id.error();
    const std::string* function = function_of_call(*id);
    if (function == nullptr)
      return (at / "call_id")
          .invalid("is '" + *id +
                   "', which no function_call before it has; send that item as well, or the previous_response_id of the response with it");
    auto text = text_of_parts(item.value("output", Json()), at / "output", OtherParts::refused);
    if (!text) return text.error();
    read_.messages.push_back(result_message(*function, std::move(*text)));
    list(item);
    return Ok{};
  }

  const std::string* function_of_call(const std::string& id) const {
    for (const CallNames* names : {&std::as_const(read_.calls), &earlier_})
      if (const auto found = names->find(id); found != names->end()) return &found->second;
    return nullptr;
  }

  void list(Json item) {
    if (item.value("status", Json()).is_null()) item["status"] = "completed";
    listed_.push_back(std::move(item));
  }

  const Json& items_;
  const CallNames& earlier_;
  InputItems read_;
  Json listed_ = Json::array();
};

Result<Json> with_references(const Json& input, const Place& at, const ItemLookup& find) {
  Json items = input;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool bare = items[i].is_object() && items[i].size() == 1 && items[i].contains("id");  // how some libraries write a reference
    if (type_of(items[i]) != "item_reference" && !bare) continue;
    const auto id = text_member(items[i], "id", at[i]);
    if (!id) return id.error();
    auto found = find(*id);
    if (!found)
      return Error{ErrorCode::not_found, (at[i] / "id").path + " is '" + *id + "', and no such item is kept; send the item itself",
                   (at[i] / "id").path};
    items[i] = std::move(*found);
  }
  return items;
}

}  // namespace

Result<InputItems> input_items_from(const Json& input, const CallNames& earlier, const ItemLookup& find) {
  const Place at{"input"};
  if (!input.is_string() && !input.is_array()) return at.invalid("is neither a string nor a list of items");
  if (input.is_array() && input.empty()) return at.invalid("is empty; send at least one item");
  auto items =
      input.is_string() ? Result<Json>(Json::array({{{"type", "message"}, {"role", "user"}, {"content", input}}})) : with_references(input, at, find);
  if (!items) return std::move(items).error();
  ItemReader reader(*items, earlier);
  for (std::size_t i = 0; i < items->size(); ++i)
    if (auto status = reader.add(i, at[i]); !status) return std::move(status).error();
  return reader.take();
}

void name_items(Json& items, const IdMaker& make_id) {
  for (Json& item : items) {
    const Json id = item.value("id", Json());
    if (id.is_string() && !id.get_ref<const std::string&>().empty()) continue;
    const std::string type = type_of(item);
    item["id"] = make_id(type == "reasoning" ? "rs" : type == "function_call" ? "fc" : type == "function_call_output" ? "fco" : "msg");
  }
}

}  // namespace althing::protocol::openai
