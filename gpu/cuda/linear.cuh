// The body of linear.hpp's functions, for the files that instantiate them.
#pragma once

#include "gpu/cuda/linear.hpp"
#include "gpu/cuda/middle_linear.hpp"
#include "gpu/cuda/stream_linear.cuh"
#include "gpu/cuda/tile_linear.hpp"

namespace althing::gpu::cuda {

inline LinearKind kind_of(const LinearArgs<QkvEpilogue>&) { return LinearKind::qkv; }
inline LinearKind kind_of(const LinearArgs<ResidualEpilogue>&) { return LinearKind::dense; }
inline LinearKind kind_of(const LinearArgs<SwigluEpilogue>&) { return LinearKind::experts; }
inline LinearKind kind_of(const LinearArgs<PlainEpilogue>& args) { return args.columns.counts != nullptr ? LinearKind::experts : LinearKind::head; }

// Formats: those that a layer with this epilogue can have.
template <WeightFormat... Formats, class Epilogue>
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
  const StreamShape shape = stream_shape(args.weights, {args.columns_max, args.columns_expected, args.matrices}, processors);
  cudaError_t error = cudaErrorInvalidValue;
  (void)((args.weights.format == Formats ? (error = stream_linear_as<Formats>(few, shape, stream), true) : false) || ...);
  return error;
}

}  // namespace althing::gpu::cuda
