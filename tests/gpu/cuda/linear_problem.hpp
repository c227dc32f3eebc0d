// Random linear layers for the tests of kernels that must give the same bits: weights on the host and on the device, inputs, and pairs of tokens and
// experts. Everything follows from the generator that is passed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/gpu/cuda/device_array.hpp"
#include "tests/gpu/cuda/host_packing.hpp"
#include "tests/gpu/cuda/unpack_element.hpp"

namespace althing::tests {

// Random weights of `count` matrices, on the host and on the device, packed and plain.
struct Weights {
  std::vector<HostMatrix> matrices;
  gpu::cuda::PackedMatrix packed;
  std::unique_ptr<DeviceArray<std::byte>> tiles;
  std::unique_ptr<DeviceArray<std::uint16_t>> plain;
};

inline Weights random_weights(gpu::cuda::WeightFormat format, std::uint32_t out, std::uint32_t in, std::uint32_t count, std::mt19937& random,
                              gpu::cuda::RowOrder order = gpu::cuda::RowOrder::natural, std::uint32_t block = 0) {
  Weights w;
  std::vector<std::byte> tiles;
  w.packed = {format, nullptr, out, in, count};
  std::vector<std::uint16_t> plain;
  for (std::uint32_t e = 0; e < count; ++e) {
    w.matrices.push_back(random_matrix(format, order, block, out, in, random));
    const auto& packed = w.matrices.back().tiles;
    tiles.insert(tiles.end(), packed.begin(), packed.end());
    for (std::uint32_t r = 0; r < w.packed.row_tiles() * gpu::cuda::row_tile; ++r)
      for (std::uint32_t k = 0; k < gpu::cuda::k_padded(in); ++k) plain.push_back(bf16_bits(unpack_element(packed.data(), w.packed, r, k)));
  }
  w.tiles = std::make_unique<DeviceArray<std::byte>>(tiles);
  w.plain = std::make_unique<DeviceArray<std::uint16_t>>(plain);
  w.packed.data = w.tiles->get();
  return w;
}

// (rows, k_padded), zero behind `in`.
inline std::vector<std::uint16_t> random_input(std::uint32_t rows, std::uint32_t in, std::mt19937& random) {
  std::vector<std::uint16_t> input(std::size_t{rows} * gpu::cuda::k_padded(in), 0);
  for (std::uint32_t r = 0; r < rows; ++r) {
    const auto row = random_bf16(in, random);
    std::copy(row.begin(), row.end(), input.begin() + std::size_t{r} * gpu::cuda::k_padded(in));
  }
  return input;
}

// Of y (columns, out) against W x + bias in double: the Frobenius norm of the difference over that of the sum.
inline double relative_error(const HostMatrix& w, const std::vector<std::uint16_t>& x, const std::vector<float>& bias, const std::vector<float>& y) {
  double error = 0, norm = 0;
  for (std::size_t c = 0; c < y.size() / w.out; ++c)
    for (std::size_t r = 0; r < w.out; ++r) {
      double exact = bias[r];
      for (std::size_t k = 0; k < w.in; ++k) exact += double{w.values[r * w.in + k]} * bf16_value(x[c * gpu::cuda::k_padded(w.in) + k]);
      const double got = y[c * w.out + r];
      error += (got - exact) * (got - exact), norm += exact * exact;
    }
  return std::sqrt(error / norm);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline constexpr gpu::cuda::WeightFormat formats[] = {gpu::cuda::WeightFormat::bf16, gpu::cuda::WeightFormat::fp8, gpu::cuda::WeightFormat::mxfp4};

// Pairs of (token, choice) spread over experts with the given counts; each expert's list in random order.
struct Pairs {
  std::uint32_t tokens = 0, capacity = 0;
  std::vector<std::uint32_t> counts;
  std::vector<std::int32_t> lists;  // (experts, capacity)
};

inline Pairs spread(const std::vector<std::uint32_t>& counts, std::uint32_t choices, std::mt19937& random) {
  const std::uint32_t pairs = std::accumulate(counts.begin(), counts.end(), 0u);
  Pairs p{gpu::cuda::ceil_div(pairs, choices), *std::max_element(counts.begin(), counts.end()) + 3, counts, {}};
  std::vector<std::int32_t> all(pairs);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  p.lists.assign(counts.size() * p.capacity, -1);
  auto next = all.begin();
  for (std::size_t e = 0; e < counts.size(); ++e) {
    std::copy_n(next, counts[e], p.lists.begin() + static_cast<std::ptrdiff_t>(e * p.capacity));
    next += counts[e];
  }
  return p;
}

}  // namespace althing::tests
