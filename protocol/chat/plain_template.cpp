// See the header.
#include "protocol/chat/plain_template.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "protocol/tokenizer/detokenizer.hpp"
#include "protocol/wire/json_members.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::chat {
namespace {

using Json = nlohmann::ordered_json;
using harmony::Role;

constexpr std::string_view placeholder = "{content}", blanks = " \t\r\n";
constexpr std::size_t stops_max = 16, stop_bytes_max = 256;

// Text and special tokens in turns.
using Piece = std::variant<std::string, TokenId>;
using Pieces = std::vector<Piece>;

struct Around {
  Pieces before, behind;
};

struct Template {
  Pieces begin, prompt;
  std::optional<Around> system, user, assistant, tool;
  std::vector<std::string> stops;
  std::vector<TokenId> stop_tokens;
  bool trim_start = false;
};

Pieces pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  Pieces pieces;
  for (const TokenId token : tokenizer.encode_with_special(text)) {
    if (tokenizer.is_special(token)) {
      pieces.emplace_back(token);
    } else {
      if (pieces.empty() || !std::holds_alternative<std::string>(pieces.back())) pieces.emplace_back(std::string());
      std::get<std::string>(pieces.back()) += *tokenizer.bytes_of(token);
    }
  }
  return pieces;
}

class Reader {
 public:
  Reader(const Json& json, const Tokenizer& tokenizer) : tokenizer_(tokenizer), members_(json, "", error_) {
    constexpr std::string_view known[] = {"begin", "system", "user", "assistant", "tool", "prompt", "stop", "stop_tokens", "trim_start"};
    for (const auto& [name, unused] : json.items())
      if (std::find(std::begin(known), std::end(known), name) == std::end(known))
        complain("is no member of a chat template; there are begin, system, user, assistant, tool, prompt, stop, stop_tokens and trim_start",
                 name.c_str());
  }

  Result<Template> read() {
    Template made;
    made.begin = outside("begin");
    made.prompt = outside("prompt");
    made.system = around("system", false);
    made.user = around("user", true);
    made.assistant = around("assistant", true);
    made.tool = around("tool", false);
    made.stops = texts("stop");
    for (const std::string& name : texts("stop_tokens")) {
      const auto token = tokenizer_.special(name);
      token ? made.stop_tokens.push_back(*token)
            : complain("names '" + name + "', which is no special token of the model's tokenizer", "stop_tokens");
    }
    made.trim_start = members_.boolean("trim_start");
    if (error_) return std::move(*error_);
    return made;
  }

 private:
  void complain(std::string why, const char* member) {
    members_.complain(ErrorCode::invalid_argument, std::string(member) + " " + std::move(why), member);
  }

  Pieces outside(const char* name) {
    const std::string text = members_.text(name);
    if (text.find(placeholder) != std::string::npos) complain("stands in no message, so it has no {content}", name);
    return pieces_of(tokenizer_, text);
  }

  std::optional<Around> around(const char* name, bool required) {
    const auto text = members_.optional_text(name);
    if (!text) {
      if (required) complain("is missing; give the text around such a message, with {content} in it", name);
      return std::nullopt;
    }
    const std::size_t at = text->find(placeholder);
    if (at == std::string::npos || text->find(placeholder, at + 1) != std::string::npos) {
      complain("must have {content} in it, once", name);
      return std::nullopt;
    }
    return Around{pieces_of(tokenizer_, std::string_view(*text).substr(0, at)),
                  pieces_of(tokenizer_, std::string_view(*text).substr(at + placeholder.size()))};
  }

  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> list;
    const Json* array = members_.array(name);
    if (array == nullptr) return list;
    for (const Json& item : *array) {
      const bool good =
          item.is_string() && !item.get_ref<const std::string&>().empty() && item.get_ref<const std::string&>().size() <= stop_bytes_max;
      good ? list.push_back(item.get<std::string>()) : complain("must be a list of texts of 1 to 256 bytes", name);
    }
    if (list.size() > stops_max) complain("has more than 16 texts", name);
    return list;
  }

  const Tokenizer& tokenizer_;
  std::optional<Error> error_;
  wire::JsonMembers members_;
};

class PlainReply : public ReplyParser {
 public:
  PlainReply(std::shared_ptr<const Tokenizer> tokenizer, bool trim_start)
      : tokenizer_(tokenizer), detokenizer_(std::move(tokenizer)), trimming_(trim_start) {}

  void push(TokenId token, std::vector<harmony::RecoveredEvent>& out) override {
    if (!begun_) out.emplace_back(harmony::RecoveredStart{Role::assistant, "", "final", "", ""});
    begun_ = true;
    // What controls is no text.
    if (!tokenizer_->is_special(token)) say(detokenizer_.push(token), out);
  }
  void finish(std::vector<harmony::RecoveredEvent>& out) override {
    if (!begun_ || std::exchange(ended_, true)) return;
    say(detokenizer_.finish(), out);
    out.emplace_back(harmony::RecoveredEnd{});
  }
  const std::array<std::uint32_t, harmony::repair_kinds>& repairs() const override { return repairs_; }

 private:
  void say(std::string text, std::vector<harmony::RecoveredEvent>& out) {
    if (trimming_) text.erase(0, std::min(text.find_first_not_of(blanks), text.size()));
    if (text.empty()) return;
    trimming_ = false;
    out.emplace_back(harmony::RecoveredText{std::move(text)});
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Detokenizer detokenizer_;
  bool trimming_, begun_ = false, ended_ = false;
  std::array<std::uint32_t, harmony::repair_kinds> repairs_{};
};

// Ids of one message or of what stands outside of messages.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, std::vector<TokenId>& out) : tokenizer_(tokenizer), out_(out) {}

  Writer& put(const Pieces& pieces) {
    for (const Piece& piece : pieces) {
      if (const auto* text = std::get_if<std::string>(&piece)) {
        put(*text);
      } else {
        end();
        out_.push_back(std::get<TokenId>(piece));
      }
    }
    return *this;
  }
  Writer& put(std::string_view text) {
    text_ += text;
    return *this;
  }
  void end() {
    const std::vector<TokenId> ids = tokenizer_.encode(std::exchange(text_, {}));
    out_.insert(out_.end(), ids.begin(), ids.end());
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<TokenId>& out_;
  std::string text_;
};

class PlainTemplate : public Plugin {
 public:
  PlainTemplate(std::shared_ptr<const Tokenizer> tokenizer, Template made) : tokenizer_(std::move(tokenizer)), template_(std::move(made)) {}

  std::vector<TokenId> stop_tokens(const std::vector<TokenId>& of_model) const override {
    std::vector<TokenId> tokens = of_model;
    for (const TokenId token : template_.stop_tokens)
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    return tokens;
  }
  const std::vector<std::string>& stop_strings() const override { return template_.stops; }
  std::unique_ptr<ReplyParser> reply_parser() const override { return std::make_unique<PlainReply>(tokenizer_, template_.trim_start); }

  Result<harmony::Rendered> render(const wire::Submit& submit, const std::string&) const override {
    if (submit.messages.empty()) return Error{ErrorCode::invalid_argument, "there are no messages; give at least one", "messages"};
    if (!submit.tools.empty()) return without_tools("tools");
    harmony::Rendered rendered;
    Writer writer(*tokenizer_, rendered.tokens);
    writer.put(template_.begin).end();
    for (std::size_t i = 0; i < submit.messages.size(); ++i) {
      const harmony::Message& message = submit.messages[i];
      const std::string at = "messages[" + std::to_string(i) + "]";
      // Reasoning is no part of a conversation in plain text.
      if (message.role == Role::assistant && message.channel == "analysis") continue;
      if (!message.tokens.empty())
        return Error{ErrorCode::invalid_argument, "the server's chat template (--chat-template) does not repeat tokens; send the text alone",
                     at + ".tokens"};
      if (message.role == Role::assistant && message.recipient) return without_tools(at + ".recipient");
      const std::optional<Around>& around = around_of(message.role);
      if (!around)
        return Error{ErrorCode::invalid_argument,
                     "the server's chat template (--chat-template) has no form for messages of role " + std::string(name_of(message.role)),
                     at + ".role"};
      auto text = text_of(message, at);
      if (!text) return text.error();
      writer.put(around->before).put(*text).put(around->behind).end();
      rendered.boundaries.push_back(static_cast<std::uint32_t>(rendered.tokens.size()));
    }
    writer.put(template_.prompt).end();
    if (rendered.tokens.empty()) return Error{ErrorCode::invalid_argument, "the prompt is empty; give some text", "messages"};
    return rendered;
  }

 private:
  static Error without_tools(std::string field) {
    return {ErrorCode::invalid_argument, "the server's chat template (--chat-template) has no form for calls of tools", std::move(field)};
  }

  const std::optional<Around>& around_of(Role role) const {
    switch (role) {
      case Role::user:
        return template_.user;
      case Role::assistant:
        return template_.assistant;
      case Role::tool:
        return template_.tool;
      default:
        return template_.system;
    }
  }

  static Result<std::string> text_of(const harmony::Message& message, const std::string& at) {
    std::string text;
    for (const harmony::Content& part : message.content) {
      if (const auto* plain = std::get_if<harmony::TextContent>(&part)) {
        text += plain->text;
      } else if (const auto* developer = std::get_if<harmony::DeveloperContent>(&part)) {
        if (!developer->tools.empty()) return without_tools(at + ".content");
        text += developer->instructions.value_or("");
      } else {
        return Error{ErrorCode::invalid_argument,
                     "a content of type system_content is Harmony's, and this server's model speaks another format; send text", at + ".content"};
      }
    }
    return text;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Template template_;
};

}  // namespace

Result<ChatFormat> plain_template(std::string_view text, std::shared_ptr<const Tokenizer> tokenizer) {
  const auto json = wire::parse_json(text, wire::json_depth_max);
  if (!json) return Error{ErrorCode::invalid_argument, json.error().message, ""};
  if (!json->is_object()) return Error{ErrorCode::invalid_argument, "it is not a JSON object", ""};
  auto made = Reader(*json, *tokenizer).read();
  if (!made) return made.error();
  auto plugin = std::make_shared<const PlainTemplate>(tokenizer, std::move(*made));
  return ChatFormat(std::move(tokenizer), std::move(plugin));
}

}  // namespace althing::protocol::chat
