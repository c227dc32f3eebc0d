// The linear layers of experts, and plain ones (output head), for few columns. Each is compiled once, here.
#include "gpu/cuda/stream_linear.cuh"

namespace althing::gpu::cuda {

cudaError_t stream_linear(const StreamArgs<SwigluEpilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  return dispatch_stream<WeightFormat::bf16, WeightFormat::mxfp4>(args, shape, stream);
}

cudaError_t stream_linear(const StreamArgs<PlainEpilogue>& args, const StreamShape& shape, cudaStream_t stream) {
  return dispatch_stream<WeightFormat::bf16, WeightFormat::fp8, WeightFormat::mxfp4>(args, shape, stream);
}

}  // namespace althing::gpu::cuda
