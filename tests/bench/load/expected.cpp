// See the header.
#include "tests/bench/load/expected.hpp"

namespace althing::load {

std::string Speech::text(std::uint64_t seed, std::uint32_t message) const {
  std::string text;
  const std::uint32_t words = message == 0 ? gpu::SyntheticScript::thought_words(seed) : gpu::SyntheticScript::answer_words(seed);
  for (std::uint32_t i = 0; i < words; ++i) text += format.tokenizer->bytes_of(script.word(seed, message, i)).value_or("");
  return text;
}

}  // namespace althing::load
