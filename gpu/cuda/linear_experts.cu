// Linear layers of experts, and the head.
#include "gpu/cuda/linear.cuh"

namespace althing::gpu::cuda {

cudaError_t linear(const LinearArgs<SwigluEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of<WeightFormat::bf16, WeightFormat::mxfp4>(args, processors, stream);
}
cudaError_t linear(const LinearArgs<PlainEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of<WeightFormat::bf16, WeightFormat::fp8, WeightFormat::mxfp4>(args, processors, stream);
}

}  // namespace althing::gpu::cuda
