// What a model generated, as a response of OpenAI's Responses API: the events of a stream, and the response as a whole. Pure: it depends on what is
// pushed and not on when or in what pieces, and the response of the last event is response().
//
// One message of the model is one output item, in order; which is what says message_kind.hpp. Messages on commentary are of the phase `commentary`,
// other content is the `final_answer`. An item's closing events wait for what comes next, because only then is it known whether the item was cut
// short: when generation ends at max_output_tokens, or fails, its last item is `incomplete`.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "protocol/openai/message_kind.hpp"
#include "protocol/openai/responses_items.hpp"

namespace althing::protocol::openai {

struct ReplyRules {
  std::set<std::string> declared;  // as kind_of's
  bool calls_wanted = true;
  bool only_final = false;
};

// What never changes within one response.
struct ReplyHead {
  std::int64_t created = 0;  // Unix time, seconds
  std::string model;
  nlohmann::ordered_json repeated;  // as ResponsesRequest's
};

struct ReplyUsage {
  std::uint32_t input_tokens = 0, output_tokens = 0;
  std::uint32_t reasoning_tokens = 0;  // part of output_tokens
  std::uint32_t cached_tokens = 0;     // part of input_tokens
};

class ResponsesReply {
 public:
  using Events = std::vector<nlohmann::ordered_json>;  // each with its `type` and `sequence_number`

  ResponsesReply(ReplyHead head, ReplyRules rules, IdMaker make_id);

  // REQUIRES: begin, then any number of push, then end or fail, each of the others once.
  void begin(Events& out);
  // `logprobs`: of the tokens of the message that are new, in the API's form.
  void push(const wire::DeltaEvent& event, Events& out, nlohmann::ordered_json logprobs = nlohmann::ordered_json::array());
  // `reason` is stop or length.
  void end(FinishReason reason, const ReplyUsage& usage, Events& out);
  // As in the member `error` of the response. `code`: one of the API's own, as server_error.
  void fail(const std::string& code, const std::string& message, Events& out);

  const std::string& id() const { return id_; }
  nlohmann::ordered_json response() const;
  // For the next turn: the generated messages that say something, and calls that are whole.
  std::vector<harmony::Message> messages() const;
  CallNames calls() const;

 private:
  struct Item {
    MessageKind kind = MessageKind::content;
    std::string id, call_id, name;  // call_id and name of a call
    bool preamble = false;
    std::string text;
    nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
    std::string status = "in_progress";
  };

  nlohmann::ordered_json part_of(const Item& item, bool with_content) const;
  nlohmann::ordered_json json_of(const Item& item, bool with_content) const;
  void say(const char* type, nlohmann::ordered_json members, Events& out);
  // The members that tell which item and which part of it an event is about.
  nlohmann::ordered_json place() const;
  void open(const wire::MessageStarted& message, MessageKind kind, Events& out);
  void close(const char* status, Events& out);
  void finish(const char* type, Events& out);

  ReplyHead head_;
  ReplyRules rules_;
  IdMaker make_id_;
  std::string id_, status_ = "in_progress";
  nlohmann::ordered_json error_, incomplete_details_, usage_;
  std::vector<Item> items_;
  bool open_ = false;    // the last item's closing events have not been told
  bool silent_ = false;  // the message at hand is no item
  std::uint64_t sequence_ = 0;
};

}  // namespace althing::protocol::openai
