// Device and pinned host memory with an owner, and the one translation of CUDA's errors into ours.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu::cuda {

// "what: CUDA's own words". too_large when memory ran out, internal otherwise.
Error cuda_error(cudaError_t error, const std::string& what);
inline Status check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) return cuda_error(error, what);
  return Ok{};
}

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

template <class T, class Free>
class Allocation {
 public:
  Allocation() = default;
  Allocation(T* data, std::size_t size) : data_(data), size_(size) {}
  T* get() const { return data_.get(); }
  std::size_t size() const { return size_; }  // in T
  std::uint64_t bytes() const { return std::uint64_t{size_} * sizeof(T); }

 private:
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

template <class T>
using DeviceBuffer = Allocation<T, FreeDevice>;
template <class T>
using PinnedBuffer = Allocation<T, FreePinned>;

// cudaMemset and cudaMemcpy may return before the device has done their work. They run on the default stream, which the product's own streams do not
// wait for, so on a busy GPU memory would be zeroed after its first use: wait until it is done.
inline Status settle(const char* what) { return check(cudaStreamSynchronize(cudaStreamLegacy), what); }

// To the device, for any stream to use.
inline Status upload(void* target, const void* source, std::size_t bytes, const char* what) {
  if (auto status = check(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), what); !status) return status;
  return settle(what);
}

// Zeroed, for any stream to use. too_large names `what` and the size.
template <class T>
Result<DeviceBuffer<T>> allocate_device(std::size_t size, const char* what) {
  T* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&memory), size * sizeof(T) + 256); error != cudaSuccess)
    return cuda_error(error, std::string("allocating ") + std::to_string(size * sizeof(T)) + " bytes on the device for " + what);
  DeviceBuffer<T> buffer(memory, size);
  if (auto status = check(cudaMemset(memory, 0, size * sizeof(T) + 256), what); !status) return status.error();
  if (auto status = settle(what); !status) return status.error();
  return Result<DeviceBuffer<T>>(std::move(buffer));
}
template <class T>
Result<PinnedBuffer<T>> allocate_pinned(std::size_t size, const char* what) {
  T* memory = nullptr;
  if (const cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&memory), size * sizeof(T)); error != cudaSuccess)
    return cuda_error(error, std::string("pinning ") + std::to_string(size * sizeof(T)) + " bytes for " + what);
  return PinnedBuffer<T>(memory, size);
}

}  // namespace althing::gpu::cuda
