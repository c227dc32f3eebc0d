// The chat of the live page: each question is a client of the server's own endpoint, on the thread of the request that brought it. What it streams
// are the server's own messages as JSON, so the page reads what docs/protocol.md describes. Nothing of a conversation is kept here between two
// questions.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "monitoring/http_endpoint.hpp"
#include "protocol/curve/door.hpp"
#include "protocol/wire/messages.hpp"
#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {

struct PageQuestion {
  std::string tab;  // 8 to 64 letters, digits or dashes, that the page draws when it is loaded
  protocol::wire::Submit submit;
};

// Reads {"tab", "messages", "reasoning_effort"?, "sampling"?}, the last three as in a submit of the wire. Errors: corrupt (no JSON), and what a
// submit is refused for; a member that is not known is refused by name.
Result<PageQuestion> page_question_of(const std::string& body, const Limits& limits);

// Thread-safe.
class PageChat {
 public:
  // `keys`: of a server whose clients need some; null else.
  PageChat(std::string endpoint, Limits limits, std::shared_ptr<const protocol::curve::ClientKeys> keys)
      : endpoint_(std::move(endpoint)), limits_(limits), keys_(std::move(keys)) {}

  // Streams the answer to `reader`, and cancels it when nobody reads any more. Errors, before anything was sent: busy (this tab has a stream that is
  // not over), those of page_question_of, and those of connecting. Once a stream has begun it ends with `done` or `error` and this returns Ok.
  Status answer(const std::string& body, monitoring::EventReader& reader);

 private:
  Status stream(protocol::wire::Submit submit, monitoring::EventReader& reader) const;

  std::string endpoint_;
  Limits limits_;
  std::shared_ptr<const protocol::curve::ClientKeys> keys_;
  std::mutex mutex_;
  std::set<std::string> tabs_;  // with a stream that is not over
};

}  // namespace althing::actors
