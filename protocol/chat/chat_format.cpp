// See the header. Harmony as a plug-in.
#include "protocol/chat/chat_format.hpp"

#include <utility>

#include "protocol/harmony/replay.hpp"
#include "protocol/wire/conversation.hpp"

namespace althing::protocol::chat {
namespace {

class HarmonyReply : public ReplyParser {
 public:
  explicit HarmonyReply(const harmony::Format& format) : parser_(format) {}

  void push(TokenId token, std::vector<harmony::RecoveredEvent>& out) override { parser_.push(token, out); }
  void finish(std::vector<harmony::RecoveredEvent>& out) override { parser_.finish(out); }
  const std::array<std::uint32_t, harmony::repair_kinds>& repairs() const override { return parser_.repairs(); }

 private:
  harmony::RecoveringParser parser_;
};

class Harmony : public Plugin {
 public:
  Harmony(std::shared_ptr<const harmony::Format> format, harmony::RenderOptions options) : format_(std::move(format)), options_(options) {}

  std::vector<TokenId> stop_tokens(const std::vector<TokenId>& of_model) const override {
    return of_model.empty() ? format_->sampling_stops() : of_model;
  }
  const std::vector<std::string>& stop_strings() const override { return none_; }
  Result<harmony::Rendered> render(const wire::Submit& submit, const std::string& date) const override {
    if (auto known = harmony::check_replays(*format_, submit.messages); !known) return std::move(known).error();
    const auto conversation = wire::conversation_of(submit, date);
    if (!conversation) return conversation.error();
    return harmony::render_for_completion(*format_, *conversation, harmony::Role::assistant, options_);
  }
  std::unique_ptr<ReplyParser> reply_parser() const override { return std::make_unique<HarmonyReply>(*format_); }

 private:
  std::shared_ptr<const harmony::Format> format_;
  harmony::RenderOptions options_;
  std::vector<std::string> none_;
};

}  // namespace

ChatFormat::ChatFormat(harmony::Format format, harmony::RenderOptions options)
    : tokenizer_(format.tokenizer), harmony_(std::make_shared<const harmony::Format>(std::move(format))) {
  plugin_ = std::make_shared<const Harmony>(harmony_, options);
}

}  // namespace althing::protocol::chat
