// What a stream of the Responses API must be, written down once more and without a look at the code that makes it: a machine that takes event after
// event and says what is wrong with the first that must not come.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace althing::tests {

class ResponsesEventChecker {
 public:
  using Json = nlohmann::ordered_json;

  // "" or what is wrong.
  std::string take(const Json& event) {
    const std::string type = event.value("type", "");
    const auto wrong = [&](const std::string& why) { return "event " + std::to_string(taken_) + " (" + type + "): " + why; };
    if (event.value("sequence_number", Json()) != taken_) return wrong("sequence_number is " + event.value("sequence_number", Json()).dump());
    std::string why;
    try {
      why = check(type, event);
    } catch (const Json::exception& error) {
      why = error.what();  // a member is missing, or of another kind
    }
    ++taken_;
    return why.empty() ? "" : wrong(why);
  }
  // After the last event. `response`: what the answer would have been without a stream.
  std::string finish(const Json& response) const {
    if (state_ != State::over) return "the stream ends before its last event";
    return response == last_ ? "" : "the last event's response is " + last_.dump() + ", the whole is " + response.dump();
  }

 private:
  enum class State { created, in_progress, between, part, text, part_done, arguments, item_done, over };

  std::string check(const std::string& type, const Json& event) {
    switch (state_) {
      case State::created:
      case State::in_progress:
        return check_begin(type, event);
      case State::between:
        return type == "response.output_item.added" ? check_added(event) : check_last(type, event);
      case State::part:
        return check_part(type, event, "response.content_part.added", "", State::text);
      case State::text:
        return check_text(type, event);
      case State::part_done:
        return check_part(type, event, "response.content_part.done", text_, State::item_done);
      case State::arguments:
        return check_arguments(type, event);
      case State::item_done:
        return check_item_done(type, event);
      default:
        return "comes after the last event";
    }
  }

  std::string check_begin(const std::string& type, const Json& event) {
    const Json& response = event.at("response");
    if (type != (state_ == State::created ? "response.created" : "response.in_progress")) return "comes too early";
    if (response.at("status") != "in_progress" || !response.at("output").empty() || !response.at("usage").is_null() ||
        !response.at("error").is_null())
      return "is not of a response that has just begun";
    if (state_ == State::created) id_ = response.at("id");
    if (response.at("id") != id_ || id_.rfind("resp_", 0) != 0) return "has the wrong response id";
    state_ = state_ == State::created ? State::in_progress : State::between;
    return "";
  }

  std::string check_added(const Json& event) {
    const Json& item = event.at("item");
    if (event.at("output_index") != done_.size()) return "output_index is not the next one";
    if (cut_) return "follows an item that was cut short";
    item_ = item;
    text_.clear();
    logprobs_ = Json::array();
    kind_ = item.at("type");
    const std::string id = item.at("id"), prefix = kind_ == "reasoning" ? "rs_" : kind_ == "message" ? "msg_" : "fc_";
    if (id.rfind(prefix, 0) != 0 || !ids_.insert(id).second) return "its id is of another kind, or was there before: " + id;
    if (item.at("status") != "in_progress") return "its item is not in progress";
    if (kind_ == "function_call") {
      if (item.at("arguments") != "" || item.at("name") == "" || item.at("call_id").get<std::string>().rfind("call_", 0) != 0)
        return "is not a call that begins";
      if (!ids_.insert(item.at("call_id")).second) return "its call_id was there before";
      state_ = State::arguments;
      return "";
    }
    if (kind_ != "reasoning" && kind_ != "message") return "its item is of an unknown type";
    if (item.at("content") != Json::array()) return "its item has content";
    if (kind_ == "reasoning" && item.at("summary") != Json::array()) return "has no empty summary";
    if (kind_ == "message" && (item.at("role") != "assistant" || (item.at("phase") != "commentary" && item.at("phase") != "final_answer")))
      return "has no role or phase";
    state_ = State::part;
    return "";
  }

  std::string misplaced(const Json& event, bool with_content) const {
    if (event.at("item_id") != item_.at("id")) return "is of another item";
    if (event.at("output_index") != done_.size()) return "has the wrong output_index";
    if (with_content ? event.at("content_index") != 0 : event.contains("content_index")) return "has the wrong content_index";
    return "";
  }

  Json part(const std::string& text) const {
    if (kind_ == "reasoning") return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", state_ == State::part ? Json::array() : logprobs_}};
  }

  std::string check_part(const std::string& type, const Json& event, const char* expected, const std::string& text, State next) {
    if (type != expected) return std::string("where ") + expected + " belongs";
    if (auto why = misplaced(event, true); !why.empty()) return why;
    if (event.at("part") != part(text)) return "its part is " + event.at("part").dump() + ", expected " + part(text).dump();
    state_ = next;
    return "";
  }

  std::string check_text(const std::string& type, const Json& event) {
    const std::string stem = kind_ == "reasoning" ? "response.reasoning_text" : "response.output_text";
    if (type != stem + ".delta" && type != stem + ".done") return "where " + stem + " belongs";
    if (auto why = misplaced(event, true); !why.empty()) return why;
    if (kind_ == "message" && !event.at("logprobs").is_array()) return "has no logprobs";
    if (type == stem + ".delta") {
      if (kind_ == "message") logprobs_.insert(logprobs_.end(), event["logprobs"].begin(), event["logprobs"].end());
      return add(event);
    }
    if (kind_ == "message" && event["logprobs"] != logprobs_) return "its logprobs are not what the deltas' were";
    if (event.at("text") != text_) return "is not what the deltas were";
    state_ = State::part_done;
    return "";
  }

  std::string check_arguments(const std::string& type, const Json& event) {
    const std::string stem = "response.function_call_arguments";
    if (type != stem + ".delta" && type != stem + ".done") return "where " + stem + " belongs";
    if (auto why = misplaced(event, false); !why.empty()) return why;
    if (type == stem + ".delta") return add(event);
    if (event.at("arguments") != text_ || event.at("name") != item_.at("name")) return "is not what the deltas were";
    state_ = State::item_done;
    return "";
  }

  std::string add(const Json& event) {
    const std::string delta = event.at("delta");
    if (delta.empty()) return "an empty delta";
    text_ += delta;
    return "";
  }

  std::string check_item_done(const std::string& type, const Json& event) {
    if (type != "response.output_item.done" || event.at("output_index") != done_.size()) return "where this item's end belongs";
    const Json& item = event.at("item");
    Json expected = item_;
    expected["status"] = item.at("status");
    if (kind_ == "function_call") {
      expected["arguments"] = text_;
    } else {
      expected["content"] = Json::array({part(text_)});
    }
    if (item != expected) return "the item is " + item.dump() + ", expected " + expected.dump();
    if (item.at("status") != "completed" && item.at("status") != "incomplete") return "the item has not ended";
    cut_ = item.at("status") == "incomplete";
    done_.push_back(item);
    state_ = State::between;
    return "";
  }

  std::string check_last(const std::string& type, const Json& event) {
    const std::string status = type.substr(type.find('.') + 1);
    if (status != "completed" && status != "incomplete" && status != "failed") return "where an item or the end belongs";
    last_ = event.at("response");
    if (last_.at("id") != id_ || last_.at("status") != status || last_.at("object") != "response")
      return "is of another response, or of another status";
    if (last_.at("output") != Json(done_)) return "its output is not the items that were done";
    if (status == "completed" && cut_) return "its last item was cut short";
    if (last_.at("incomplete_details") != (status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json()))
      return "its incomplete_details are wrong";
    if (last_.at("error").is_null() == (status == "failed")) return "its error is wrong";
    if (status != "failed") {
      const Json& usage = last_.at("usage");
      const std::uint64_t sum = usage.at("input_tokens").get<std::uint64_t>() + usage.at("output_tokens").get<std::uint64_t>();
      if (usage.at("total_tokens") != sum || !usage.at("input_tokens_details").contains("cached_tokens") ||
          usage.at("output_tokens_details").at("reasoning_tokens") > usage.at("output_tokens"))
        return "its usage does not add up";
    }
    state_ = State::over;
    return "";
  }

  State state_ = State::created;
  std::size_t taken_ = 0;
  std::string id_, kind_, text_;
  Json logprobs_ = Json::array();
  Json item_, last_;
  std::vector<Json> done_;
  std::set<std::string> ids_;
  bool cut_ = false;
};

// All events of a stream through one checker.
inline std::string wrong_events(const std::vector<nlohmann::ordered_json>& events, const nlohmann::ordered_json& response) {
  ResponsesEventChecker checker;
  for (const auto& event : events)
    if (auto why = checker.take(event); !why.empty()) return why;
  return checker.finish(response);
}

}  // namespace althing::tests
