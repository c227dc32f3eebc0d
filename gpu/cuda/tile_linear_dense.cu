// The prefill linear layers of attention: one matrix, all tokens. Each is compiled once, here.
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/tile_linear.cuh"

namespace althing::gpu::cuda {

cudaError_t tile_linear(const TileLinearArgs<QkvEpilogue>& args, cudaStream_t stream) {
  return dispatch_tile_linear<WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

cudaError_t tile_linear(const TileLinearArgs<ResidualEpilogue>& args, cudaStream_t stream) {
  return dispatch_tile_linear<WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

}  // namespace althing::gpu::cuda
