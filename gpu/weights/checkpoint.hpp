// A checkpoint folder opened for reading: config.json and every *.safetensors shard mapped read-only. Everything that later code relies on
// is checked here before a byte of weight memory is touched: header sizes, JSON form, dtypes, shape products, offsets, overlaps, coverage of the
// file, duplicates, the index's file list. A symlink (as download caches make) is resolved once and the same descriptor is checked and mapped.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
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

  // What follows takes any view into this checkpoint, also one of a part of a tensor (rows of it). REQUIRES: such a view.
  // "model.safetensors: tensor 'x', byte 1234": how messages name a place.
  std::string where(const TensorView& view) const;
  // Copies bytes [offset, offset + out.size()) of the view by pread. Unlike touching the mapping, a byte that vanished or cannot be read is an
  // io error naming it, not a signal.
  Status read(const TensorView& view, std::uint64_t offset, std::span<std::byte> out) const;
  // The files as opened; where a tensor file was cut or written to since, an error says so. A file replaced by rename is not noticed: the
  // mapping keeps the old one.
  Status unchanged() const;
  std::size_t file_count() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace althing::gpu
