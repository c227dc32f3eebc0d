// The linear layers of attention for 9 to 256 columns: one matrix, all tokens. Each is compiled once, here.
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/middle_split.cuh"

namespace althing::gpu::cuda {

cudaError_t middle_linear(const MiddleLinearArgs<QkvEpilogue>& args, cudaStream_t stream) {
  return dispatch_split<WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

cudaError_t middle_linear(const MiddleLinearArgs<ResidualEpilogue>& args, cudaStream_t stream) {
  return dispatch_split<WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

}  // namespace althing::gpu::cuda
