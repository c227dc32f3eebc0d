// What CUDA tests share: memory on the device with values from and to the host, and the skip where there is no device.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace althing::tests {

#define ALTHING_NEEDS_GPU()                                                                            \
  do {                                                                                                 \
    int devices = 0;                                                                                   \
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device"; \
  } while (false)

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())

inline void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

template <class T>
class DeviceArray {
 public:
  // Every byte 0xFF: NaN as a float, -1 as an integer.
  explicit DeviceArray(std::size_t size) : size_(size) {
    must(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T) + 256));
    must(cudaMemset(data_, 0xFF, size * sizeof(T) + 256));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    must(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  void fill(unsigned char byte) { must(cudaMemset(data_, byte, size_ * sizeof(T))); }
  std::vector<T> host() const {
    std::vector<T> values(size_);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

inline float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
// Round to nearest, ties to even; finite values only.
inline std::uint16_t bf16_bits(float value) {
  std::uint32_t wide;
  std::memcpy(&wide, &value, 4);
  return static_cast<std::uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

inline std::vector<std::uint16_t> random_bf16(std::size_t size, std::mt19937& random, float deviation = 1.0F) {
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<std::uint16_t> values(size);
  for (auto& v : values) v = bf16_bits(normal(random));
  return values;
}

}  // namespace althing::tests
