// Which files belong to a checkpoint, and that they agree with its index. What is inside one file is checked by safetensors.cpp.
#include "gpu/weights/checkpoint.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <system_error>
#include <utility>

#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/safetensors.hpp"
#include "gpu/weights/shard_index.hpp"

namespace althing::gpu {

namespace fs = std::filesystem;

namespace {
constexpr std::uint64_t config_bytes_max = 4u << 20;
constexpr const char* config_name = "config.json";
}  // namespace

struct Checkpoint::State {
  fs::path directory;
  std::string config;
  std::vector<MappedFile> files;
  std::vector<TensorView> tensors;  // by name
  std::uint64_t bytes = 0;

  Status add(const fs::path& path) {
    auto file = MappedFile::open(path);
    if (!file) return file.error();
    auto views = parse_safetensors(file->name(), file->bytes());
    if (!views) return views.error();
    files.push_back(std::move(*file));
    for (TensorView& view : *views) {
      bytes += byte_count(view);
      tensors.push_back(std::move(view));
    }
    return Ok{};
  }

  // REQUIRES: the view came from here.
  const MappedFile& file_of(const TensorView& view) const {
    const auto holds = [&](const MappedFile& file) {
      const std::byte* begin = file.bytes().data();
      return !std::less<>{}(view.data, begin) && std::less<>{}(view.data, begin + file.bytes().size());
    };
    return *std::find_if(files.begin(), files.end(), holds);
  }
  std::uint64_t byte_in_file(const TensorView& view) const { return static_cast<std::uint64_t>(view.data - file_of(view).bytes().data()); }
  std::string where(const TensorView& view) const {
    return fmt::format("{}: tensor '{}', byte {}", file_of(view).name(), printable(view.name), byte_in_file(view));
  }

  Status sort_and_check_twice() {
    std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    const auto same = [](const TensorView& a, const TensorView& b) { return a.name == b.name; };
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(), same);
    if (twice == tensors.end()) return Ok{};
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: the same tensor is also in {} at byte {}; remove one of the files", where(*twice), file_of(*(twice + 1)).name(),
                             byte_in_file(*(twice + 1))),
                 printable(twice->name)};
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    const std::string name = printable_path(directory);
    return Error{ErrorCode::not_found, fmt::format("{}: no such folder; give the folder that holds config.json and *.safetensors", name), name};
  }
  auto state = std::make_unique<State>();
  state->directory = directory;
  auto config = read_small_file(directory / config_name, config_bytes_max);
  if (!config) return config.error();
  state->config = std::move(*config);

  auto shards = find_shards(directory);
  if (!shards) return shards.error();
  for (const std::string& shard : shards->files)
    if (auto status = state->add(directory / shard); !status) return status.error();
  if (auto status = state->sort_and_check_twice(); !status) return status.error();
  if (shards->index) {
    const auto location = [&](std::string_view tensor) -> std::string {
      const auto at = std::lower_bound(state->tensors.begin(), state->tensors.end(), tensor,
                                       [](const TensorView& view, std::string_view name) { return view.name < name; });
      if (at == state->tensors.end() || at->name != tensor) return {};
      return state->where(*at);
    };
    std::vector<PlacedTensor> placed;
    placed.reserve(state->tensors.size());
    for (const TensorView& view : state->tensors) placed.push_back({view.name, state->file_of(view).path().filename().string()});
    if (auto status = check_index(*shards->index, placed, location); !status) return status.error();
  }
  return std::shared_ptr<const Checkpoint>(new Checkpoint(std::move(state)));
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open_file(const fs::path& file) {
  auto state = std::make_unique<State>();
  state->directory = file.parent_path();
  if (auto status = state->add(file); !status) return status.error();
  if (auto status = state->sort_and_check_twice(); !status) return status.error();
  return std::shared_ptr<const Checkpoint>(new Checkpoint(std::move(state)));
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto& all = state_->tensors;
  const auto at = std::lower_bound(all.begin(), all.end(), name, [](const TensorView& view, std::string_view wanted) { return view.name < wanted; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

const std::vector<TensorView>& Checkpoint::tensors() const { return state_->tensors; }
const std::string& Checkpoint::config_json() const { return state_->config; }
const fs::path& Checkpoint::directory() const { return state_->directory; }
std::uint64_t Checkpoint::tensor_bytes() const { return state_->bytes; }
std::size_t Checkpoint::file_count() const { return state_->files.size(); }
std::string Checkpoint::where(const TensorView& view) const { return state_->where(view); }

Status Checkpoint::read(const TensorView& view, std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > byte_count(view) || out.size() > byte_count(view) - offset)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: bytes {} to {} were asked for, it has {}", where(view), offset, offset + out.size(), byte_count(view)),
                 printable(view.name)};
  return state_->file_of(view).read(state_->byte_in_file(view) + offset, out);
}

Status Checkpoint::unchanged() const {
  for (const MappedFile& file : state_->files)
    if (auto status = file.unchanged(); !status) return status;
  return Ok{};
}

}  // namespace althing::gpu
