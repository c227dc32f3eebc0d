// See the header.
#include "protocol/openai/response_store.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t bytes_of_turn = 1024, bytes_of_message = 256, bytes_of_name = 128;  // besides texts, about
constexpr std::uint32_t limit_max = 100;

Error not_found(const std::string& id) {
  return {ErrorCode::not_found, "there is no response '" + id + "' here: it was not stored, or was deleted or pushed out by newer ones", ""};
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::size_t bytes_of(const harmony::Message& message) {
  std::size_t bytes = bytes_of_message + message.tokens.size() * sizeof(TokenId);
  for (const harmony::Content& part : message.content) {
    if (const auto* text = std::get_if<harmony::TextContent>(&part)) bytes += text->text.size();
    if (const auto* developer = std::get_if<harmony::DeveloperContent>(&part)) bytes += developer->instructions.value_or("").size();
  }
  return bytes;
}

}  // namespace

Result<ItemsQuery> items_query_from(std::string_view query) {
  ItemsQuery read;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = pair.substr(0, equals), value = pair.substr(std::min(equals + 1, pair.size()));
    if (name == "limit") {
      const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), read.limit);
      if (failure != std::errc() || end != value.data() + value.size() || read.limit == 0 || read.limit > limit_max)
        return Error{ErrorCode::invalid_argument, "limit is '" + std::string(value) + "'; use 1 to " + std::to_string(limit_max), "limit"};
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        return Error{ErrorCode::invalid_argument, "order is '" + std::string(value) + "'; use asc or desc", "order"};
      read.ascending = value == "asc";
    } else if (name == "after") {
      read.after = value;
    }
  }
  return read;
}

ResponseStore::Turn* ResponseStore::find(const std::string& owner, const std::string& id) {
  const auto found = turns_.find(id);
  return found == turns_.end() || found->second.owner != owner ? nullptr : &found->second;
}

void ResponseStore::use(Turn& turn) {
  auto& uses = owners_[turn.owner].uses;
  uses.splice(uses.end(), uses, turn.use);
}

void ResponseStore::drop(const std::string& id) {
  const auto found = turns_.find(id);
  Turn& turn = found->second;
  for (const std::string& item : turn.item_ids) items_.erase(item);
  const auto owner = owners_.find(turn.owner);
  owner->second.bytes -= turn.bytes;
  owner->second.uses.erase(turn.use);
  if (owner->second.uses.empty()) owners_.erase(owner);
  bytes_ -= turn.bytes;
  turns_.erase(found);
}

void ResponseStore::make_room(std::size_t bytes) {
  while (!turns_.empty() && (turns_.size() >= limits_.responses_max || bytes_ + bytes > limits_.bytes_max)) {
    const bool by_count = turns_.size() >= limits_.responses_max;
    const auto most = std::max_element(owners_.begin(), owners_.end(), [&](const auto& a, const auto& b) {
      return by_count ? a.second.uses.size() < b.second.uses.size() : a.second.bytes < b.second.bytes;
    });
    drop(std::string(most->second.uses.front()));
  }
}

Status ResponseStore::keep(const std::string& owner, KeptResponse kept) {
  const std::string id = kept.response.value("id", "");
  Turn turn;
  turn.owner = owner;
  if (const Json previous = kept.response.value("previous_response_id", Json()); previous.is_string()) turn.previous = previous;
  turn.response = text_of(kept.response);
  turn.input = text_of(kept.input);
  turn.bytes = bytes_of_turn + owner.size() + turn.response.size() + turn.input.size();
  for (const harmony::Message& message : kept.messages) turn.bytes += bytes_of(message);
  for (const auto& [call, name] : kept.calls) turn.bytes += bytes_of_name + call.size() + name.size();
  for (const Json& item : kept.response.value("output", Json::array())) turn.item_ids.push_back(item.value("id", ""));
  turn.bytes += turn.item_ids.size() * bytes_of_name;
  if (turn.bytes > limits_.bytes_max || limits_.responses_max == 0)
    return Error{ErrorCode::too_large,
                 "the response takes " + std::to_string(turn.bytes) + " bytes, and all responses together may take " +
                     std::to_string(limits_.bytes_max) + "; it is not kept",
                 "store"};
  if (turns_.contains(id)) drop(id);
  turn.messages = std::move(kept.messages);
  turn.calls = std::move(kept.calls);
  make_room(turn.bytes);
  Owner& holder = owners_[owner];
  turn.use = holder.uses.insert(holder.uses.end(), id);
  holder.bytes += turn.bytes;
  bytes_ += turn.bytes;
  for (const std::string& item : turn.item_ids) items_[item] = id;
  turns_.insert_or_assign(id, std::move(turn));
  return Ok{};
}

Result<History> ResponseStore::history(const std::string& owner, const std::string& id) {
  constexpr const char* field = "previous_response_id";
  std::vector<Turn*> turns;  // newest first
  for (const std::string* next = &id; !next->empty(); next = &turns.back()->previous) {
    Turn* turn = find(owner, *next);
    if (turn == nullptr && turns.empty())
      return Error{ErrorCode::not_found, std::string(field) + ": " + not_found(id).message + "; send the conversation as input", field};
    if (turn == nullptr)
      return Error{
          ErrorCode::not_found,
          std::string(field) + ": the response '" + *next + "', on which '" + id + "' builds, is not here any more; send the conversation as input",
          field};
    if (turns.size() == limits_.turns_max)
      return Error{ErrorCode::too_large,
                   std::string(field) + ": the conversation that ends in '" + id + "' has more than " + std::to_string(limits_.turns_max) +
                       " turns; send it as input",
                   field};
    turns.push_back(turn);
  }
  History history;
  // Oldest first, so that a conversation is pushed out from its beginning and never in its middle.
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    use(**turn);
    history.messages.insert(history.messages.end(), (*turn)->messages.begin(), (*turn)->messages.end());
    for (const auto& [call, name] : (*turn)->calls) history.calls[call] = name;
  }
  return history;
}

std::optional<Json> ResponseStore::item(const std::string& owner, const std::string& item_id) const {
  const auto place = items_.find(item_id);
  if (place == items_.end()) return std::nullopt;
  const Turn& turn = turns_.at(place->second);
  if (turn.owner != owner) return std::nullopt;
  const Json response = Json::parse(turn.response);
  for (const Json& item : response["output"])
    if (item.value("id", "") == item_id) return item;
  return std::nullopt;
}

Result<Json> ResponseStore::get(const std::string& owner, const std::string& id) {
  Turn* turn = find(owner, id);
  if (turn == nullptr) return not_found(id);
  use(*turn);
  return Json::parse(turn->response);
}

Result<Json> ResponseStore::remove(const std::string& owner, const std::string& id) {
  if (find(owner, id) == nullptr) return not_found(id);
  drop(std::string(id));
  return Json{{"id", id}, {"object", "response"}, {"deleted", true}};
}

Result<Json> ResponseStore::input_items(const std::string& owner, const std::string& id, const ItemsQuery& query) {
  Turn* turn = find(owner, id);
  if (turn == nullptr) return not_found(id);
  use(*turn);
  Json items = Json::parse(turn->input);
  if (!query.ascending) std::reverse(items.begin(), items.end());
  auto from = items.begin();
  if (!query.after.empty()) {
    from = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item.value("id", "") == query.after; });
    if (from == items.end()) return Error{ErrorCode::not_found, "there is no item '" + query.after + "' in this list", "after"};
    ++from;
  }
  const auto left = static_cast<std::size_t>(items.end() - from);
  const bool has_more = left > query.limit;
  Json page = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(left, query.limit); ++i) page.push_back(std::move(from[static_cast<std::ptrdiff_t>(i)]));
  const Json first = page.empty() ? Json() : page.front()["id"], last = page.empty() ? Json() : page.back()["id"];
  return Json{{"object", "list"}, {"data", std::move(page)}, {"first_id", first}, {"last_id", last}, {"has_more", has_more}};
}

}  // namespace althing::protocol::openai
