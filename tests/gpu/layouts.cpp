// layouts [--ranks N] [--streams N] [MODEL_DIR]: every legal (DP, TP, EP) over 1 to N ranks, with and without replicas of experts, computes the same
// conversations, and the results are printed as a matrix. Three questions a layout: how far its logits are from one rank's (1e-4 at most); whether
// logits and draws are bit by bit those of the layout with the same TP and no DP, EP or replicas (of one rank, where TP is 1); and whether whole
// conversations, placed by the scheduler in pools so small that some are preempted, get the tokens that they get there. A layout that the rules do
// not allow must be refused. Last, two layouts are spoilt on purpose: a judge that calls them equal would be worthless.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/engine.hpp"
#include "tests/support/local_engine.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t context = 384;
constexpr std::uint32_t rows = 7, decodes = 6;
constexpr double logit_error_max = 1e-4;

struct Talk {
  std::vector<TokenId> prompt, completion;
};

// Those that are short enough for the pools here, and long enough to decode a while.
std::vector<Talk> read_talks(const std::string& folder, std::size_t most) {
  std::vector<Talk> talks;
  std::ifstream input(folder + "/conversations.jsonl");
  for (std::string line; talks.size() < most && std::getline(input, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    Talk talk{json.value("prompt_ids", std::vector<TokenId>{}), json.value("completion_ids", std::vector<TokenId>{})};
    if (talk.completion.size() > 2 * decodes && talk.prompt.size() + talk.completion.size() <= context) talks.push_back(std::move(talk));
  }
  return talks;
}

std::string name_of(const Grid& grid) {
  std::string name =
      std::to_string(grid.world) + " ranks: dp " + std::to_string(grid.dp) + " tp " + std::to_string(grid.tp) + " ep " + std::to_string(grid.ep);
  for (std::size_t i = 0; i < grid.replicas.size(); ++i) name += (i == 0 ? " replicas " : ",") + std::to_string(grid.replicas[i].value);
  return name;
}

struct Outcome {
  std::vector<float> logits;  // of every token of every step
  std::vector<TokenId> draws;
  bool ranks_agree = true;
};

// Prompts in two waves with decodes beside the second. Tokens are given, so that layouts stay comparable when a draw differs.
Result<Outcome> compute(const std::shared_ptr<const gpu::Model>& model, const std::vector<Talk>& talks, const Grid& grid,
                        const std::function<std::uint32_t(std::uint32_t)>& text_of_row) {
  EngineOptions options;
  options.grid = grid;
  options.rows_max = rows;
  options.context_tokens_max = context;
  options.step_tokens_max = rows * context;
  auto made = Engine::create(model, options);
  if (!made) return made.error();
  Engine& engine = **made;
  std::vector<std::vector<float>> seen(engine.ranks());
  for (std::size_t rank = 0; rank < engine.ranks(); ++rank) {
    gpu::Observer observer;
    observer.logits = [&logits = seen[rank]](std::span<const float> values) { logits.insert(logits.end(), values.begin(), values.end()); };
    engine.executor(rank).observe(std::move(observer));
  }
  Outcome outcome;
  for (std::uint32_t step = 0; step <= decodes; ++step) {
    StepPlan plan = engine.next_plan();
    for (std::uint32_t row = 0; row < rows; ++row) {
      const Talk& talk = talks[text_of_row(row) % talks.size()];
      const std::uint32_t begins = row % 2;  // the wave
      if (step < begins) continue;
      if (step == begins) {
        SamplingParameters sampling;
        sampling.temperature = row % 3 == 0 ? 0.0F : 0.9F;
        sampling.seed = row;
        engine.admit(plan, row, row + 1, sampling, context);
        plan.work.push_back(prompt_work(row, 0, talk.prompt, true));
      } else {
        const std::uint32_t drawn = step - begins - 1;
        const auto start = static_cast<std::uint32_t>(talk.prompt.size()) + drawn;
        plan.work.push_back(prompt_work(row, start, std::span(talk.completion).subspan(drawn, 1), true));
      }
    }
    auto result = engine.run(plan);
    if (!result) return result.error();
    for (const DrawnToken& token : result->drawn) outcome.draws.push_back(token.nonfinite ? ~TokenId{0} : token.token);
  }
  for (const auto& logits : seen) outcome.ranks_agree = outcome.ranks_agree && logits == seen[0];
  outcome.logits = std::move(seen[0]);
  return outcome;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - double{b[i]});
    if (!(d <= worst)) worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return worst;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Streams {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::uint32_t> rows_set;  // by DP group
  std::uint64_t preemptions = 0;
};

// Whole conversations at once through the scheduler, in pools that hold little more than one of the longest.
Result<Streams> converse(const std::shared_ptr<const gpu::Model>& model, const std::vector<Talk>& talks, const Grid& grid) {
  LocalEngine::Options options;
  options.grid = grid;
  options.limits.context_tokens_max = context;
  auto placements = scheduler::place(grid, shape_of(model->spec));
  if (!placements) return placements.error();
  auto layout = gpu::kv_layout(model->spec, *placements, gpu::kv_format(options.device), std::uint64_t{1} << 30, context);
  if (!layout) return layout.error();
  std::uint64_t pages = 0;
  for (const KvGroup& group : layout->groups) pages += context / group.tokens_per_page + 1;
  options.kv_bytes = pages * 5 / 4 * layout->page_bytes;
  auto engine = LocalEngine::create(model, options);
  if (!engine) return engine.error();
  std::vector<Submitted> requests;
  for (const Talk& talk : talks) {
    Submitted request;
    request.request = RequestId{requests.size() + 1};
    request.prompt = talk.prompt;
    request.sampling.completion_tokens_max = static_cast<std::uint32_t>(talk.completion.size());
    requests.push_back(std::move(request));
  }
  Streams streams;
  for (auto& completion : (*engine)->run(requests)) {
    if (completion.reason != FinishReason::length) return Error{ErrorCode::internal, "a conversation ended early: " + completion.error.message, {}};
    streams.tokens.push_back(std::move(completion.tokens));
  }
  streams.rows_set = (*engine)->rows_set();
  streams.preemptions = (*engine)->preemptions();
  return streams;
}

class Matrix {
 public:
  Matrix(std::shared_ptr<const gpu::Model> model, std::vector<Talk> talks, std::uint32_t ranks)
      : model_(std::move(model)), talks_(std::move(talks)), ranks_(ranks) {}

  void print(Verdict& verdict) {
    std::printf("%-48s %-12s %-8s %-8s %-9s %s\n", "", "from 1 rank", "logits", "draws", "streams", "rows by DP group, preemptions");
    for (std::uint32_t world = 1; world <= ranks_; ++world)
      for (std::uint32_t dp = 1; dp <= world; ++dp)
        for (std::uint32_t ep = 1; ep <= world; ++ep)
          if (world % dp == 0) add_layout({world, dp, world / dp, ep, {}}, verdict);
    if (legal_ > 1) spoil(verdict);
    std::printf("%d layouts, %d refused, %llu preemptions with one group, %llu with more\n", legal_, refused_,
                static_cast<unsigned long long>(preemptions_), static_cast<unsigned long long>(preemptions_in_groups_));
    if (talks_.size() < 8 || ranks_ < 2) return verdict.skip("preemptions", "few conversations or ranks may fit without");
    preemptions_in_groups_ > 0 ? verdict.pass() : verdict.fail("preemptions", "no conversation was preempted in a DP group: the pools are too large");
  }

 private:
  static std::uint32_t same(std::uint32_t row) { return row; }

  void add_layout(Grid grid, Verdict& verdict) {
    const gpu::DecoderSpec& spec = model_->spec;
    const bool heads_fit = spec.query_heads % grid.tp == 0 && (spec.kv_heads % grid.tp == 0 || grid.tp % spec.kv_heads == 0);
    const bool legal = heads_fit && grid.world % grid.ep == 0 && grid.ep <= spec.experts;
    if (!legal) {
      ++refused_;
      const bool refused = !scheduler::place(grid, shape_of(spec)).ok();
      return refused ? verdict.pass() : verdict.fail(name_of(grid), "is not legal and was not refused");
    }
    add(grid, verdict);
    // More copies of the first expert than of others, on ranks in the middle of its holders.
    grid.replicas = {ExpertId{0}, ExpertId{spec.experts - 1}};
    if (grid.world / grid.ep + 2 <= grid.world) grid.replicas.push_back(ExpertId{0});
    if (grid.ep > 1) add(grid, verdict);
  }

  void add(const Grid& grid, Verdict& verdict) {
    ++legal_;
    const std::string name = name_of(grid);
    auto outcome = compute(model_, talks_, grid, same);
    auto streams = outcome ? converse(model_, talks_, grid) : Result<Streams>(outcome.error());
    if (!streams) return verdict.fail(name, streams.error().message);
    const auto [first, is_first] = first_of_tp_.try_emplace(grid.tp, First{*outcome, streams->tokens});
    // Ascending worlds: the first layout of a TP degree has neither DP nor EP.
    if (is_first && (grid.dp != 1 || grid.ep != 1)) verdict.fail(name, "the first layout with its TP should have no DP and no EP");
    const double far = distance(outcome->logits, first_of_tp_.at(1).outcome.logits);
    const bool logits = equal_bits(outcome->logits, first->second.outcome.logits), draws = outcome->draws == first->second.outcome.draws;
    const bool tokens = streams->tokens == first->second.streams;
    const auto word = [&](bool equal) { return is_first ? "first" : equal ? "equal" : "DIFFERS"; };
    std::string by_group;
    for (const std::uint32_t count : streams->rows_set) by_group += (by_group.empty() ? "" : " ") + std::to_string(count);
    std::printf("%-48s %-12.2g %-8s %-8s %-9s %s, %llu\n", name.c_str(), far, word(logits), word(draws), word(tokens), by_group.c_str(),
                static_cast<unsigned long long>(streams->preemptions));
    (grid.dp > 1 ? preemptions_in_groups_ : preemptions_) += streams->preemptions;
    const auto judge = [&](bool good, const char* what) { good ? verdict.pass() : verdict.fail(name, what); };
    judge(far <= logit_error_max, "logits are too far from one rank's");
    judge(outcome->ranks_agree, "ranks saw different logits");
    judge(logits, "logits differ in bits from the layout with the same TP alone");
    judge(draws, "draws differ from the layout with the same TP alone");
    judge(tokens, "conversations got other tokens than in the layout with the same TP alone");
    if (talks_.size() >= grid.dp) judge(std::count(streams->rows_set.begin(), streams->rows_set.end(), 0u) == 0, "a DP group got no row");
  }

  // Wrong targets: one row's text is another's, and TP is compared with no TP.
  void spoil(Verdict& verdict) {
    const Outcome& whole = first_of_tp_.at(1).outcome;
    const auto other = compute(model_, talks_, {2, 2, 1, 2, {}}, [](std::uint32_t row) { return row == rows - 1 ? row + 1 : row; });
    if (!other || distance(other->logits, whole.logits) <= logit_error_max || equal_bits(other->logits, whole.logits))
      verdict.fail("spoilt row", "another text gave the same logits");
    else
      verdict.pass();
    const auto tp = first_of_tp_.find(2);
    if (tp == first_of_tp_.end()) return verdict.skip("bits of TP", "no layout has TP 2");
    if (equal_bits(tp->second.outcome.logits, whole.logits))
      verdict.fail("bits of TP", "sums over two ranks gave the bits of one; the comparison of bits sees nothing");
    else
      verdict.pass();
  }

  struct First {
    Outcome outcome;
    std::vector<std::vector<TokenId>> streams;
  };
  std::shared_ptr<const gpu::Model> model_;
  std::vector<Talk> talks_;
  std::uint32_t ranks_;
  std::map<std::uint32_t, First> first_of_tp_;
  int legal_ = 0, refused_ = 0;
  std::uint64_t preemptions_ = 0, preemptions_in_groups_ = 0;
};

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "layouts [--ranks 4] [--streams 8] [MODEL_FOLDER]\n"
                             "Every layout over 1 to so many ranks computes the same conversations; prints a matrix."))
    return 0;
  using namespace althing;
  std::string folder = ALTHING_SOURCE_DIR "/examples/models/tiny";
  std::uint32_t ranks = 4;
  std::size_t streams = 8;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--ranks" && i + 1 < argc)
      ranks = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    else if (word == "--streams" && i + 1 < argc)
      streams = std::strtoul(argv[++i], nullptr, 10);
    else
      folder = word;
  }
  tests::Verdict verdict;
  auto model = gpu::load_gpt_oss(folder);
  auto talks = tests::read_talks(folder, streams);
  if (!model)
    verdict.fail(folder, model.error().message);
  else if (talks.size() < 2)
    verdict.fail(folder, "its conversations.jsonl has fewer than 2 conversations that fit");
  else
    tests::Matrix(*model, std::move(talks), ranks).print(verdict);
  return verdict.close();
}
