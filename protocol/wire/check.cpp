// The table of what may stand in which field. A checker keeps the first complaint and goes on without effect, so that checks read as a list.
// Numbers are compared so that NaN fails. Lengths come before UTF-8, so that no work is done on what is too long anyway.
// What the decoders checked already for their own safety (counts) is checked again here, where the rules stand together.
#include "protocol/wire/check.hpp"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/wire/json_text.hpp"

namespace althing::protocol::wire {
namespace {

using harmony::Function;

// Collects the first complaint; later ones are not looked for, but every call is safe.
class Checker {
 public:
  explicit Checker(const Limits& limits) : limits_(limits) {}

  Status status() && {
    if (error_) return std::move(*error_);
    return Ok{};
  }
  bool failed() const { return error_.has_value(); }

  void complain(ErrorCode code, std::string message, std::string field) {
    if (!error_) error_ = Error{code, std::move(message), std::move(field)};
  }
  void count(const std::string& field, std::size_t value, std::size_t value_max, std::string_view limit) {
    if (value > value_max && !error_) error_ = too_many(field, value, value_max, limit);
  }
  void text(const std::string& field, const std::string& value) { bytes(field, value, limits_.text_bytes_max, "text_bytes_max"); }
  void text(const std::string& field, const std::optional<std::string>& value) {
    if (value) text(field, *value);
  }
  // A name goes into logs and headers: no control characters, and short.
  void name(const std::string& field, const std::string& value) {
    bytes(field, value, limits_.name_bytes_max, "name_bytes_max");
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        complain(ErrorCode::invalid_argument, field + " holds the control character " + std::to_string(byte) + "; leave it out", field);
        return;
      }
    }
  }
  void name(const std::string& field, const std::optional<std::string>& value) {
    if (value) name(field, *value);
  }
  void id(const std::string& field, const std::string& value) {
    if (value.empty()) complain(ErrorCode::invalid_argument, field + " is missing or empty; 1 to 128 bytes are expected", field);
    name(field, value);
  }
  // It becomes a label of metrics and a name in files.
  void tenant(const std::string& value) {
    const auto fits = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' || c == '-';
    };
    if (value.size() > tenant_bytes_max) return count("tenant", value.size(), tenant_bytes_max, "tenant_bytes_max");
    if (!std::all_of(value.begin(), value.end(), fits))
      complain(ErrorCode::invalid_argument, "tenant holds a character that is none of A-Z a-z 0-9 . _ -; use those", "tenant");
  }
  // Written so that NaN is outside of every range.
  void range(const std::string& field, const std::optional<float>& value, float from, float to, const char* words) {
    if (value && !(*value >= from && *value <= to))
      complain(ErrorCode::invalid_argument, field + " is " + std::to_string(*value) + "; it must be " + words, field);
  }
  void stop_string(const std::string& field, const std::string& value) {
    if (value.empty()) complain(ErrorCode::invalid_argument, field + " is empty; leave it out", field);
    bytes(field, value, limits_.stop_string_bytes_max, "stop_string_bytes_max");
  }
  void function(const std::string& field, const Function& value) {
    name(field + ".name", value.name);
    if (value.name.empty()) complain(ErrorCode::invalid_argument, field + ".name is empty; the model calls a function by its name", field + ".name");
    text(field + ".description", value.description);
    if (!value.parameters || failed()) return;
    if (!value.parameters->is_object())
      return complain(ErrorCode::invalid_argument,
                      field + ".parameters must be a JSON schema, which is an object, not " + value.parameters->type_name(), field + ".parameters");
    if (const std::size_t depth = depth_of(*value.parameters); depth > json_schema_depth_max)
      complain(ErrorCode::too_large,
               field + ".parameters nests " + std::to_string(depth) + " deep, over the limit of " + std::to_string(json_schema_depth_max),
               field + ".parameters");
    if (failed()) return;
    const std::string schema = value.parameters->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    count(field + ".parameters", schema.size(), limits_.text_bytes_max, "text_bytes_max");
  }
  void tools(const std::string& field, const harmony::Tools& tools, std::size_t& functions) {
    count(field, tools.size(), limits_.tools_max, "tools_max");
    for (const auto& [key, space] : tools) {
      if (failed()) return;
      // JSON objects cannot hold a key twice, so the binary form may not either.
      if (std::count_if(tools.begin(), tools.end(), [&key = key](const auto& other) { return other.first == key; }) > 1)
        return complain(ErrorCode::invalid_argument, field + " holds one namespace twice; put its functions together", field);
      const std::string path = field + "." + key.substr(0, limits_.name_bytes_max);
      name(field, key);
      name(path + ".name", space.name);
      text(path + ".description", space.description);
      functions += space.functions.size();
      count(field, functions, limits_.tools_max, "tools_max");
      for (std::size_t i = 0; i < space.functions.size() && !failed(); ++i) function(path + ".tools[" + std::to_string(i) + "]", space.functions[i]);
    }
  }
  void content(const std::string& field, const harmony::Content& part, std::size_t& functions) {
    if (const auto* plain = std::get_if<harmony::TextContent>(&part)) return text(field + ".text", plain->text);
    if (const auto* developer = std::get_if<harmony::DeveloperContent>(&part)) {
      text(field + ".instructions", developer->instructions);
      return tools(field + ".tools", developer->tools, functions);
    }
    const auto& system = std::get<harmony::SystemContent>(part);
    text(field + ".model_identity", system.model_identity);
    name(field + ".knowledge_cutoff", system.knowledge_cutoff);
    name(field + ".conversation_start_date", system.conversation_start_date);
    if (system.channel_config) {
      const auto& channels = system.channel_config->valid_channels;
      count(field + ".channel_config.valid_channels", channels.size(), limits_.tools_max, "tools_max");
      for (const auto& channel : channels) name(field + ".channel_config.valid_channels", channel);
    }
    tools(field + ".tools", system.tools, functions);
  }
  void message(const std::string& field, const harmony::Message& value, std::size_t& functions) {
    name(field + ".name", value.name);
    name(field + ".recipient", value.recipient);
    name(field + ".channel", value.channel);
    name(field + ".content_type", value.content_type);
    count(field + ".tokens", value.tokens.size(), limits_.context_tokens_max, "context_tokens_max");
    count(field + ".content", value.content.size(), limits_.messages_max, "messages_max");
    for (std::size_t i = 0; i < value.content.size() && !failed(); ++i)
      content(field + ".content[" + std::to_string(i) + "]", value.content[i], functions);
  }
  const Limits& limits() const { return limits_; }

 private:
  void bytes(const std::string& field, const std::string& value, std::size_t bytes_max, std::string_view limit) {
    if (error_) return;
    if (value.size() > bytes_max)
      return complain(ErrorCode::too_large,
                      field + " is " + std::to_string(value.size()) + " bytes long, over the limit of " + std::to_string(bytes_max) + " (" +
                          std::string(limit) + ")",
                      field);
    if (!simdjson::validate_utf8(value.data(), value.size()))
      complain(ErrorCode::invalid_argument, field + " is not valid UTF-8; encode it before sending", field);
  }

  Limits limits_;
  std::optional<Error> error_;
};

void check_adjustments(Checker& c, const Sampling& s) {
  c.range("sampling.repetition_penalty", s.repetition_penalty, 1e-38F, 10.0F, "over 0 and up to 10");
  c.range("sampling.presence_penalty", s.presence_penalty, -2.0F, 2.0F, "-2 to 2");
  c.range("sampling.frequency_penalty", s.frequency_penalty, -2.0F, 2.0F, "-2 to 2");
  const std::string field = "sampling.logit_bias";
  c.count(field, s.logit_bias.size(), c.limits().logit_bias_max, "logit_bias_max");
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < s.logit_bias.size() && !c.failed(); ++i) {
    c.range(field + "[" + std::to_string(s.logit_bias[i].token) + "]", s.logit_bias[i].bias, -100.0F, 100.0F, "-100 to 100");
    tokens.push_back(s.logit_bias[i].token);
  }
  std::sort(tokens.begin(), tokens.end());
  if (const auto twice = std::adjacent_find(tokens.begin(), tokens.end()); twice != tokens.end())
    c.complain(ErrorCode::invalid_argument, field + " has token " + std::to_string(*twice) + " twice; add the two up", field);
  if (s.logprobs) c.count("sampling.logprobs", *s.logprobs, logprobs_top_max, "logprobs_top_max");
}

void check_sampling(Checker& c, const Sampling& s) {
  c.range("sampling.temperature", s.temperature, 0.0F, 2.0F, "0 to 2");
  c.range("sampling.min_p", s.min_p, 0.0F, 1.0F, "0 to 1");
  c.range("sampling.top_p", s.top_p, 1e-38F, 1.0F, "over 0 and up to 1");
  if (s.n == 0) c.complain(ErrorCode::invalid_argument, "sampling.n is 0; ask for at least 1 choice", "sampling.n");
  c.count("sampling.n", s.n, c.limits().choices_max, "choices_max");
  check_adjustments(c, s);
  c.count("sampling.stop", s.stop.size(), c.limits().stop_strings_max, "stop_strings_max");
  for (std::size_t i = 0; i < s.stop.size() && !c.failed(); ++i) c.stop_string("sampling.stop[" + std::to_string(i) + "]", s.stop[i]);
  c.count("sampling.stop_tokens", s.stop_tokens.size(), c.limits().own_stop_tokens_max, "own_stop_tokens_max");
  if (!s.completion_tokens_max) return;
  const std::string field = "sampling.completion_tokens_max";
  if (*s.completion_tokens_max == 0) c.complain(ErrorCode::invalid_argument, field + " is 0; ask for at least 1 token", field);
  c.count(field, *s.completion_tokens_max, c.limits().completion_tokens_max, "completion_tokens_max");
}

void check_submit(Checker& c, const Submit& s) {
  const Limits& limits = c.limits();
  c.id("request_id", s.request_id);
  c.count("messages", s.messages.size(), limits.messages_max, "messages_max");
  c.count("tools", s.tools.size(), limits.tools_max, "tools_max");
  c.count("prompt_tokens", s.prompt_tokens.size(), limits.context_tokens_max, "context_tokens_max");
  check_sampling(c, s.sampling);
  c.tenant(s.tenant);
  if (s.priority < priority_min || s.priority > priority_max)
    c.complain(ErrorCode::invalid_argument,
               "priority is " + std::to_string(s.priority) + "; use " + std::to_string(priority_min) + " to " + std::to_string(priority_max),
               "priority");
  c.count("trace_top_m", s.trace_top_m, limits.trace_top_m_max, "trace_top_m_max");
  if (s.grammar) c.text("grammar", s.grammar->text);
  if (s.messages.empty() && s.prompt_tokens.empty())
    c.complain(ErrorCode::invalid_argument, "there is nothing to answer: both messages and prompt_tokens are empty; send one of them", "messages");
  if (!s.prompt_tokens.empty() && !s.messages.empty())
    c.complain(ErrorCode::invalid_argument, "both messages and prompt_tokens are set; send one of them", "prompt_tokens");
  if (!s.prompt_tokens.empty() && !s.tools.empty())
    c.complain(ErrorCode::invalid_argument, "tools are only for messages; with prompt_tokens write them into the prompt", "tools");
  if (!s.prompt_tokens.empty() && s.reasoning_effort)
    c.complain(ErrorCode::invalid_argument, "reasoning_effort is only for messages; with prompt_tokens write it into the prompt", "reasoning_effort");
  std::size_t functions = s.tools.size();
  for (std::size_t i = 0; i < s.tools.size() && !c.failed(); ++i) c.function("tools[" + std::to_string(i) + "]", s.tools[i]);
  for (std::size_t i = 0; i < s.messages.size() && !c.failed(); ++i) c.message("messages[" + std::to_string(i) + "]", s.messages[i], functions);
}

void check_hello(Checker& c, const Hello& hello) {
  c.name("client_id", hello.client_id);
  c.name("client_name", hello.client_name);
  if (hello.client_id.size() < client_id_bytes_min)
    c.complain(ErrorCode::invalid_argument,
               "client_id is " + std::to_string(hello.client_id.size()) + " bytes long; send at least " + std::to_string(client_id_bytes_min) +
                   " random ones, because whoever guesses it can resume your requests",
               "client_id");
  if (hello.version_min > hello.version_max)
    c.complain(ErrorCode::invalid_argument,
               "version_min " + std::to_string(hello.version_min) + " is over version_max " + std::to_string(hello.version_max), "version_min");
}

void check_done(Checker& c, const Done& done) {
  c.id("request_id", done.request_id);
  c.count("choices", done.choices.size(), choices_bound, "choices_bound");
  for (std::size_t i = 0; i < done.choices.size() && !c.failed(); ++i) {
    if (!done.choices[i].error) continue;
    const std::string path = "choices[" + std::to_string(i) + "].error";
    c.text(path + ".message", done.choices[i].error->message);
    c.text(path + ".field", done.choices[i].error->field);
  }
}

void check_delta(Checker& c, const Delta& delta) {
  c.id("request_id", delta.request_id);
  // Clients may keep something for each choice.
  if (delta.choice >= choices_bound)
    c.complain(ErrorCode::too_large,
               "choice is " + std::to_string(delta.choice) + ", and a request has " + std::to_string(choices_bound) + " at most", "choice");
  c.count("events", delta.events.size(), delta_events_max, "delta_events_max");
  c.count("tokens", delta.tokens.size(), delta_events_max, "delta_events_max");
  c.count("routing", delta.routing.size(), delta_events_max, "delta_events_max");
  c.count("logprobs", delta.logprobs.size(), delta_events_max, "delta_events_max");
  for (const TokenLogprobs& told : delta.logprobs) c.count("logprobs.top", told.top.size(), logprobs_top_max, "logprobs_top_max");
  for (std::size_t i = 0; i < delta.routing.size() && !c.failed(); ++i) {
    const std::string path = "routing[" + std::to_string(i) + "]";
    if (!is_whole(delta.routing[i]))
      c.complain(ErrorCode::corrupt, path + ": its lists are not as long as its tokens, layers, top_m and experts_per_token say", path);
  }
  for (std::size_t i = 0; i < delta.events.size() && !c.failed(); ++i) {
    const std::string path = "events[" + std::to_string(i) + "]";
    if (const auto* text = std::get_if<Text>(&delta.events[i])) c.text(path + ".text", text->text);
    if (const auto* started = std::get_if<MessageStarted>(&delta.events[i])) {
      c.text(path + ".channel", started->channel);
      c.text(path + ".recipient", started->recipient);
      c.text(path + ".content_type", started->content_type);
    }
  }
}

struct CheckClient {
  Checker& c;
  void operator()(const Hello& m) const { check_hello(c, m); }
  void operator()(const Submit& m) const { check_submit(c, m); }
  void operator()(const Cancel& m) const { c.id("request_id", m.request_id); }
  void operator()(const Resume& m) const { c.id("request_id", m.request_id); }
  void operator()(const Grant& m) const { c.id("request_id", m.request_id); }
  void operator()(const Ping&) const {}
};

struct CheckServer {
  Checker& c;
  void operator()(const Welcome& m) const {
    c.name("server_instance", m.server_instance);
    c.text("model", m.model);
  }
  void operator()(const Accepted& m) const { c.id("request_id", m.request_id); }
  void operator()(const Delta& m) const { check_delta(c, m); }
  void operator()(const Done& m) const { check_done(c, m); }
  void operator()(const ErrorReply& m) const {
    c.name("request_id", m.request_id);
    c.text("error.message", m.error.message);
    c.text("error.field", m.error.field);
  }
  void operator()(const Pong& m) const {
    c.name("server_instance", m.server_instance);
    c.name("state", m.state);
  }
};

}  // namespace

Error too_many(std::string_view field, std::size_t count, std::size_t count_max, std::string_view limit) {
  return Error{
      ErrorCode::too_large,
      std::string(field) + ": " + std::to_string(count) + " are over the limit of " + std::to_string(count_max) + " (" + std::string(limit) + ")",
      std::string(field)};
}

Status check(const ClientMessage& message, const Limits& limits) {
  Checker checker(limits);
  std::visit(CheckClient{checker}, message);
  return std::move(checker).status();
}

Status check(const ServerMessage& message, const Limits& limits) {
  Checker checker(limits);
  std::visit(CheckServer{checker}, message);
  return std::move(checker).status();
}

}  // namespace althing::protocol::wire
