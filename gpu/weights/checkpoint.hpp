// A checkpoint folder opened for reading: config.json and every *.safetensors shard mapped read-only. Everything that later code relies on
// is checked here before a byte of weight memory is touched: header sizes, JSON form, dtypes, shape products, offsets, overlaps, coverage of the
// file, duplicates, the index's file list. A symlink (as download caches make) is resolved once and the same descriptor is checked and mapped.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/tensor.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

class Checkpoint {
 public:
  // `directory` holds config.json and model.safetensors, or model.safetensors.index.json with its shards (or the shards alone).
  // Errors: not_found, io, corrupt (naming file, tensor and byte), unsupported (dtype).
  static Result<std::shared_ptr<const Checkpoint>> open(const std::filesystem::path& directory);
  // One file of the safetensors format, without a config (reference data).
  static Result<std::shared_ptr<const Checkpoint>> open_file(const std::filesystem::path& file);
  ~Checkpoint();

  // nullptr when absent.
  const TensorView* find(std::string_view name) const;
  // All tensors, by name.
  const std::vector<TensorView>& tensors() const;
  // The text of config.json ("" for open_file).
  const std::string& config_json() const;
  const std::filesystem::path& directory() const;
  std::uint64_t tensor_bytes() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::gpu
