// Values to JSON text: members in the order of messages.hpp, no white space, optional members left out when absent, invalid UTF-8 replaced.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "protocol/wire/json_form.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::wire::json_form {
namespace {

using nlohmann::ordered_json;

// JavaScript and others read numbers as doubles, which hold whole numbers up to 2^53 exactly; larger ones travel as strings.
constexpr std::uint64_t exact_max = (1ULL << 53) - 1;

ordered_json whole(std::uint64_t number) { return number <= exact_max ? ordered_json(number) : ordered_json(std::to_string(number)); }

// 0.7F as 0.7, not as 0.699999988079071: the shortest text that gives the same float.
ordered_json real(float number) {
  const std::string shortest = fmt::format("{}", number);
  double same = 0;
  std::from_chars(shortest.data(), shortest.data() + shortest.size(), same);
  return same;
}

ordered_json json_of(const harmony::Function& function) {
  ordered_json json = {{"name", function.name}, {"description", function.description}};
  if (function.parameters) json["parameters"] = *function.parameters;
  return json;
}

ordered_json json_of(const Sampling& s) {
  ordered_json json = ordered_json::object();
  if (s.temperature) json["temperature"] = real(*s.temperature);
  if (s.top_p) json["top_p"] = real(*s.top_p);
  if (s.min_p) json["min_p"] = real(*s.min_p);
  if (s.top_k) json["top_k"] = *s.top_k;
  if (s.seed) json["seed"] = std::to_string(*s.seed);
  if (s.completion_tokens_max) json["completion_tokens_max"] = *s.completion_tokens_max;
  if (s.ignore_stop) json["ignore_stop"] = true;
  if (s.n != 1) json["n"] = s.n;
  if (s.repetition_penalty) json["repetition_penalty"] = real(*s.repetition_penalty);
  if (s.presence_penalty) json["presence_penalty"] = real(*s.presence_penalty);
  if (s.frequency_penalty) json["frequency_penalty"] = real(*s.frequency_penalty);
  for (const TokenBias& entry : s.logit_bias) json["logit_bias"][std::to_string(entry.token)] = real(entry.bias);
  if (!s.stop.empty()) json["stop"] = s.stop;
  if (!s.stop_tokens.empty()) json["stop_tokens"] = s.stop_tokens;
  if (s.logprobs) json["logprobs"] = *s.logprobs;
  return json;
}

ordered_json json_of(const Hello& m) {
  return {
      {"type", "hello"}, {"version_min", m.version_min}, {"version_max", m.version_max}, {"client_id", m.client_id}, {"client_name", m.client_name}};
}

// A schema is JSON itself; one that is not goes as a text, for the server to say so.
ordered_json json_of(const Grammar& grammar) {
  if (grammar.kind == GrammarKind::json_object) return {{"json_object", true}};
  if (grammar.kind == GrammarKind::regex) return {{"regex", grammar.text}};
  auto schema = parse_json(grammar.text, json_schema_depth_max);
  return {{"json_schema", schema ? std::move(*schema) : ordered_json(grammar.text)}};
}

ordered_json json_of(const Submit& m) {
  ordered_json json = {{"type", "submit"}, {"request_id", m.request_id}};
  if (!m.messages.empty()) {
    ordered_json& messages = json["messages"] = ordered_json::array();
    for (const auto& message : m.messages) messages.push_back(harmony::to_json(message));
  }
  if (!m.tools.empty()) {
    ordered_json& tools = json["tools"] = ordered_json::array();
    for (const auto& function : m.tools) tools.push_back(json_of(function));
  }
  if (m.reasoning_effort) json["reasoning_effort"] = harmony::name_of(*m.reasoning_effort);
  if (!m.prompt_tokens.empty()) json["prompt_tokens"] = m.prompt_tokens;
  json["sampling"] = json_of(m.sampling);
  json["timeout_ms"] = m.timeout_ms;
  json["credit"] = m.credit;
  json["return_tokens"] = m.return_tokens;
  if (m.trace_top_m > 0) json["trace_top_m"] = m.trace_top_m;
  if (m.grammar) json["grammar"] = json_of(*m.grammar);
  if (!m.tenant.empty()) json["tenant"] = m.tenant;
  if (m.priority != 0) json["priority"] = m.priority;
  return json;
}

ordered_json json_of(const Cancel& m) { return {{"type", "cancel"}, {"request_id", m.request_id}}; }
ordered_json json_of(const Resume& m) { return {{"type", "resume"}, {"request_id", m.request_id}, {"last_sequence", whole(m.last_sequence)}}; }
ordered_json json_of(const Grant& m) { return {{"type", "grant"}, {"request_id", m.request_id}, {"credit", m.credit}}; }
ordered_json json_of(const Ping& m) { return {{"type", "ping"}, {"nonce", whole(m.nonce)}}; }

ordered_json json_of(const Welcome& m) {
  return {{"type", "welcome"},
          {"version", m.version},
          {"server_instance", m.server_instance},
          {"model", m.model},
          {"context_tokens_max", m.context_tokens_max},
          {"frame_bytes_max", m.frame_bytes_max},
          {"session_silence_ms_max", m.session_silence_ms_max}};
}

ordered_json json_of(const Accepted& m) {
  return {{"type", "accepted"}, {"request_id", m.request_id}, {"prompt_tokens", m.prompt_tokens}, {"seed", std::to_string(m.seed)}};
}

ordered_json json_of(const MessageStarted& m) {
  return {{"type", "message_started"}, {"index", m.index},         {"role", harmony::name_of(m.role)},
          {"channel", m.channel},      {"recipient", m.recipient}, {"content_type", m.content_type}};
}
ordered_json json_of(const MessageEnded& m) { return {{"type", "message_ended"}, {"index", m.index}}; }

// Rows of numbers instead of objects: there are many. What is not finite becomes null.
ordered_json json_of(const StepRouting& m) {
  ordered_json logits = ordered_json::array(), experts = ordered_json::array();
  for (const RouterLogit& l : m.logits) logits.push_back({l.expert, real(l.logit)});
  for (const RoutedExpert& e : m.experts) experts.push_back({e.expert, e.chosen, e.copy, e.rank, e.slot, name_of(e.fate), real(e.weight)});
  return {{"step", whole(m.step.value)},
          {"epoch", whole(m.epoch.value)},
          {"start", m.start},
          {"recomputed", m.recomputed},
          {"layers", m.layers},
          {"top_m", m.top_m},
          {"experts_per_token", m.experts_per_token},
          {"tokens", m.tokens},
          {"nanoseconds", m.nanoseconds},
          {"logits", std::move(logits)},
          {"experts", std::move(experts)}};
}

ordered_json json_of(const TokenLogprobs& m) {
  ordered_json top = ordered_json::array();
  for (const TokenLogprob& likely : m.top) top.push_back({likely.token, real(likely.logprob)});
  return {{"token", m.token}, {"logprob", real(m.logprob)}, {"top", std::move(top)}};
}

ordered_json json_of(const Error& error) {
  ordered_json json = {{"code", name_of(error.code)}, {"message", error.message}, {"field", error.field}};
  if (error.retry_after_ms > 0) json["retry_after_ms"] = error.retry_after_ms;
  return json;
}

ordered_json json_of(const ChoiceEnd& end) {
  ordered_json json = {{"reason", name_of(end.reason)}, {"completion_tokens", end.completion_tokens}, {"preemptions", end.preemptions}};
  if (end.error) json["error"] = json_of(*end.error);
  if (end.stop_string) json["stop_string"] = *end.stop_string;
  return json;
}

ordered_json json_of(const Done& m) {
  ordered_json usage = {{"prompt_tokens", m.usage.prompt_tokens},
                        {"completion_tokens", m.usage.completion_tokens},
                        {"preemptions", m.usage.preemptions},
                        {"reasoning_tokens", m.reasoning_tokens},
                        {"cached_tokens", m.usage.cached_tokens}};
  if (m.usage.miss != PrefixMiss::none) usage["miss"] = name_of(m.usage.miss);
  ordered_json json = {
      {"type", "done"}, {"request_id", m.request_id}, {"sequence", whole(m.sequence)}, {"reason", name_of(m.reason)}, {"usage", std::move(usage)}};
  for (const ChoiceEnd& end : m.choices) json["choices"].push_back(json_of(end));
  if (m.layout_changed) json["layout_changed"] = true;
  if (m.stop_string) json["stop_string"] = *m.stop_string;
  return json;
}

ordered_json json_of(const ErrorReply& m) {
  return {{"type", "error"}, {"request_id", m.request_id}, {"sequence", whole(m.sequence)}, {"error", json_of(m.error)}};
}

ordered_json json_of(const Pong& m) {
  ordered_json json = {{"type", "pong"}, {"nonce", whole(m.nonce)}, {"server_instance", m.server_instance}};
  if (!m.state.empty()) json["state"] = m.state;
  return json;
}

std::string dumped(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

void append(std::string& to, const DeltaEvent& event) {
  if (const auto* started = std::get_if<MessageStarted>(&event)) {
    to += dumped(json_of(*started));
  } else if (const auto* ended = std::get_if<MessageEnded>(&event)) {
    to += dumped(json_of(*ended));
  } else {
    const Text& text = std::get<Text>(event);
    to += R"({"type":"text","index":)" + std::to_string(text.index) + R"(,"text":)";
    append_quoted(to, text.text);
    to += '}';
  }
}

// A comma between, brackets around.
template <class List, class Append>
void append_list(std::string& to, const List& list, const Append& append_one) {
  to += '[';
  for (const auto& one : list) {
    if (&one != &list.front()) to += ',';
    append_one(one);
  }
  to += ']';
}

// There is one of these for every token or two of every stream, so it is written straight to text: a tenth of the time that a tree of values takes.
std::string text_of(const Delta& m) {
  std::string to = R"({"type":"delta","request_id":)";
  append_quoted(to, m.request_id);
  to += R"(,"sequence":)" + (m.sequence <= exact_max ? std::to_string(m.sequence) : dumped(whole(m.sequence)));
  to += R"(,"choice":)" + std::to_string(m.choice) + R"(,"events":)";
  append_list(to, m.events, [&](const DeltaEvent& event) { append(to, event); });
  to += R"(,"tokens":)";
  append_list(to, m.tokens, [&](TokenId token) { to += std::to_string(token); });
  if (!m.routing.empty()) to += R"(,"routing":)";
  if (!m.routing.empty()) append_list(to, m.routing, [&](const StepRouting& part) { to += dumped(json_of(part)); });
  if (!m.logprobs.empty()) to += R"(,"logprobs":)";
  if (!m.logprobs.empty()) append_list(to, m.logprobs, [&](const TokenLogprobs& told) { to += dumped(json_of(told)); });
  to += '}';
  return to;
}

template <class Message>
std::string text_of(const Message& message) {
  return dumped(json_of(message));
}

}  // namespace

std::string encode(const ClientMessage& message) {
  return std::visit([](const auto& m) { return text_of(m); }, message);
}
std::string encode(const ServerMessage& message) {
  return std::visit([](const auto& m) { return text_of(m); }, message);
}

}  // namespace althing::protocol::wire::json_form
