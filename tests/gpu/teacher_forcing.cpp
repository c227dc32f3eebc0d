// teacher_forcing [--device cuda|cpu] [--positions N] [--control X] [--corrupt X] [MODEL_DIR [FILE]]: the CPU backend and another one compute the
// logits of every position of the same known texts (lines of FILE with prompt_ids and completion_ids; by default the model's conversations.jsonl, at
// least 2500 positions of them). No draw is fed back, so one difference cannot breed others. What must hold:
//   share    the largest logit is that of the same token at 99.5 % of the positions or more;
//   margin   where it is not, the CPU's best token leads by less than twice the largest error of a logit at positions that agree. (Twice the error at
//            the very position holds by arithmetic whenever two maxima differ, so it would prove nothing.)
//   error    over all positions, the logits' difference is at most 5e-2 of their size, in the Frobenius norm; on the CPU, which is compared with
//            itself, nothing.
// The other side takes five texts side by side: some whole, some in pieces of 9 tokens, some token by token. The CPU takes them whole.
// --corrupt X adds X to a wrong token's logit at every 50th position of the other side, and the run must fail. --control X judges that corruption and
// two finer ones beside the clean run: a case passes when the rule that it is made for has noticed it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/engine.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr std::uint32_t rows = 5;  // so that every kernel for linear layers has its number of columns: 5, 45, and hundreds
constexpr std::uint32_t corrupt_every = 50;
constexpr std::size_t differences_printed_max = 200;
constexpr double share_min = 0.995;

struct Settings {
  gpu::Device device = gpu::Device::cpu;
  std::size_t positions = 2500;
  double control = 0, corrupt = 0;
  std::string folder, file;
};

using Text = std::vector<TokenId>;

Result<std::vector<Text>> read_texts(const Settings& settings, std::uint32_t context) {
  std::ifstream input(settings.file);
  if (!input) return Error{ErrorCode::not_found, settings.file + " cannot be read; name a file of lines with prompt_ids and completion_ids", {}};
  std::vector<Text> texts;
  std::string line;
  for (std::size_t positions = 0; positions < settings.positions && std::getline(input, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const std::string at = settings.file + ":" + std::to_string(texts.size() + 1);
    if (!json.is_object() || !json.contains("prompt_ids") || !json.contains("completion_ids"))
      return Error{ErrorCode::corrupt, at + " is not an object with prompt_ids and completion_ids", {}};
    Text text = json["prompt_ids"].get<Text>();
    const auto completion = json["completion_ids"].get<Text>();
    text.insert(text.end(), completion.begin(), completion.end());
    if (text.empty() || text.size() > context)
      return Error{ErrorCode::too_large, at + " has " + std::to_string(text.size()) + " tokens, the model takes 1 to " + std::to_string(context), {}};
    positions += text.size();
    texts.push_back(std::move(text));
  }
  return texts;
}

struct Peak {
  std::size_t token = 0;
  double margin = 0;  // above the next
};

// The largest logit, the smallest id among equals. A NaN is never the largest.
Peak peak_of(std::span<const float> logits) {
  Peak peak;
  double best = -INFINITY, second = -INFINITY;
  for (std::size_t t = 0; t < logits.size(); ++t) {
    const double logit = logits[t];
    if (logit > best) {
      second = best;
      best = logit;
      peak.token = t;
    } else if (logit > second) {
      second = logit;
    }
  }
  peak.margin = best - second;
  return peak;
}

// Everything that is known of two sides after some positions, and which rules it breaks.
class Comparison {
 public:
  explicit Comparison(double error_max) : error_max_(error_max) {}

  void add(const std::string& name, std::span<const float> cpu, std::span<const float> other) {
    const Peak ours = peak_of(cpu), theirs = peak_of(other);
    double largest = 0;
    for (std::size_t t = 0; t < cpu.size(); ++t) {
      const double d = double{other[t]} - double{cpu[t]};
      difference_ += d * d;
      size_ += double{cpu[t]} * double{cpu[t]};
      largest = std::isfinite(d) ? std::max(largest, std::abs(d)) : INFINITY;
    }
    ++positions_;
    if (ours.token == theirs.token && std::isfinite(largest)) {
      errors_.push_back(largest);
    } else {
      differences_.push_back({name, ours.token, theirs.token, ours.margin, largest});
    }
  }

  double share() const { return static_cast<double>(errors_.size()) / static_cast<double>(std::max<std::size_t>(positions_, 1)); }
  double agreeing_error_max() const { return errors_.empty() ? 0 : *std::max_element(errors_.begin(), errors_.end()); }
  double relative_error() const {
    const double error = std::sqrt(difference_ / size_);
    return std::isfinite(error) ? error : INFINITY;
  }
  // Differences that no error of the size seen elsewhere explains.
  std::size_t unexplained() const {
    const double limit = 2 * agreeing_error_max();
    return static_cast<std::size_t>(std::count_if(differences_.begin(), differences_.end(), [&](const auto& d) { return !is_explained(d, limit); }));
  }
  bool breaks_share() const { return share() < share_min; }
  bool breaks_margin() const { return unexplained() != 0; }
  bool breaks_error() const { return relative_error() > error_max_; }

  void print(const std::string& title) const {
    std::vector<double> sorted = errors_;
    std::sort(sorted.begin(), sorted.end());
    const auto quantile = [&](double q) { return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))]; };
    std::printf(
        "%s: %zu positions, %zu with another largest logit (%.3f %% agree); relative error %.2e; largest error of a logit where they agree:\n",
        title.c_str(), positions_, differences_.size(), 100 * share(), relative_error());
    std::printf("  median %.2e, 99 %% %.2e, most %.2e\n", quantile(0.5), quantile(0.99), quantile(1));
    for (std::size_t i = 0; i < std::min(differences_.size(), differences_printed_max); ++i) {
      const Difference& d = differences_[i];
      std::printf("  %s: cpu %zu, other %zu, margin %.4g, error %.4g%s\n", d.name.c_str(), d.cpu, d.other, d.margin, d.error,
                  is_explained(d, 2 * agreeing_error_max()) ? "" : " — too far apart");
    }
    if (differences_.size() > differences_printed_max) std::printf("  … and %zu more\n", differences_.size() - differences_printed_max);
  }

  // Every position is a case, and so are the two rules about all of them.
  void judge(const std::string& title, Verdict& verdict) const {
    for (std::size_t i = 0; i < positions_ - unexplained(); ++i) verdict.pass();
    for (const Difference& d : differences_)
      if (!is_explained(d, 2 * agreeing_error_max()))
        verdict.fail(d.name, "another largest logit, and the CPU's leads by " + std::to_string(d.margin) + ": more than twice " +
                                 std::to_string(agreeing_error_max()) + ", the largest error at positions that agree");
    const auto rule = [&](bool broken, const std::string& why) { broken ? verdict.fail(title, why) : verdict.pass(); };
    rule(breaks_share(), "only " + std::to_string(100 * share()) + " % of positions agree, at least 99.5 % must");
    rule(breaks_error(), "the logits' relative error is " + std::to_string(relative_error()) + ", at most " + std::to_string(error_max_) + " may be");
  }

 private:
  struct Difference {
    std::string name;
    std::size_t cpu, other;
    double margin, error;
  };
  static bool is_explained(const Difference& d, double limit) { return d.margin < limit && std::isfinite(d.error); }

  double error_max_, difference_ = 0, size_ = 0;
  std::size_t positions_ = 0;
  std::vector<double> errors_;  // the largest of each position that agrees
  std::vector<Difference> differences_;
};

// A backend that takes texts, up to `rows` of them side by side.
class Side {
 public:
  static Result<std::unique_ptr<Side>> create(std::shared_ptr<const gpu::Model> model, gpu::Device device, std::uint32_t context) {
    auto side = std::make_unique<Side>();
    side->vocabulary_ = model->spec.vocabulary;
    EngineOptions options;
    options.device = device;
    options.threads = 2;
    options.rows_max = rows;
    options.context_tokens_max = context;
    // All logits of a step are shown together: at most 256 MiB of them.
    options.step_tokens_max = std::clamp((64u << 20) / side->vocabulary_, rows, 2048u);
    side->piece_max_ = options.step_tokens_max / rows;
    auto engine = Engine::create(model, options);
    if (!engine) return engine.error();
    side->engine_ = std::move(*engine);
    return side;
  }

  // The logits of every position of each text, (positions, vocabulary). `piece`: tokens of a text in one step; 0: as many as fit.
  Result<std::vector<std::vector<float>>> logits(std::span<const Text> texts, std::size_t piece) {
    std::vector<std::vector<float>> all(texts.size());
    std::vector<std::size_t> computed(texts.size(), 0);
    piece = piece == 0 ? piece_max_ : std::min(piece, piece_max_);
    bool first = true;
    while (true) {
      StepPlan plan = engine_->next_plan();
      std::vector<std::pair<std::size_t, std::size_t>> parts;  // (text, tokens), in the order of the plan
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto row = static_cast<std::uint32_t>(i);
        if (first) engine_->admit(plan, row, ++request_, {}, static_cast<std::uint32_t>(texts[i].size()));
        const std::size_t count = std::min(piece, texts[i].size() - computed[i]);
        if (count == 0) continue;
        plan.work.push_back(prompt_work(row, static_cast<std::uint32_t>(computed[i]), std::span(texts[i]).subspan(computed[i], count), false));
        parts.emplace_back(i, count);
        computed[i] += count;
      }
      const bool last = parts.empty();
      for (std::size_t i = 0; last && i < texts.size(); ++i) engine_->clear(plan, static_cast<std::uint32_t>(i));
      gpu::Observer observer;
      observer.logits = [&](std::span<const float> values) {
        for (const auto& [text, count] : parts) {
          all[text].insert(all[text].end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count * vocabulary_));
          values = values.subspan(count * vocabulary_);
        }
      };
      if (last) observer = {};
      engine_->executor(0).observe(std::move(observer));
      auto result = engine_->run(plan);
      engine_->executor(0).observe({});
      if (!result) return result.error();
      first = false;
      if (last) break;
    }
    for (std::size_t i = 0; i < texts.size(); ++i)
      if (all[i].size() != texts[i].size() * vocabulary_)
        return Error{ErrorCode::internal,
                     "a text of " + std::to_string(texts[i].size()) + " tokens brought " + std::to_string(all[i].size()) + " logits of " +
                         std::to_string(vocabulary_) + " each",
                     {}};
    return all;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::uint32_t vocabulary_ = 0;
  std::uint64_t request_ = 0;
  std::size_t piece_max_ = 0;
};

// The clean comparison, and beside it what the rules must notice.
struct Judged {
  explicit Judged(double error_max) : clean(error_max), some(error_max), shifted(error_max) {}

  void add(const std::string& name, std::size_t position, std::span<const float> cpu, std::vector<float> other, double amount) {
    clean.add(name, cpu, other);
    if (amount == 0) return;
    const double margin = peak_of(cpu).margin;
    if (margin > clearest_margin && std::isfinite(margin)) {
      clearest_margin = margin;
      clearest_cpu.assign(cpu.begin(), cpu.end());
      clearest_other = other;
    }
    std::vector<float> all = other;
    for (float& logit : all) logit += static_cast<float>(amount);
    shifted.add(name, cpu, all);
    if (position % corrupt_every == 0) raise_wrong_token(cpu, other, amount);
    some.add(name, cpu, other);
  }
  static void raise_wrong_token(std::span<const float> cpu, std::vector<float>& other, double amount) {
    const std::size_t right = peak_of(cpu).token;
    other[(right + 1 + other.size() / 3) % other.size()] += static_cast<float>(amount);
  }
  void judge_controls(double amount, Verdict& verdict) {
    const auto expect = [&](const std::string& name, const Comparison& c, bool noticed) {
      c.print("control, " + name);
      noticed ? verdict.pass()
              : verdict.fail("control, " + name, "an error of " + std::to_string(amount) + " was not noticed by the rule it is made for");
    };
    expect("a wrong token's logit at every 50th position", some, some.breaks_share());
    Comparison one = clean;
    raise_wrong_token(clearest_cpu, clearest_other, amount);
    one.add("the clearest position", clearest_cpu, clearest_other);
    expect("a wrong token's logit at one position", one, one.breaks_margin() && one.breaks_share() == clean.breaks_share());
    expect("all logits shifted", shifted, shifted.breaks_error() && shifted.breaks_share() == clean.breaks_share());
  }

  Comparison clean, some, shifted;
  double clearest_margin = -1;  // the position at which the CPU is most certain
  std::vector<float> clearest_cpu, clearest_other;
};

Status run(const Settings& settings, Verdict& verdict) {
  auto model = gpu::load_gpt_oss(settings.folder);
  if (!model) return model.error();
  const std::size_t vocabulary = (*model)->spec.vocabulary;
  auto texts = read_texts(settings, (*model)->spec.context_tokens_max);
  if (!texts) return texts.error();
  std::size_t longest = 1;
  for (const Text& text : *texts) longest = std::max(longest, text.size());
  auto other = Side::create(*model, settings.device, static_cast<std::uint32_t>(longest));
  if (!other) return other.error();
  auto cpu = Side::create(*model, gpu::Device::cpu, static_cast<std::uint32_t>(longest));
  if (!cpu) return cpu.error();

  const double amount = settings.corrupt != 0 ? settings.corrupt : settings.control;
  Judged judged(settings.device == gpu::Device::cpu ? 0 : 5e-2);
  std::size_t position = 0;
  constexpr std::size_t pieces[] = {1, 0, 9};
  for (std::size_t first = 0; first < texts->size(); first += rows) {
    const auto group = std::span<const Text>(*texts).subspan(first, std::min<std::size_t>(rows, texts->size() - first));
    const std::size_t piece = pieces[first / rows % std::size(pieces)];
    auto ours = (*cpu)->logits(group, 0);
    if (!ours) return ours.error();
    auto theirs = (*other)->logits(group, piece);
    if (!theirs) return theirs.error();
    for (std::size_t i = 0; i < group.size(); ++i)
      for (std::size_t p = 0; p < group[i].size(); ++p, ++position) {
        const std::string name = "text " + std::to_string(first + i + 1) + " position " + std::to_string(p) + " (" +
                                 (piece == 0 ? std::string("whole") : "pieces of " + std::to_string(piece)) + ")";
        const std::span<const float> row((*theirs)[i].data() + p * vocabulary, vocabulary);
        judged.add(name, position, std::span<const float>((*ours)[i]).subspan(p * vocabulary, vocabulary), {row.begin(), row.end()}, amount);
      }
  }
  if (position < settings.positions)
    verdict.fail(settings.file, "has " + std::to_string(position) + " positions, " + std::to_string(settings.positions) + " are asked for");
  const std::string title = std::string("cpu against ") + std::string(gpu::name_of(settings.device));
  const Comparison& chosen = settings.corrupt != 0 ? judged.some : judged.clean;
  chosen.print(title);
  chosen.judge(title, verdict);
  if (settings.control != 0) judged.judge_controls(settings.control, verdict);
  return Ok{};
}

// Empty when the words make sense; else what is wrong.
std::string read_settings(int argc, char** argv, Settings& s) {
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      names.push_back(name);
      continue;
    }
    if (i + 1 == argc) return name + " needs a value";
    const std::string value = argv[++i];
    if (name == "--device" && (value == "cpu" || value == "cuda")) {
      s.device = value == "cuda" ? gpu::Device::cuda : gpu::Device::cpu;
    } else if (name == "--positions" && std::atoi(value.c_str()) > 0) {
      s.positions = static_cast<std::size_t>(std::atoi(value.c_str()));
    } else if (name == "--control" && std::atof(value.c_str()) > 0) {
      s.control = std::atof(value.c_str());
    } else if (name == "--corrupt" && std::atof(value.c_str()) > 0) {
      s.corrupt = std::atof(value.c_str());
    } else {
      return name + " " + value + " is not known; there are --device cpu|cuda, --positions N, --control X and --corrupt X";
    }
  }
  s.folder = !names.empty() ? names[0] : ALTHING_SOURCE_DIR "/examples/models/tiny";
  s.file = names.size() > 1 ? names[1] : s.folder + "/conversations.jsonl";
  return {};
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "teacher_forcing [--device cpu|cuda] [--positions N] [--control X] [--corrupt X] [MODEL_FOLDER [TEXTS]]\n"
                             "Logits of known texts, position by position, against the CPU's."))
    return 0;
  using namespace althing;
  tests::Settings settings;
  if (const std::string wrong = tests::read_settings(argc, argv, settings); !wrong.empty()) {
    std::fprintf(stderr, "teacher_forcing: %s\n", wrong.c_str());
    return 2;
  }
  tests::Verdict verdict;
  const Status status = tests::run(settings, verdict);
  const bool unsupported = !status && status.error().code == ErrorCode::unsupported;
  if (unsupported) verdict.skip(settings.folder, status.error().message);
  if (!status && !unsupported) verdict.fail(settings.folder, status.error().message);
  const int code = verdict.close();
  return unsupported ? 0 : code;
}
