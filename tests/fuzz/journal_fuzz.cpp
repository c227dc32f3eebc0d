// Any lines as a journal, with a sound beginning or without one: they are refused with a reason, or lived once more. An event that was read is the
// same when it is written and read again, and a core that hears such events in any order stays in order.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "scheduler/journal.hpp"
#include "scheduler/replay.hpp"

namespace {

using namespace althing;

// Small, so that its pools are soon full.
scheduler::CoreConfig small_config() {
  scheduler::CoreConfig config;
  config.limits.rows_max = 3;
  config.limits.step_tokens_max = 8;
  config.limits.prefill_chunk_max = 4;
  config.limits.sequences_max = 6;
  config.limits.context_tokens_max = 32;
  config.vocabulary = 100;
  config.kv.page_count = 12;
  config.kv.page_bytes = 64;
  config.kv.groups = {KvGroup{0, 4, {1}}, KvGroup{6, 4, {0}}};
  config.mirror_slots = 8;
  config.share_prefixes = true;
  return config;
}

// More than this takes the fuzzer's time and shows nothing.
bool is_small(const scheduler::CoreConfig& config) {
  return config.kv.page_count <= 4096 && config.mirror_slots <= 4096 && config.limits.rows_max <= 256 && config.limits.context_tokens_max <= 65'536;
}
bool is_small(const Event& event) {
  const auto* ready = std::get_if<RanksReady>(&event);
  return ready == nullptr || !ready->shape || (ready->shape->layout.page_count <= 4096 && ready->shape->mirror_slots <= 4096);
}

void check(const Event& event, scheduler::Core& core) {
  const auto again = scheduler::from_line(scheduler::to_line(event));
  if (!again || scheduler::to_line(*again) != scheduler::to_line(event)) std::abort();
  core.on(event);
  if (!core.check_invariants().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  scheduler::Replay replay;
  const auto core = scheduler::Core::create(small_config());
  if (data[0] != 'J') {
    if (!replay.line(scheduler::journal_header()) || !replay.line(scheduler::to_config_line(small_config()))) std::abort();
  }
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (const auto config = scheduler::from_config_line(line); config && !is_small(*config)) return 0;
    if (const auto event = scheduler::from_line(line)) {
      if (!is_small(*event)) return 0;
      check(*event, **core);
    }
    const auto status = replay.line(line);
    if (!status && status.error().message.empty()) std::abort();
    if (!status) break;
  }
  return 0;
}
