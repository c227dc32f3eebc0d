// Writes safetensors files and checkpoint folders for tests: well-formed ones from named tensors, and any header text over any data for the rest.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/tensor.hpp"
#include "gpu/weights/checkpoint.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::tests {

struct NamedTensor {
  std::string name;
  gpu::DType dtype = gpu::DType::u8;
  std::vector<std::uint64_t> shape;
  std::string data;
};

inline NamedTensor copy_of(const gpu::TensorView& view) {
  return {view.name, view.dtype, view.shape, std::string(reinterpret_cast<const char*>(view.data), gpu::byte_count(view))};
}

inline std::vector<NamedTensor> tensors_of(const gpu::Checkpoint& checkpoint) {
  std::vector<NamedTensor> all;
  for (const gpu::TensorView& view : checkpoint.tensors()) all.push_back(copy_of(view));
  return all;
}

// u64 little-endian length, header, data.
inline std::string safetensors_raw(std::string_view header, std::string_view data) {
  std::string file;
  for (unsigned i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file.append(header).append(data);
}

inline std::string safetensors_of(const std::vector<NamedTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const NamedTensor& t : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", t.name, gpu::name_of(t.dtype), fmt::join(t.shape, ","),
                          data.size(), data.size() + t.data.size());
    data += t.data;
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  return safetensors_raw(header, data);
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A fresh folder, removed with everything in it at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "althing-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

 private:
  std::filesystem::path path_;
};

// Writes the tensors as shards of at most `tensors_a_shard` and the index that goes with them.
inline void write_sharded(const TemporaryFolder& folder, const std::vector<NamedTensor>& tensors, std::size_t tensors_a_shard) {
  const std::size_t count = (tensors.size() + tensors_a_shard - 1) / tensors_a_shard;
  std::string map;
  std::size_t bytes = 0;
  for (std::size_t shard = 0; shard < count; ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, count);
    const std::size_t first = shard * tensors_a_shard, last = std::min(tensors.size(), first + tensors_a_shard);
    folder.write(name, safetensors_of({tensors.begin() + static_cast<std::ptrdiff_t>(first), tensors.begin() + static_cast<std::ptrdiff_t>(last)}));
    for (std::size_t i = first; i < last; ++i) {
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensors[i].name, name);
      bytes += tensors[i].data.size();
    }
  }
  folder.write("model.safetensors.index.json", fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{{}}}}})", bytes, map));
}

// `text` with the one occurrence of `from` replaced; the test fails when it is not there.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "no '" << from << "' in the text";
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

}  // namespace althing::tests
