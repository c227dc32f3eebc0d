// The answer of chat completions, as a stream of chunks or as a whole. Pure: what it says depends on what is pushed and not on when. In a stream each
// choice has a first chunk with the role and a last one with the finish_reason; reasoning, content and calls come in chunks of their own between.
// Where logprobs are asked for they come with content: a chunk's are those of the tokens that ended with its text. What came with no text is in the
// last one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol/openai/chat_reply.hpp"
#include "protocol/openai/chat_request.hpp"
#include "protocol/openai/content_logprobs.hpp"
#include "protocol/openai/job.hpp"

namespace althing::protocol::openai {

class ChatAnswer : public Answer {
 public:
  // `request`: what decides about the form; of its submit, n and whether there are logprobs.
  ChatAnswer(AnswerHead head, const ChatRequest& request, const chat::ChatFormat& format);

  std::string begin() override;
  std::string push(const wire::Delta& delta) override;
  Result<std::string> end(const wire::Done& done) override;
  std::string fail(const http::ErrorReply& error) override;

 private:
  struct Choice {
    ChatReply reply;
    ReplyPiece whole;                           // of an answer that is no stream
    std::optional<ContentLogprobs> logprobs{};  // where they are asked for
  };
  struct Chunk {
    nlohmann::ordered_json delta, finish_reason, logprobs;
  };

  std::string call_id(std::size_t choice, std::uint32_t call) const;
  std::string chunk(std::size_t choice, Chunk chunk) const;
  // A chunk of nothing but more text: `member` of the choice's delta.
  std::string text_chunk(std::size_t choice, std::string_view member, std::string_view text) const;
  std::string chunks_of(std::size_t choice, ReplyPiece piece, std::uint32_t message);
  nlohmann::ordered_json frame(const char* object) const;
  nlohmann::ordered_json message_of(std::size_t choice) const;

  AnswerHead head_;
  std::string chunk_head_;  // how every chunk begins, up to the choice's number
  bool stream_, include_usage_, include_reasoning_;
  std::vector<Choice> choices_;
};

// The whole of the route: request in, job out. Errors as chat_request_from's.
Result<Job> chat_job(const nlohmann::ordered_json& body, AnswerHead head, const chat::ChatFormat& format);

}  // namespace althing::protocol::openai
