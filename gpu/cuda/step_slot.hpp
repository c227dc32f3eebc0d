// Host memory of one step on its way: what it sends, what comes back, and the event after which the memory is free again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/decoder.hpp"
#include "gpu/cuda/device_memory.hpp"
#include "gpu/cuda/step_trace.hpp"
#include "scheduler/vocabulary/logprobs.hpp"

namespace althing::gpu::cuda {

struct StepSlot {
  PinnedBuffer<std::byte> block;
  PinnedBuffer<DrawnRow> drawn;
  PinnedBuffer<unsigned long long> tallies;
  PinnedBuffer<std::byte> lists;          // as long as the longest so far
  PinnedBuffer<float> chosen_logprobs;    // (rows)
  PinnedBuffer<std::int32_t> top_tokens;  // (rows, logprobs_max), as SamplerArgs has them
  PinnedBuffer<float> top_logprobs;       // likewise
  cudaEvent_t done = nullptr;
  StepTrace trace;

  StepSlot() = default;
  ~StepSlot();
  StepSlot(const StepSlot&) = delete;
  StepSlot& operator=(const StepSlot&) = delete;

  // Everything but lists. Errors: too_large (pinned memory).
  Status open(const Decoder& decoder, std::uint32_t rows_max);
  // For so many bytes of lists. REQUIRES: no step uses the slot's memory.
  Status make_room(std::size_t list_bytes);
  // Enqueues the way back of the logprobs of `count` draws.
  Status fetch_logprobs(const Decoder& decoder, std::uint32_t turn, std::size_t count, cudaStream_t stream);
  // Of a draw that asked for them, once they are back.
  TokenLogprobs logprobs_of(std::size_t draw, TokenId token, std::uint32_t top_count) const;
};

}  // namespace althing::gpu::cuda
