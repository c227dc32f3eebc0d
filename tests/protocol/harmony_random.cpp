// harmony_random [STREAMS [SEED]]: random and spoilt sequences of ids through Harmony's recovery; whatever they are, no byte of a word is lost or
// told twice, no control id becomes text, and every message ends. Half of them are completions of the tiny model with some ids taken out, put in,
// doubled or exchanged.
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/protocol/harmony_random.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

std::vector<std::vector<TokenId>> completions() {
  std::vector<std::vector<TokenId>> all;
  std::ifstream file(ALTHING_SOURCE_DIR "/examples/models/tiny/conversations.jsonl");
  for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line).at("completion_ids").get<std::vector<TokenId>>());
  return all;
}

void spoil(std::vector<TokenId>& ids, const protocol::harmony::Format& format, std::mt19937_64& random) {
  const TokenId controls[] = {format.start,     format.end,  format.message, format.channel,
                              format.constrain, format.call, format.return_, format.endoftext};
  for (std::uint64_t i = 0, count = 1 + random() % 4; i < count && !ids.empty(); ++i) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size());
    switch (random() % 5) {
      case 0:
        ids.erase(at);
        break;
      case 1:
        ids.insert(at, controls[random() % std::size(controls)]);
        break;
      case 2:
        ids.insert(at, *at);
        break;
      case 3:
        *at = static_cast<TokenId>(random() % (format.tokenizer->vocabulary_size() + 10));
        break;
      default:
        std::swap(*at, ids[random() % ids.size()]);
    }
  }
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  using namespace althing::tests;
  if (helped(argc, argv,
             "harmony_random [STREAMS [SEED]]\nRandom and spoilt model output through Harmony's recovery; 100,000 streams unless said otherwise."))
    return 0;
  const std::uint64_t streams = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000, seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::mt19937_64 random(seed);
  HarmonyRandom source(o200k_format());
  const auto real = completions();
  Verdict verdict;
  for (std::uint64_t i = 0; i < streams; ++i) {
    RandomIds made;
    const bool is_real = i % 2 == 1;
    if (is_real) {
      made.ids = real[random() % real.size()];
      spoil(made.ids, tiny_format(), random);
    } else {
      made = source.make(random);
    }
    const std::string wrong = wrong_recovery(is_real ? tiny_format() : o200k_format(), made);
    if (wrong.empty()) {
      verdict.pass();
    } else {
      std::string ids;
      for (const auto id : made.ids) ids += " " + std::to_string(id);
      verdict.fail("stream " + std::to_string(i) + " of seed " + std::to_string(seed), wrong + "; ids" + ids);
    }
  }
  return verdict.close();
}
