// Linear layers around attention.
#include "gpu/cuda/linear.cuh"

namespace althing::gpu::cuda {

cudaError_t linear(const LinearArgs<QkvEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of<WeightFormat::bf16, WeightFormat::fp8>(args, processors, stream);
}
cudaError_t linear(const LinearArgs<ResidualEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of<WeightFormat::bf16, WeightFormat::fp8>(args, processors, stream);
}

}  // namespace althing::gpu::cuda
