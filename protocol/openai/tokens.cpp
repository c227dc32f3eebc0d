// See the header.
#include "protocol/openai/tokens.hpp"

#include <utility>
#include <vector>

#include "protocol/openai/chat_request.hpp"
#include "protocol/openai/completions.hpp"
#include "protocol/tokenizer/utf8.hpp"
#include "protocol/wire/json_members.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

std::string readable(std::string_view bytes) {
  std::string replaced;
  return std::string(valid_utf8(bytes, replaced));
}

Result<std::vector<TokenId>> tokens_of(const Json& body, const chat::ChatFormat& format, const std::string& today) {
  if (body.contains("messages") && !body["messages"].is_null()) {
    auto request = chat_request_from(body);
    if (!request) return std::move(request).error();
    auto rendered = format->render(request->submit, today);
    if (!rendered) return std::move(rendered).error();
    return std::move(rendered->tokens);
  }
  const auto prompt = body.find("prompt");
  if (prompt == body.end() || !prompt->is_string())
    return Error{ErrorCode::invalid_argument, "prompt is no text; send {\"prompt\": \"…\"} or {\"messages\": […]}", "prompt"};
  return format.tokenizer()->encode_with_special(prompt->get_ref<const std::string&>());
}

}  // namespace

Result<Json> tokenize(const Json& body, const chat::ChatFormat& format, std::uint32_t context_tokens_max, const std::string& today) {
  std::optional<Error> error;
  const bool with_texts = wire::JsonMembers(body, "", error).boolean("return_token_strs");
  if (error) return std::move(*error);
  const auto tokens = tokens_of(body, format, today);
  if (!tokens) return tokens.error();
  Json json = {{"count", tokens->size()}, {"max_model_len", context_tokens_max}, {"tokens", *tokens}};
  if (with_texts)
    for (const TokenId token : *tokens) json["token_strs"].push_back(readable(format.tokenizer()->bytes_of(token).value_or("")));
  return json;
}

Result<Json> detokenize(const Json& body, const Tokenizer& tokenizer) {
  const auto tokens = token_ids_from(body.value("tokens", Json()), "tokens", tokenizer);
  if (!tokens) return tokens.error();
  auto text = tokenizer.decode(*tokens);
  if (!text) return std::move(text).error();
  return Json{{"prompt", readable(*text)}};
}

}  // namespace althing::protocol::openai
