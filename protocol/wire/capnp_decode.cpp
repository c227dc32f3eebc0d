// Cap'n Proto bytes to values. Each getter is called once: the traversal limit counts every read, and it is as long as the body.
#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstring>
#include <utility>

#include "protocol/wire/capnp_form.hpp"
#include "protocol/wire/check.hpp"
#include "protocol/wire/json_text.hpp"
#include "wire.capnp.h"

namespace althing::protocol::wire::capnp_form {
namespace {

Error unsupported(std::string what) {
  return Error{ErrorCode::unsupported,
               "this build does not know the kind of " + what + " that was sent; it speaks version " + std::to_string(version), std::move(what)};
}

std::string string_of(capnp::Text::Reader text) { return std::string(text.begin(), text.size()); }

// Turns readers into values and keeps the first error. The library itself throws on bytes that contradict themselves.
class Decoder {
 public:
  explicit Decoder(const Limits& limits) : limits_(limits) {}
  std::optional<Error>& error() { return error_; }

  harmony::Role role(schema::Role from) {
    if (static_cast<unsigned>(from) > static_cast<unsigned>(schema::Role::TOOL)) complain(unsupported("role"));
    return static_cast<harmony::Role>(from);
  }
  std::optional<harmony::ReasoningEffort> effort(schema::ReasoningEffort from) {
    switch (from) {
      case schema::ReasoningEffort::UNSET:
        return std::nullopt;
      case schema::ReasoningEffort::LOW:
        return harmony::ReasoningEffort::low;
      case schema::ReasoningEffort::MEDIUM:
        return harmony::ReasoningEffort::medium;
      case schema::ReasoningEffort::HIGH:
        return harmony::ReasoningEffort::high;
    }
    complain(unsupported("reasoning_effort"));
    return std::nullopt;
  }
  template <class List>
  std::vector<TokenId> tokens(List from, const char* field, std::size_t count_max, const char* limit) {
    std::vector<TokenId> to;
    if (!fits(field, from.size(), count_max, limit)) return to;
    to.reserve(from.size());
    for (const TokenId token : from) to.push_back(token);
    return to;
  }
  bool fits(const std::string& field, std::size_t count, std::size_t count_max, const char* limit) {
    if (count > count_max) complain(too_many(field, count, count_max, limit));
    return !error_;
  }
  void complain(Error error) {
    if (!error_) error_ = std::move(error);
  }

  harmony::Function function(schema::Function::Reader from) {
    harmony::Function to;
    to.name = string_of(from.getName());
    to.description = string_of(from.getDescription());
    if (!from.hasParameters()) return to;
    const std::string schema = string_of(from.getParameters());
    if (!fits("parameters of " + to.name, schema.size(), limits_.text_bytes_max, "text_bytes_max")) return to;
    auto parsed = parse_json(schema, json_schema_depth_max);
    if (!parsed) {
      complain({ErrorCode::invalid_argument, "parameters of the function " + to.name.substr(0, 64) + ": " + parsed.error().message, "parameters"});
      return to;
    }
    if (!parsed->is_null()) to.parameters = std::move(*parsed);
    return to;
  }
  template <class List>
  std::vector<harmony::Function> functions(List from, const char* field) {
    std::vector<harmony::Function> to;
    if (!fits(field, from.size(), limits_.tools_max, "tools_max")) return to;
    for (auto item : from) to.push_back(function(item));
    return to;
  }
  template <class List>
  harmony::Tools tools(List from) {
    harmony::Tools to;
    if (!fits("tools", from.size(), limits_.tools_max, "tools_max")) return to;
    for (auto item : from) {
      harmony::ToolNamespace space;
      std::string key = string_of(item.getKey());
      space.name = string_of(item.getName());
      if (item.hasDescription()) space.description = string_of(item.getDescription());
      space.functions = functions(item.getFunctions(), "tools");
      to.emplace_back(std::move(key), std::move(space));
    }
    return to;
  }
  harmony::SystemContent system(schema::SystemContent::Reader from) {
    harmony::SystemContent to;
    to.model_identity = from.hasModelIdentity() ? std::optional(string_of(from.getModelIdentity())) : std::nullopt;
    to.reasoning_effort = effort(from.getReasoningEffort());
    to.knowledge_cutoff = from.hasKnowledgeCutoff() ? std::optional(string_of(from.getKnowledgeCutoff())) : std::nullopt;
    if (from.hasConversationStartDate()) to.conversation_start_date = string_of(from.getConversationStartDate());
    to.channel_config.reset();
    if (from.hasChannelConfig()) {
      const auto source = from.getChannelConfig();
      harmony::ChannelConfig config;
      config.valid_channels.clear();
      const auto channels = source.getValidChannels();
      if (fits("valid_channels", channels.size(), limits_.tools_max, "tools_max"))
        for (const auto channel : channels) config.valid_channels.push_back(string_of(channel));
      config.channel_required = source.getChannelRequired();
      to.channel_config = std::move(config);
    }
    to.tools = tools(from.getTools());
    return to;
  }
  harmony::Content content(schema::Content::Reader from) {
    switch (from.which()) {
      case schema::Content::TEXT:
        return harmony::TextContent{string_of(from.getText())};
      case schema::Content::SYSTEM:
        return system(from.getSystem());
      case schema::Content::DEVELOPER: {
        const auto source = from.getDeveloper();
        harmony::DeveloperContent to;
        if (source.hasInstructions()) to.instructions = string_of(source.getInstructions());
        to.tools = tools(source.getTools());
        return to;
      }
      default:
        complain(unsupported("content"));
        return harmony::TextContent{};
    }
  }
  harmony::Message message(schema::Message::Reader from) {
    harmony::Message to;
    to.role = role(from.getRole());
    if (from.hasName()) to.name = string_of(from.getName());
    if (from.hasRecipient()) to.recipient = string_of(from.getRecipient());
    if (from.hasChannel()) to.channel = string_of(from.getChannel());
    if (from.hasContentType()) to.content_type = string_of(from.getContentType());
    const auto parts = from.getContent();
    if (!fits("content", parts.size(), limits_.messages_max, "messages_max")) return to;
    for (auto part : parts) to.content.push_back(content(part));
    to.tokens = tokens(from.getTokens(), "messages.tokens", limits_.context_tokens_max, "context_tokens_max");
    return to;
  }
  Sampling sampling(schema::Sampling::Reader from) {
    Sampling to;
    take(from.getTemperature(), to.temperature);
    take(from.getTopP(), to.top_p);
    take(from.getMinP(), to.min_p);
    take(from.getTopK(), to.top_k);
    take(from.getSeed(), to.seed);
    take(from.getCompletionTokensMax(), to.completion_tokens_max);
    to.ignore_stop = from.getIgnoreStop();
    to.n = from.getN();
    take(from.getRepetitionPenalty(), to.repetition_penalty);
    take(from.getPresencePenalty(), to.presence_penalty);
    take(from.getFrequencyPenalty(), to.frequency_penalty);
    take(from.getLogprobs(), to.logprobs);
    const auto biases = from.getLogitBias();
    if (fits("sampling.logit_bias", biases.size(), limits_.logit_bias_max, "logit_bias_max"))
      for (auto entry : biases) to.logit_bias.push_back({entry.getToken(), entry.getBias()});
    const auto stops = from.getStop();
    if (fits("sampling.stop", stops.size(), limits_.stop_strings_max, "stop_strings_max"))
      for (const auto stop : stops) to.stop.push_back(string_of(stop));
    to.stop_tokens = tokens(from.getStopTokens(), "sampling.stop_tokens", limits_.own_stop_tokens_max, "own_stop_tokens_max");
    return to;
  }
  Submit submit(schema::Submit::Reader from) {
    Submit to;
    const auto messages = from.getMessages();
    if (fits("messages", messages.size(), limits_.messages_max, "messages_max"))
      for (auto item : messages) to.messages.push_back(message(item));
    to.tools = functions(from.getTools(), "tools");
    to.reasoning_effort = effort(from.getReasoningEffort());
    to.prompt_tokens = tokens(from.getPromptTokens(), "prompt_tokens", limits_.context_tokens_max, "context_tokens_max");
    to.sampling = sampling(from.getSampling());
    to.timeout_ms = from.getTimeoutMs();
    to.credit = from.getCredit();
    to.return_tokens = from.getReturnTokens();
    to.trace_top_m = from.getTraceTopM();
    to.priority = from.getPriority();
    to.tenant = string_of(from.getTenant());
    to.grammar = grammar(from.getGrammar());
    return to;
  }
  std::optional<Grammar> grammar(schema::Submit::Grammar::Reader from) {
    switch (from.which()) {
      case schema::Submit::Grammar::NONE:
        return std::nullopt;
      case schema::Submit::Grammar::JSON_SCHEMA:
        return Grammar{GrammarKind::json_schema, string_of(from.getJsonSchema())};
      case schema::Submit::Grammar::JSON_OBJECT:
        return Grammar{GrammarKind::json_object, ""};
      case schema::Submit::Grammar::REGEX:
        return Grammar{GrammarKind::regex, string_of(from.getRegex())};
    }
    complain(unsupported("grammar"));
    return std::nullopt;
  }
  DeltaEvent event(schema::DeltaEvent::Reader from) {
    const std::uint32_t index = from.getIndex();
    switch (from.which()) {
      case schema::DeltaEvent::STARTED: {
        const auto header = from.getStarted();
        return MessageStarted{index, role(header.getRole()), string_of(header.getChannel()), string_of(header.getRecipient()),
                              string_of(header.getContentType())};
      }
      case schema::DeltaEvent::TEXT:
        return Text{index, string_of(from.getText())};
      case schema::DeltaEvent::ENDED:
        return MessageEnded{index};
      default:
        complain(unsupported("delta event"));
        return MessageEnded{index};
    }
  }
  Delta delta(schema::Delta::Reader from) {
    Delta to;
    const auto events = from.getEvents();
    if (fits("events", events.size(), delta_events_max, "delta_events_max"))
      for (auto item : events) to.events.push_back(event(item));
    to.tokens = tokens(from.getTokens(), "tokens", delta_events_max, "delta_events_max");
    to.choice = from.getChoice();
    const auto parts = from.getRouting();
    if (fits("routing", parts.size(), delta_events_max, "delta_events_max"))
      for (auto item : parts) to.routing.push_back(routing(item));
    const auto told = from.getLogprobs();
    if (fits("logprobs", told.size(), delta_events_max, "delta_events_max"))
      for (auto item : told) {
        TokenLogprobs& one = to.logprobs.emplace_back(TokenLogprobs{item.getToken(), item.getLogprob(), {}});
        for (auto likely : item.getTop()) one.top.push_back({likely.getToken(), likely.getLogprob()});
      }
    return to;
  }
  // Lists are as long as the body at most: the library has seen to it. Whether they fit each other, check() says.
  StepRouting routing(schema::StepRouting::Reader from) {
    StepRouting to;
    to.step = StepId{from.getStep()};
    to.epoch = EpochId{from.getEpoch()};
    to.start = from.getStart();
    to.recomputed = from.getRecomputed();
    to.layers = from.getLayers();
    to.top_m = from.getTopM();
    to.experts_per_token = from.getExpertsPerToken();
    for (const TokenId token : from.getTokens()) to.tokens.push_back(token);
    const auto times = from.getNanoseconds();
    if (times.size() % routing_phase_count == 0) to.nanoseconds.resize(times.size() / routing_phase_count);
    for (unsigned i = 0; i < to.nanoseconds.size() * routing_phase_count; ++i)
      to.nanoseconds[i / routing_phase_count][i % routing_phase_count] = times[i];
    for (auto item : from.getLogits()) to.logits.push_back({item.getExpert(), item.getLogit()});
    for (auto item : from.getExperts()) {
      const auto fate = static_cast<unsigned>(item.getFate());
      if (fate >= pair_fate_count) complain(unsupported("pair fate"));
      to.experts.push_back({item.getExpert(), item.getChosen(), item.getCopy(), item.getRank(), item.getSlot(),
                            static_cast<PairFate>(fate < pair_fate_count ? fate : 0), 0, item.getWeight()});
    }
    return to;
  }
  FinishReason reason(schema::FinishReason from) {
    if (static_cast<unsigned>(from) > static_cast<unsigned>(schema::FinishReason::ERROR)) complain(unsupported("finish reason"));
    return static_cast<FinishReason>(from);
  }
  // A word that this build does not know says no more than none.
  static PrefixMiss miss(schema::PrefixMiss from) {
    const auto number = static_cast<std::uint32_t>(from);
    return number < prefix_miss_count ? static_cast<PrefixMiss>(number) : PrefixMiss::none;
  }
  Done done(schema::Done::Reader from) {
    Done to;
    to.reason = reason(from.getReason());
    to.usage = Usage{from.getPromptTokens(), from.getCompletionTokens(), from.getPreemptions(), from.getCachedTokens(), miss(from.getMiss())};
    to.layout_changed = from.getLayoutChanged();
    to.stop_string = stop_string(from.getStopString());
    to.reasoning_tokens = from.getReasoningTokens();
    const auto choices = from.getChoices();
    if (!fits("choices", choices.size(), choices_bound, "choices_bound")) return to;
    for (auto item : choices) {
      ChoiceEnd& end = to.choices.emplace_back(
          ChoiceEnd{reason(item.getReason()), item.getCompletionTokens(), item.getPreemptions(), std::nullopt, stop_string(item.getStopString())});
      if (item.hasError()) end.error = failure(item.getError());
    }
    return to;
  }
  static std::optional<std::uint32_t> stop_string(std::int32_t from) {
    return from < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(from));
  }
  static Error failure(schema::Failure::Reader from) {
    const auto code = static_cast<unsigned>(from.getCode());
    return Error{code < static_cast<unsigned>(error_code_count) ? static_cast<ErrorCode>(code) : ErrorCode::internal, string_of(from.getMessage()),
                 string_of(from.getField()), from.getRetryAfterMs()};
  }

 private:
  // A member of Sampling: a union of unset and value. A member that this build does not know is refused.
  template <class Group, class T>
  void take(Group from, std::optional<T>& to) {
    if (from.isValue()) {
      to = from.getValue();
    } else if (!from.isUnset()) {
      complain(unsupported("sampling"));
    }
  }

  const Limits& limits_;
  std::optional<Error> error_;
};

ClientMessage client_message(Decoder& decoder, schema::ClientFrame::Reader frame, const std::string& request_id) {
  switch (frame.which()) {
    case schema::ClientFrame::HELLO: {
      const auto hello = frame.getHello();
      return Hello{hello.getVersionMin(), hello.getVersionMax(), string_of(hello.getClientId()), string_of(hello.getClientName())};
    }
    case schema::ClientFrame::SUBMIT: {
      Submit submit = decoder.submit(frame.getSubmit());
      submit.request_id = request_id;
      return submit;
    }
    case schema::ClientFrame::CANCEL:
      return Cancel{request_id};
    case schema::ClientFrame::RESUME:
      return Resume{request_id, frame.getResume().getLastSequence()};
    case schema::ClientFrame::GRANT:
      return Grant{request_id, frame.getGrant().getCredit()};
    case schema::ClientFrame::PING:
      return Ping{frame.getPing().getNonce()};
    default:
      decoder.complain(unsupported("client message"));
      return Ping{};
  }
}

ServerMessage server_message(Decoder& decoder, schema::ServerFrame::Reader frame, std::string request_id) {
  const std::uint64_t sequence = frame.getSequence();
  switch (frame.which()) {
    case schema::ServerFrame::WELCOME: {
      const auto w = frame.getWelcome();
      return Welcome{w.getVersion(),       string_of(w.getServerInstance()), string_of(w.getModel()), w.getContextTokensMax(),
                     w.getFrameBytesMax(), w.getSessionSilenceMsMax()};
    }
    case schema::ServerFrame::ACCEPTED: {
      const auto accepted = frame.getAccepted();
      return Accepted{std::move(request_id), accepted.getPromptTokens(), accepted.getSeed()};
    }
    case schema::ServerFrame::DELTA: {
      Delta delta = decoder.delta(frame.getDelta());
      delta.request_id = std::move(request_id);
      delta.sequence = sequence;
      return delta;
    }
    case schema::ServerFrame::DONE: {
      Done done = decoder.done(frame.getDone());
      done.request_id = std::move(request_id);
      done.sequence = sequence;
      return done;
    }
    case schema::ServerFrame::ERROR:
      return ErrorReply{std::move(request_id), sequence, Decoder::failure(frame.getError())};
    case schema::ServerFrame::PONG: {
      const auto pong = frame.getPong();
      return Pong{pong.getNonce(), string_of(pong.getServerInstance()), string_of(pong.getState())};
    }
    default:
      decoder.complain(unsupported("server message"));
      return Pong{};
  }
}

// Calls read(root) on an aligned copy of the body. The library's complaints, which it throws, become `corrupt`.
template <class Root, class Read>
Status with_root(std::string_view body, Read read) {
  if (body.empty() || body.size() % sizeof(capnp::word) != 0)
    return Error{ErrorCode::corrupt,
                 "the body is " + std::to_string(body.size()) + " bytes long; a Cap'n Proto message is a positive multiple of 8 bytes", ""};
  auto words = kj::heapArray<capnp::word>(body.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), body.data(), body.size());
  capnp::ReaderOptions options;
  options.traversalLimitInWords = words.size();
  options.nestingLimit = nesting_max;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    if (reader.getEnd() != words.end())
      return Error{ErrorCode::corrupt,
                   "the message ends " + std::to_string((words.end() - reader.getEnd()) * 8) + " bytes before the body does; send nothing after it",
                   ""};
    read(reader.getRoot<Root>());
    return Ok{};
  } catch (const kj::Exception& failure) {
    return Error{ErrorCode::corrupt, std::string("the body is not a valid Cap'n Proto message: ") + failure.getDescription().cStr(), ""};
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::too_large, "there is no memory for a body of " + std::to_string(body.size()) + " bytes", ""};
  }
}

template <class Message>
Result<Message> outcome(Status status, Decoder& decoder, Message message) {
  if (!status) return std::move(status).error();
  if (decoder.error()) return std::move(*decoder.error());
  return message;
}

}  // namespace

Result<ClientMessage> decode_client(std::string_view body, const Limits& limits, std::string& request_id) {
  Decoder decoder(limits);
  ClientMessage message;
  auto status = with_root<schema::ClientFrame>(body, [&](schema::ClientFrame::Reader frame) {
    request_id = string_of(frame.getRequestId());
    message = client_message(decoder, frame, request_id);
  });
  return outcome(std::move(status), decoder, std::move(message));
}

Result<ServerMessage> decode_server(std::string_view body) {
  const Limits limits;
  Decoder decoder(limits);
  ServerMessage message;
  auto status = with_root<schema::ServerFrame>(
      body, [&](schema::ServerFrame::Reader frame) { message = server_message(decoder, frame, string_of(frame.getRequestId())); });
  return outcome(std::move(status), decoder, std::move(message));
}

}  // namespace althing::protocol::wire::capnp_form
