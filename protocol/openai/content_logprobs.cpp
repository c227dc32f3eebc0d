// See the header.
#include "protocol/openai/content_logprobs.hpp"

#include <limits>
#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

Json one(const Tokenizer& tokenizer, TokenId token, float logprob) {
  Json bytes = Json::array();
  for (const char c : tokenizer.bytes_of(token).value_or("")) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token_text(tokenizer, token)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  std::string replaced;
  return std::string(valid_utf8(tokenizer.bytes_of(token).value_or(""), replaced));
}

Json logprob_json(const Tokenizer& tokenizer, const TokenLogprobs& told) {
  Json json = one(tokenizer, told.token, told.logprob);
  json["top_logprobs"] = Json::array();
  for (const TokenLogprob& likely : told.top) json["top_logprobs"].push_back(one(tokenizer, likely.token, likely.logprob));
  return json;
}

ContentLogprobs::ContentLogprobs(const chat::ChatFormat& format, std::set<std::string> declared, bool calls_wanted, bool only_final)
    : tokenizer_(format.tokenizer()), declared_(std::move(declared)), calls_wanted_(calls_wanted), only_final_(only_final), stream_(format) {}

void ContentLogprobs::push(const TokenLogprobs& told) {
  stream_.push(told.token, events_);
  for (const wire::DeltaEvent& event : std::exchange(events_, {})) {
    if (const auto* started = std::get_if<wire::MessageStarted>(&event)) {
      content_ = kind_of(*started, declared_, calls_wanted_, only_final_) == MessageKind::content;
      message_ = started->index;
    } else if (std::holds_alternative<wire::MessageEnded>(event)) {
      content_ = false;
    }
  }
  // A token that begins a character says nothing yet and belongs to the message all the same.
  if (content_ && !tokenizer_->is_special(told.token)) told_.push_back({message_, logprob_json(*tokenizer_, told)});
}

Json ContentLogprobs::take(std::uint32_t message) {
  Json list = Json::array();
  for (; !told_.empty() && told_.front().message <= message; told_.pop_front()) list.push_back(std::move(told_.front().json));
  return list;
}

Json ContentLogprobs::take_all() { return take(std::numeric_limits<std::uint32_t>::max()); }

}  // namespace althing::protocol::openai
