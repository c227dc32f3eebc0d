// See the header.
#include "actors/engine_setup.hpp"

#include <sys/sysinfo.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "actors/device_choice.hpp"
#include "actors/expert_control_text.hpp"
#include "actors/logging.hpp"
#include "actors/number_range.hpp"
#include "actors/synthetic_words.hpp"
#include "gpu/cuda/memory_plan.hpp"
#include "gpu/drafting_executor.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "gpu/ops/lower.hpp"
#include "gpu/weights/mapped_file.hpp"
#include "protocol/chat/plain_template.hpp"
#include "scheduler/placement.hpp"

namespace althing::actors {
using protocol::chat::ChatFormat;
namespace {

constexpr std::uint64_t cpu_kv_mib = 256;
constexpr std::uint32_t context_part_min = 4;
constexpr std::size_t chat_template_bytes_max = std::size_t{64} << 10;
constexpr std::uint64_t synthetic_pages = 1u << 20;  // which are names only
constexpr std::uint32_t draft_tokens = 4;            // that a draft model guesses, where nobody says how many

Result<std::shared_ptr<const gpu::Model>> load(const ServeSettings& settings) {
  if (settings.load.empty()) return gpu::load_gpt_oss(settings.model);
  return gpu::dummy_model(std::string_view(settings.load).substr(dummy_prefix.size()));
}

// Null where none is asked for. The rank that runs it checks whether it fits the model.
Result<std::shared_ptr<const gpu::DraftModel>> load_draft(const ServeSettings& settings) {
  const std::string& name = settings.draft_model;
  if (name.empty()) return std::shared_ptr<const gpu::DraftModel>();
  auto model = name.starts_with(dummy_prefix) ? gpu::dummy_model(std::string_view(name).substr(dummy_prefix.size())) : gpu::load_gpt_oss(name);
  if (!model) return Error{model.error().code, "the draft model: " + model.error().message + " (--draft-model)", "draft-model"};
  const gpu::DecoderSpec& spec = (*model)->spec;
  auto placements = scheduler::place(1, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements) return placements.error();
  return std::make_shared<const gpu::DraftModel>(gpu::DraftModel{std::move(*model), std::move(placements->front())});
}

// What the draft model leaves of a GPU's bytes for the model's pages: its own weights and scratch go first, and every page has one of its own beside
// it.
Result<std::uint64_t> beside_draft(const EngineSetup& setup, std::uint64_t bytes) {
  if (setup.draft == nullptr) return bytes;
  auto program = gpu::lower(setup.draft->model->spec, setup.draft->placement);
  if (!program) return program.error();
  const auto pages = gpu::kv_layout(setup.model->spec, setup.placements, gpu::kv_format(setup.device), UINT64_MAX, 1);
  if (!pages) return pages.error();
  const auto own = gpu::draft_layout(setup.draft->model->spec, *pages, 1, gpu::kv_format(setup.device));
  if (!own) return own.error();
  const std::uint64_t taken =
      gpu::cuda::weight_bytes_max(*program) + gpu::cuda::scratch_bytes_max(*program, gpu::draft_limits(setup.draft->model->spec, setup.limits));
  if (bytes <= taken)
    return Error{ErrorCode::too_large,
                 "the draft model takes up to " + std::to_string(taken >> 20) + " MiB of a GPU, and the model leaves " + std::to_string(bytes >> 20) +
                     "; use a smaller one, or none",
                 "draft-model"};
  return static_cast<std::uint64_t>(static_cast<double>(bytes - taken) * static_cast<double>(pages->page_bytes) /
                                    static_cast<double>(pages->page_bytes + own->page_bytes));
}

// Where everything is given, nobody needs to look.
Result<DeviceChoice> device_for(const ServeSettings& settings) {
  if (settings.device == "cuda" && settings.kv_mib > 0) return DeviceChoice{gpu::Device::cuda, "as asked", 0};
  return choose_device(settings.device, settings.ranks + settings.spares,
                       settings.device == "cpu" || settings.device == "synthetic" ? gpu::CudaReport{} : gpu::cuda_devices());
}

// The rank with most weights decides for all: pages are the same on every rank.
Result<std::uint64_t> gpu_kv_mib(const EngineSetup& setup, std::uint64_t memory_bytes, double fraction) {
  std::uint64_t least = UINT64_MAX;
  for (const RankPlacement& placement : setup.placements) {
    auto program = gpu::lower(setup.model->spec, placement);
    if (!program) return program.error();
    auto bytes = gpu::cuda::kv_bytes(*program, setup.limits, memory_bytes, fraction);
    if (!bytes) return bytes.error();
    bytes = beside_draft(setup, *bytes);
    if (!bytes) return bytes.error();
    least = std::min(least, *bytes);
  }
  return std::max<std::uint64_t>(least >> 20, 1);
}

// What a synthetic engine says, and pages for as many requests as its limits let in.
Status set_up_synthetic(const ServeSettings& settings, EngineSetup& setup) {
  auto format = chat_format(settings);
  if (!format) return format.error();
  if (format->harmony() == nullptr)
    return Error{ErrorCode::unsupported, "the synthetic engine speaks Harmony only; leave --chat-template out", "chat-template"};
  auto script = script_of(*format->harmony(), setup.model->spec.vocabulary);
  if (!script) return script.error();
  setup.script = std::make_shared<const gpu::SyntheticScript>(std::move(*script));
  setup.synthetic_step = std::chrono::microseconds(settings.synthetic_step_us);
  if (setup.kv_mib > 0) return Ok{};
  const auto any = gpu::kv_layout(setup.model->spec, setup.placements, gpu::kv_format(setup.device), UINT64_MAX, 1);
  if (!any) return any.error();
  setup.kv_mib = std::clamp<std::uint64_t>((any->page_bytes * synthetic_pages) >> 20, 1, kv_mib_range.max);
  return Ok{};
}

std::string mirror_room(const EngineSetup& setup) {
  if (setup.kv_mirror_mib > 0) return "copies of up to " + std::to_string(setup.mirror_slots()) + " pages of each rank, taken as needed";
  return setup.device != gpu::Device::cpu ? "none: " + std::string(gpu::name_of(setup.device)) + " ranks recompute what is lost"
                                          : "none: --kv-mirror-mib is 0";
}

Result<ChatFormat> template_of(const std::string& file, std::shared_ptr<const protocol::Tokenizer> tokenizer) {
  auto text = gpu::read_small_file(file, chat_template_bytes_max);
  auto format = text ? protocol::chat::plain_template(*text, std::move(tokenizer)) : Result<ChatFormat>(text.error());
  if (!format) return Error{format.error().code, "the chat template " + file + ": " + format.error().message + " (--chat-template)", "chat-template"};
  return format;
}

}  // namespace

Result<EngineSetup> set_up_engine(const ServeSettings& settings) {
  auto model = load(settings);
  if (!model) return model.error();
  const gpu::DecoderSpec& spec = (*model)->spec;
  auto grid = grid_of(settings);
  if (!grid) return grid.error();
  auto placements = scheduler::place(*grid, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements)
    return Error{placements.error().code, placements.error().message + " (--ranks, --dp, --tp, --ep, --replicas)", placements.error().field};
  auto choice = device_for(settings);
  if (!choice) return choice.error();
  if ((*model)->dummy_seed && choice->device == gpu::Device::cpu)
    return Error{ErrorCode::unsupported, "a dummy model needs a GPU, and CPU ranks would serve it: " + choice->why, "load"};

  EngineSetup setup{std::move(*model),
                    std::move(*grid),
                    std::move(*placements),
                    choice->device,
                    choice->why,
                    gpu::DenseFormat::bf16,
                    {},
                    settings.kv_mib,
                    {},
                    with_engine_limits(settings.limits, choice->device)};
  if (auto limits = check_limits(setup.limits); !limits) return limits.error();
  setup.dense = settings.dense == "fp8" ? gpu::DenseFormat::fp8 : gpu::DenseFormat::bf16;
  auto draft = load_draft(settings);
  if (!draft) return draft.error();
  setup.draft = std::move(*draft);
  setup.limits.draft_model = setup.draft != nullptr;
  if (setup.limits.draft_model && setup.limits.speculation_tokens_max == 0) setup.limits.speculation_tokens_max = draft_tokens;
  auto control = expert_control_of(settings);
  if (!control) return control.error();
  setup.control = *control;
  if (setup.limits.speculation_tokens_max > 0 && !control->off())
    return Error{ErrorCode::invalid_argument,
                 "--speculate (and --draft-model) verifies guesses in the batch of the step, and with expert control what is drawn depends on the "
                 "batch; leave one of the two out",
                 "speculate"};
  // Where experts can be full, a token's KV depends on the batch that computed it; and a synthetic engine keeps none, but reads a row from its first
  // token on.
  setup.share_prefixes = settings.prefix_sharing != "off" && control->off() && setup.device != gpu::Device::synthetic;
  std::uint32_t& context = setup.limits.context_tokens_max;
  context = context == 0 ? setup.model->spec.context_tokens_max : std::min(context, setup.model->spec.context_tokens_max);
  setup.limits.completion_tokens_max = std::min(setup.limits.completion_tokens_max, context);
  if (setup.limits.gateway_requests_max == 0) setup.limits.gateway_requests_max = settings.http_connections_max;
  if (setup.device == gpu::Device::synthetic)
    if (auto status = set_up_synthetic(settings, setup); !status) return status.error();
  if (setup.kv_mib == 0 && setup.device == gpu::Device::cpu) setup.kv_mib = cpu_kv_mib;
  if (setup.kv_mib == 0) {
    auto mib = gpu_kv_mib(setup, choice->memory_bytes, settings.gpu_memory_fraction);
    if (!mib) return mib.error();
    setup.kv_mib = *mib;
  }
  auto kv = gpu::kv_layout(setup.model->spec, setup.placements, gpu::kv_format(setup.device), setup.kv_mib << 20, context);
  if (!kv) return Error{kv.error().code, kv.error().message + " (--kv-mib, --context)", "kv-mib"};
  setup.kv = std::move(*kv);
  // The other backends have none.
  if (setup.device == gpu::Device::cpu) setup.kv_mirror_mib = settings.kv_mirror_mib;
  if (setup.kv_mirror_mib > 0 && setup.mirror_slots() == 0)
    return Error{ErrorCode::too_large,
                 "--kv-mirror-mib " + std::to_string(setup.kv_mirror_mib) + " has no room for one KV page, which has " +
                     std::to_string(setup.kv.page_bytes) + " bytes on each rank; give it more, or 0 for none",
                 "kv-mirror-mib"};
  return setup;
}

Result<EngineSetup> with_grid(const EngineSetup& setup, const Grid& grid) {
  EngineSetup other = setup;
  if (grid == setup.grid) return other;
  auto placements = scheduler::place(grid, setup.shape());
  if (!placements) return placements.error();
  const std::uint32_t context_min = std::max(setup.limits.context_tokens_max / context_part_min, 1u);
  auto kv = gpu::kv_layout(setup.model->spec, *placements, gpu::kv_format(setup.device), setup.kv_mib << 20, context_min);
  if (!kv) return kv.error();
  other.grid = grid;
  other.placements = std::move(*placements);
  other.kv = std::move(*kv);
  return other;
}

Result<ChatFormat> chat_format(const ServeSettings& settings) {
  const std::filesystem::path folder = settings.tokenizer.empty() ? settings.model : settings.tokenizer;
  if (folder.empty())
    return Error{ErrorCode::invalid_argument,
                 "a dummy model has no tokenizer: add --tokenizer FOLDER with the tokenizer.json of a gpt-oss model, or with o200k_base.tiktoken",
                 "tokenizer"};
  const std::filesystem::path ranks = folder / "o200k_base.tiktoken";
  std::error_code ignored;
  const bool only_ranks = !std::filesystem::exists(folder / "tokenizer.json", ignored) && std::filesystem::exists(ranks, ignored);
  auto tokenizer = only_ranks ? protocol::Tokenizer::from_tiktoken(ranks, protocol::Tokenizer::o200k_harmony_special_tokens())
                              : protocol::Tokenizer::of_model(folder);
  if (!tokenizer) return tokenizer.error();
  if (!settings.chat_template.empty()) return template_of(settings.chat_template, std::move(*tokenizer));
  const auto history = reasoning_history_of(settings);
  if (!history) return history.error();
  auto harmony = protocol::harmony::Format::of(std::move(*tokenizer));
  if (!harmony)
    return Error{harmony.error().code, harmony.error().message + "; a model that speaks another chat format needs --chat-template", "chat-template"};
  return ChatFormat(std::move(*harmony), {*history});
}

std::string model_name(const ServeSettings& settings) {
  const std::string made_up = settings.device == "synthetic" ? "synthetic-" : "";
  if (!settings.load.empty()) return made_up + "dummy-" + settings.load.substr(dummy_prefix.size());
  const auto path = std::filesystem::path(settings.model).lexically_normal();
  const std::string name = path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
  return made_up + (name.empty() ? settings.model : name);
}

void log_device(const EngineSetup& setup) {
  log(LogLevel::info, "device", {{"device", std::string(gpu::name_of(setup.device))}, {"why", setup.device_why}, {"kv_mib", setup.kv_mib}});
  if (setup.device == gpu::Device::synthetic)
    log(LogLevel::warning, "synthetic_engine",
        {{"step_us", setup.synthetic_step.count()}, {"note", "nothing is computed, and answers are made up: this is for load tests only"}});
  log(LogLevel::info, "kv_mirror", {{"mib", setup.kv_mirror_mib}, {"room", mirror_room(setup)}});
  std::size_t slots = 0;
  for (const RankPlacement& placement : setup.placements) slots = std::max(slots, placement.experts.size());
  const RankPlacement& first = setup.placements.front();
  log(LogLevel::info, "layout", {{"ranks", first.world}, {"dp", first.dp}, {"tp", first.tp()}, {"expert_slots_max", slots}});
  if (!setup.control.off())
    log(LogLevel::warning, "expert_control",
        {{"policy", std::string(name_of(setup.control.overflow))},
         {"note", "answers depend on what else is in a step: a stream that a fault interrupts may go on otherwise"}});
}

std::string memory_table(const EngineSetup& setup, const gpu::ExecutorMemory& memory) {
  constexpr double mib = 1.0 / (1u << 20);
  const bool on_gpu = setup.device == gpu::Device::cuda;
  struct sysinfo machine {};
  ::sysinfo(&machine);
  const double machine_free = static_cast<double>(machine.freeram + machine.bufferram) * machine.mem_unit;
  const std::uint32_t groups = setup.placements.front().dp;
  const std::string free_of =
      on_gpu ? fmt::format("of {:.1f} on the GPU", static_cast<double>(memory.device_bytes) * mib) : "of the machine, before the page cache";
  return fmt::format(
      "{} of each rank, {} in all (MiB)\n"
      "  weights  {:10.1f}  {}\n"
      "  KV cache {:10.1f}  {} pages of {} bytes{}\n"
      "  mirror   {:10.1f}  {}\n"
      "  scratch  {:10.1f}\n"
      "  free     {:10.1f}  {}\n{}",
      on_gpu ? "GPU memory" : "memory", setup.placements.size(), static_cast<double>(memory.weight_bytes) * mib,
      on_gpu ? "on the device" : "mapped from the checkpoint, shared by all ranks of the host", static_cast<double>(memory.kv_bytes) * mib,
      setup.kv.page_count, setup.kv.page_bytes, groups > 1 ? fmt::format(", in each of {} DP groups", groups) : "",
      static_cast<double>(setup.kv_mirror_mib), mirror_room(setup), static_cast<double>(memory.scratch_bytes) * mib,
      (on_gpu ? static_cast<double>(memory.device_free_bytes) : machine_free) * mib, free_of,
      setup.draft != nullptr ? "  (the draft model's weights, pages and scratch, on the first rank, are in these)\n" : "");
}

}  // namespace althing::actors
