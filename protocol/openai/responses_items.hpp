// Input items of OpenAI's Responses API as Harmony messages. One item is one message; which reasoning the model sees again is the renderer's business
// (harmony/history.hpp), so nothing is dropped here.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/harmony/message.hpp"

namespace althing::protocol::openai {

// Names of functions by the call_id of a call.
using CallNames = std::map<std::string, std::string>;
// Makes an id that no other has; `kind` is what it begins with: resp, rs, msg, fc, fco or call.
using IdMaker = std::function<std::string(std::string_view kind)>;
// The item with this id, where the caller of the API may see it.
using ItemLookup = std::function<std::optional<nlohmann::ordered_json>(const std::string& id)>;

struct InputItems {
  std::vector<harmony::Message> messages;
  CallNames calls;                // of these items only
  nlohmann::ordered_json listed;  // the items in full form: types said, contents as lists, references replaced by what they refer to
};

// `input`: a string (one message of the user) or a list of items. An assistant's message without a phase is a preamble (commentary) where a call
// follows it, reasoning aside, and final elsewhere; reasoning becomes analysis; a call's output finds its function by call_id, among these items and
// `earlier`. Messages of the assistant and reasoning that say nothing are left out. Errors: invalid_argument, unsupported (items and parts that are
// no text) and not_found (references); field is the member's path, as in input[2].call_id.
Result<InputItems> input_items_from(const nlohmann::ordered_json& input, const CallNames& earlier, const ItemLookup& find);

// Gives ids to the items of a list that have none.
void name_items(nlohmann::ordered_json& items, const IdMaker& make_id);

}  // namespace althing::protocol::openai
