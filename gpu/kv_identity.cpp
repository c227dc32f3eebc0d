// Words are absorbed in a fixed order, with the length of whatever has one in front.
#include "gpu/kv_identity.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace althing::gpu {
namespace {

class Absorber {
 public:
  Absorber& add(std::uint64_t word) {
    state_ = std::rotl((state_ ^ word) * 0x9E3779B97F4A7C15u, 31) * 0xBF58476D1CE4E5B9u;
    return *this;
  }
  Absorber& add(const std::byte* bytes, std::uint64_t count) {
    add(count);
    for (std::uint64_t at = 0; at < count; at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min<std::uint64_t>(sizeof word, count - at));
      add(word);
    }
    return *this;
  }
  Absorber& add(const TensorView& tensor) {
    if (tensor.empty()) return add(0);
    std::uint64_t bytes = size_of(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bytes *= extent;
    return add(static_cast<std::uint64_t>(tensor.dtype)).add(tensor.data, bytes);
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x452821E638D01377u;
};

}  // namespace

std::uint64_t kv_identity(const DecoderSpec& spec, const KvLayout& layout, Device device, const RankPlacement& placement) {
  Absorber all;
  constexpr std::string_view version = ALTHING_VERSION;
  all.add(reinterpret_cast<const std::byte*>(version.data()), version.size()).add(static_cast<std::uint64_t>(device)).add(placement.tp());
  for (const std::uint32_t size : {spec.hidden, spec.query_heads, spec.kv_heads, spec.head_dim, spec.experts, spec.intermediate, spec.vocabulary})
    all.add(size);
  all.add(spec.layers.size());
  for (const DecoderLayer& layer : spec.layers) all.add(layer.attention.window).add(layer.attention.norm).add(layer.moe.norm);
  all.add(spec.norm).add(layout.page_bytes).add(layout.groups.size());
  for (const KvGroup& group : layout.groups) {
    all.add(group.window).add(group.tokens_per_page).add(group.layers.size());
    for (const std::uint32_t layer : group.layers) all.add(layer);
  }
  return all.value();
}

std::uint64_t kv_shard_identity(std::uint64_t identity, const RankPlacement& placement) {
  return Absorber()
      .add(identity)
      .add(placement.kv_heads.begin)
      .add(placement.kv_heads.end)
      .add(placement.query_heads.begin)
      .add(placement.query_heads.end)
      .value();
}

}  // namespace althing::gpu
