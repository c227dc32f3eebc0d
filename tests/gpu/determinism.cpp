// determinism [--device cpu|cuda] [--dummy 20b|120b] [--prompt N] [--draw N] [MODEL_DIR]: computes one conversation in many ways that must not
// matter, and prints a matrix: a row a way, a column a kind of result (logits of every position; hidden states and router logits of every layer;
// drawn tokens), a cell "equal" or "DIFFERS" against the first row, in bits. Where a cell differs, the first stage of the model that does is named.
//
// Every way is run twice: observed, position by position, and as a server runs it (on a GPU: decode in captured graphs, only sampled rows have
// logits). Drawn tokens must be those of the first row in both runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/models/gpt_oss_dummy.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t rows = 64;
constexpr std::uint32_t own_row = 37, other_row = 5;  // of the conversation; the second after it was preempted
constexpr std::uint32_t neighbour_prompt_max = 31;

struct Conversation {
  std::vector<TokenId> prompt;
  std::uint32_t draws = 0;
  SamplingParameters sampling;
};

// A hash of each stage's values at each position of one row. Stages in the order of computation: input and router logits of layer 0, 1, …, final
// norm, logits.
class Trace {
 public:
  explicit Trace(std::size_t layers) : stages_(2 * layers + 2) {}

  std::size_t logits() const { return stages_.size() - 1; }
  void record(std::size_t stage, std::size_t position, std::span<const float> values) {
    auto& hashes = stages_[stage];
    if (hashes.size() <= position) hashes.resize(position + 1);
    hashes[position] = hash(values);
  }
  // Of all positions of stages [first, end), for people to compare.
  std::uint64_t summary(std::size_t first, std::size_t end) const {
    std::uint64_t all = 0;
    for (std::size_t s = first; s < end; ++s)
      for (const std::uint64_t h : stages_[s]) all = mixed(all, h);
    return all;
  }
  bool equal(const Trace& other, std::size_t first, std::size_t end) const {
    return std::equal(stages_.begin() + static_cast<std::ptrdiff_t>(first), stages_.begin() + static_cast<std::ptrdiff_t>(end),
                      other.stages_.begin() + static_cast<std::ptrdiff_t>(first));
  }
  // The first stage that differs anywhere, and where.
  std::string first_difference(const Trace& other) const {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto &a = stages_[s], &b = other.stages_[s];
      if (a == b) continue;
      if (a.size() != b.size()) return name_of_stage(s) + ": " + std::to_string(a.size()) + " positions instead of " + std::to_string(b.size());
      std::size_t first = a.size(), count = 0;
      for (std::size_t p = a.size(); p-- > 0;)
        if (a[p] != b[p]) first = p, ++count;
      return name_of_stage(s) + " at position " + std::to_string(first) + " (" + std::to_string(count) + " of " + std::to_string(a.size()) +
             " positions)";
    }
    return "nothing";
  }

 private:
  static std::uint64_t mixed(std::uint64_t h, std::uint64_t value) {
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 32);
  }
  static std::uint64_t hash(std::span<const float> values) {
    std::uint64_t h = values.size();
    for (const float value : values) {
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      h = mixed(h, bits);
    }
    return h;
  }
  std::string name_of_stage(std::size_t s) const {
    if (s == logits()) return "logits";
    if (s + 1 == logits()) return "output of the final norm";
    return (s % 2 == 0 ? "hidden states that enter layer " : "router logits of layer ") + std::to_string(s / 2);
  }

  std::vector<std::vector<std::uint64_t>> stages_;  // (stages, positions)
};

// Plays the conversation on an engine, step by step. With a trace it is observed.
class Player {
 public:
  Player(Engine& engine, const Conversation& talk, std::uint64_t& next_request, Trace* trace)
      : engine_(engine), talk_(talk), next_request_(next_request), trace_(trace), text_(talk.prompt) {
    gpu::Observer observer;
    if (trace != nullptr) {
      observer.hidden = [this](std::uint32_t layer, std::span<const float> values) { see(2 * layer, values); };
      observer.router_logits = [this](std::uint32_t layer, std::span<const float> values) { see(2 * layer + 1, values); };
      observer.logits = [this](std::span<const float> values) { see(trace_->logits(), values); };
    }
    engine_.executor(0).observe(std::move(observer));
  }
  ~Player() { engine_.executor(0).observe({}); }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  bool done() const { return text_.size() == talk_.prompt.size() + talk_.draws; }
  std::size_t left() const { return text_.size() - computed_; }  // tokens that are known and not computed
  std::span<const TokenId> drawn() const { return std::span(text_).subspan(talk_.prompt.size()); }
  StepPlan next_plan() const { return engine_.next_plan(); }

  // Runs `plan` with the next tokens of the conversation added, `count` of them at most; draws when none is left.
  Status step(std::size_t count, StepPlan plan) {
    if (!admitted_) admit(plan);
    const std::size_t size = std::min(count, left()), end = computed_ + size;
    const auto start = static_cast<std::uint32_t>(computed_);
    RowWork work = own_draw_ ? decode_work(row_, start) : prompt_work(row_, start, std::span(text_).subspan(computed_, size), end == text_.size());
    own_draw_ = work.sample;
    const auto at = std::find_if(plan.work.begin(), plan.work.end(), [&](const RowWork& w) { return w.row.value > row_; });
    first_token_ = 0;
    for (auto before = plan.work.begin(); before != at; ++before) first_token_ += before->count;
    plan.work.insert(at, std::move(work));
    step_tokens_ = 0;
    for (const RowWork& w : plan.work) step_tokens_ += w.count;
    step_size_ = size;

    auto result = engine_.run(plan);
    step_size_ = 0;
    if (!result) return result.error();
    computed_ = end;
    for (const DrawnToken& token : result->drawn) {
      if (token.row.value != row_) continue;
      if (token.nonfinite) return Error{ErrorCode::nonfinite, "a row of logits held NaN or infinity", {}};
      text_.push_back(token.token);
    }
    return Ok{};
  }

  // The row and its pages, in a plan that gives it nothing to compute yet.
  Status admit_alone() {
    StepPlan plan = engine_.next_plan();
    admit(plan);
    auto result = engine_.run(plan);
    if (!result) return result.error();
    return Ok{};
  }
  // The row is taken away in `plan`; what is known will be computed again in another row, on other pages.
  void preempt(StepPlan& plan) {
    engine_.clear(plan, row_);
    row_ = other_row;
    computed_ = 0;
    admitted_ = own_draw_ = false;
  }
  // Its full pages are copied, the row is taken away, and the pages come back elsewhere; only what is behind the last full page is computed again.
  Status restore_elsewhere() {
    StepPlan copy = engine_.next_plan();
    const auto& groups = engine_.layout().groups;
    const auto computed = static_cast<std::uint32_t>(computed_);
    std::uint32_t restored = computed;
    for (const KvGroup& group : groups) restored = std::min(restored, computed / group.tokens_per_page * group.tokens_per_page);
    for (std::uint32_t g = 0; g < groups.size(); ++g)
      for (std::uint32_t i = 0; (i + 1) * groups[g].tokens_per_page <= computed; ++i) {
        const auto slot = static_cast<std::uint32_t>(copy.mirror.size());
        copy.mirror.push_back({DpGroup{}, g, engine_.page(row_, g, i), MirrorSlot{slot}, PageKey{slot, ++copies_}});
      }
    if (auto result = engine_.run(copy); !result) return result.error();
    StepPlan plan = engine_.next_plan();
    preempt(plan);
    admit(plan);
    std::vector<std::uint32_t> next(groups.size());  // by group: pages of a group stand in order
    for (MirrorPage page : copy.mirror) {
      const std::uint32_t index = next[page.group]++;
      if (index * groups[page.group].tokens_per_page >= restored) continue;
      page.page = engine_.page(row_, page.group, index);
      plan.restore.push_back(page);
    }
    auto result = engine_.run(plan);
    if (!result) return result.error();
    if (plan.restore.empty() || !result->unrestored.empty()) return Error{ErrorCode::internal, "pages did not come back from the mirror", {}};
    computed_ = restored;
    return Ok{};
  }
  Status end(StepPlan plan) {
    engine_.clear(plan, row_);
    auto result = engine_.run(plan);
    if (!result) return result.error();
    return Ok{};
  }

 private:
  void admit(StepPlan& plan) {
    engine_.admit(plan, row_, next_request_++, talk_.sampling, static_cast<std::uint32_t>(talk_.prompt.size()) + talk_.draws);
    admitted_ = true;
  }
  void see(std::size_t stage, std::span<const float> values) {
    if (step_size_ == 0) return;  // a step of the others alone
    const std::size_t width = values.size() / step_tokens_;
    for (std::size_t i = 0; i < step_size_; ++i) trace_->record(stage, computed_ + i, values.subspan((first_token_ + i) * width, width));
  }

  Engine& engine_;
  const Conversation& talk_;
  std::uint64_t& next_request_;
  Trace* trace_;
  std::vector<TokenId> text_;  // prompt and what was drawn
  std::size_t computed_ = 0;
  std::uint32_t row_ = own_row;
  bool admitted_ = false;
  std::uint64_t copies_ = 0;
  bool own_draw_ = false;                                          // the last token is the row's own draw
  std::size_t first_token_ = 0, step_size_ = 0, step_tokens_ = 0;  // where the conversation's tokens are in the step
};

// The other rows of a full batch: short prompts of unequal length, then one token a step, greedy and not.
class Neighbours {
 public:
  Neighbours(Engine& engine, std::uint64_t& next_request, std::uint32_t vocabulary, std::uint32_t context)
      : engine_(engine), next_request_(next_request), vocabulary_(vocabulary), context_(context) {}

  void add(StepPlan& plan) {
    std::mt19937 random(11);
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (row == own_row) continue;
      if (positions_[row] != 0) {
        plan.work.push_back(decode_work(row, positions_[row]++));
        continue;
      }
      std::vector<TokenId> prompt(1 + 5 * row % neighbour_prompt_max);
      for (TokenId& token : prompt) token = static_cast<TokenId>(random() % vocabulary_);
      SamplingParameters sampling;
      sampling.temperature = row % 2 == 0 ? 0.0F : 1.0F;
      sampling.seed = row;
      engine_.admit(plan, row, next_request_++, sampling, context_);
      plan.work.push_back(prompt_work(row, 0, prompt, true));
      positions_[row] = static_cast<std::uint32_t>(prompt.size());
    }
  }
  void end(StepPlan& plan) {
    for (std::uint32_t row = 0; row < rows; ++row)
      if (positions_[row] != 0) engine_.clear(plan, row);
  }

 private:
  Engine& engine_;
  std::uint64_t& next_request_;
  std::uint32_t vocabulary_, context_;
  std::uint32_t positions_[rows] = {};  // of the next token; 0: not admitted
};

struct Settings {
  gpu::Device device = gpu::Device::cpu;
  std::string dummy, folder;
  std::uint32_t prompt = 0, draws = 24;  // prompt 0: as the device can bear
};

class Matrix {
 public:
  Matrix(std::shared_ptr<const gpu::Model> model, const Settings& settings, std::string name)
      : model_(std::move(model)), settings_(settings), name_(std::move(name)), first_(model_->spec.layers.size()) {
    const std::uint32_t context = model_->spec.context_tokens_max;
    // Over 320 tokens, also the kernels for many tokens have work in every expert of a 20b model.
    const std::uint32_t wanted = settings.prompt != 0 ? settings.prompt : settings.device == gpu::Device::cuda ? 600 : 150;
    const std::uint32_t prompt = std::max(1u, std::min(wanted, context * 3 / 4));
    talk_.draws = std::clamp(settings.draws, 2u, context - prompt);
    std::mt19937 random(3);
    for (std::uint32_t i = 0; i < prompt; ++i) talk_.prompt.push_back(static_cast<TokenId>(random() % model_->spec.vocabulary));
    talk_.sampling.temperature = 0.9F;
    talk_.sampling.top_p = 0.95F;
    talk_.sampling.seed = 7;
  }

  // False when this machine cannot run the model on this device: nothing was compared.
  bool print(Verdict& verdict) {
    if (auto s = start(); !s) {
      const bool unsupported = s.error().code == ErrorCode::unsupported;
      unsupported ? verdict.skip(name_, s.error().message) : verdict.fail(name_, s.error().message);
      return !unsupported;
    }
    std::printf("%s: %zu tokens of prompt, %u drawn, %zu layers\n%-44s %-18s %-18s %s\n", name_.c_str(), talk_.prompt.size(), talk_.draws,
                model_->spec.layers.size(), "", "logits", "hidden states", "drawn tokens");
    const std::size_t whole = talk_.prompt.size();
    if (!add(
            "whole", [&](Player& p) { return play(p, whole, {}); }, verdict))
      return true;
    for (const std::size_t size : {1u, 7u, 32u})
      add(
          "chunks of " + std::to_string(size), [&, size](Player& p) { return play(p, size, {}); }, verdict);
    add(
        "batch of 64, prompts together", [&](Player& p) { return play_among(p, whole, true); }, verdict);
    add(
        "batch of 64, chunks of 32 beside decodes", [&](Player& p) { return play_among(p, 32, false); }, verdict);
    cold_ = true;
    add(
        "cold start", [&](Player& p) { return play(p, whole, {}); }, verdict);
    cold_ = false;
    add(
        "warm", [&](Player& p) { return play(p, whole, {}); }, verdict);
    add(
        "pages granted in a step without work",
        [&](Player& p) {
          const Status granted = p.admit_alone();
          return granted ? play(p, whole, {}) : granted;
        },
        verdict);
    add(
        "preempted, recomputed elsewhere", [&](Player& p) { return play_preempted(p); }, verdict);
    if (settings_.device == gpu::Device::cpu)
      add(
          "preempted, restored from the mirror", [&](Player& p) { return play_restored(p); }, verdict);
    // All but the last token, given: its position in the text is the same, so it must be drawn again.
    const Conversation all = talk_;
    talk_.prompt.insert(talk_.prompt.end(), drawn_.begin(), drawn_.end() - 1);
    talk_.draws = 1;
    drawn_ = {drawn_.back()};
    add(
        "decode recomputed as prefill (last token)", [&](Player& p) { return play(p, talk_.prompt.size(), {}); }, verdict);
    talk_ = all;
    return true;
  }

 private:
  using Way = std::function<Status(Player&)>;

  Status start() {
    engine_.reset();
    EngineOptions options;
    options.device = settings_.device;
    options.threads = 2;
    options.rows_max = rows;
    options.context_tokens_max = static_cast<std::uint32_t>(talk_.prompt.size()) + talk_.draws;
    options.step_tokens_max = options.context_tokens_max + rows * neighbour_prompt_max;
    options.page_seed = ++starts_;
    // As many as the conversation can fill, in every group.
    if (settings_.device == gpu::Device::cpu) options.mirror_pages = options.context_tokens_max;
    auto engine = Engine::create(model_, options);
    if (!engine) return engine.error();
    engine_ = std::move(*engine);
    return Ok{};
  }

  // `before_step` adds to each plan.
  Status play(Player& p, std::size_t chunk, const std::function<void(StepPlan&)>& before_step) {
    while (!p.done()) {
      StepPlan plan = p.next_plan();
      if (before_step) before_step(plan);
      if (auto s = p.step(chunk, std::move(plan)); !s) return s;
    }
    return p.end(p.next_plan());
  }

  Status play_among(Player& p, std::size_t chunk, bool together) {
    Neighbours others(*engine_, next_request_, model_->spec.vocabulary, static_cast<std::uint32_t>(talk_.prompt.size()) + talk_.draws);
    if (!together) {
      StepPlan plan = engine_->next_plan();
      others.add(plan);
      if (auto result = engine_->run(plan); !result) return result.error();
    }
    if (auto s = play(p, chunk, [&](StepPlan& plan) { others.add(plan); }); !s) return s;
    StepPlan plan = engine_->next_plan();
    others.end(plan);
    if (auto result = engine_->run(plan); !result) return result.error();
    return Ok{};
  }

  Status play_preempted(Player& p) {
    while (p.drawn().size() < talk_.draws / 2)
      if (auto s = p.step(talk_.prompt.size(), p.next_plan()); !s) return s;
    StepPlan plan = p.next_plan();
    p.preempt(plan);
    if (auto s = p.step(p.left(), std::move(plan)); !s) return s;
    return play(p, 1, {});
  }

  Status play_restored(Player& p) {
    while (p.drawn().size() < talk_.draws / 2)
      if (auto s = p.step(talk_.prompt.size(), p.next_plan()); !s) return s;
    if (auto s = p.restore_elsewhere(); !s) return s;
    if (auto s = p.step(p.left(), p.next_plan()); !s) return s;
    return play(p, 1, {});
  }

  // Runs the way twice and prints its row. False when it could not be run.
  bool add(const std::string& title, const Way& way, Verdict& verdict) {
    Trace trace(model_->spec.layers.size());
    std::vector<TokenId> drawn[2];
    for (const bool observed : {true, false}) {
      Status status = cold_ ? start() : Status(Ok{});
      if (status) {
        Player player(*engine_, talk_, next_request_, observed ? &trace : nullptr);
        status = way(player);
        drawn[observed ? 0 : 1].assign(player.drawn().begin(), player.drawn().end());
      }
      if (!status) {
        verdict.fail(title, status.error().message);
        return false;
      }
    }
    if (drawn_.empty()) {
      first_ = trace;
      drawn_ = drawn[0];
      std::uint64_t tokens = 0;
      for (const TokenId token : drawn_) tokens = tokens * 1000003 + token;
      std::printf("%-44s %016llx   %016llx   %016llx\n", title.c_str(), number(trace.summary(trace.logits(), trace.logits() + 1)),
                  number(trace.summary(0, trace.logits())), number(tokens));
      judge(title + ", drawn tokens", drawn[1] == drawn_, difference(drawn[1]), verdict);
      return true;
    }
    const bool logits = trace.equal(first_, trace.logits(), trace.logits() + 1), hidden = trace.equal(first_, 0, trace.logits());
    const bool tokens = drawn[0] == drawn_ && drawn[1] == drawn_;
    const auto word = [](bool equal) { return equal ? "equal" : "DIFFERS"; };
    std::printf("%-44s %-18s %-18s %s\n", title.c_str(), word(logits), word(hidden), word(tokens));
    judge(title + ", logits", logits, trace.first_difference(first_), verdict);
    judge(title + ", hidden states", hidden, trace.first_difference(first_), verdict);
    judge(title + ", drawn tokens", tokens, difference(drawn[drawn[0] == drawn_ ? 1 : 0]) + (drawn[0] == drawn_ ? ", unobserved" : ", observed"),
          verdict);
    return true;
  }

  static unsigned long long number(std::uint64_t value) { return value; }
  static void judge(const std::string& cell, bool equal, const std::string& difference, Verdict& verdict) {
    if (equal) return verdict.pass();
    verdict.fail(cell, "the first difference is: " + difference);
  }
  std::string difference(const std::vector<TokenId>& drawn) const {
    for (std::size_t i = 0; i < std::min(drawn.size(), drawn_.size()); ++i)
      if (drawn[i] != drawn_[i]) return "draw " + std::to_string(i) + " is " + std::to_string(drawn[i]) + " instead of " + std::to_string(drawn_[i]);
    return std::to_string(drawn.size()) + " draws instead of " + std::to_string(drawn_.size());
  }

  std::shared_ptr<const gpu::Model> model_;
  Settings settings_;
  std::string name_;
  Conversation talk_;
  std::unique_ptr<Engine> engine_;
  std::uint32_t starts_ = 0;
  std::uint64_t next_request_ = 1;
  bool cold_ = false;
  Trace first_;
  std::vector<TokenId> drawn_;  // by the first row
};

Settings read_settings(int argc, char** argv) {
  Settings s;
  s.folder = ALTHING_SOURCE_DIR "/tests/data/references/gpt_oss_b/mxfp4";
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    if (!name.starts_with("--")) {
      s.folder = name;
      continue;
    }
    ++i;
    if (name == "--device") s.device = value == "cuda" ? gpu::Device::cuda : gpu::Device::cpu;
    if (name == "--dummy") s.dummy = value;
    if (name == "--prompt") s.prompt = static_cast<std::uint32_t>(std::strtoul(value.data(), nullptr, 10));
    if (name == "--draw") s.draws = static_cast<std::uint32_t>(std::strtoul(value.data(), nullptr, 10));
  }
  return s;
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "determinism [--device cpu|cuda] [--dummy 20b|120b] [--prompt N] [--draw N] [MODEL_FOLDER]\n"
                             "One conversation in many ways that must not change a bit; prints a matrix."))
    return 0;
  using namespace althing;
  const tests::Settings settings = tests::read_settings(argc, argv);
  tests::Verdict verdict;
  auto model = settings.dummy.empty() ? gpu::load_gpt_oss(settings.folder) : gpu::dummy_model(settings.dummy);
  const std::string name =
      (settings.dummy.empty() ? settings.folder : "dummy " + settings.dummy) + " on " + std::string(gpu::name_of(settings.device));
  bool ran = true;
  if (model) {
    ran = tests::Matrix(*model, settings, name).print(verdict);
  } else {
    verdict.fail(name, model.error().message);
  }
  const int code = verdict.close();
  return ran ? code : 0;
}
