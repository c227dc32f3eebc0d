// Where one step sent the tokens of traced rows, copied off the device behind each layer's router, and the time of each part of its MoE layers by
// events. Memory and events are made at the first step that needs them, and kept. Such a step is not captured, and its kernels do not overlap where
// an event stands between them, so it takes longer than others; its bits are the same.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/cpu/routing_tracer.hpp"
#include "gpu/cuda/decoder.hpp"
#include "gpu/cuda/device_memory.hpp"

namespace althing::gpu::cuda {

struct TraceSizes {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::uint32_t experts_per_token = 0;
};

class StepTrace {
 public:
  // `tokens` is empty where the one token is the row's last draw, which is not known yet.
  struct Row {
    RowIndex row;
    cpu::TracedRow traced;
  };

  StepTrace() = default;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;
  ~StepTrace();

  // Forgets the step before. Errors: too_large (pinned memory).
  Status begin(std::vector<Row> rows, const TraceSizes& sizes);
  bool active() const { return !rows_.empty(); }

  // Adds itself to what `watch` does. REQUIRES: active(); the launches are enqueued on `stream` before the next begin().
  void join(DecoderWatch& watch, cudaStream_t stream);

  // StepResult::routing. `last_drawn` is by row, and `homes` by expert and copy. REQUIRES: active(), and the step's last kernel has ended.
  std::string take(std::span<const TokenId> last_drawn, const std::vector<std::vector<ExpertHome>>& homes);

 private:
  // Between which the parts of a layer are.
  static constexpr std::size_t marks = 5;
  struct Borders {
    std::array<cudaEvent_t, marks> at{};
  };
  // Of one layer, in the copied memory.
  struct Layer {
    float* logits;         // (tokens, experts)
    float* weights;        // (tokens, experts_per_token)
    std::int32_t* chosen;  // likewise
  };

  Layer layer(std::uint32_t index) const;
  std::size_t layer_bytes() const { return tokens_ * (sizes_.experts + 2 * std::size_t{sizes_.experts_per_token}) * sizeof(float); }
  Status mark(std::uint32_t layer, std::size_t border, cudaStream_t stream);
  Status copy(std::uint32_t layer, const RoutedTokens& routed, cudaStream_t stream);

  TraceSizes sizes_;
  std::vector<Row> rows_;
  std::size_t tokens_ = 0;  // of all rows
  PinnedBuffer<std::byte> memory_;
  std::vector<Borders> borders_;  // by layer
};

}  // namespace althing::gpu::cuda
