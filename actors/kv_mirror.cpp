// See the header.
#include "actors/kv_mirror.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "actors/control_channel.hpp"
#include "gpu/kv_identity.hpp"

namespace althing::actors {
namespace {

PageKey random_seed() {
  std::random_device device;
  const auto word = [&] { return (std::uint64_t{device()} << 32) | device(); };
  PageKey seed;
  seed.high = word();
  seed.low = word();
  return seed;
}

}  // namespace

Result<std::vector<gpu::MirrorMemory>> make_mirrors(const EngineSetup& setup) {
  std::vector<gpu::MirrorMemory> mirrors;
  if (setup.mirror_slots() == 0) return mirrors;
  const PageKey seed = random_seed();
  for (std::size_t place = 0; place < setup.placements.size(); ++place) {
    auto memory = gpu::MirrorMemory::create(std::uint64_t{setup.kv_mirror_mib} << 20, seed);
    if (!memory) return memory.error();
    mirrors.push_back(std::move(*memory));
  }
  return mirrors;
}

Result<std::shared_ptr<gpu::MirrorMemory>> adopt_mirror(int descriptor, const EngineSetup& setup, std::uint32_t rank) {
  Descriptor owned(descriptor);
  if (setup.mirror_slots() == 0) return std::shared_ptr<gpu::MirrorMemory>();
  return gpu::MirrorMemory::adopt(owned.release(), gpu::kv_shard_identity(setup.mirror_identity(), setup.placements[rank]), setup.kv.page_bytes);
}

std::vector<MirroredPage> agree(const std::vector<MirrorReport>& reports, std::uint32_t tp) {
  std::vector<MirroredPage> agreed;
  for (std::uint32_t first = 0; tp > 0 && first + tp <= reports.size(); first += tp) {
    const DpGroup group{first / tp};
    const auto has = [&](const MirrorReport& report, const MirroredPage& page) {
      const auto by_slot = [](const MirroredPage& a, const MirroredPage& b) { return a.slot < b.slot; };
      const auto found = std::lower_bound(report.pages.begin(), report.pages.end(), page, by_slot);
      return report.seed == reports.front().seed && found != report.pages.end() && *found == page;
    };
    for (const MirroredPage& page : reports[first].pages) {
      const auto begin = reports.begin() + first;
      const bool everywhere = std::all_of(begin, begin + tp, [&](const MirrorReport& report) { return has(report, page); });
      if (everywhere && page.dp_group == group) agreed.push_back(page);
    }
  }
  return agreed;
}

}  // namespace althing::actors
