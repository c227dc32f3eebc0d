// See the header. Routes are a table: which method, who may, what it does.
#include "protocol/openai/gateway.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "protocol/openai/chat_answer.hpp"
#include "protocol/openai/completions.hpp"
#include "protocol/openai/responses_answer.hpp"
#include "protocol/openai/sampling.hpp"
#include "protocol/openai/sse.hpp"
#include "protocol/openai/tokens.hpp"
#include "protocol/wire/conversation.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::openai {

enum class Act : std::uint8_t { live, ready, metrics, models, tokenize, detokenize, chat, completion, respond, response, forget, input_items };

// A request that generates, while it is read.
struct Draft {
  Caller caller;
  AnswerHead head;
  nlohmann::ordered_json body;     // where the job is made of it later
  std::optional<Result<Job>> job;  // set when it is made, or cannot be
};

struct Route {
  std::string_view method, path, name;  // in a path, * stands for one segment; one that ends in / stands for all below it
  Act act;
  bool open = false;       // needs no key
  bool generates = false;  // the engine works for it
};

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr Route routes[] = {
    {"GET", "/live", "live", Act::live, true},
    {"GET", "/ready", "ready", Act::ready, true},
    {"GET", "/metrics", "metrics", Act::metrics, true},
    {"GET", "/v1/models", "models", Act::models},
    {"GET", "/v1/models/", "models", Act::models},
    {"POST", "/v1/chat/completions", "chat_completions", Act::chat, false, true},
    {"POST", "/v1/completions", "completions", Act::completion, false, true},
    {"POST", "/v1/responses", "responses", Act::respond, false, true},
    {"GET", "/v1/responses/*", "response", Act::response},
    {"DELETE", "/v1/responses/*", "response", Act::forget},
    {"GET", "/v1/responses/*/input_items", "response_input_items", Act::input_items},
    {"POST", "/tokenize", "tokenize", Act::tokenize},
    {"POST", "/detokenize", "detokenize", Act::detokenize},
};
constexpr milliseconds owing_max{1000};  // an engine that owes an answer for longer is not there
constexpr int polls_at_once = 64;
constexpr std::size_t read_at_once_bytes = 16u << 10;

// What stands for * in the route's path; nothing where the path is another.
std::optional<std::string_view> segment_of(const Route& route, std::string_view path) {
  const std::size_t star = route.path.find('*');
  const std::string_view before = route.path.substr(0, star), behind = route.path.substr(star + 1);
  if (!path.starts_with(before) || !path.ends_with(behind) || path.size() <= before.size() + behind.size()) return std::nullopt;
  const std::string_view segment = path.substr(before.size(), path.size() - before.size() - behind.size());
  return segment.find('/') == std::string_view::npos ? std::optional(segment) : std::nullopt;
}

bool is_at(const Route& route, std::string_view path) {
  if (route.path.find('*') != std::string_view::npos) return segment_of(route, path).has_value();
  return path == route.path || (route.path.ends_with('/') && path.starts_with(route.path) && path.size() > route.path.size());
}

bool allows(const Route& route, std::string_view method) { return method == route.method || (method == "HEAD" && route.method == "GET"); }

// The route of the path and the method; without one of the method, another of the path.
const Route* route_of(std::string_view path, std::string_view method) {
  const Route* found = nullptr;
  for (const Route& route : routes) {
    if (!is_at(route, path)) continue;
    if (allows(route, method)) return &route;
    if (found == nullptr) found = &route;
  }
  return found;
}

// What may be done at the path, for people and for the header Allow.
std::string methods_at(std::string_view path) {
  std::string methods;
  for (const Route& route : routes)
    if (is_at(route, path)) methods += (methods.empty() ? "" : ", ") + std::string(route.method == "GET" ? "GET, HEAD" : route.method);
  return methods;
}

http::ErrorReply refusal(std::uint16_t status, std::string type, std::string code, std::string message) {
  return {status, std::move(type), std::move(code), std::move(message), "", 0};
}

// A page of somebody else's that has bound its own name to loopback would come with that name.
bool names_loopback(std::string_view host) {
  if (host.starts_with("[::1]")) return true;
  const std::string_view name = host.substr(0, host.find(':'));
  if (name == "localhost") return true;
  const auto digits = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  return name.starts_with("127.") && std::all_of(name.begin(), name.end(), digits);
}

// %2F and the like: names of models may hold a slash.
std::string unescaped(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; };
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    plain += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return plain;
}

Result<Json> object_of(const std::string& body) {
  auto json = wire::parse_json(body, wire::json_depth_max);
  if (!json) return json;
  if (!json->is_object()) return Error{ErrorCode::invalid_argument, "the body is not a JSON object", ""};
  return json;
}

// The body, if the request is for the model that is served.
Result<Json> of_model(Json body, const std::string& served) {
  if (const Json model = body.value("model", Json()); model.is_string() && model != served)
    return Error{ErrorCode::not_found, "there is no model '" + model.get<std::string>() + "' here; this server has '" + served + "'", "model"};
  return body;
}

http::Response json_response(const Json& json) {
  http::Response response;
  response.body = text_of(json);
  return response;
}

}  // namespace

Gateway::Gateway(GatewayOptions options, Client client, Doorkeeper& doorkeeper, Observer& observer)
    : options_(std::move(options)),
      client_(std::move(client)),
      store_(std::make_shared<ResponseStore>(options_.responses)),
      doorkeeper_(doorkeeper),
      observer_(observer),
      host_{client_, observer_, [this] { pump(); }},
      began_(std::time(nullptr)) {}

void Gateway::pump() {
  int polls = 0;
  do client_.poll(milliseconds(0));
  while (client_.has_input() && ++polls < polls_at_once);
}

void Gateway::keep_alive(std::chrono::steady_clock::time_point now) {
  std::erase_if(relays_, [&](const std::weak_ptr<Relay>& weak) {
    const auto relay = weak.lock();
    if (!relay || relay->is_over()) return true;
    if (options_.keep_alive > milliseconds(0)) relay->keep_alive(now, options_.keep_alive);
    return false;
  });
}

void Gateway::end_open(const Error& why) {
  for (const auto& weak : std::exchange(relays_, {}))
    if (const auto relay = weak.lock()) relay->end(why);
}

std::vector<std::string_view> Gateway::route_names() {
  std::vector<std::string_view> names;
  for (const Route& route : routes)
    if (std::find(names.begin(), names.end(), route.name) == names.end()) names.push_back(route.name);
  return names;
}

// Whoever knows the id of a response that was made without API keys can read it, so no id may be guessed from another.
std::string Gateway::next_key() { return fmt::format("{:08x}{:08x}{:08x}", random_(), random_(), ++keys_made_); }

http::Response Gateway::reject(Rejection why, const http::ErrorReply& error) const {
  observer_.rejected(why);
  return http::to_response(error);
}

std::optional<http::Response> Gateway::refuse(const http::Request& head) {
  const Route* route = route_of(head.path, head.method);
  if (route == nullptr || (route->act == Act::metrics && !options_.show_metrics))
    return reject(Rejection::no_route,
                  refusal(404, "not_found_error", "not_found", "there is no " + head.path + " here; see docs/http.md for what there is"));
  if (!allows(*route, head.method)) {
    const std::string allowed = methods_at(head.path);
    http::Response response = reject(Rejection::no_route, refusal(405, "invalid_request_error", "method_not_allowed",
                                                                  head.method + " is not for " + head.path + "; use one of " + allowed));
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (!doorkeeper_.needs_keys() && !names_loopback(head.host))
    return reject(Rejection::host, refusal(403, "permission_error", "host",
                                           "the Host header names no loopback address, and without API keys only this machine is served"));
  if (!route->open) {
    const auto admitted = doorkeeper_.admit(head);
    if (const auto* refused = std::get_if<http::ErrorReply>(&admitted)) {
      http::Response response = reject(Rejection::key, *refused);
      if (refused->status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
  }
  if (route->method == "POST" && !http::is_json(head.content_type))
    return reject(Rejection::content_type,
                  refusal(415, "invalid_request_error", "content_type", "the body must be JSON: send Content-Type: application/json"));
  if (route->generates && draining_)
    return reject(Rejection::draining,
                  http::reply_for({ErrorCode::draining, "the server is stopping and takes no new requests; try another one", ""}));
  return std::nullopt;
}

void Gateway::handle(std::shared_ptr<http::Exchange> exchange) {
  // refuse() has found it.
  const Route& route = *route_of(exchange->request().path, exchange->request().method);
  if (route.generates)
    generate(route, exchange);
  else if (route.act == Act::tokenize || route.act == Act::detokenize)
    tokens(route, exchange);
  else
    exchange->respond(own(route, exchange->request()));
}

http::Response Gateway::own(const Route& route, const http::Request& request) {
  http::Response response;
  switch (route.act) {
    case Act::live:
      return json_response({{"state", "live"}});
    case Act::ready:
      return ready();
    case Act::metrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = observer_.scrape();
      return response;
    case Act::models:
      return models(request);
    default:
      return responses(route, request);
  }
}

std::string Gateway::state() const {
  if (draining_) return "draining";
  const Standing standing = client_.standing();
  if (!standing.welcomed) return "starting";
  if (!standing.current || standing.owing > owing_max) return "unreachable";
  return standing.state.empty() ? "ready" : standing.state;
}

http::Response Gateway::ready() const {
  const std::string now = state();
  http::Response response = json_response({{"state", now}});
  if (now != "ready") {
    response.status = 503;
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

http::Response Gateway::models(const http::Request& request) const {
  if (!client_.standing().welcomed)
    return reject(Rejection::not_ready, http::reply_for({ErrorCode::unavailable, "the engine has not answered yet; try again soon", ""}));
  const wire::Welcome& server = client_.server();
  const Json model = {
      {"id", server.model}, {"object", "model"}, {"created", began_}, {"owned_by", "althing"}, {"max_model_len", server.context_tokens_max}};
  constexpr std::string_view all = "/v1/models";
  if (request.path.size() <= all.size() + 1) return json_response({{"object", "list"}, {"data", Json::array({model})}});
  const std::string wanted = unescaped(std::string_view(request.path).substr(all.size() + 1));
  if (wanted == server.model) return json_response(model);
  return reject(Rejection::invalid, refusal(404, "not_found_error", "model_not_found",
                                            "there is no model '" + wanted + "' here; this server has '" + server.model + "'"));
}

// Bodies that take no time to read are read at once.
void Gateway::aside(const http::Exchange& exchange, std::function<void()> heavy, std::function<void()> then) const {
  if (options_.aside && exchange.request().body.size() > read_at_once_bytes) return options_.aside(std::move(heavy), std::move(then));
  heavy();
  then();
}

void Gateway::tokens(const Route& route, const std::shared_ptr<http::Exchange>& exchange) {
  const std::uint32_t context = client_.standing().welcomed ? client_.server().context_tokens_max : 0;
  const auto answer = std::make_shared<Result<Json>>(Json());
  const auto read = [answer, exchange, context, format = options_.format, back = route.act == Act::detokenize] {
    const auto body = object_of(exchange->request().body);
    *answer = !body ? Result<Json>(body.error()) : back ? detokenize(*body, *format.tokenizer()) : tokenize(*body, format, context, wire::today());
  };
  aside(*exchange, read, [this, answer, exchange] {
    exchange->respond(*answer ? json_response(**answer) : reject(Rejection::invalid, http::reply_for(in_request_terms(answer->error()))));
  });
}

http::Response Gateway::responses(const Route& route, const http::Request& request) {
  const auto admitted = doorkeeper_.admit(request);
  if (const auto* refused = std::get_if<http::ErrorReply>(&admitted)) return reject(Rejection::key, *refused);
  const std::string& owner = std::get<Caller>(admitted).key;
  const std::string id = unescaped(segment_of(route, request.path).value_or(""));
  const auto answer = [&]() -> Result<Json> {
    if (route.act == Act::response) return store_->get(owner, id);
    if (route.act == Act::forget) return store_->remove(owner, id);
    const auto query = items_query_from(request.query);
    if (!query) return query.error();
    return store_->input_items(owner, id, *query);
  }();
  return answer ? json_response(*answer) : reject(Rejection::invalid, http::reply_for(answer.error()));
}

void Gateway::generate(const Route& route, const std::shared_ptr<http::Exchange>& exchange) {
  const auto admitted = doorkeeper_.admit(exchange->request());
  if (const auto* refused = std::get_if<http::ErrorReply>(&admitted)) return exchange->respond(reject(Rejection::key, *refused));
  if (!client_.standing().welcomed)
    return exchange->respond(
        reject(Rejection::not_ready, http::reply_for({ErrorCode::unavailable, "the engine has not answered yet; try again soon", ""})));
  const auto draft = std::make_shared<Draft>(Draft{std::get<Caller>(admitted), {next_key(), std::time(nullptr), client_.server().model}, {}, {}});
  const auto read = [draft, exchange, act = route.act, format = options_.format] {
    auto body = object_of(exchange->request().body);
    if (body) body = of_model(std::move(*body), draft->head.model);
    if (!body)
      draft->job = std::move(body).error();
    else if (act == Act::respond)
      draft->body = std::move(*body);
    else
      draft->job = act == Act::chat ? chat_job(*body, draft->head, format) : completion_job(*body, draft->head, format.tokenizer());
  };
  aside(*exchange, read, [this, draft, exchange] {
    // What was answered before is the loop's to look up.
    if (!draft->job) draft->job = responses_job(draft->body, draft->head, {store_, draft->caller.key}, options_.format);
    begin(*draft, exchange);
  });
}

void Gateway::begin(Draft& draft, const std::shared_ptr<http::Exchange>& exchange) {
  if (exchange->gone()) return;
  if (!*draft.job) {
    http::ErrorReply why = http::reply_for(in_request_terms(std::move(*draft.job).error()));
    if (why.param == "model" && why.status == 404) why.code = "model_not_found";
    return exchange->respond(reject(Rejection::invalid, why));
  }
  const Caller& caller = draft.caller;
  if (const auto wait = doorkeeper_.charge(caller)) return exchange->respond(reject(Rejection::quota, *wait));
  Job& job = **draft.job;
  job.submit.tenant = caller.tenant;
  for (wire::Submit& other : job.others) other.tenant = caller.tenant;
  observer_.open_requests(++open_);
  const auto relay = std::make_shared<Relay>(host_, exchange, std::move(job), [this, caller](const TokenCounts& counts) {
    observer_.open_requests(--open_);
    doorkeeper_.used(caller, counts.prompt + counts.completion);
  });
  relays_.push_back(relay);
  relay->start();
  pump();
}

void Gateway::answered(const http::Exchange& exchange) {
  const Route* route = route_of(exchange.request().path, exchange.request().method);
  if (exchange.request().method.empty()) observer_.rejected(Rejection::malformed);
  observer_.answered(route == nullptr ? "other" : route->name, exchange.status(), exchange.bytes(), exchange.gone());
}

void Gateway::refused_connection(std::string_view why) { observer_.refused_connection(why); }

}  // namespace althing::protocol::openai
