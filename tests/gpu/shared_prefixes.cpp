// shared_prefixes [--device cpu|cuda] [MODEL_DIR]: conversations whose turns begin alike, with pages shared among them and without. Shared or not,
// every token drawn must be the same and every logit that is computed the same in bits; and shared, most of each prompt must not be computed. Without
// a folder a small random model is used, whose windows and full attention have pages of unequal length.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/small_model.hpp"
#include "tests/support/local_engine.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t turns = 8, talks = 3, prompt_first = 70, question = 9, answer = 14;

// By request and position: a hash of the logits' bits.
using Logits = std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t>;

std::uint64_t hash(std::span<const float> values) {
  std::uint64_t h = values.size();
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    h = (h ^ bits) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

struct Outcome {
  std::vector<std::vector<TokenId>> drawn;  // by request
  std::vector<std::uint32_t> cached;
  Logits logits;
  std::string broken;
};

// Talks that begin alike go on side by side; in turn 4 one of them takes something back, and from turn 6 on each turn is answered twice.
Outcome converse(LocalEngine& engine, std::uint32_t vocabulary) {
  Outcome outcome;
  engine.watch([&](RequestId request, std::uint32_t position, std::span<const float> logits) {
    outcome.logits[{request.value, position}] = hash(logits);
  });
  std::mt19937 random(5);
  const auto words = [&](std::uint32_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % (vocabulary - 1));
    return tokens;
  };
  const std::vector<TokenId> instructions = words(prompt_first);
  std::vector<std::vector<TokenId>> talk(talks, instructions);
  std::uint64_t next = 1;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    std::vector<Submitted> requests;
    for (std::uint32_t t = 0; t < talks; ++t) {
      if (turn == 4 && t == 0) talk[t].resize(talk[t].size() - 11);
      const auto said = words(question + t);
      talk[t].insert(talk[t].end(), said.begin(), said.end());
      for (std::uint32_t i = 0; i < (turn < 6 ? 1u : 2u); ++i) {
        Submitted& s = requests.emplace_back();
        s.request = RequestId{next++};
        s.prompt = talk[t];
        s.boundaries = {prompt_first};
        s.sampling.temperature = t == 0 ? 0.0F : 0.8F;
        s.sampling.seed = next;
        s.sampling.completion_tokens_max = answer;
        s.sampling.ignore_stop = true;
        if (t == 2) s.sampling.frequency_penalty = 0.4F;
      }
    }
    const auto completions = engine.run(requests);
    for (std::size_t i = 0; i < completions.size(); ++i) {
      if (completions[i].reason != FinishReason::length) outcome.broken = "request ended with " + completions[i].error.message;
      outcome.drawn.push_back(completions[i].tokens);
      outcome.cached.push_back(completions[i].usage.cached_tokens);
      const std::size_t t = turn < 6 ? i : i / 2;
      if (turn < 6 || i % 2 == 0) talk[t].insert(talk[t].end(), completions[i].tokens.begin(), completions[i].tokens.end());
    }
  }
  return outcome;
}

Result<Outcome> run(const std::shared_ptr<const gpu::Model>& model, LocalEngine::Options options, bool share) {
  options.share_prefixes = share;
  auto engine = LocalEngine::create(model, options);
  if (!engine) return engine.error();
  return converse(**engine, model->spec.vocabulary);
}

struct Way {
  std::string name;
  Grid grid;
  std::uint64_t kv_bytes = 64u << 20;
  std::uint64_t mirror_bytes = 0;
};

// False where this machine cannot run it.
bool compare(const std::shared_ptr<const gpu::Model>& model, gpu::Device device, const Way& way, Verdict& verdict) {
  LocalEngine::Options options;
  options.grid = way.grid;
  options.device = device;
  options.kv_bytes = way.kv_bytes;
  options.mirror_bytes = way.mirror_bytes;
  options.limits.context_tokens_max = 512;
  options.limits.prefill_chunk_max = 64;
  options.limits.step_tokens_max = 128;
  const auto alone = run(model, options, false), shared = run(model, options, true);
  if (!alone || !shared) {
    const Error& error = !alone ? alone.error() : shared.error();
    const bool unsupported = error.code == ErrorCode::unsupported;
    unsupported ? verdict.skip(way.name, error.message) : verdict.fail(way.name, error.message);
    return !unsupported;
  }
  std::size_t cached = 0, differ = 0, computed = 0;
  for (const std::uint32_t tokens : shared->cached) cached += tokens;
  for (const auto& [place, bits] : shared->logits) {
    const auto found = alone->logits.find(place);
    ++computed;
    if (found == alone->logits.end() || found->second != bits) ++differ;
  }
  std::printf("%-28s %zu tokens computed instead of %zu, %zu from shared pages, %zu of the logits differ\n", way.name.c_str(), computed,
              alone->logits.size(), cached, differ);
  std::string wrong;
  if (!alone->broken.empty() || !shared->broken.empty())
    wrong = alone->broken + shared->broken;
  else if (alone->drawn != shared->drawn)
    wrong = "other tokens are drawn when pages are shared";
  else if (differ > 0)
    wrong = std::to_string(differ) + " rows of logits differ in bits";
  else if (computed * 2 > alone->logits.size())
    wrong = "most of it was computed again";
  wrong.empty() ? verdict.pass() : verdict.fail(way.name, wrong);
  return true;
}

int main_of(gpu::Device device, const std::string& folder) {
  Verdict verdict;
  std::shared_ptr<const gpu::Model> model;
  if (folder.empty()) {
    model = SmallModel::make();
  } else {
    auto loaded = gpu::load_gpt_oss(folder);
    if (!loaded) {
      std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
      return 1;
    }
    model = std::move(*loaded);
  }
  std::vector<Way> ways{{"one rank", {1, 1, 1, 1, {}}}};
  if (device == gpu::Device::cpu) {
    ways.push_back({"two ranks, TP 2", {2, 1, 2, 2, {}}});
    ways.push_back({"two ranks, DP 2", {2, 2, 1, 2, {}}});
    ways.push_back({"with a mirror", {1, 1, 1, 1, {}}, 64u << 20, 8u << 20});
  }
  bool ran = false;
  for (const Way& way : ways) ran |= compare(model, device, way, verdict);
  const int code = verdict.close();
  return ran ? code : 0;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  using althing::gpu::Device;
  if (althing::tests::helped(argc, argv,
                             "shared_prefixes [--device cpu|cuda] [MODEL_DIR]\n"
                             "Conversations that begin alike, with pages shared among them and without: the same tokens and the same bits."))
    return 0;
  Device device = Device::cpu;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device" && i + 1 < argc)
      device = std::string_view(argv[++i]) == "cuda" ? Device::cuda : Device::cpu;
    else
      folder = argument;
  }
  return althing::tests::main_of(device, folder);
}
