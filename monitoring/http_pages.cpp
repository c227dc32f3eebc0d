// See http_pages.hpp. One function decides by path; nothing here reads a file or a socket.
#include "monitoring/http_pages.hpp"

#include <algorithm>
#include <charconv>

#include "monitoring/http_origin.hpp"
#include "monitoring/json_line.hpp"
#include "monitoring/page_files.hpp"

namespace althing::monitoring {
namespace {

constexpr std::string_view json_type = "application/json";
constexpr std::string_view get_only = "Allow: GET, HEAD\r\n";

HttpReply refuse(int status, std::string why) { return {status, "text/plain; charset=utf-8", std::move(why) + "\n", ""}; }

HttpReply foreign_host() { return refuse(403, "this page is for browsers of this machine: use http://127.0.0.1 or http://localhost with the port"); }

// `after` of /events.json?after=N; nullopt where it is no number.
std::optional<std::uint64_t> after_of(std::string_view query) {
  if (query.empty()) return 0;
  constexpr std::string_view name = "after=";
  if (!query.starts_with(name)) return std::nullopt;
  query.remove_prefix(name.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(query.data(), query.data() + query.size(), number);
  if (error != std::errc{} || end != query.data() + query.size()) return std::nullopt;
  return number;
}

HttpReply file_reply(const PageFile& file, std::string_view if_none_match) {
  HttpReply reply{200, file.type, "", "ETag: " + std::string(file.etag) + "\r\nCache-Control: no-cache\r\n"};
  if (if_none_match == file.etag)
    reply.status = 304;
  else
    reply.body = file.body;
  return reply;
}

// nullopt: not a path of the page.
std::optional<HttpReply> page_reply(const HttpHandlers& handlers, const HttpRequest& request) {
  const auto files = page_files();
  const auto file = std::find_if(files.begin(), files.end(), [&](const PageFile& f) { return f.path == request.path; });
  const bool is_file = file != files.end() && handlers.live;  // a page that nothing would answer is not served
  const bool is_live = request.path == "/live.json" && handlers.live;
  const bool is_events = request.path == "/events.json" && handlers.events;
  const bool is_experts = request.path == "/experts.json" && handlers.experts_json;
  const bool is_usage = request.path == "/usage.json" && handlers.usage_json;
  if (!is_file && !is_live && !is_events && !is_experts && !is_usage) return std::nullopt;
  HttpReply reply;
  const auto after = is_events ? after_of(request.query) : 0;
  if (!names_loopback(request.host)) {
    reply = foreign_host();
  } else if (request.method != "GET" && request.method != "HEAD") {
    reply = refuse(405, "use GET or HEAD");
    reply.headers = get_only;
  } else if (is_file) {
    reply = file_reply(*file, request.if_none_match);
  } else if (is_live) {
    Readiness live = handlers.live();
    reply = {live.ready ? 200 : 503, json_type, std::move(live.json), ""};
  } else if (is_experts) {
    reply = {200, json_type, handlers.experts_json(), ""};
  } else if (is_usage) {
    reply = {200, json_type, handlers.usage_json(), ""};
  } else if (!after) {
    reply = refuse(400, "give a number, as in /events.json?after=12");
  } else {
    reply = {200, json_type, handlers.events(*after), ""};
  }
  reply.headers += browser_headers();
  return reply;
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::corrupt:
    case ErrorCode::unsupported:
    case ErrorCode::version:
      return 400;
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::too_large:
      return 413;
    case ErrorCode::busy:
      return 429;
    case ErrorCode::internal:
      return 500;
    default:
      return 503;
  }
}

}  // namespace

HttpReply reply_to(const HttpHandlers& handlers, const HttpRequest& request) {
  if (auto page = page_reply(handlers, request)) return std::move(*page);
  const std::string_view path = request.path;
  const bool is_experts = path == "/metrics/experts" && handlers.experts;
  if (path != "/metrics" && path != "/live" && path != "/ready" && !is_experts)
    return refuse(404, std::string("there are ") + (handlers.live ? "/, " : "") +
                           "/metrics, /metrics/experts, /experts.json, /usage.json, /live and /ready here");
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = refuse(405, "use GET or HEAD");
    reply.headers = get_only;
    return reply;
  }
  if (path == "/live") return refuse(200, "live");
  constexpr std::string_view exposition = "text/plain; version=0.0.4; charset=utf-8";
  if (path == "/metrics") return {200, exposition, handlers.metrics(), ""};
  if (is_experts) {
    ExpertPage page = handlers.experts();
    return page.found ? HttpReply{200, exposition, std::move(page.text), ""} : HttpReply{404, "text/plain; charset=utf-8", std::move(page.text), ""};
  }
  Readiness readiness = handlers.ready();
  return {readiness.ready ? 200 : 503, json_type, std::move(readiness.json), ""};
}

std::optional<HttpReply> refuse_chat(const HttpHandlers& handlers, const HttpRequest& request) {
  if (!handlers.chat) return refuse(404, "there is no chat here");
  HttpReply reply;
  if (!names_loopback(request.host)) {
    reply = foreign_host();
  } else if (request.method != "POST") {
    reply = refuse(405, "use POST");
    reply.headers = "Allow: POST\r\n";
  } else if (const std::string why = why_foreign(request.host, request.origin, request.site); !why.empty()) {
    reply = refuse(403, why);
  } else if (!is_json(request.content_type)) {
    reply = refuse(415, "send application/json");
  } else {
    return std::nullopt;
  }
  reply.headers += browser_headers();
  return reply;
}

std::string error_event(const Error& error) {
  const std::string inner = JsonLine().add("code", name_of(error.code)).add("message", error.message).add("field", error.field).object();
  return JsonLine().add("type", "error").raw("error", inner).object();
}

HttpReply error_reply(const Error& error) { return {status_of(error.code), json_type, error_event(error) + "\n", std::string(browser_headers())}; }

std::string_view browser_headers() {
  return "Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
         "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
         "Cross-Origin-Opener-Policy: same-origin\r\n";
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
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
    case 429:
      return "Too Many Requests";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Refused";
  }
}

}  // namespace althing::monitoring
