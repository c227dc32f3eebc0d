// Compares a backend with what transformers computed in float32 for small gpt-oss checkpoints, by relative error in the Frobenius norm; for several
// rank counts and prompt chunkings. Chunkings of one layout must agree to the last bit.
//   Layer by layer: the output and the router logits of each layer against float32 math on the very input that the backend gave it. At most 1e-4
//   (CPU) or 1e-2 (CUDA, whose operands are bf16). End to end: hidden states, router logits and logits against the reference. On the CPU at most
//   1e-4. On CUDA 2e-2 for each layer passed: errors add up, these random weights magnify them, and attention brings every token a little of those
//   that chose other experts. (An emulation of the same models wholly in bf16, residual included, ends at 2.6e-2 and 4.3e-2; this only shows that
//   nothing is lost between layers.)
// On CUDA a token may choose other experts, or a greedy token be another one, where the reference's values are closer than twice the error measured
// elsewhere. Such tokens are listed with their margins. A token that chose other experts is out of the comparison from there on; so is what follows
// another greedy token.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/models/gpt_oss.hpp"
#include "gpu/weights/checkpoint.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/expert_choices.hpp"
#include "tests/gpu/layer_alone.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr double tolerance_of(gpu::Device device) { return device == gpu::Device::cuda ? 1e-2 : 1e-4; }

struct Reference {
  std::vector<TokenId> tokens, greedy;
  std::vector<float> logits, hidden, router_logits;
};

template <class From, class To>
bool read(const gpu::Checkpoint& file, const char* name, gpu::DType type, std::vector<To>& out) {
  const gpu::TensorView* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != type) return false;
  std::size_t count = 1;
  for (const auto size : tensor->shape) count *= size;
  out.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, tensor->data + i * sizeof value, sizeof value);
    out[i] = static_cast<To>(value);
  }
  return true;
}

Result<Reference> read_reference(const std::filesystem::path& folder) {
  auto file = gpu::Checkpoint::open_file(folder / "reference.safetensors");
  if (!file) return file.error();
  Reference r;
  const bool whole = read<std::int64_t>(**file, "tokens", gpu::DType::i64, r.tokens) &&
                     read<std::int64_t>(**file, "greedy", gpu::DType::i64, r.greedy) && read<float>(**file, "logits", gpu::DType::f32, r.logits) &&
                     read<float>(**file, "hidden", gpu::DType::f32, r.hidden) &&
                     read<float>(**file, "router_logits", gpu::DType::f32, r.router_logits);
  if (!whole) return Error{ErrorCode::corrupt, "reference.safetensors lacks tokens, greedy, logits, hidden or router_logits", {}};
  return r;
}

// What one run of the prompt and its greedy continuation gave.
struct Run {
  std::vector<std::vector<float>> hidden, router_logits;  // by layer, (tokens, …)
  std::vector<float> logits;
  std::vector<TokenId> greedy;
};

Result<Run> run_model(std::shared_ptr<const gpu::Model> model, const Reference& reference, std::uint32_t ranks, std::uint32_t chunk,
                      gpu::Device device) {
  EngineOptions options;
  options.device = device;
  options.ranks = ranks;
  options.threads = ranks == 1 ? 2 : 1;
  options.page_seed = 17 * chunk + ranks;
  auto engine = Engine::create(model, options);
  if (!engine) return engine.error();

  Run run;
  run.hidden.resize(model->spec.layers.size() + 1);
  run.router_logits.resize(model->spec.layers.size());
  const auto watch = [&](bool keep) {
    gpu::Observer first, others;
    const auto append = [](std::vector<float>& to, std::span<const float> values) { to.insert(to.end(), values.begin(), values.end()); };
    if (keep) {
      first.hidden = [&run, append](std::uint32_t layer, std::span<const float> values) { append(run.hidden[layer], values); };
      first.router_logits = [&run, append](std::uint32_t layer, std::span<const float> values) { append(run.router_logits[layer], values); };
      first.logits = [&run, append](std::span<const float> values) { append(run.logits, values); };
      others.logits = [](std::span<const float>) {};
    }
    for (std::size_t r = 0; r < (*engine)->ranks(); ++r) (*engine)->executor(r).observe(r == 0 ? first : others);
  };

  watch(true);
  const std::uint32_t length = static_cast<std::uint32_t>(reference.tokens.size());
  for (std::uint32_t at = 0; at < length; at += chunk) {
    StepPlan plan = (*engine)->next_plan();
    if (at == 0) (*engine)->admit(plan, 3, 42, {}, length + static_cast<std::uint32_t>(reference.greedy.size()));
    const std::uint32_t size = std::min(chunk, length - at);
    plan.work.push_back(prompt_work(3, at, std::span(reference.tokens).subspan(at, size), at + size == length));
    auto result = (*engine)->run(plan);
    if (!result) return result.error();
    for (const DrawnToken& drawn : result->drawn) run.greedy.push_back(drawn.token);
  }
  watch(false);
  while (run.greedy.size() < reference.greedy.size()) {
    StepPlan plan = (*engine)->next_plan();
    plan.work.push_back(decode_work(3, length + static_cast<std::uint32_t>(run.greedy.size()) - 1));
    auto result = (*engine)->run(plan);
    if (!result) return result.error();
    run.greedy.push_back(result->drawn.at(0).token);
  }
  return run;
}

// Over the rows (tokens) of two equal matrices that `compared` names.
double relative_error(std::span<const float> ours, std::span<const float> theirs, const std::vector<bool>& compared) {
  if (ours.size() != theirs.size() || ours.empty()) return INFINITY;
  const std::size_t width = ours.size() / compared.size();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!compared[i / width]) continue;
    const double d = double{ours[i]} - double{theirs[i]};
    difference += d * d;
    norm += double{theirs[i]} * double{theirs[i]};
  }
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : INFINITY;
}

double largest_difference(std::span<const float> ours, std::span<const float> theirs, const std::vector<bool>& compared) {
  double largest = 0;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    if (compared[i / (theirs.size() / compared.size())]) largest = std::max(largest, std::abs(double{ours[i]} - double{theirs[i]}));
  return largest;
}

// By how much the CPU backend's logit of `theirs` is above that of `ours` after the prompt and the first `count` reference tokens.
Result<double> margin(const std::shared_ptr<const gpu::Model>& model, const Reference& reference, std::size_t count, TokenId ours, TokenId theirs) {
  Reference longer = reference;
  longer.tokens.insert(longer.tokens.end(), reference.greedy.begin(), reference.greedy.begin() + static_cast<std::ptrdiff_t>(count));
  longer.greedy.resize(1);
  auto run = run_model(model, longer, 1, static_cast<std::uint32_t>(longer.tokens.size()), gpu::Device::cpu);
  if (!run) return run.error();
  const float* last = run->logits.data() + (longer.tokens.size() - 1) * model->spec.vocabulary;
  return double{last[theirs]} - double{last[ours]};
}

struct Comparison {
  gpu::Device device = gpu::Device::cpu;
  std::string title;
  double worst = 0;
  double logit_error = 0;  // the largest of tokens whose experts are the reference's
  std::size_t flips = 0;
  std::string failures;

  void error(const std::string& what, double value, double tolerance) {
    worst = std::max(worst, value);
    if (value > tolerance) failures += what + " differ by " + std::to_string(value) + " (at most " + std::to_string(tolerance) + "); ";
  }
  // Takes tokens that chose other experts out of `compared`.
  void choices(const std::string& what, std::span<const float> ours, std::span<const float> theirs, std::size_t count, std::vector<bool>& compared) {
    if (ours.size() != theirs.size()) return;  // told as an error of the values already
    const ChoiceComparison c = compare_choices(ours, theirs, count, compared);
    for (const Flip& flip : c.flips) {
      std::printf("%s: %s: token %zu chose other experts, margin %.2e, largest error elsewhere %.2e\n", title.c_str(), what.c_str(), flip.token,
                  flip.margin, c.error);
      if (device == gpu::Device::cpu || !c.explains(flip)) failures += what + ": token " + std::to_string(flip.token) + " chose other experts; ";
      compared[flip.token] = false;
      ++flips;
    }
  }
};

// Every layer on the input that the run itself gave it. A flip in one layer says nothing about the next one, which is computed from what came of it.
Status compare_layers(Comparison& c, const gpu::Model& model, const Run& run) {
  for (std::size_t layer = 0; layer < model.spec.layers.size(); ++layer) {
    auto alone = run_layer_alone(model, layer, run.hidden[layer]);
    if (!alone) return alone.error();
    std::vector<bool> compared(run.hidden[layer].size() / model.spec.hidden, true);
    const std::string what = " of layer " + std::to_string(layer) + " alone";
    c.error("router logits" + what, relative_error(run.router_logits[layer], alone->router_logits, compared), tolerance_of(c.device));
    c.choices("experts" + what, run.router_logits[layer], alone->router_logits, model.spec.layers[layer].moe.router.experts_per_token, compared);
    c.error("outputs" + what, relative_error(run.hidden[layer + 1], alone->output, compared), tolerance_of(c.device));
  }
  return Ok{};
}

void compare_to_reference(Comparison& c, const gpu::DecoderSpec& spec, const Run& run, const Reference& reference) {
  const std::size_t layers = run.router_logits.size(), tokens = reference.tokens.size();
  std::vector<bool> compared(tokens, true);
  const auto part = [&](std::span<const float> all, std::size_t parts, std::size_t index) {
    return all.subspan(all.size() / parts * index, all.size() / parts);
  };
  const auto passed = [&](std::size_t count) {
    return c.device == gpu::Device::cpu ? tolerance_of(c.device) : 2 * static_cast<double>(count) * tolerance_of(c.device);
  };
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::string what = " of layer " + std::to_string(layer);
    const auto theirs = part(reference.router_logits, layers, layer);
    c.error("hidden states" + what, relative_error(run.hidden[layer], part(reference.hidden, layers + 1, layer), compared), passed(layer));
    c.error("router logits" + what, relative_error(run.router_logits[layer], theirs, compared), passed(layer + 1));
    c.choices("experts" + what, run.router_logits[layer], theirs, spec.layers[layer].moe.router.experts_per_token, compared);
  }
  c.error("final hidden states", relative_error(run.hidden[layers], part(reference.hidden, layers + 1, layers), compared), passed(layers));
  c.error("logits", relative_error(run.logits, reference.logits, compared), passed(layers));
  c.logit_error = largest_difference(run.logits, reference.logits, compared);
}

// `close`: whether a greedy token may be another one, as told above.
void compare_greedy(Comparison& c, const Run& run, const Reference& reference, const std::function<bool(std::size_t)>& close) {
  const auto at = std::mismatch(run.greedy.begin(), run.greedy.end(), reference.greedy.begin(), reference.greedy.end()).first - run.greedy.begin();
  if (run.greedy != reference.greedy && !close(static_cast<std::size_t>(at))) {
    c.failures += "greedy token " + std::to_string(at) + " is " + std::to_string(run.greedy[static_cast<std::size_t>(at)]) + ", the reference has " +
                  std::to_string(reference.greedy[static_cast<std::size_t>(at)]) + "; ";
  }
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool equal_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return equal_bits(x, y); });
}

// All chunkings of one layout; the first is the whole prompt and the measure of the others' bits.
void check_layout(const std::string& name, std::shared_ptr<const gpu::Model> model, const Reference& reference, std::uint32_t ranks,
                  gpu::Device device, Verdict& verdict) {
  const std::uint32_t whole = static_cast<std::uint32_t>(reference.tokens.size());
  Run first;
  double logit_error = 0;
  for (const std::uint32_t chunk : {whole, 1u, 7u, 32u}) {
    const std::string title = name + ", " + std::to_string(ranks) + " ranks, chunks of " + std::to_string(chunk);
    if (auto placements = scheduler::place(ranks, shape_of(model->spec)); !placements) {
      verdict.skip(title, placements.error().message);
      continue;
    }
    auto run = run_model(model, reference, ranks, chunk, device);
    if (!run) {
      verdict.fail(title, run.error().message);
      continue;
    }
    Comparison c;
    c.device = device;
    c.title = title;
    double alone = 0;
    if (chunk == whole) {
      first = *run;
      if (auto status = compare_layers(c, *model, *run); !status) c.failures += status.error().message + "; ";
      alone = std::exchange(c.worst, 0);
      compare_to_reference(c, model->spec, *run, reference);
      logit_error = c.logit_error;
    } else if (!equal_bits(run->logits, first.logits) || !equal_bits(run->hidden, first.hidden) ||
               !equal_bits(run->router_logits, first.router_logits)) {
      c.failures += "logits, hidden states or router logits do not have the bits of the whole prompt; ";
    }
    compare_greedy(c, *run, reference, [&](std::size_t at) {
      if (device == gpu::Device::cpu || at >= std::min(run->greedy.size(), reference.greedy.size())) return false;
      const auto apart = margin(model, reference, at, run->greedy[at], reference.greedy[at]);
      std::printf("%s: greedy token %zu is %u, the reference has %u, margin %.4f, largest error of a logit %.4f\n", title.c_str(), at,
                  run->greedy[at], reference.greedy[at], apart ? *apart : NAN, logit_error);
      return apart && *apart < 2 * logit_error;
    });
    if (!c.failures.empty()) {
      verdict.fail(title, c.failures);
      continue;
    }
    if (chunk == whole) {
      std::printf("passed %s: largest relative error of a layer alone %.2e, end to end %.2e, %zu other choices of experts\n", title.c_str(), alone,
                  c.worst, c.flips);
    } else {
      std::printf("passed %s: the bits of the whole prompt\n", title.c_str());
    }
    verdict.pass();
  }
}

void check_folder(const std::filesystem::path& folder, gpu::Device device, Verdict& verdict) {
  auto reference = read_reference(folder);
  if (!reference) return verdict.fail(folder.string(), reference.error().message);
  std::vector<std::filesystem::path> models;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(entry.path() / "config.json")) models.push_back(entry.path());
  std::sort(models.begin(), models.end());
  if (models.empty()) verdict.fail(folder.string(), "it holds no model folder (one with config.json)");
  for (const auto& path : models) {
    const std::string name = folder.filename().string() + "/" + path.filename().string();
    auto model = gpu::load_gpt_oss(path);
    if (!model) {
      verdict.fail(name, model.error().message);
      continue;
    }
    for (const std::uint32_t ranks : {1u, 2u, 4u})
      if (ranks == 1 || device == gpu::Device::cpu) check_layout(name, *model, *reference, ranks, device, verdict);
  }
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(
          argc, argv,
          "model_reference [--device cuda] [FOLDER …]\n"
          "Small checkpoints with a reference.safetensors, layer by layer against it; those of tests/data/references unless folders are named."))
    return 0;
  auto device = althing::gpu::Device::cpu;
  if (argc > 2 && std::string(argv[1]) == "--device" && std::string(argv[2]) == "cuda") {
    device = althing::gpu::Device::cuda;
    argc -= 2, argv += 2;
  }
  std::vector<std::filesystem::path> folders(argv + 1, argv + argc);
  std::error_code ignored;
  if (folders.empty())
    for (const auto& entry : std::filesystem::directory_iterator(ALTHING_SOURCE_DIR "/tests/data/references", ignored))
      if (std::filesystem::exists(entry.path() / "reference.safetensors")) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  althing::tests::Verdict verdict;
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / "reference.safetensors")) {
      althing::tests::check_folder(folder, device, verdict);
    } else {
      verdict.fail(folder.string(), "it holds no reference.safetensors");
    }
  }
  return verdict.close();
}
