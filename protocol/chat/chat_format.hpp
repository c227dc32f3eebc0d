// How conversations become prompts and generated ids become messages: the one place where a server knows which chat format its model speaks.
// The engine sees token ids only. Harmony is one plug-in, a template from a small file (plain_template.hpp) another. Immutable, cheap to copy, and
// safe to share between threads.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "protocol/harmony/recovery.hpp"
#include "protocol/harmony/render.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::protocol::chat {

// One reply, token by token, as start, texts, end; start, texts, end; … Takes whatever ids come.
class ReplyParser {
 public:
  virtual ~ReplyParser() = default;
  virtual void push(TokenId token, std::vector<harmony::RecoveredEvent>& out) = 0;
  // No more tokens will come: ends an open message. Once or more.
  virtual void finish(std::vector<harmony::RecoveredEvent>& out) = 0;
  // By harmony::Repair, since creation: how often something had to be mended.
  virtual const std::array<std::uint32_t, harmony::repair_kinds>& repairs() const = 0;
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  // Tokens that end a turn, when the model's own list is `of_model` (maybe empty).
  virtual std::vector<TokenId> stop_tokens(const std::vector<TokenId>& of_model) const = 0;
  // Texts that end a turn; neither they nor anything behind them is the reply.
  virtual const std::vector<std::string>& stop_strings() const = 0;
  // The prompt of the conversation, up to where the reply begins. `date` is YYYY-MM-DD or "" for none. Errors: invalid_argument naming the member.
  virtual Result<harmony::Rendered> render(const wire::Submit& submit, const std::string& date) const = 0;
  virtual std::unique_ptr<ReplyParser> reply_parser() const = 0;
};

class ChatFormat {
 public:
  // None yet; assign one before anything else.
  ChatFormat() = default;
  // Harmony, from the tokens that a tokenizer has for it.
  ChatFormat(harmony::Format format, harmony::RenderOptions options = {});  // NOLINT(google-explicit-constructor): it is the format of most models
  ChatFormat(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const Plugin> plugin)
      : tokenizer_(std::move(tokenizer)), plugin_(std::move(plugin)) {}

  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const Plugin& operator*() const { return *plugin_; }
  const Plugin* operator->() const { return plugin_.get(); }
  // For what only Harmony has; null where the format is another.
  const harmony::Format* harmony() const { return harmony_.get(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const Plugin> plugin_;
  std::shared_ptr<const harmony::Format> harmony_;
};

}  // namespace althing::protocol::chat
