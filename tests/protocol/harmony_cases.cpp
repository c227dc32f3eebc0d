// Runs files of Harmony cases (default: tests/data/harmony_cases.json) against renderer, parser and tokenizer, and those in forms of the OpenAI API
// against recovery and mapping, in every chunking of their tokens.
#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "protocol/harmony/history.hpp"
#include "protocol/harmony/parser.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/openai/chat_messages.hpp"
#include "protocol/openai/chat_reply.hpp"
#include "protocol/tokenizer/utf8.hpp"
#include "protocol/wire/delta_stream.hpp"
#include "tests/protocol/harmony_support.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

using Json = nlohmann::ordered_json;
using namespace protocol::harmony;

// What differs between a case and us; empty when it passes.
using Complaint = std::string;

std::string shown(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Complaint differs(const std::string& what, const Json& expected, const Json& actual) {
  if (expected == actual) return "";
  return what + " is " + shown(actual) + ", expected " + shown(expected);
}

Complaint unknown_keys(const Json& object, const std::set<std::string>& known) {
  for (const auto& [key, value] : object.items())
    if (!known.contains(key)) return "this runner does not know the member " + key + " with the value " + shown(value);
  return "";
}

Json or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

std::optional<Role> role_in(const Json& input, const char* key) {
  const Json role = input.value(key, Json());
  if (role.is_null()) return std::nullopt;
  const auto known = role_of(role.get<std::string>());
  if (!known) throw std::runtime_error("unknown role " + shown(role));
  return known;
}

Json messages_json(const std::vector<Message>& messages) {
  Json list = Json::array();
  for (const Message& message : messages) list.push_back(to_json(message));
  return list;
}

// The expected messages in our order of members.
Json canonical(const Json& messages) { return messages_json(must(conversation_from_json(messages)).messages); }

Complaint check_error(const Json& expected, const std::string& message) {
  if (expected.contains("error") && expected["error"] != message) return differs("error", expected["error"], message);
  if (expected.contains("error_contains") && message.find(expected["error_contains"].get<std::string>()) == std::string::npos)
    return differs("error", "…" + expected["error_contains"].get<std::string>() + "…", message);
  if (!expected.contains("error") && !expected.contains("error_contains")) return "unexpected error: " + message;
  return "";
}

bool expects_error(const Json& expected) { return expected.contains("error") || expected.contains("error_contains"); }

Result<Rendered> rendered(const Json& input) {
  auto conversation = conversation_from_json(input.at("messages"));
  if (!conversation) return conversation.error();
  RenderOptions options;
  options.analysis = input.value("auto_drop_analysis", true) ? AnalysisHistory::upstream : AnalysisHistory::keep;
  const std::string mode = input.value("mode", "conversation");
  if (mode == "conversation") return render_conversation(o200k_format(), *conversation, options);
  if (mode == "training") return render_for_training(o200k_format(), *conversation, options);
  if (mode != "completion") throw std::runtime_error("unknown mode " + mode);
  return render_for_completion(o200k_format(), *conversation, role_in(input, "next_role").value_or(Role::assistant), options);
}

Complaint run_render(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"text", "tokens", "error", "error_contains"}); !unknown.empty()) return unknown;
  const auto result = rendered(input);
  if (!result) return check_error(expected, result.error().message);
  if (expects_error(expected)) return "rendered, but an error was expected: " + shown(expected);
  if (expected.contains("text")) {
    const auto text = must(o200k_format().tokenizer->decode(result->tokens));
    if (auto wrong = differs("text", expected["text"], text); !wrong.empty()) return wrong;
  }
  return expected.contains("tokens") ? differs("tokens", expected["tokens"], result->tokens) : "";
}

Complaint run_drop_policy(const Json& input, const Json& expected) {
  const std::string policy = input.at("policy");
  if (policy != "drop_all_analysis_before_last_final") throw std::runtime_error("unknown policy " + policy);
  const auto conversation = must(conversation_from_json(input.at("messages")));
  return differs("kept_indices", expected.at("kept_indices"), kept_messages(conversation.messages, AnalysisHistory::drop_finished_turns));
}

Complaint run_parse(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"messages", "error", "error_contains", "messages_completed_before_error"}); !unknown.empty())
    return unknown;
  const auto tokens = input.at("tokens").get<std::vector<TokenId>>();
  const auto role = role_in(input, "role");
  const bool strict = input.value("strict", true);
  StreamableParser parser(o200k_format(), role, strict);
  Status status = Ok{};
  for (std::size_t i = 0; i < tokens.size() && status; ++i) status = parser.process(tokens[i]);
  if (status) status = parser.finish();
  const auto whole = parse_messages(o200k_format(), tokens, role, strict);
  if (whole.ok() != status.ok()) return "parse_messages and the parser do not agree";
  if (!status) {
    if (auto wrong = check_error(expected, status.error().message); !wrong.empty()) return wrong;
    return expected.contains("messages_completed_before_error")
               ? differs("messages before the error", canonical(expected["messages_completed_before_error"]), messages_json(parser.messages()))
               : "";
  }
  if (expects_error(expected)) return "parsed, but an error was expected: " + shown(expected);
  return differs("messages", canonical(expected.at("messages")), messages_json(*whole));
}

Complaint check_step(const StreamableParser& parser, const Status& status, const Json& step) {
  const auto role = parser.current_role();
  const Json now = {{"token", step.at("token")},
                    {"state", Json::parse(parser.state_json()).at("state")},
                    {"role", role ? Json(name_of(*role)) : Json()},
                    {"channel", or_null(parser.current_channel())},
                    {"recipient", or_null(parser.current_recipient())},
                    {"content_type", or_null(parser.current_content_type())},
                    {"delta", or_null(parser.last_content_delta())},
                    {"content", parser.current_content()},
                    {"n_messages", parser.messages().size()},
                    {"error", status ? Json() : Json(status.error().message)}};
  for (const auto& [key, value] : step.items()) {
    if (!now.contains(key)) return "this runner does not know the member " + key;
    if (auto wrong = differs(key, value, now[key]); !wrong.empty()) return wrong;
  }
  return status || step.contains("error") ? "" : "unexpected error: " + status.error().message;
}

Complaint run_stream(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"messages", "steps"}); !unknown.empty()) return unknown;
  StreamableParser parser(o200k_format(), role_in(input, "role"), input.value("strict", true));
  Json fed = Json::array();
  for (const Json& step : expected.at("steps")) {
    const Json& token = step.at("token");
    const Status status = token == "EOS" ? parser.finish() : parser.process(token.get<TokenId>());
    if (token != "EOS") fed.push_back(token);
    if (auto wrong = check_step(parser, status, step); !wrong.empty()) return "after token " + shown(token) + ": " + wrong;
  }
  if (auto wrong = differs("tokens in the steps", input.at("tokens"), fed); !wrong.empty()) return wrong;
  return differs("messages", canonical(expected.at("messages")), messages_json(parser.messages()));
}

Complaint run_tokenize(const Json& input, const Json& expected) {
  const Format& format = o200k_format();
  const auto encode = [&](const Json& text) {
    const std::string bytes = text.get<std::string>();
    return input.value("allow_special", false) ? format.tokenizer->encode_with_special(bytes) : format.tokenizer->encode(bytes);
  };
  const std::string op = input.at("op");
  if (op == "encode") return differs("ids", expected.at("ids"), encode(input.at("text")));
  if (op == "encode_each") {
    Json each = Json::array();
    for (const Json& text : input.at("texts")) each.push_back(encode(text));
    return differs("ids", expected.at("ids"), each);
  }
  if (op == "stop_tokens") {
    Json turn_ends = Json::array();
    for (const TokenId token : format.sampling_stops())
      if (token != format.endoftext) turn_ends.push_back(token);
    Json message_ends = Json::array();
    for (TokenId token = 0; token < format.tokenizer->vocabulary_size(); ++token)
      if (format.is_message_stop(token)) message_ends.push_back(token);
    if (auto wrong = differs("stop_tokens", expected.at("stop_tokens"), message_ends); !wrong.empty()) return wrong;
    return differs("stop_tokens_for_assistant_actions", expected.at("stop_tokens_for_assistant_actions"), turn_ends);
  }
  if (op == "decode_utf8") {
    const auto text = format.tokenizer->decode(input.at("ids").get<std::vector<TokenId>>());
    const std::string error = !text ? text.error().message : protocol::valid_utf8_prefix(*text) == text->size() ? "" : "Invalid utf-8 sequence";
    if (!error.empty()) return check_error(expected, error);
    return expects_error(expected) ? "decoded, but an error was expected" : differs("text", expected.at("text"), *text);
  }
  return "this runner does not know the operation " + op;
}

// ---- forms of the OpenAI API

std::set<std::string> declared_in(const Json& input) {
  std::set<std::string> names;
  for (const Json& name : input.value("declared_functions", Json::array())) names.insert(name.get<std::string>());
  return names;
}

Json calls_json(const std::vector<protocol::openai::ToolCallPiece>& calls, bool with_index) {
  if (calls.empty()) return nullptr;
  Json list = Json::array();
  for (const auto& call : calls) {
    Json one = {{"name", call.name ? Json(*call.name) : Json()}, {"arguments", call.arguments}};
    if (with_index) one = {{"index", call.index}, {"name", one["name"]}, {"arguments", call.arguments}};
    list.push_back(std::move(one));
  }
  return list;
}
Json text_json(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json piece_json(const protocol::openai::ReplyPiece& piece, bool with_index) {
  return {{"reasoning", text_json(piece.reasoning)}, {"content", text_json(piece.content)}, {"tool_calls", calls_json(piece.tool_calls, with_index)}};
}

// A reply that is fed `chunk` tokens at a time, its pieces put together.
struct WholeReply {
  protocol::openai::ReplyPiece all;
  std::string finish_reason;
};
WholeReply reply_of(const std::vector<TokenId>& tokens, const std::set<std::string>& declared, std::size_t chunk, FinishReason finish) {
  protocol::wire::DeltaStream stream(o200k_format());
  protocol::openai::ChatReply reply(declared);
  WholeReply whole;
  std::vector<protocol::wire::DeltaEvent> events;
  const auto flush = [&] {
    for (const auto& event : events) reply.push(event);
    events.clear();
    const auto piece = reply.take();
    whole.all.reasoning += piece.reasoning;
    whole.all.content += piece.content;
    for (const auto& call : piece.tool_calls) {
      if (call.name) whole.all.tool_calls.push_back({call.index, call.name, ""});
      whole.all.tool_calls.at(call.index).arguments += call.arguments;
    }
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    stream.push(tokens[i], events);
    if ((i + 1) % chunk == 0) flush();
  }
  stream.finish(events);
  flush();
  whole.finish_reason = reply.finish_reason(finish);
  return whole;
}

Complaint run_chat_parse(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"reasoning", "content", "content_contains", "tool_calls", "finish_reason", "http_status"});
      !unknown.empty())
    return unknown;
  const auto tokens = input.at("tokens").get<std::vector<TokenId>>();
  const FinishReason finish = input.value("engine_finish", "stop") == "length" ? FinishReason::length : FinishReason::stop;
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, tokens.size()}) {
    const WholeReply whole = reply_of(tokens, declared_in(input), chunk, finish);
    const Json found = piece_json(whole.all, false);
    for (const char* member : {"reasoning", "content", "tool_calls"})
      if (expected.contains(member))
        if (auto wrong = differs(std::string(member) + " in chunks of " + std::to_string(chunk), expected[member], found[member]); !wrong.empty())
          return wrong;
    if (expected.contains("content_contains") && whole.all.content.find(expected["content_contains"].get<std::string>()) == std::string::npos)
      return differs("content", "…" + expected["content_contains"].get<std::string>() + "…", whole.all.content);
    if (expected.contains("finish_reason"))
      if (auto wrong = differs("finish_reason", expected["finish_reason"], whole.finish_reason); !wrong.empty()) return wrong;
    // There is no error to answer with.
    if (expected.contains("http_status") && expected["http_status"] != 200) return "an error is expected, and recovery knows none";
  }
  return "";
}

Complaint run_chat_delta(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"deltas"}); !unknown.empty()) return unknown;
  protocol::wire::DeltaStream stream(o200k_format());
  protocol::openai::ChatReply reply(declared_in(input));
  Json deltas = Json::array();
  for (const Json& chunk : input.at("chunks")) {
    std::vector<protocol::wire::DeltaEvent> events;
    for (const Json& token : chunk.at("tokens")) stream.push(token.get<TokenId>(), events);
    for (const auto& event : events) reply.push(event);
    const auto piece = reply.take();
    deltas.push_back(piece.empty() ? Json() : piece_json(piece, true));
  }
  return differs("deltas", expected.at("deltas"), deltas);
}

Complaint run_chat_messages(const Json& input, const Json& expected) {
  if (auto unknown = unknown_keys(expected, {"harmony_messages"}); !unknown.empty()) return unknown;
  const auto messages = protocol::openai::messages_from_chat(input.at("messages"));
  if (!messages) return "unexpected error: " + messages.error().message;
  return differs("messages", canonical(expected.at("harmony_messages")), messages_json(*messages));
}

class CaseFile {
 public:
  explicit CaseFile(Verdict& verdict) : verdict_(verdict) {}

  void run(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return verdict_.fail(path, "cannot be opened; give the path of a file of cases");
    std::stringstream text;
    text << file.rdbuf();
    const Json json = Json::parse(text.str(), nullptr, false);
    if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array()) return verdict_.fail(path, "is not JSON with a list \"cases\"");
    for (const Json& item : json["cases"]) one(item);
  }

 private:
  void one(const Json& item) {
    std::string name = "(unnamed)";
    try {
      name = item.at("name").get<std::string>();
      const std::string kind = item.at("kind");
      const Json& input = item.at("input");
      const std::string form = input.value("form", "harmony");
      const auto run_case = runner_of(kind, form);
      if (!run_case) return verdict_.skip(name, "not a case of Harmony: kind " + kind + ", form " + form);
      const Complaint complaint = run_case(input, item.at("expected"));
      complaint.empty() ? verdict_.pass() : verdict_.fail(name, complaint);
    } catch (const std::exception& error) {
      verdict_.fail(name, std::string("is not in a form that this runner knows: ") + error.what());
    }
  }

  static std::function<Complaint(const Json&, const Json&)> runner_of(const std::string& kind, const std::string& form) {
    if (kind == "render" && form == "drop_policy") return run_drop_policy;
    if (form == "openai_chat_parse") return run_chat_parse;
    if (form == "openai_chat_delta") return run_chat_delta;
    if (form == "openai_chat_to_harmony") return run_chat_messages;
    if (form != "harmony") return nullptr;
    if (kind == "render") return run_render;
    if (kind == "parse") return run_parse;
    if (kind == "stream") return run_stream;
    if (kind == "tokenize") return run_tokenize;
    return nullptr;
  }

  Verdict& verdict_;
};

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(
          argc, argv,
          "harmony_cases [CASES.json …]\n"
          "Harmony conversations against the reference's rendering and parsing; tests/data/harmony_cases.json unless files are named."))
    return 0;
  althing::tests::Verdict verdict;
  althing::tests::CaseFile cases(verdict);
  if (argc < 2) cases.run(ALTHING_SOURCE_DIR "/tests/data/harmony_cases.json");
  for (int i = 1; i < argc; ++i) cases.run(argv[i]);
  return verdict.close();
}
