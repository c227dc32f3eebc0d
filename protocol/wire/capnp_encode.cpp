// Values to Cap'n Proto bytes. Every pointer field is written, and null only where null means absent.
#include <capnp/message.h>
#include <capnp/serialize.h>

#include "protocol/wire/capnp_form.hpp"
#include "wire.capnp.h"

namespace althing::protocol::wire::capnp_form {
namespace {

using nlohmann::ordered_json;

capnp::Text::Reader text_of(const std::string& text) { return capnp::Text::Reader(text.c_str(), text.size()); }

schema::Role role_of(harmony::Role role) { return static_cast<schema::Role>(role); }

schema::ReasoningEffort effort_of(const std::optional<harmony::ReasoningEffort>& effort) {
  if (!effort) return schema::ReasoningEffort::UNSET;
  switch (*effort) {
    case harmony::ReasoningEffort::low:
      return schema::ReasoningEffort::LOW;
    case harmony::ReasoningEffort::medium:
      return schema::ReasoningEffort::MEDIUM;
    case harmony::ReasoningEffort::high:
      break;
  }
  return schema::ReasoningEffort::HIGH;
}

unsigned count_of(std::size_t count) { return static_cast<unsigned>(count); }

template <class Builder>
void put_tokens(Builder list, const std::vector<TokenId>& tokens) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, tokens[i]);
}

void put(schema::Function::Builder to, const harmony::Function& from) {
  to.setName(text_of(from.name));
  to.setDescription(text_of(from.description));
  if (from.parameters) to.setParameters(text_of(from.parameters->dump(-1, ' ', false, ordered_json::error_handler_t::replace)));
}

void put(schema::ToolNamespace::Builder to, const std::string& key, const harmony::ToolNamespace& from) {
  to.setKey(text_of(key));
  to.setName(text_of(from.name));
  if (from.description) to.setDescription(text_of(*from.description));
  auto functions = to.initFunctions(count_of(from.functions.size()));
  for (unsigned i = 0; i < functions.size(); ++i) put(functions[i], from.functions[i]);
}

template <class Builder>
void put_tools(Builder to, const harmony::Tools& from) {
  auto tools = to.initTools(count_of(from.size()));
  for (unsigned i = 0; i < tools.size(); ++i) put(tools[i], from[i].first, from[i].second);
}

void put(schema::SystemContent::Builder to, const harmony::SystemContent& from) {
  if (from.model_identity) to.setModelIdentity(text_of(*from.model_identity));
  to.setReasoningEffort(effort_of(from.reasoning_effort));
  if (from.knowledge_cutoff) to.setKnowledgeCutoff(text_of(*from.knowledge_cutoff));
  if (from.conversation_start_date) to.setConversationStartDate(text_of(*from.conversation_start_date));
  if (from.channel_config) {
    auto config = to.initChannelConfig();
    auto channels = config.initValidChannels(count_of(from.channel_config->valid_channels.size()));
    for (unsigned i = 0; i < channels.size(); ++i) channels.set(i, text_of(from.channel_config->valid_channels[i]));
    config.setChannelRequired(from.channel_config->channel_required);
  }
  put_tools(to, from.tools);
}

void put(schema::Content::Builder to, const harmony::Content& from) {
  if (const auto* text = std::get_if<harmony::TextContent>(&from)) {
    to.setText(text_of(text->text));
  } else if (const auto* system = std::get_if<harmony::SystemContent>(&from)) {
    put(to.initSystem(), *system);
  } else {
    const auto& developer = std::get<harmony::DeveloperContent>(from);
    auto content = to.initDeveloper();
    if (developer.instructions) content.setInstructions(text_of(*developer.instructions));
    put_tools(content, developer.tools);
  }
}

void put(schema::Message::Builder to, const harmony::Message& from) {
  to.setRole(role_of(from.role));
  if (from.name) to.setName(text_of(*from.name));
  if (from.recipient) to.setRecipient(text_of(*from.recipient));
  if (from.channel) to.setChannel(text_of(*from.channel));
  if (from.content_type) to.setContentType(text_of(*from.content_type));
  auto content = to.initContent(count_of(from.content.size()));
  for (unsigned i = 0; i < content.size(); ++i) put(content[i], from.content[i]);
  if (!from.tokens.empty()) put_tokens(to.initTokens(count_of(from.tokens.size())), from.tokens);
}

void put(schema::Sampling::Builder to, const Sampling& from) {
  if (from.temperature) to.getTemperature().setValue(*from.temperature);
  if (from.top_p) to.getTopP().setValue(*from.top_p);
  if (from.min_p) to.getMinP().setValue(*from.min_p);
  if (from.top_k) to.getTopK().setValue(*from.top_k);
  if (from.seed) to.getSeed().setValue(*from.seed);
  if (from.completion_tokens_max) to.getCompletionTokensMax().setValue(*from.completion_tokens_max);
  to.setIgnoreStop(from.ignore_stop);
  to.setN(from.n);
  if (from.repetition_penalty) to.getRepetitionPenalty().setValue(*from.repetition_penalty);
  if (from.presence_penalty) to.getPresencePenalty().setValue(*from.presence_penalty);
  if (from.frequency_penalty) to.getFrequencyPenalty().setValue(*from.frequency_penalty);
  if (from.logprobs) to.getLogprobs().setValue(*from.logprobs);
  if (!from.logit_bias.empty()) {
    auto biases = to.initLogitBias(count_of(from.logit_bias.size()));
    for (unsigned i = 0; i < biases.size(); ++i) {
      biases[i].setToken(from.logit_bias[i].token);
      biases[i].setBias(from.logit_bias[i].bias);
    }
  }
  if (!from.stop.empty()) {
    auto stops = to.initStop(count_of(from.stop.size()));
    for (unsigned i = 0; i < stops.size(); ++i) stops.set(i, text_of(from.stop[i]));
  }
  if (!from.stop_tokens.empty()) put_tokens(to.initStopTokens(count_of(from.stop_tokens.size())), from.stop_tokens);
}

void put(schema::Submit::Grammar::Builder to, const Grammar& from) {
  switch (from.kind) {
    case GrammarKind::json_schema:
      return to.setJsonSchema(text_of(from.text));
    case GrammarKind::json_object:
      return to.setJsonObject();
    case GrammarKind::regex:
      return to.setRegex(text_of(from.text));
  }
}

struct PutClient {
  schema::ClientFrame::Builder frame;

  void operator()(const Hello& m) {
    auto hello = frame.initHello();
    hello.setVersionMin(m.version_min);
    hello.setVersionMax(m.version_max);
    hello.setClientId(text_of(m.client_id));
    hello.setClientName(text_of(m.client_name));
  }
  void operator()(const Submit& m) {
    frame.setRequestId(text_of(m.request_id));
    auto submit = frame.initSubmit();
    auto messages = submit.initMessages(count_of(m.messages.size()));
    for (unsigned i = 0; i < messages.size(); ++i) put(messages[i], m.messages[i]);
    auto tools = submit.initTools(count_of(m.tools.size()));
    for (unsigned i = 0; i < tools.size(); ++i) put(tools[i], m.tools[i]);
    submit.setReasoningEffort(effort_of(m.reasoning_effort));
    put_tokens(submit.initPromptTokens(count_of(m.prompt_tokens.size())), m.prompt_tokens);
    put(submit.initSampling(), m.sampling);
    submit.setTimeoutMs(m.timeout_ms);
    submit.setCredit(m.credit);
    submit.setReturnTokens(m.return_tokens);
    submit.setTraceTopM(m.trace_top_m);
    if (!m.tenant.empty()) submit.setTenant(m.tenant);
    submit.setPriority(m.priority);
    if (m.grammar) put(submit.initGrammar(), *m.grammar);
  }
  void operator()(const Cancel& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.setCancel();
  }
  void operator()(const Resume& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.initResume().setLastSequence(m.last_sequence);
  }
  void operator()(const Grant& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.initGrant().setCredit(m.credit);
  }
  void operator()(const Ping& m) { frame.initPing().setNonce(m.nonce); }
};

void put(schema::DeltaEvent::Builder to, const DeltaEvent& from) {
  if (const auto* text = std::get_if<Text>(&from)) {
    to.setIndex(text->index);
    to.setText(text_of(text->text));
  } else if (const auto* started = std::get_if<MessageStarted>(&from)) {
    to.setIndex(started->index);
    auto header = to.initStarted();
    header.setRole(role_of(started->role));
    header.setChannel(text_of(started->channel));
    header.setRecipient(text_of(started->recipient));
    header.setContentType(text_of(started->content_type));
  } else {
    to.setIndex(std::get<MessageEnded>(from).index);
    to.setEnded();
  }
}

void put(schema::Failure::Builder to, const Error& from) {
  to.setCode(static_cast<schema::ErrorCode>(from.code));
  to.setMessage(text_of(from.message));
  to.setField(text_of(from.field));
  to.setRetryAfterMs(from.retry_after_ms);
}

void put(schema::ChoiceEnd::Builder to, const ChoiceEnd& from) {
  to.setReason(static_cast<schema::FinishReason>(from.reason));
  to.setCompletionTokens(from.completion_tokens);
  to.setPreemptions(from.preemptions);
  if (from.error) put(to.initError(), *from.error);
  if (from.stop_string) to.setStopString(static_cast<std::int32_t>(*from.stop_string));
}

void put(schema::TokenLogprobs::Builder to, const TokenLogprobs& from) {
  to.setToken(from.token);
  to.setLogprob(from.logprob);
  if (from.top.empty()) return;
  auto top = to.initTop(count_of(from.top.size()));
  for (unsigned i = 0; i < top.size(); ++i) {
    top[i].setToken(from.top[i].token);
    top[i].setLogprob(from.top[i].logprob);
  }
}

void put(schema::StepRouting::Builder to, const StepRouting& from) {
  to.setStep(from.step.value);
  to.setEpoch(from.epoch.value);
  to.setStart(from.start);
  to.setRecomputed(from.recomputed);
  to.setLayers(from.layers);
  to.setTopM(from.top_m);
  to.setExpertsPerToken(from.experts_per_token);
  put_tokens(to.initTokens(count_of(from.tokens.size())), from.tokens);
  auto times = to.initNanoseconds(count_of(from.nanoseconds.size() * routing_phase_count));
  for (unsigned i = 0; i < times.size(); ++i) times.set(i, from.nanoseconds[i / routing_phase_count][i % routing_phase_count]);
  auto logits = to.initLogits(count_of(from.logits.size()));
  for (unsigned i = 0; i < logits.size(); ++i) {
    logits[i].setExpert(from.logits[i].expert);
    logits[i].setLogit(from.logits[i].logit);
  }
  auto experts = to.initExperts(count_of(from.experts.size()));
  for (unsigned i = 0; i < experts.size(); ++i) {
    auto expert = experts[i];
    const RoutedExpert& pair = from.experts[i];
    expert.setExpert(pair.expert);
    expert.setChosen(pair.chosen);
    expert.setCopy(pair.copy);
    expert.setRank(pair.rank);
    expert.setSlot(pair.slot);
    expert.setFate(static_cast<schema::PairFate>(pair.fate));
    expert.setWeight(pair.weight);
  }
}

struct PutServer {
  schema::ServerFrame::Builder frame;

  void operator()(const Welcome& m) {
    auto welcome = frame.initWelcome();
    welcome.setVersion(m.version);
    welcome.setServerInstance(text_of(m.server_instance));
    welcome.setModel(text_of(m.model));
    welcome.setContextTokensMax(m.context_tokens_max);
    welcome.setFrameBytesMax(m.frame_bytes_max);
    welcome.setSessionSilenceMsMax(m.session_silence_ms_max);
  }
  void operator()(const Accepted& m) {
    frame.setRequestId(text_of(m.request_id));
    auto accepted = frame.initAccepted();
    accepted.setPromptTokens(m.prompt_tokens);
    accepted.setSeed(m.seed);
  }
  void operator()(const Delta& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.setSequence(m.sequence);
    auto delta = frame.initDelta();
    auto events = delta.initEvents(count_of(m.events.size()));
    for (unsigned i = 0; i < events.size(); ++i) put(events[i], m.events[i]);
    put_tokens(delta.initTokens(count_of(m.tokens.size())), m.tokens);
    delta.setChoice(m.choice);
    if (!m.routing.empty()) {
      auto routing = delta.initRouting(count_of(m.routing.size()));
      for (unsigned i = 0; i < routing.size(); ++i) put(routing[i], m.routing[i]);
    }
    if (m.logprobs.empty()) return;
    auto told = delta.initLogprobs(count_of(m.logprobs.size()));
    for (unsigned i = 0; i < told.size(); ++i) put(told[i], m.logprobs[i]);
  }
  void operator()(const Done& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.setSequence(m.sequence);
    auto done = frame.initDone();
    done.setReason(static_cast<schema::FinishReason>(m.reason));
    done.setPromptTokens(m.usage.prompt_tokens);
    done.setCompletionTokens(m.usage.completion_tokens);
    done.setPreemptions(m.usage.preemptions);
    done.setLayoutChanged(m.layout_changed);
    if (m.stop_string) done.setStopString(static_cast<std::int32_t>(*m.stop_string));
    done.setReasoningTokens(m.reasoning_tokens);
    done.setCachedTokens(m.usage.cached_tokens);
    done.setMiss(static_cast<schema::PrefixMiss>(m.usage.miss));
    if (m.choices.empty()) return;
    auto choices = done.initChoices(count_of(m.choices.size()));
    for (unsigned i = 0; i < choices.size(); ++i) put(choices[i], m.choices[i]);
  }
  void operator()(const ErrorReply& m) {
    frame.setRequestId(text_of(m.request_id));
    frame.setSequence(m.sequence);
    put(frame.initError(), m.error);
  }
  void operator()(const Pong& m) {
    auto pong = frame.initPong();
    pong.setNonce(m.nonce);
    pong.setServerInstance(text_of(m.server_instance));
    if (!m.state.empty()) pong.setState(text_of(m.state));
  }
};

std::string bytes_of(capnp::MessageBuilder& builder) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(builder);
  const auto bytes = words.asBytes();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

}  // namespace

std::string encode(const ClientMessage& message) {
  capnp::MallocMessageBuilder builder;
  std::visit(PutClient{builder.initRoot<schema::ClientFrame>()}, message);
  return bytes_of(builder);
}

std::string encode(const ServerMessage& message) {
  capnp::MallocMessageBuilder builder;
  std::visit(PutServer{builder.initRoot<schema::ServerFrame>()}, message);
  return bytes_of(builder);
}

}  // namespace althing::protocol::wire::capnp_form
