// File names from an index are data from strangers: a name with a slash would let a checkpoint map files outside its folder.
#include "gpu/weights/shard_index.hpp"

#include <simdjson.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"

namespace althing::gpu {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view single_name = "model.safetensors";
constexpr std::string_view extension = ".safetensors";

bool is_shard_name(std::string_view name) {
  return name.size() > extension.size() && name.ends_with(extension) && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  // A dangling symlink counts: opening it gives the error that says so.
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

// "x-00002-of-00005.safetensors" -> 5; 0 for other names.
unsigned shard_total(std::string_view name) {
  constexpr std::size_t digits = 5;
  name.remove_suffix(extension.size());
  constexpr std::string_view middle = "-of-";
  if (name.size() < 2 * digits + middle.size()) return 0;
  const std::string_view tail = name.substr(name.size() - 2 * digits - middle.size());
  if (tail.substr(digits, middle.size()) != middle) return 0;
  unsigned total = 0;
  for (const char c : tail.substr(digits + middle.size())) {
    if (c < '0' || c > '9') return 0;
    total = total * 10 + static_cast<unsigned>(c - '0');
  }
  return total;
}

// Without an index only the names tell how many shards there should be.
Status check_numbers(const fs::path& directory, const std::vector<std::string>& files) {
  const unsigned total = shard_total(files.front());
  for (const std::string& file : files) {
    if (shard_total(file) != total)
      return Error{ErrorCode::corrupt,
                   fmt::format("{}: {} and {} do not belong to one set of shards; keep one set, or add its index", printable_path(directory),
                               printable(files.front()), printable(file)),
                   printable(file)};
  }
  if (total != 0 && files.size() != total)
    return Error{ErrorCode::not_found,
                 fmt::format("{}: holds {} of {} shards (...-of-{:05}.safetensors); download the others", printable_path(directory), files.size(),
                             total, total),
                 printable_path(directory)};
  return Ok{};
}

Result<Shards> shards_of_index(const fs::path& directory) {
  const fs::path path = directory / shard_index_name;
  auto text = read_small_file(path, shard_index_bytes_max);
  if (!text) return text.error();
  auto index = parse_shard_index(printable_path(path), *text);
  if (!index) return index.error();
  Shards shards;
  for (const auto& [tensor, file] : index->shards) shards.files.push_back(file);
  std::sort(shards.files.begin(), shards.files.end());
  shards.files.erase(std::unique(shards.files.begin(), shards.files.end()), shards.files.end());
  for (const auto& [tensor, file] : index->shards)
    if (!is_there(directory / file))
      return Error{ErrorCode::not_found,
                   fmt::format("{}: shard {} is missing (tensor '{}' is in it); download it", index->file, printable(file), printable(tensor)),
                   printable(file)};
  if (is_there(directory / single_name) && !std::binary_search(shards.files.begin(), shards.files.end(), single_name))
    return Error{ErrorCode::corrupt, fmt::format("{}: there is also a {} that it does not name; remove one of the two", index->file, single_name),
                 std::string(single_name)};
  shards.index = std::move(*index);
  return shards;
}

}  // namespace

Result<Shards> find_shards(const fs::path& directory) {
  if (is_there(directory / shard_index_name)) return shards_of_index(directory);
  if (is_there(directory / single_name)) return Shards{{std::string(single_name)}, std::nullopt};
  Shards shards;
  std::error_code failure;
  for (fs::directory_iterator at(directory, failure), end; !failure && at != end; at.increment(failure)) {
    const std::string name = at->path().filename().string();
    if (is_shard_name(name)) shards.files.push_back(name);
  }
  const std::string folder = printable_path(directory);
  if (failure) return Error{ErrorCode::io, fmt::format("{}: cannot list the folder: {}", folder, failure.message()), folder};
  if (shards.files.empty()) return Error{ErrorCode::not_found, fmt::format("{}: holds no *.safetensors file; download the weights", folder), folder};
  std::sort(shards.files.begin(), shards.files.end());
  if (auto status = check_numbers(directory, shards.files); !status) return status.error();
  return shards;
}

Result<ShardIndex> parse_shard_index(std::string_view file, std::string_view json) {
  namespace dom = simdjson::dom;
  const auto bad = [&](const std::string& what, std::string_view field) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, what), printable(field)};
  };
  dom::parser parser;
  dom::object root, map;
  if (const auto failure = parser.parse(json.data(), json.size()).get(root); failure != simdjson::SUCCESS)
    return bad(fmt::format("is not a JSON object: {}", simdjson::error_message(failure)), "");
  if (root["weight_map"].get(map) != simdjson::SUCCESS) return bad("has no object 'weight_map'", "weight_map");
  ShardIndex index;
  index.file = file;
  for (const auto [tensor, value] : map) {
    std::string_view shard;
    if (value.get(shard) != simdjson::SUCCESS) return bad(fmt::format("weight_map of tensor '{}' is not a file name", printable(tensor)), tensor);
    if (!is_shard_name(shard))
      return bad(fmt::format("weight_map puts tensor '{}' into '{}', which is not the name of a *.safetensors file in the same folder",
                             printable(tensor), printable(shard)),
                 tensor);
    if (!index.shards.emplace(std::string(tensor), std::string(shard)).second)
      return bad(fmt::format("weight_map has tensor '{}' twice", printable(tensor)), tensor);
  }
  if (index.shards.empty()) return bad("weight_map is empty", "weight_map");
  return index;
}

Status check_index(const ShardIndex& index, const std::vector<PlacedTensor>& placed, const std::function<std::string(std::string_view)>& where) {
  for (const auto& [tensor, file] : index.shards)
    if (where(tensor).empty())
      return Error{ErrorCode::corrupt,
                   fmt::format("{}: tensor '{}' should be in {} and is in no shard", index.file, printable(tensor), printable(file)),
                   printable(tensor)};
  for (const PlacedTensor& tensor : placed) {
    const auto at = index.shards.find(tensor.name);
    if (at == index.shards.end())
      return Error{ErrorCode::corrupt, fmt::format("{}: is not in the index {}", where(tensor.name), index.file), printable(tensor.name)};
    if (at->second != tensor.file)
      return Error{ErrorCode::corrupt, fmt::format("{}: the index {} puts it into {}", where(tensor.name), index.file, printable(at->second)),
                   printable(tensor.name)};
  }
  return Ok{};
}

}  // namespace althing::gpu
