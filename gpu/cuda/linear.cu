// See linear.hpp. Kernels are compiled elsewhere, once each.
#include "gpu/cuda/linear.hpp"

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/middle_linear.hpp"
#include "gpu/cuda/stream_linear.hpp"
#include "gpu/cuda/tile_linear.hpp"

namespace althing::gpu::cuda {
namespace {

LinearKind kind_of(const LinearArgs<QkvEpilogue>&) { return LinearKind::qkv; }
LinearKind kind_of(const LinearArgs<ResidualEpilogue>&) { return LinearKind::dense; }
LinearKind kind_of(const LinearArgs<SwigluEpilogue>&) { return LinearKind::experts; }
LinearKind kind_of(const LinearArgs<PlainEpilogue>& args) { return args.columns.counts != nullptr ? LinearKind::experts : LinearKind::head; }

template <class Epilogue>
cudaError_t linear_of(const LinearArgs<Epilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  if (args.columns_max == 0) return cudaSuccess;
  const LinearKernel kernel = linear_kernel(kind_of(args), args.columns_expected);
  if (kernel == LinearKernel::middle) {
    MiddleLinearArgs<Epilogue> middle;
    middle.weights = args.weights;
    middle.input = args.input;
    middle.input_stride = args.input_stride;
    middle.columns = args.columns;
    middle.epilogue = args.epilogue;
    middle.columns_max = args.columns_max;
    middle.weights_are_known = args.weights_are_known;
    return middle_linear(middle, stream);
  }
  if (kernel == LinearKernel::tile) {
    TileLinearArgs<Epilogue> tile;
    tile.weights = args.weights;
    tile.input = args.input;
    tile.input_stride = args.input_stride;
    tile.columns = args.columns;
    tile.epilogue = args.epilogue;
    return tile_linear(tile, stream);
  }
  StreamArgs<Epilogue> few;
  few.weights = args.weights;
  few.input = args.input;
  few.input_stride = args.input_stride;
  few.columns = args.columns;
  few.epilogue = args.epilogue;
  few.weights_are_known = args.weights_are_known;
  return stream_linear(few, stream_shape(args.weights, {args.columns_max, args.columns_expected, args.matrices}, processors), stream);
}

}  // namespace

cudaError_t linear(const LinearArgs<QkvEpilogue>& args, std::uint32_t processors, cudaStream_t stream) { return linear_of(args, processors, stream); }
cudaError_t linear(const LinearArgs<ResidualEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of(args, processors, stream);
}
cudaError_t linear(const LinearArgs<SwigluEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of(args, processors, stream);
}
cudaError_t linear(const LinearArgs<PlainEpilogue>& args, std::uint32_t processors, cudaStream_t stream) {
  return linear_of(args, processors, stream);
}

}  // namespace althing::gpu::cuda
