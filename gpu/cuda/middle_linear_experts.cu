// The linear layers of experts, and plain ones (output head), for 9 to 256 columns. Each is compiled once, here.
#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/middle_whole.cuh"

namespace althing::gpu::cuda {

cudaError_t middle_linear(const MiddleLinearArgs<SwigluEpilogue>& args, cudaStream_t stream) {
  return dispatch_whole<false, WeightFormat::mxfp4, WeightFormat::bf16>(args, stream);
}

cudaError_t middle_linear(const MiddleLinearArgs<PlainEpilogue>& args, cudaStream_t stream) {
  return dispatch_whole<true, WeightFormat::mxfp4, WeightFormat::bf16, WeightFormat::fp8>(args, stream);
}

}  // namespace althing::gpu::cuda
