// Schemas and expressions from clients: whatever the bytes are, compiling them ends soon with an automaton or an error that says why, and a walk over
// an automaton's legal bytes never comes to a dead end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "protocol/grammar/grammar.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace althing::protocol;
  if (size < 9) return 0;
  // The first byte chooses the kind, the next eight the walk.
  const auto kind = data[0] % 2 == 0 ? wire::GrammarKind::json_schema : wire::GrammarKind::regex;
  std::uint64_t dice = 0;
  for (std::size_t i = 1; i < 9; ++i) dice = dice << 8 | data[i];
  const auto automaton = grammar::compile({kind, std::string(reinterpret_cast<const char*>(data) + 9, size - 9)});
  if (!automaton) {
    if (automaton.error().message.empty() || automaton.error().field != "grammar") std::abort();
    return 0;
  }
  grammar::Matcher matcher(*automaton);
  auto at = matcher.start();
  for (int i = 0; i < 64 && at != grammar::Matcher::full; ++i) {
    auto next = grammar::Matcher::dead;
    for (int tries = 0; tries < 256 && next == grammar::Matcher::dead; ++tries) {
      dice = dice * 6364136223846793005u + 1442695040888963407u;
      const auto first = static_cast<std::uint8_t>((dice >> 33) + static_cast<unsigned>(tries));
      next = matcher.step(at, tries < 8 ? first : static_cast<std::uint8_t>(tries));
    }
    if (next == grammar::Matcher::dead) {
      // The tries before the plain ones may have left out the first bytes.
      for (int byte = 0; byte < 8 && next == grammar::Matcher::dead; ++byte) next = matcher.step(at, static_cast<std::uint8_t>(byte));
    }
    if (next == grammar::Matcher::dead) {
      if (!matcher.is_complete(at)) std::abort();
      break;
    }
    at = next;
  }
  return 0;
}
