// Which safetensors files make up a checkpoint folder: one file, shards under an index, or shards alone. An index is only believed as far as the
// shards agree with it, and names files of its own folder only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

inline constexpr std::string_view shard_index_name = "model.safetensors.index.json";
inline constexpr std::uint64_t shard_index_bytes_max = 100'000'000;

struct ShardIndex {
  std::string file;                                        // the index's name for messages
  std::map<std::string, std::string, std::less<>> shards;  // tensor -> file name
};

struct Shards {
  std::vector<std::string> files;  // names in the folder, sorted
  std::optional<ShardIndex> index;
};

// model.safetensors.index.json if there is one, else model.safetensors, else every *.safetensors; numbered shards (…-00001-of-00003) must be
// complete. Errors: not_found (no such file; a missing shard), corrupt (the index).
Result<Shards> find_shards(const std::filesystem::path& directory);

// The text of an index. Errors: corrupt.
Result<ShardIndex> parse_shard_index(std::string_view file, std::string_view json);

struct PlacedTensor {
  std::string_view name;
  std::string file;
};

// Each tensor must be where the index says and none be missing on either side. `where` describes a tensor's place, "" when there is none.
Status check_index(const ShardIndex& index, const std::vector<PlacedTensor>& placed, const std::function<std::string(std::string_view)>& where);

}  // namespace althing::gpu
