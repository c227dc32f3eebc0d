// See the header.
#include "actors/engine_setup.hpp"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "scheduler/placement.hpp"

namespace althing::actors {

Result<EngineSetup> set_up_engine(const ServeSettings& settings) {
  auto model = gpu::load_gpt_oss(settings.model);
  if (!model) return model.error();
  const gpu::DecoderSpec& spec = (*model)->spec;
  auto placements = scheduler::place(settings.ranks, {spec.query_heads, spec.kv_heads, spec.experts, spec.vocabulary});
  if (!placements) return placements.error();

  EngineSetup setup{std::move(*model), std::move(*placements), {}, settings.limits};
  std::uint32_t& context = setup.limits.context_tokens_max;
  context = context == 0 ? setup.model->spec.context_tokens_max : std::min(context, setup.model->spec.context_tokens_max);
  setup.limits.completion_tokens_max = std::min(setup.limits.completion_tokens_max, context);
  auto kv = gpu::kv_layout(setup.model->spec, setup.placements, gpu::kv_format(gpu::Device::cpu), settings.kv_mib << 20, context);
  if (!kv) return Error{kv.error().code, kv.error().message + " (--kv-mib, --context)", "kv-mib"};
  setup.kv = std::move(*kv);
  return setup;
}

Result<protocol::harmony::Format> chat_format(const std::string& model_directory) {
  auto tokenizer = protocol::Tokenizer::of_model(model_directory);
  if (!tokenizer) return tokenizer.error();
  return protocol::harmony::Format::of(std::move(*tokenizer));
}

std::string model_name(const std::string& model_directory) {
  const auto path = std::filesystem::path(model_directory).lexically_normal();
  const std::string name = path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
  return name.empty() ? model_directory : name;
}

std::string memory_table(const EngineSetup& setup, const gpu::ExecutorMemory& memory) {
  struct sysinfo machine {};
  ::sysinfo(&machine);
  const double mib = 1.0 / (1u << 20);
  const double free_mib = static_cast<double>(machine.freeram + machine.bufferram) * machine.mem_unit * mib;
  char text[512];
  std::snprintf(text, sizeof text,
                "memory of each rank, %zu in all (MiB)\n"
                "  weights  %10.1f  mapped from the checkpoint, shared by all ranks of the host\n"
                "  KV cache %10.1f  %u pages of %llu bytes\n"
                "  scratch  %10.1f\n"
                "  free     %10.1f  of the machine, before the page cache\n",
                setup.placements.size(), static_cast<double>(memory.weight_bytes) * mib, static_cast<double>(memory.kv_bytes) * mib,
                setup.kv.page_count, static_cast<unsigned long long>(setup.kv.page_bytes), static_cast<double>(memory.scratch_bytes) * mib, free_mib);
  return text;
}

}  // namespace althing::actors
