// See the header.
#include "gpu/synthetic_script.hpp"

#include <span>

namespace althing::gpu {
namespace {

constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9u;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBu;
  return x ^ (x >> 31);
}

}  // namespace

TokenId SyntheticScript::word(std::uint64_t seed, std::uint32_t message, std::uint32_t place) const {
  return ids_.words[mixed(mixed(seed + message) + place) % ids_.words.size()];
}

std::vector<TokenId> SyntheticScript::reply(std::uint64_t seed) const {
  std::vector<TokenId> tokens;
  ScriptReader reader;
  reader.read(*this, ids_.start);
  for (const TokenId token : ids_.role) reader.read(*this, token);
  while (tokens.empty() || tokens.back() != ids_.stop) reader.read(*this, tokens.emplace_back(reader.next(*this, seed)));
  return tokens;
}

TokenId ScriptReader::next(const SyntheticScript& script, std::uint64_t seed) const {
  const SyntheticScript::Ids& ids = script.ids();
  if (!in_message_) return script.word(seed, 2, behind_);
  if (behind_ < ids.role.size()) return ids.role[behind_];
  const std::uint32_t place = behind_ - static_cast<std::uint32_t>(ids.role.size());
  const std::span<const TokenId> header = after_thought_ ? ids.answer : ids.thought;
  if (place < header.size()) return header[place];
  const std::uint32_t words = after_thought_ ? SyntheticScript::answer_words(seed) : SyntheticScript::thought_words(seed);
  const auto at = place - static_cast<std::uint32_t>(header.size());
  if (at < words) return script.word(seed, after_thought_ ? 1 : 0, at);
  if (after_thought_) return ids.stop;
  return at == words ? ids.end : ids.start;
}

}  // namespace althing::gpu
