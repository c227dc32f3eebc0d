// Responses that may be continued: what a later previous_response_id, a reference to an item, and GET need of them. In memory, bounded in number and
// bytes. Each response belongs to the owner who made it (the name of an API key); to all others it does not exist. When the store is full, the owner
// who holds most loses the response that he has not used for longest, so nobody's history is pushed out by somebody else's flood. Nothing is kept of
// instructions for the next turn: a turn has its own. No locks: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "protocol/openai/responses_items.hpp"
#include "scheduler/vocabulary/ids.hpp"

namespace althing::protocol::openai {

// One turn: what came in and what went out.
struct KeptResponse {
  nlohmann::ordered_json response;  // whole, as it was sent; its `id` is the key
  nlohmann::ordered_json input;     // the list of input items, each with an id
  std::vector<harmony::Message>
      messages;     // of input and output, in order, without instructions; generated ones with their ids, where these are known
  CallNames calls;  // of input and output
};

// All turns that lead to a response, oldest first, itself included.
struct History {
  std::vector<harmony::Message> messages;
  CallNames calls;
};

struct StoreLimits {
  std::size_t responses_max = 4096;
  std::size_t bytes_max = std::size_t{128} << 20;
  std::uint32_t turns_max = 256;  // in one history
};

// How input items are listed.
struct ItemsQuery {
  std::uint32_t limit = 20;  // 1 to 100
  bool ascending = false;    // newest first by default, as OpenAI's
  std::string after;         // the id behind which to go on; "": from the beginning
};
// From what stands behind ? in the target: limit=20&order=asc&after=msg_1. Unknown members are ignored. Errors: invalid_argument.
Result<ItemsQuery> items_query_from(std::string_view query);

// Errors of all functions with an id: not_found, whether the response has never been, is somebody else's or was pushed out.
class ResponseStore {
 public:
  explicit ResponseStore(StoreLimits limits = {}) : limits_(limits) {}

  // REQUIRES: kept.response has an `id` of its own. Errors: too_large when it alone is over the store's bytes; then nothing changes.
  Status keep(const std::string& owner, KeptResponse kept);
  // Counts as a use of every turn of it. Errors also: too_large when the turns are over turns_max; field is previous_response_id.
  Result<History> history(const std::string& owner, const std::string& id);
  // An item that the model has made, of a response that is kept.
  std::optional<nlohmann::ordered_json> item(const std::string& owner, const std::string& item_id) const;

  // The bodies of GET and DELETE /v1/responses/{id} and of GET /v1/responses/{id}/input_items.
  Result<nlohmann::ordered_json> get(const std::string& owner, const std::string& id);
  Result<nlohmann::ordered_json> remove(const std::string& owner, const std::string& id);
  Result<nlohmann::ordered_json> input_items(const std::string& owner, const std::string& id, const ItemsQuery& query);

  std::size_t size() const { return turns_.size(); }
  std::size_t bytes() const { return bytes_; }  // what is held against bytes_max: texts and an allowance for what holds them

 private:
  struct Turn {
    std::string owner, previous;
    std::string response, input;  // JSON text: less memory than values, and seldom read
    std::vector<harmony::Message> messages;
    CallNames calls;
    std::vector<std::string> item_ids;
    std::size_t bytes = 0;
    std::list<std::string>::iterator use;  // in its owner's order of uses
  };
  struct Owner {
    std::list<std::string> uses;  // ids of responses, longest unused first
    std::size_t bytes = 0;
  };

  Turn* find(const std::string& owner, const std::string& id);
  void use(Turn& turn);
  void drop(const std::string& id);
  void make_room(std::size_t bytes);

  StoreLimits limits_;
  std::map<std::string, Turn> turns_;  // by id
  std::map<std::string, Owner> owners_;
  std::map<std::string, std::string> items_;  // ids of output items to those of their responses
  std::size_t bytes_ = 0;
};

}  // namespace althing::protocol::openai
