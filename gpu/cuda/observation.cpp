// See observation.hpp.
#include "gpu/cuda/observation.hpp"

#include <memory>
#include <vector>

namespace althing::gpu::cuda {
namespace {

template <class T>
Result<std::vector<T>> fetch(const T* device, std::size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  if (auto s = check(cudaMemcpyAsync(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost, stream), "observing a step"); !s)
    return s.error();
  if (auto s = check(cudaStreamSynchronize(stream), "observing a step"); !s) return s.error();
  return values;
}

}  // namespace

DecoderWatch make_watch(const Observer& observer, cudaStream_t stream, const ObservedSizes& sizes) {
  DecoderWatch watch;
  if (observer.hidden) {
    watch.layer_input = [&observer, stream, sizes](std::uint32_t layer, const float* residual) -> Status {
      auto values = fetch(residual, std::size_t{sizes.tokens} * sizes.hidden, stream);
      if (!values) return values.error();
      observer.hidden(layer, *values);
      return Ok{};
    };
    watch.final_norm = [&observer, stream, sizes](std::uint32_t layers, const __nv_bfloat16* normed, std::uint32_t stride) -> Status {
      auto values = fetch(normed, std::size_t{sizes.tokens} * stride, stream);
      if (!values) return values.error();
      std::vector<float> wide(std::size_t{sizes.tokens} * sizes.hidden);
      for (std::size_t t = 0; t < sizes.tokens; ++t)
        for (std::size_t i = 0; i < sizes.hidden; ++i) wide[t * sizes.hidden + i] = __bfloat162float((*values)[t * stride + i]);
      observer.hidden(layers, wide);
      return Ok{};
    };
  }
  if (observer.router_logits)
    watch.routed = [&observer, stream, sizes](std::uint32_t layer, const RoutedTokens& routed) -> Status {
      auto values = fetch(routed.logits, std::size_t{sizes.tokens} * sizes.experts, stream);
      if (!values) return values.error();
      observer.router_logits(layer, *values);
      return Ok{};
    };
  if (observer.logits) {
    // Rows come a few at a time and are shown together.
    auto all = std::make_shared<std::vector<float>>();
    watch.logits = [&observer, stream, sizes, all](std::uint32_t, std::uint32_t count, const float* logits) -> Status {
      auto values = fetch(logits, std::size_t{count} * sizes.vocabulary, stream);
      if (!values) return values.error();
      all->insert(all->end(), values->begin(), values->end());
      if (all->size() == std::size_t{sizes.tokens} * sizes.vocabulary) observer.logits(*all);
      return Ok{};
    };
  }
  return watch;
}

}  // namespace althing::gpu::cuda
