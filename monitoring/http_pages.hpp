// Which answer a request gets, apart from the bytes on the line: paths, methods, and who may ask. Everything of the live page is for browsers, so it
// is refused where the Host header is not this machine's loopback (http_origin.hpp) and answered with headers that let a browser run nothing but the
// page's own files. /metrics, /live and /ready are for machines, whatever name they use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "monitoring/http_endpoint.hpp"

namespace althing::monitoring {

// What of a request matters; "" where a header is missing.
struct HttpRequest {
  std::string_view method, path, query;
  std::string_view host, origin, site, content_type, if_none_match;
};

struct HttpReply {
  int status = 200;
  std::string_view type = "text/plain; charset=utf-8";
  std::string body;
  std::string headers;  // further ones, each with its line end
};

inline constexpr std::string_view chat_path = "/chat";

HttpReply reply_to(const HttpHandlers& handlers, const HttpRequest& request);

// Whether a request for chat_path may run. A reply is the refusal; nullopt lets it in.
std::optional<HttpReply> refuse_chat(const HttpHandlers& handlers, const HttpRequest& request);

// An error as the page reads it: {"type":"error","error":{"code","message","field"}}, with the status of its class.
HttpReply error_reply(const Error& error);
std::string error_event(const Error& error);

// What every answer of the page says to browsers, each with its line end.
std::string_view browser_headers();
std::string_view reason_of(int status);

}  // namespace althing::monitoring
