// See the header.
#include "actors/synthetic_words.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace althing::actors {
namespace {

constexpr std::size_t words_max = 4096;

// Letters, with a space in front or not: what text mostly is made of, and nothing that a message's grammar knows.
bool is_word(std::string_view bytes) {
  if (bytes.starts_with(' ')) bytes.remove_prefix(1);
  return !bytes.empty() &&
         std::all_of(bytes.begin(), bytes.end(), [](char c) { return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '\'' || c == ','; });
}

}  // namespace

Result<gpu::SyntheticScript> script_of(const protocol::harmony::Format& format, std::uint32_t vocabulary) {
  const protocol::Tokenizer& tokenizer = *format.tokenizer;
  gpu::SyntheticScript::Ids ids;
  ids.start = format.start;
  ids.channel = format.channel;
  ids.end = format.end;
  ids.stop = format.return_;
  ids.role = tokenizer.encode("assistant");
  const auto header = [&](std::string_view channel) {
    std::vector<TokenId> tokens = tokenizer.encode(channel);
    tokens.insert(tokens.begin(), format.channel);
    tokens.push_back(format.message);
    return tokens;
  };
  ids.thought = header("analysis");
  ids.answer = header("final");
  for (TokenId id = 0; id < std::min<TokenId>(vocabulary, tokenizer.vocabulary_size()) && ids.words.size() < words_max; ++id) {
    const auto bytes = tokenizer.bytes_of(id);
    if (bytes && !tokenizer.is_special(id) && is_word(*bytes)) ids.words.push_back(id);
  }
  const auto fits = [&](TokenId id) { return id < vocabulary; };
  const bool all_fit = std::all_of(ids.thought.begin(), ids.thought.end(), fits) && std::all_of(ids.answer.begin(), ids.answer.end(), fits) &&
                       std::all_of(ids.role.begin(), ids.role.end(), fits) && fits(ids.start) && fits(ids.end) && fits(ids.stop);
  if (!all_fit || ids.words.empty())
    return Error{ErrorCode::unsupported,
                 "a synthetic engine speaks in the tokenizer's words, and this one's are not in the model's vocabulary of " +
                     std::to_string(vocabulary) + "; give the tokenizer that belongs to the model (--tokenizer)",
                 "tokenizer"};
  return gpu::SyntheticScript(std::move(ids));
}

}  // namespace althing::actors
