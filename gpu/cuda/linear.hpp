// Every linear layer of a step goes through here: it picks the kernel by how many columns there are. The choice changes no bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/cuda/step_view.hpp"

namespace althing::gpu::cuda {

// epilogues.cuh
struct QkvEpilogue;
struct ResidualEpilogue;
struct SwigluEpilogue;
struct PlainEpilogue;

template <class Epilogue>
struct LinearArgs {
  PackedMatrix weights;
  const __nv_bfloat16* input = nullptr;  // (rows, input_stride); padding beyond weights.in is zero
  std::uint32_t input_stride = 0;
  Columns columns;
  Epilogue epilogue;
  std::uint32_t columns_max = 0;       // of one matrix, as the host knows it
  std::uint32_t columns_expected = 0;  // likewise, on average
  std::uint32_t matrices = 1;          // how many can have columns
  bool weights_are_known = true;       // which matrices are used was decided before the previous kernel began
};

enum class LinearKernel : std::uint8_t { stream, middle, tile };
// What a layer is to the choice of its kernel: one matrix of some thousand rows, the same with the heavier epilogue of q, k and v, the head, experts.
enum class LinearKind : std::uint8_t { qkv, dense, head, experts };

// Where one kernel begins to beat another on an H200 (cuda_middle_linear prints all three), by the columns of one matrix.
constexpr LinearKernel linear_kernel(LinearKind kind, std::uint32_t columns) {
  struct Range {
    std::uint32_t stream, middle;  // the most columns for each
  };
  constexpr Range ranges[] = {{96, 96}, {24, 192}, {16, 384}, {24, 64}};
  const Range r = ranges[static_cast<int>(kind)];
  return columns <= r.stream ? LinearKernel::stream : columns <= r.middle ? LinearKernel::middle : LinearKernel::tile;
}

cudaError_t linear(const LinearArgs<QkvEpilogue>& args, std::uint32_t processors, cudaStream_t stream);
cudaError_t linear(const LinearArgs<ResidualEpilogue>& args, std::uint32_t processors, cudaStream_t stream);
cudaError_t linear(const LinearArgs<SwigluEpilogue>& args, std::uint32_t processors, cudaStream_t stream);
cudaError_t linear(const LinearArgs<PlainEpilogue>& args, std::uint32_t processors, cudaStream_t stream);

}  // namespace althing::gpu::cuda
