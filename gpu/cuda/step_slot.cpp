// See the header.
#include "gpu/cuda/step_slot.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace althing::gpu::cuda {
namespace {

template <class T>
Status take(PinnedBuffer<T>& to, std::size_t size) {
  auto memory = allocate_pinned<T>(size, "steps");
  if (!memory) return memory.error();
  to = std::move(*memory);
  return Ok{};
}

}  // namespace

StepSlot::~StepSlot() {
  if (done != nullptr) cudaEventDestroy(done);
}

Status StepSlot::open(const Decoder& decoder, std::uint32_t rows_max) {
  const std::size_t rows = rows_max;
  if (auto s = take(block, decoder.block_bytes()); !s) return s;
  if (auto s = take(drawn, rows); !s) return s;
  if (auto s = take(tallies, decoder.tally_layout().words()); !s) return s;
  if (auto s = take(chosen_logprobs, rows); !s) return s;
  if (auto s = take(top_tokens, rows * logprobs_max); !s) return s;
  if (auto s = take(top_logprobs, rows * logprobs_max); !s) return s;
  return check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "making an event");
}

Status StepSlot::make_room(std::size_t list_bytes) { return list_bytes <= lists.size() ? Status(Ok{}) : take(lists, 2 * list_bytes); }

Status StepSlot::fetch_logprobs(const Decoder& decoder, std::uint32_t turn, std::size_t count, cudaStream_t stream) {
  const auto fetch = [&](void* to, const void* from, std::size_t bytes) {
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "reading logprobs");
  };
  if (auto s = fetch(chosen_logprobs.get(), decoder.chosen_logprobs(turn), count * sizeof(float)); !s) return s;
  if (auto s = fetch(top_tokens.get(), decoder.top_tokens(turn), count * logprobs_max * sizeof(std::int32_t)); !s) return s;
  return fetch(top_logprobs.get(), decoder.top_logprobs(turn), count * logprobs_max * sizeof(float));
}

TokenLogprobs StepSlot::logprobs_of(std::size_t draw, TokenId token, std::uint32_t top_count) const {
  constexpr float least = std::numeric_limits<float>::lowest();
  TokenLogprobs told{token, std::max(least, chosen_logprobs.get()[draw]), {}};
  const std::size_t first = draw * logprobs_max;
  for (std::size_t i = first; i < first + top_count && top_tokens.get()[i] >= 0; ++i)
    told.top.push_back({static_cast<TokenId>(top_tokens.get()[i]), std::max(least, top_logprobs.get()[i])});
  return told;
}

}  // namespace althing::gpu::cuda
