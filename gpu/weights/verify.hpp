// Reads a whole checkpoint and says everything that is wrong with it, one line each: config, index, tensors and shapes as loading checks them,
// then what loading does not look at because it means reading every byte: unreadable places, non-finite values, implausible scales.
// Streams through a fixed buffer; a disk error is a line, not a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace althing::gpu {

struct VerifyReport {
  std::size_t files = 0;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;       // of tensor data
  std::uint64_t parameters = 0;  // numbers the model has learned: two a byte of MXFP4 blocks, scales not counted
  std::vector<std::string> problems;

  bool ok() const { return problems.empty(); }
};

// Called now and then with the bytes read so far and in all.
using VerifyProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Never fails itself: a folder that cannot be opened is a problem too.
VerifyReport verify_model(const std::filesystem::path& directory, const VerifyProgress& progress = {});

}  // namespace althing::gpu
