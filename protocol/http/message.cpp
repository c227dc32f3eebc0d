// See the header.
#include "protocol/http/message.hpp"

#include <algorithm>
#include <cctype>

namespace althing::protocol::http {

std::string_view reason_of(std::uint16_t status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::string head_of(const Response& response, const HeadOptions& options) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + std::string(reason_of(response.status)) + "\r\n";
  head += "Content-Type: " + response.content_type + "\r\n";
  if (options.framing == Framing::length) head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  if (options.framing == Framing::chunks) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  if (!options.request_id.empty()) head += "x-request-id: " + std::string(options.request_id) + "\r\n";
  head += options.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string chunk_of(std::string_view bytes) {
  if (bytes.empty()) return "";
  constexpr std::string_view digits = "0123456789abcdef";
  std::string size;
  for (std::size_t rest = bytes.size(); rest > 0; rest /= 16) size.insert(size.begin(), digits[rest % 16]);
  return size + "\r\n" + std::string(bytes) + "\r\n";
}

bool is_request_id(std::string_view id) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-'; };
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), fits);
}

bool is_json(std::string_view content_type) {
  constexpr std::string_view json = "application/json";
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return type.size() == json.size() && std::equal(type.begin(), type.end(), json.begin(), same);
}

}  // namespace althing::protocol::http
