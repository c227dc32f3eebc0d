// See the header.
#include "protocol/http/exchange.hpp"

namespace althing::protocol::http {

void Exchange::respond(const Response& response) {
  if (started_) return;
  started_ = finished_ = true;
  status_ = response.status;
  output_ += head_of(response, {request_.id, keep_alive_, Framing::length});
  if (!head_only_) output_ += response.body;
  bytes_ += output_.size();
  told();
}

void Exchange::start(const Response& response) {
  if (started_) return;
  started_ = true;
  status_ = response.status;
  // A client of HTTP/1.0 knows the end of a body of unknown length only by the connection's.
  if (!chunked_) keep_alive_ = false;
  output_ += head_of(response, {request_.id, keep_alive_, chunked_ ? Framing::chunks : Framing::close});
  bytes_ += output_.size();
  told();
}

void Exchange::write(std::string_view bytes) {
  if (finished_ || gone_ || bytes.empty() || head_only_) return;
  const std::size_t before = output_.size();
  output_ += chunked_ ? chunk_of(bytes) : std::string(bytes);
  bytes_ += output_.size() - before;
  told();
}

void Exchange::finish() {
  if (finished_) return;
  finished_ = true;
  if (chunked_ && !head_only_) output_ += last_chunk;
  told();
}

void Exchange::drained() {
  if (on_drained && !gone_) on_drained();
}

void Exchange::lost() {
  if (gone_) return;
  gone_ = true;
  // The callback may drop what holds it.
  if (const auto tell = std::exchange(on_gone, nullptr); tell && !finished_) tell();
}

void Exchange::told() {
  if (on_output) on_output();
}

}  // namespace althing::protocol::http
