// The prefill linear layers of experts, and plain ones (router, output head). Each is compiled once, here.
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/tile_linear.cuh"

namespace althing::gpu::cuda {

cudaError_t tile_linear(const TileLinearArgs<SwigluEpilogue>& args, cudaStream_t stream) {
  return dispatch_tile_linear<WeightFormat::mxfp4, WeightFormat::bf16>(args, stream);
}

cudaError_t tile_linear(const TileLinearArgs<PlainEpilogue>& args, cudaStream_t stream) {
  return dispatch_tile_linear<WeightFormat::mxfp4, WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

}  // namespace althing::gpu::cuda
