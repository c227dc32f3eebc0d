// conversations [--first N] [--device cuda] MODEL_DIR FILE…: every line of FILE holds prompt_ids and completion_ids; the model must complete the
// prompt greedily, token for token, in at least 99 % of them, alone and with all prompts in flight at once, and both runs must give the same tokens.
// Each (line, regime) is a case; a line's wrong completion fails the run only when the share of wrong ones is over 1 %.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/placement.hpp"
#include "tests/support/local_engine.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

struct Case {
  std::string name;
  Submitted request;
  std::vector<TokenId> expected;
};

std::vector<Case> read_cases(const std::string& file, const std::vector<TokenId>& stop_tokens, std::uint64_t& next_request, Verdict& verdict) {
  std::vector<Case> cases;
  std::ifstream input(file);
  if (!input) verdict.fail(file, "cannot be read");
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    const std::string name = file + ":" + std::to_string(number);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("prompt_ids") || !json.contains("completion_ids")) {
      verdict.fail(name, "not an object with prompt_ids and completion_ids");
      continue;
    }
    Case item;
    item.name = name;
    item.request.request = RequestId{next_request++};
    item.request.prompt = json["prompt_ids"].get<std::vector<TokenId>>();
    item.expected = json["completion_ids"].get<std::vector<TokenId>>();
    item.request.sampling.stop_tokens = stop_tokens;
    // A completion that its makers cut short has no stop token at its end; ours is cut at the same place then.
    const bool cut = item.expected.empty() || std::find(stop_tokens.begin(), stop_tokens.end(), item.expected.back()) == stop_tokens.end();
    item.request.sampling.completion_tokens_max = static_cast<std::uint32_t>(item.expected.size()) + (cut ? 0 : 16);
    cases.push_back(std::move(item));
  }
  return cases;
}

// Returns how many differ from what is expected.
int compare(const std::vector<Case>& cases, const std::vector<LocalEngine::Completion>& completions, const std::string& regime,
            std::vector<std::string>& wrong) {
  int count = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (completions[i].tokens == cases[i].expected) continue;
    ++count;
    std::size_t at = 0;
    while (at < cases[i].expected.size() && at < completions[i].tokens.size() && completions[i].tokens[at] == cases[i].expected[at]) ++at;
    wrong.push_back(cases[i].name + " (" + regime + "): differs at completion token " + std::to_string(at) + " of " +
                    std::to_string(cases[i].expected.size()) + ", got " + std::to_string(completions[i].tokens.size()) + " " +
                    completions[i].error.message);
  }
  return count;
}

std::vector<LocalEngine::Completion> run_alone(LocalEngine& engine, const std::vector<Case>& cases) {
  std::vector<LocalEngine::Completion> completions;
  for (const Case& item : cases) completions.push_back(engine.run({item.request})[0]);
  return completions;
}

// `round` keeps request ids apart: an engine never sees one twice.
std::vector<LocalEngine::Completion> run_together(LocalEngine& engine, const std::vector<Case>& cases, std::uint64_t round) {
  std::vector<Submitted> requests;
  for (const Case& item : cases) {
    requests.push_back(item.request);
    requests.back().request.value += round << 32;
  }
  return engine.run(requests);
}

void judge(const std::vector<Case>& cases, const std::vector<LocalEngine::Completion>& got, const std::vector<LocalEngine::Completion>& alone,
           const std::string& regime, Verdict& verdict) {
  std::vector<std::string> wrong;
  const int count = compare(cases, got, regime, wrong);
  for (const std::string& text : wrong) std::printf("wrong: %s\n", text.c_str());
  std::printf("%s: %zu conversations, %d not as expected\n", regime.c_str(), cases.size(), count);
  const bool too_many = static_cast<double>(count) > 0.01 * static_cast<double>(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (got[i].tokens != alone[i].tokens)
      verdict.fail(cases[i].name + " (" + regime + ")", "differs from its lone run");
    else if (too_many && got[i].tokens != cases[i].expected)
      verdict.fail(cases[i].name + " (" + regime + ")", "not the expected completion, and over 1 % are not");
    else
      verdict.pass();
  }
}

void run_all(const std::shared_ptr<const gpu::Model>& model, const std::vector<Case>& cases, gpu::Device device, Verdict& verdict) {
  LocalEngine::Options options;
  options.device = device;
  options.limits.sequences_max = static_cast<std::uint32_t>(cases.size()) + options.limits.rows_max;
  std::vector<LocalEngine::Completion> alone;
  for (const std::uint32_t ranks : {1U, 2U}) {
    options.grid = scheduler::default_grid(ranks);
    auto engine = LocalEngine::create(model, options);
    const std::string layout = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    if (!engine) {
      verdict.skip(layout, engine.error().message);
      continue;
    }
    if (ranks == 1) {
      alone = run_alone(**engine, cases);
      judge(cases, alone, alone, layout + ", alone", verdict);
    }
    judge(cases, run_together(**engine, cases, 1), alone, layout + ", all at once", verdict);
  }
}

// With a draft model, greedily and with noise: the same tokens in fewer steps.
void run_drafted(const std::shared_ptr<const gpu::Model>& model, std::shared_ptr<const gpu::Model> draft, std::vector<Case> cases, gpu::Device device,
                 Verdict& verdict) {
  LocalEngine::Options options;
  options.device = device;
  options.limits.sequences_max = static_cast<std::uint32_t>(cases.size()) + options.limits.rows_max;
  options.limits.rows_max = 16;
  for (const float temperature : {0.0F, 1.0F}) {
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i].request.sampling.temperature = temperature, cases[i].request.sampling.seed = i;
    std::vector<LocalEngine::Completion> plain;
    std::uint64_t steps = 0;
    for (const bool drafts : {false, true}) {
      options.draft = drafts ? draft : nullptr;
      options.limits.speculation_tokens_max = drafts ? 4 : 0;
      auto engine = LocalEngine::create(model, options);
      if (!engine) return verdict.skip("with a draft model", engine.error().message);
      auto completions = run_together(**engine, cases, 1);
      if (!drafts) {
        plain = std::move(completions);
        steps = (*engine)->steps();
        continue;
      }
      const auto stats = (*engine)->stats();
      std::printf("temperature %.0f, drafted: %llu of %llu guesses right, %llu steps instead of %llu\n", temperature,
                  static_cast<unsigned long long>(stats.drafted_right), static_cast<unsigned long long>(stats.drafted_tokens),
                  static_cast<unsigned long long>((*engine)->steps()), static_cast<unsigned long long>(steps));
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (completions[i].tokens == plain[i].tokens)
          verdict.pass();
        else
          verdict.fail(cases[i].name + " (drafted)", "differs from the model's own");
    }
  }
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "conversations [--first N] [--device cpu|cuda] [--draft FOLDER] [MODEL_FOLDER [CONVERSATIONS.jsonl …]]\n"
                             "A model's recorded conversations, token for token, alone and all at once; with a draft model, guessed as well."))
    return 0;
  using namespace althing;
  tests::Verdict verdict;
  std::size_t first = SIZE_MAX;
  gpu::Device device = gpu::Device::cpu;
  std::string draft;
  for (; argc > 2 && std::string_view(argv[1]).starts_with("--"); argc -= 2, argv += 2) {
    if (std::string_view(argv[1]) == "--first") first = std::strtoul(argv[2], nullptr, 10);
    if (std::string_view(argv[1]) == "--draft") draft = argv[2];
    if (std::string_view(argv[1]) == "--device" && std::string_view(argv[2]) == "cuda") device = gpu::Device::cuda;
  }
  const std::string directory = argc > 1 ? argv[1] : ALTHING_SOURCE_DIR "/examples/models/tiny";
  std::vector<std::string> files(argv + (argc > 2 ? 2 : argc), argv + argc);
  if (files.empty()) files.push_back(directory + "/conversations.jsonl");
  auto model = gpu::load_gpt_oss(directory);
  if (!model) {
    verdict.fail(directory, model.error().message);
    return verdict.close();
  }
  std::uint64_t next_request = 1;
  std::vector<tests::Case> cases;
  for (const std::string& file : files)
    for (tests::Case& item : tests::read_cases(file, (*model)->stop_tokens, next_request, verdict)) cases.push_back(std::move(item));
  if (cases.size() > first) cases.erase(cases.begin() + static_cast<std::ptrdiff_t>(first), cases.end());
  if (!cases.empty()) tests::run_all(*model, cases, device, verdict);
  if (!draft.empty()) {
    auto guesser = gpu::load_gpt_oss(draft);
    if (guesser)
      tests::run_drafted(*model, *guesser, cases, device, verdict);
    else
      verdict.fail(draft, guesser.error().message);
  }
  return verdict.close();
}
