// JSON text to values. The text is parsed by json_text (linear, bounded depth, no key twice); here its members become fields.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "protocol/wire/check.hpp"
#include "protocol/wire/json_form.hpp"
#include "protocol/wire/json_members.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::wire::json_form {
namespace {

using nlohmann::ordered_json;
using Members = JsonMembers;

Error unsupported(const Members& m, const char* key, const std::string& what) {
  return Error{ErrorCode::unsupported,
               what + " of type \"" + m.text(key).substr(0, 64) + "\" is not known to this build, which speaks version " + std::to_string(version),
               m.path_of(key)};
}

bool fits(const Members& m, const char* key, const ordered_json& array, std::size_t count_max, const char* limit) {
  if (array.size() <= count_max) return true;
  Error error = too_many(m.path_of(key), array.size(), count_max, limit);
  m.complain(error.code, std::move(error.message), key);
  return false;
}

std::vector<TokenId> tokens(const Members& m, const char* key, std::size_t count_max, const char* limit) {
  std::vector<TokenId> to;
  const ordered_json* array = m.array(key);
  if (array == nullptr || !fits(m, key, *array, count_max, limit)) return to;
  to.reserve(array->size());
  for (const auto& item : *array) {
    if (!item.is_number_unsigned() && !(item.is_number_integer() && item.get<std::int64_t>() >= 0)) {
      m.complain(ErrorCode::invalid_argument, m.path_of(key) + "[" + std::to_string(to.size()) + "] is not a token id", key);
      return to;
    }
    const auto number = item.get<std::uint64_t>();
    if (number > std::numeric_limits<TokenId>::max()) {
      m.complain(ErrorCode::invalid_argument,
                 m.path_of(key) + "[" + std::to_string(to.size()) + "] is " + std::to_string(number) + "; no token id is that large", key);
      return to;
    }
    to.push_back(static_cast<TokenId>(number));
  }
  return to;
}

std::optional<harmony::ReasoningEffort> effort(const Members& m) {
  const auto name = m.optional_text("reasoning_effort");
  if (!name) return std::nullopt;
  using harmony::ReasoningEffort;
  if (*name == "low" || *name == "Low") return ReasoningEffort::low;
  if (*name == "medium" || *name == "Medium") return ReasoningEffort::medium;
  if (*name == "high" || *name == "High") return ReasoningEffort::high;
  m.complain(ErrorCode::invalid_argument, "reasoning_effort is \"" + name->substr(0, 64) + "\"; it must be low, medium or high", "reasoning_effort");
  return std::nullopt;
}

// Decodes one message after the other; holds what they share.
class Decoder {
 public:
  explicit Decoder(const Limits& limits) : limits_(limits) {}
  std::optional<Error>& error() { return error_; }

  ClientMessage client(const Members& m, const std::string& request_id) {
    const std::string type = m.text("type");
    if (type == "hello") return Hello{m.u32("version_min", 1), m.u32("version_max", 1), m.text("client_id"), m.text("client_name")};
    if (type == "submit") return submit(m, request_id);
    if (type == "cancel") return Cancel{request_id};
    if (type == "resume") return Resume{request_id, m.u64("last_sequence")};
    if (type == "grant") return Grant{request_id, m.u32("credit")};
    if (type == "ping") return Ping{m.u64("nonce")};
    keep(unsupported(m, "type", "a client message"));
    return Ping{};
  }

  ServerMessage server(const Members& m, std::string request_id) {
    const std::string type = m.text("type");
    const std::uint64_t sequence = m.u64("sequence");
    if (type == "delta") return delta(m, std::move(request_id), sequence);
    if (type == "accepted") return Accepted{std::move(request_id), m.u32("prompt_tokens"), m.u64("seed")};
    if (type == "done") return done(m, std::move(request_id), sequence);
    if (type == "error") return failure(m, std::move(request_id), sequence);
    if (type == "pong") return Pong{m.u64("nonce"), m.text("server_instance"), m.text("state")};
    if (type == "welcome")
      return Welcome{m.u32("version"),         m.text("server_instance"),      m.text("model"), m.u32("context_tokens_max"),
                     m.u32("frame_bytes_max"), m.u32("session_silence_ms_max")};
    keep(unsupported(m, "type", "a server message"));
    return Pong{};
  }

 private:
  void keep(Error error) {
    if (!error_) error_ = std::move(error);
  }

  Submit submit(const Members& m, const std::string& request_id) {
    Submit to;
    to.request_id = request_id;
    if (const auto* messages = m.array("messages"); messages != nullptr && fits(m, "messages", *messages, limits_.messages_max, "messages_max"))
      for (std::size_t i = 0; i < messages->size() && !error_; ++i) {
        auto message = harmony::message_from_json((*messages)[i]);
        const std::string path = "messages[" + std::to_string(i) + "]";
        if (message) {
          to.messages.push_back(std::move(*message));
        } else {
          const Error& why = message.error();
          keep({why.code, path + ": " + why.message, why.field.empty() ? path : path + "." + why.field});
        }
      }
    if (const auto* tools = m.array("tools"); tools != nullptr && fits(m, "tools", *tools, limits_.tools_max, "tools_max"))
      for (std::size_t i = 0; i < tools->size() && !error_; ++i) to.tools.push_back(function((*tools)[i], "tools[" + std::to_string(i) + "]"));
    to.reasoning_effort = effort(m);
    to.prompt_tokens = tokens(m, "prompt_tokens", limits_.context_tokens_max, "context_tokens_max");
    if (const auto* object = m.object("sampling")) to.sampling = sampling(Members(*object, "sampling.", error_));
    to.timeout_ms = m.u32("timeout_ms");
    to.credit = m.u32("credit");
    to.return_tokens = m.boolean("return_tokens");
    to.trace_top_m = m.u32("trace_top_m");
    if (const auto* object = m.object("grammar")) to.grammar = grammar(*object, m);
    to.tenant = m.text("tenant");
    to.priority = m.i32("priority");
    return to;
  }

  Grammar grammar(const ordered_json& json, const Members& m) {
    const Members members(json, m.path_of("grammar."), error_);
    const auto* schema = members.find("json_schema");
    const auto regex = members.optional_text("regex");
    const bool is_object = members.boolean("json_object");
    if ((schema != nullptr) + regex.has_value() + is_object != 1) {
      m.complain(ErrorCode::invalid_argument, "grammar holds one of json_schema, json_object (true) and regex", "grammar");
      return {};
    }
    if (schema != nullptr) return {GrammarKind::json_schema, schema->is_string() ? schema->get<std::string>() : schema->dump()};
    return regex ? Grammar{GrammarKind::regex, *regex} : Grammar{};
  }

  harmony::Function function(const ordered_json& json, const std::string& path) {
    harmony::Function to;
    if (!json.is_object()) {
      keep({ErrorCode::invalid_argument, path + " must be an object with name, description and parameters, not " + json.type_name(), path});
      return to;
    }
    const Members m(json, path + ".", error_);
    to.name = m.text("name");
    to.description = m.text("description");
    if (const auto* parameters = m.object("parameters")) to.parameters = *parameters;
    return to;
  }

  Sampling sampling(const Members& m) {
    Sampling to;
    to.temperature = m.real("temperature");
    to.top_p = m.real("top_p");
    to.min_p = m.real("min_p");
    to.top_k = m.optional_u32("top_k");
    to.seed = m.optional_u64("seed");
    to.completion_tokens_max = m.optional_u32("completion_tokens_max");
    to.ignore_stop = m.boolean("ignore_stop");
    to.n = m.optional_u32("n").value_or(1);
    to.repetition_penalty = m.real("repetition_penalty");
    to.presence_penalty = m.real("presence_penalty");
    to.frequency_penalty = m.real("frequency_penalty");
    to.logit_bias = biases(m);
    to.stop = texts(m, "stop", limits_.stop_strings_max, "stop_strings_max");
    to.stop_tokens = tokens(m, "stop_tokens", limits_.own_stop_tokens_max, "own_stop_tokens_max");
    to.logprobs = m.optional_u32("logprobs");
    return to;
  }

  std::vector<std::string> texts(const Members& m, const char* key, std::size_t count_max, const char* limit) {
    std::vector<std::string> to;
    const auto* array = m.array(key);
    if (array == nullptr || !fits(m, key, *array, count_max, limit)) return to;
    for (const ordered_json& item : *array) {
      if (item.is_string())
        to.push_back(item.get<std::string>());
      else
        m.complain(ErrorCode::invalid_argument, m.path_of(key) + "[" + std::to_string(to.size()) + "] is not a string", key);
      if (error_) break;
    }
    return to;
  }

  // Token ids are keys, so that none can have two biases.
  std::vector<TokenBias> biases(const Members& m) {
    std::vector<TokenBias> to;
    const auto* object = m.object("logit_bias");
    if (object == nullptr || !fits(m, "logit_bias", *object, limits_.logit_bias_max, "logit_bias_max")) return to;
    for (const auto& [key, value] : object->items()) {
      TokenId token = 0;
      const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), token);
      const bool is_id = failure == std::errc{} && end == key.data() + key.size() && (key.size() == 1 || key[0] != '0');
      if (!is_id || !value.is_number()) {
        m.complain(ErrorCode::invalid_argument,
                   m.path_of("logit_bias") + " has the member \"" + key.substr(0, 64) + "\"; members are token ids with a number each", "logit_bias");
        break;
      }
      // What a float cannot hold is out of its range, which the check says.
      to.push_back({token, static_cast<float>(std::clamp(value.get<double>(), -1e30, 1e30))});
    }
    return to;
  }

  Delta delta(const Members& m, std::string request_id, std::uint64_t sequence) {
    Delta to{std::move(request_id), sequence, m.u32("choice"), {}, {}};
    if (const auto* events = m.array("events"); events != nullptr && fits(m, "events", *events, delta_events_max, "delta_events_max"))
      for (std::size_t i = 0; i < events->size() && !error_; ++i) to.events.push_back(event((*events)[i], "events[" + std::to_string(i) + "]"));
    to.tokens = tokens(m, "tokens", delta_events_max, "delta_events_max");
    if (const auto* parts = m.array("routing"); parts != nullptr && fits(m, "routing", *parts, delta_events_max, "delta_events_max"))
      for (std::size_t i = 0; i < parts->size() && !error_; ++i) to.routing.push_back(routing((*parts)[i], "routing[" + std::to_string(i) + "]"));
    if (const auto* told = m.array("logprobs"); told != nullptr && fits(m, "logprobs", *told, delta_events_max, "delta_events_max"))
      for (std::size_t i = 0; i < told->size() && !error_; ++i) to.logprobs.push_back(logprobs((*told)[i], "logprobs[" + std::to_string(i) + "]"));
    return to;
  }

  TokenLogprobs logprobs(const ordered_json& json, const std::string& path) {
    TokenLogprobs to;
    if (!json.is_object()) {
      keep({ErrorCode::invalid_argument, path + " must be an object, not " + json.type_name(), path});
      return to;
    }
    const Members m(json, path + ".", error_);
    to.token = m.u32("token");
    to.logprob = m.real("logprob").value_or(0.0F);
    rows(m, "top", 2, [&](const ordered_json& row) { to.top.push_back({u32(row[0]), real(row[1])}); });
    return to;
  }

  StepRouting routing(const ordered_json& json, const std::string& path) {
    StepRouting to;
    if (!json.is_object()) {
      keep({ErrorCode::invalid_argument, path + " must be an object, not " + json.type_name(), path});
      return to;
    }
    const Members m(json, path + ".", error_);
    to.step = StepId{m.u64("step")};
    to.epoch = EpochId{m.u64("epoch")};
    to.start = m.u32("start");
    to.recomputed = m.u32("recomputed");
    to.layers = m.u32("layers");
    to.top_m = m.u32("top_m");
    to.experts_per_token = m.u32("experts_per_token");
    to.tokens = tokens(m, "tokens", m.array("tokens") == nullptr ? 0 : m.array("tokens")->size(), "tokens");
    rows(m, "nanoseconds", routing_phase_count, [&](const ordered_json& row) {
      auto& layer = to.nanoseconds.emplace_back();
      for (std::size_t i = 0; i < routing_phase_count; ++i) layer[i] = whole(row[i], std::numeric_limits<std::uint64_t>::max());
    });
    rows(m, "logits", 2, [&](const ordered_json& row) { to.logits.push_back({u32(row[0]), real(row[1])}); });
    rows(m, "experts", 7, [&](const ordered_json& row) {
      to.experts.push_back({u16(row[0]), u16(row[1]), u16(row[2]), u16(row[3]), u16(row[4]), fate(row[5]), 0, real(row[6])});
    });
    return to;
  }

  // Each item of an array that must be an array of `width` things. A thing of the wrong kind leaves an error that names the row.
  template <class Take>
  void rows(const Members& m, const char* key, std::size_t width, const Take& take) {
    const auto* array = m.array(key);
    for (std::size_t i = 0; array != nullptr && i < array->size() && !error_; ++i) {
      const ordered_json& row = (*array)[i];
      whole_row_ = row.is_array() && row.size() == width;
      if (whole_row_) take(row);
      if (!whole_row_) m.complain(ErrorCode::invalid_argument, m.path_of(key) + "[" + std::to_string(i) + "] is not what docs/protocol.md says", key);
    }
  }
  std::uint64_t whole(const ordered_json& json, std::uint64_t most) {
    const bool natural = json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
    const std::uint64_t number = natural ? json.get<std::uint64_t>() : 0;
    whole_row_ = whole_row_ && natural && number <= most;
    return number;
  }
  std::uint32_t u32(const ordered_json& json) { return static_cast<std::uint32_t>(whole(json, std::numeric_limits<std::uint32_t>::max())); }
  std::uint16_t u16(const ordered_json& json) { return static_cast<std::uint16_t>(whole(json, std::numeric_limits<std::uint16_t>::max())); }
  float real(const ordered_json& json) {
    if (json.is_null()) return std::numeric_limits<float>::quiet_NaN();
    const bool fine = json.is_number() && std::abs(json.get<double>()) <= static_cast<double>(std::numeric_limits<float>::max());
    whole_row_ = whole_row_ && fine;
    return fine ? static_cast<float>(json.get<double>()) : 0.0F;
  }
  PairFate fate(const ordered_json& json) {
    for (std::uint32_t i = 0; i < pair_fate_count && json.is_string(); ++i)
      if (json.get_ref<const std::string&>() == name_of(static_cast<PairFate>(i))) return static_cast<PairFate>(i);
    whole_row_ = false;
    return PairFate::chosen;
  }

  DeltaEvent event(const ordered_json& json, const std::string& path) {
    if (!json.is_object()) {
      keep({ErrorCode::invalid_argument, path + " must be an object, not " + json.type_name(), path});
      return MessageEnded{};
    }
    const Members m(json, path + ".", error_);
    const std::string type = m.text("type");
    const std::uint32_t index = m.u32("index");
    if (type == "text") return Text{index, m.text("text")};
    if (type == "message_ended") return MessageEnded{index};
    if (type == "message_started") {
      const auto role = harmony::role_of(m.text("role"));
      if (!role) keep(unsupported(m, "role", "a role"));
      return MessageStarted{index, role.value_or(harmony::Role::assistant), m.text("channel"), m.text("recipient"), m.text("content_type")};
    }
    keep(unsupported(m, "type", "a delta event"));
    return MessageEnded{index};
  }

  FinishReason reason(const Members& m) {
    const std::string name = m.text("reason");
    for (const auto reason : {FinishReason::stop, FinishReason::length, FinishReason::cancelled, FinishReason::error})
      if (name == name_of(reason)) return reason;
    keep(unsupported(m, "reason", "a finish reason"));
    return FinishReason::stop;
  }

  // A word that this build does not know says no more than none.
  PrefixMiss miss(const Members& usage) {
    const std::string name = usage.text("miss");
    for (std::uint32_t i = 0; i < prefix_miss_count; ++i)
      if (name == name_of(static_cast<PrefixMiss>(i))) return static_cast<PrefixMiss>(i);
    return PrefixMiss::none;
  }

  Done done(const Members& m, std::string request_id, std::uint64_t sequence) {
    Done to{std::move(request_id), sequence, reason(m), {}, {}};
    if (const auto* object = m.object("usage")) {
      const Members usage(*object, "usage.", error_);
      to.usage = Usage{usage.u32("prompt_tokens"), usage.u32("completion_tokens"), usage.u32("preemptions"), usage.u32("cached_tokens"), miss(usage)};
      to.reasoning_tokens = usage.u32("reasoning_tokens");
    }
    to.layout_changed = m.boolean("layout_changed");
    to.stop_string = m.optional_u32("stop_string");
    if (const auto* choices = m.array("choices"); choices != nullptr && fits(m, "choices", *choices, choices_bound, "choices_bound"))
      for (std::size_t i = 0; i < choices->size() && !error_; ++i) to.choices.push_back(choice((*choices)[i], "choices[" + std::to_string(i) + "]"));
    return to;
  }

  ChoiceEnd choice(const ordered_json& json, const std::string& path) {
    if (!json.is_object()) {
      keep({ErrorCode::invalid_argument, path + " must be an object, not " + json.type_name(), path});
      return {};
    }
    const Members m(json, path + ".", error_);
    ChoiceEnd to{reason(m), m.u32("completion_tokens"), m.u32("preemptions"), std::nullopt, m.optional_u32("stop_string")};
    if (const auto* error = m.object("error")) to.error = error_of(Members(*error, path + ".error.", error_));
    return to;
  }

  ErrorReply failure(const Members& m, std::string request_id, std::uint64_t sequence) {
    ErrorReply to{std::move(request_id), sequence, {}};
    if (const auto* object = m.object("error"))
      to.error = error_of(Members(*object, "error.", error_));
    else
      m.complain(ErrorCode::invalid_argument, "an error message needs the member error with code and message", "error");
    return to;
  }

  static Error error_of(const Members& m) {
    Error to;
    const std::string code = m.text("code");
    to.code = ErrorCode::internal;  // also for codes of later versions
    for (int i = 0; i < error_code_count; ++i)
      if (code == name_of(static_cast<ErrorCode>(i))) to.code = static_cast<ErrorCode>(i);
    to.message = m.text("message");
    to.field = m.text("field");
    to.retry_after_ms = m.u32("retry_after_ms");
    return to;
  }

  const Limits& limits_;
  std::optional<Error> error_;
  bool whole_row_ = true;  // of rows()
};

Result<ordered_json> object_of(std::string_view body) {
  auto json = parse_json(body, json_depth_max);
  if (json && !json->is_object())
    return Error{ErrorCode::invalid_argument, std::string("the body must be a JSON object with the member type, not ") + json->type_name(), "type"};
  return json;
}

}  // namespace

Result<ClientMessage> decode_client(std::string_view body, const Limits& limits, std::string& request_id) {
  const auto json = object_of(body);
  if (!json) return json.error();
  Decoder decoder(limits);
  const Members members(*json, "", decoder.error());
  request_id = members.text("request_id");
  ClientMessage message = decoder.client(members, request_id);
  if (decoder.error()) return std::move(*decoder.error());
  return message;
}

Result<ServerMessage> decode_server(std::string_view body) {
  const auto json = object_of(body);
  if (!json) return json.error();
  const Limits limits;
  Decoder decoder(limits);
  const Members members(*json, "", decoder.error());
  ServerMessage message = decoder.server(members, members.text("request_id"));
  if (decoder.error()) return std::move(*decoder.error());
  return message;
}

}  // namespace althing::protocol::wire::json_form
