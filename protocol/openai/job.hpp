// What a route makes of a request that generates: what the engine is asked, and who turns what it says into the client's answer. Everything that
// knows the form of an API is in these two; the relay that carries them between engine and client knows none. A new API is a function from JSON to a
// Job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/http/error_reply.hpp"
#include "protocol/openai/sampling.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::openai {

// What never changes within one answer.
struct AnswerHead {
  std::string key;           // 24 hexadecimal digits, of this answer only: ids of the answer and of what is in it are made from it
  std::int64_t created = 0;  // Unix time, seconds
  std::string model;
};

// One answer in the making. A stream's strings are bytes of server-sent events, to be sent as they come; a whole answer says nothing before its end.
class Answer {
 public:
  virtual ~Answer() = default;
  virtual std::string begin() = 0;
  virtual std::string push(const wire::Delta& delta) = 0;
  // The rest of the stream, or the whole answer as JSON. An Error where a choice has failed.
  virtual Result<std::string> end(const wire::Done& done) = 0;
  // How a stream that has begun says that it failed; its last words.
  virtual std::string fail(const http::ErrorReply& error) = 0;
};

struct Job {
  wire::Submit submit;
  bool stream = false;
  std::unique_ptr<Answer> answer;
  Error (*in_terms)(Error) = in_request_terms;  // the engine's errors in the words of the request
  // More prompts of the same request, each a request of its own to the engine, with as many choices. The answer hears all of them as one: their
  // choices follow those of the prompts before.
  std::vector<wire::Submit> others{};
};

}  // namespace althing::protocol::openai
