// The linear layers of attention for few columns: one matrix, all tokens. Each is compiled once, here.
#include "gpu/cuda/stream_linear.cuh"

namespace althing::gpu::cuda {

cudaError_t stream_linear(const StreamArgs<QkvEpilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  return dispatch_stream<WeightFormat::bf16, WeightFormat::fp8>(args, shape, stream);
}

cudaError_t stream_linear(const StreamArgs<ResidualEpilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  return dispatch_stream<WeightFormat::bf16, WeightFormat::fp8>(args, shape, stream);
}

}  // namespace althing::gpu::cuda
