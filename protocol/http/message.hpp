// One HTTP request and one answer as plain values, and the bytes of an answer. Only what the routes look at is kept of a request; nothing here reads
// from a socket or believes a header's value unchecked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace althing::protocol::http {

struct Request {
  std::string method;  // as sent: GET, POST …
  std::string path;    // of the target, before ? ; not decoded
  std::string query;   // behind it; likewise
  std::string host, authorization, content_type;
  std::string id;  // the client's x-request-id where it is fit to be repeated, else one of ours
  std::string body;
};

struct Response {
  std::uint16_t status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};  // besides those that head_of writes
};

// How the body's end is told.
enum class Framing : std::uint8_t { length, chunks, close };

struct HeadOptions {
  std::string_view request_id;
  bool keep_alive = true;
  Framing framing = Framing::length;
};

std::string_view reason_of(std::uint16_t status);
// Status line and headers up to the empty line. REQUIRES: no header of the response holds a line break.
std::string head_of(const Response& response, const HeadOptions& options);
// One chunk of a body that is sent in chunks; an empty one would end it, so it gives nothing.
std::string chunk_of(std::string_view bytes);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

// Whether a client's x-request-id may be sent back and logged: 1 to 128 of letters, digits, . _ and -.
bool is_request_id(std::string_view id);
// "application/json", whatever parameters follow it.
bool is_json(std::string_view content_type);

}  // namespace althing::protocol::http
