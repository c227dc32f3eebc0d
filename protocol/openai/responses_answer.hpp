// The answer of the Responses API as the relay sends it: events of a stream (`event: TYPE`, `data: JSON`, no [DONE]) or one JSON body. A response
// that has ended, whole or cut, is kept before its last words are handed out, so a client can go on from it at once; one that failed, or that is over
// the store's bytes, is not.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/chat/chat_format.hpp"
#include "protocol/openai/content_logprobs.hpp"
#include "protocol/openai/job.hpp"
#include "protocol/openai/responses_reply.hpp"
#include "protocol/openai/responses_request.hpp"

namespace althing::protocol::openai {

// Whose responses are kept, and where.
struct Keeping {
  std::shared_ptr<ResponseStore> store;
  std::string owner;  // the name of the caller's key; "" where there are no keys
};

class ResponsesAnswer : public Answer {
 public:
  // `request`: what decides about the form, and what the store keeps of it; of its submit, whether there are logprobs.
  ResponsesAnswer(const AnswerHead& head, ResponsesRequest request, Keeping keeping, chat::ChatFormat format);

  std::string begin() override;
  std::string push(const wire::Delta& delta) override;
  Result<std::string> end(const wire::Done& done) override;
  std::string fail(const http::ErrorReply& error) override;

 private:
  void keep();

  bool stream_, store_;
  InputItems input_;
  Keeping keeping_;
  chat::ChatFormat format_;
  IdMaker make_id_;
  std::optional<ContentLogprobs> logprobs_;  // where they are asked for
  ResponsesReply reply_;
  std::vector<TokenId> tokens_;  // all generated ids, if the response will be kept
};

// The whole of the route: request in, job out. Errors as responses_request_from's.
Result<Job> responses_job(const nlohmann::ordered_json& body, const AnswerHead& head, Keeping keeping, const chat::ChatFormat& format);

}  // namespace althing::protocol::openai
