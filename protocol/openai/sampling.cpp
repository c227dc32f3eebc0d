// See the header.
#include "protocol/openai/sampling.hpp"

#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/wire/json_members.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/logprobs.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int32_t tier_step = 2;  // halfway to what the wire's own clients may ask for
constexpr double bias_max = 100;       // as the wire's check has it

Error invalid(const std::string& member, const std::string& why) { return {ErrorCode::invalid_argument, member + " " + why, member}; }

const Json* given(const Json& body, const char* member) {
  const auto found = body.find(member);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

bool is_number(const Json& value, double wanted) { return value.is_number() && value.get<double>() == wanted; }

// A string or a list of strings.
Result<std::vector<std::string>> stops_of(const Json& body) {
  std::vector<std::string> stops;
  const Json* stop = given(body, "stop");
  if (stop == nullptr) return stops;
  if (stop->is_string()) {
    stops.push_back(*stop);
    return stops;
  }
  if (!stop->is_array()) return invalid("stop", "is neither a string nor a list of strings");
  const std::uint32_t most = Limits{}.stop_strings_max;
  if (stop->size() > most)
    return invalid("stop", "has " + std::to_string(stop->size()) + " strings; at most " + std::to_string(most) + " are looked for");
  for (std::size_t i = 0; i < stop->size(); ++i) {
    if (!(*stop)[i].is_string()) return invalid("stop[" + std::to_string(i) + "]", "is not a string");
    stops.push_back((*stop)[i]);
  }
  return stops;
}

// {"1234": -5, …}: token ids as texts, since JSON has no other keys.
Result<std::vector<TokenBias>> biases_of(const Json& body) {
  std::vector<TokenBias> biases;
  const Json* object = given(body, "logit_bias");
  if (object == nullptr) return biases;
  if (!object->is_object()) return invalid("logit_bias", "is not an object of token ids with a number each");
  const std::uint32_t most = Limits{}.logit_bias_max;
  if (object->size() > most)
    return invalid("logit_bias", "has " + std::to_string(object->size()) + " tokens; at most " + std::to_string(most) + " may have a bias");
  for (const auto& [key, value] : object->items()) {
    TokenId token = 0;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool is_id = failure == std::errc{} && end == key.data() + key.size() && (key.size() == 1 || key[0] != '0');
    if (!is_id || !value.is_number())
      return invalid("logit_bias", "has the member \"" + key.substr(0, 64) + "\"; members are token ids with a number each");
    const double bias = value.get<double>();
    if (!(bias >= -bias_max && bias <= bias_max)) return invalid("logit_bias", "of token " + key + " is over the range, which is -100 to 100");
    biases.push_back({token, static_cast<float>(bias)});
  }
  return biases;
}

// OpenAI's seeds are signed; any 64 bits are a seed.
Result<std::optional<std::uint64_t>> seed_of(const Json& body) {
  const auto found = body.find("seed");
  if (found == body.end() || found->is_null()) return std::optional<std::uint64_t>();
  if (found->is_number_unsigned()) return std::optional(found->get<std::uint64_t>());
  if (found->is_number_integer()) return std::optional(static_cast<std::uint64_t>(found->get<std::int64_t>()));
  return Error{ErrorCode::invalid_argument, "seed must be a whole number of 64 bits", "seed"};
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
}

}  // namespace

Result<wire::Sampling> sampling_from(const Json& body, std::uint32_t max_tokens_default) {
  std::optional<Error> error;
  const wire::JsonMembers members(body, "", error);
  wire::Sampling sampling;
  sampling.temperature = members.real("temperature").value_or(default_temperature);
  sampling.top_p = members.real("top_p");
  sampling.min_p = members.real("min_p");
  sampling.repetition_penalty = members.real("repetition_penalty");
  sampling.presence_penalty = members.real("presence_penalty");
  sampling.frequency_penalty = members.real("frequency_penalty");
  // -1 is how some libraries write "all of them".
  if (const Json* top_k = members.find("top_k"); top_k != nullptr && !is_number(*top_k, -1)) sampling.top_k = members.optional_u32("top_k");
  sampling.n = members.u32("n", 1);
  sampling.ignore_stop = members.boolean("ignore_eos");
  const char* most = "max_completion_tokens";
  sampling.completion_tokens_max = members.optional_u32(most);
  if (!sampling.completion_tokens_max) {
    most = "max_tokens";
    sampling.completion_tokens_max = members.optional_u32(most);
  }
  if (sampling.completion_tokens_max == 0U)
    members.complain(ErrorCode::invalid_argument, std::string(most) + " is 0; at least one token is needed", most);
  if (!sampling.completion_tokens_max && max_tokens_default > 0) sampling.completion_tokens_max = max_tokens_default;
  // Answers have room for each choice before the engine has heard of them.
  if (sampling.n > choices_bound)
    members.complain(ErrorCode::invalid_argument,
                     "n is " + std::to_string(sampling.n) + "; ask for " + std::to_string(choices_bound) + " choices at most", "n");
  if (sampling.n == 0) members.complain(ErrorCode::invalid_argument, "n is 0; ask for one choice at least", "n");
  if (error) return std::move(*error);
  auto seed = seed_of(body);
  if (!seed) return std::move(seed).error();
  sampling.seed = *seed;
  auto stops = stops_of(body);
  if (!stops) return std::move(stops).error();
  sampling.stop = std::move(*stops);
  auto biases = biases_of(body);
  if (!biases) return std::move(biases).error();
  sampling.logit_bias = std::move(*biases);
  return sampling;
}

Result<std::optional<std::uint32_t>> top_count_from(const Json& body, const char* member) {
  const Json* count = given(body, member);
  if (count == nullptr) return std::optional<std::uint32_t>();
  const bool fits = count->is_number_integer() && *count >= 0 && *count <= logprobs_top_max;
  if (!fits)
    return invalid(member, "is " + count->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 64) + "; use a whole number from 0 to " +
                               std::to_string(logprobs_top_max));
  return std::optional(count->get<std::uint32_t>());
}

Result<std::optional<std::uint32_t>> chat_logprobs_from(const Json& body) {
  auto top = top_count_from(body, "top_logprobs");
  if (!top) return top;
  const Json* asked = given(body, "logprobs");
  if (asked != nullptr && !asked->is_boolean()) return invalid("logprobs", "is no boolean; the number of likely tokens goes into top_logprobs");
  const bool wanted = asked != nullptr && asked->get<bool>();
  if (!wanted && top->value_or(0) > 0) return invalid("top_logprobs", "needs logprobs, which is not true");
  return wanted ? std::optional(top->value_or(0)) : std::nullopt;
}

Result<std::optional<std::uint32_t>> completion_logprobs_from(const Json& body) {
  // Nobody's wish in another form.
  if (const Json* asked = given(body, "logprobs"); asked != nullptr && *asked == false) return std::optional<std::uint32_t>();
  return top_count_from(body, "logprobs");
}

Result<std::int32_t> priority_from(const Json& body) {
  const Json* tier = given(body, "service_tier");
  if (tier == nullptr) return 0;
  if (!tier->is_string()) return invalid("service_tier", "is not a string");
  return *tier == "priority" ? tier_step : *tier == "flex" ? -tier_step : 0;
}

Error in_request_terms(Error error) {
  for (std::string* text : {&error.message, &error.field}) {
    replace_all(*text, "sampling.", "");
    replace_all(*text, "completion_tokens_max", "max_completion_tokens");
    replace_all(*text, "prompt_tokens", "prompt");
  }
  return error;
}

}  // namespace althing::protocol::openai
