// One step of a model on the device, as a row of launches: the buffers it needs, the KV cache, and the order of kernels. It decides nothing about
// requests: the executor fills the step's block, and everything here follows from the step's shape.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/cuda/device_memory.hpp"
#include "gpu/cuda/device_model.hpp"
#include "gpu/cuda/step_block.hpp"
#include "gpu/cuda/whole_step.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"

namespace althing::gpu::cuda {

struct DecoderLimits {
  std::uint32_t tokens_max = 0;  // of a step
  std::uint32_t rows_max = 0;
  std::uint32_t context_max = 0;  // positions of a row
  std::uint32_t processors = 0;   // multiprocessors of the device
  bool whole_steps = false;       // a decode step of one token is one kernel, where that kernel takes the model
  bool counts = true;             // tallies() are made; whole steps make them always
  std::uint32_t biases_max = 0;   // of a row
};

// What a layer's router has chosen, of all tokens of the step. On the device, until the next layer's router.
struct RoutedTokens {
  const float* logits = nullptr;         // (tokens, experts)
  const std::int32_t* chosen = nullptr;  // (tokens, experts_per_token) of the layer
  const float* weights = nullptr;        // likewise
};
enum class MoeBorder : std::uint8_t { begins, computed, merged };  // the router is next, experts have ended, their outputs are summed

// Called while launches are being enqueued, for observers: everything before has been enqueued on the stream, nothing after.
struct DecoderWatch {
  std::function<Status(std::uint32_t layer, const float* residual)> layer_input;  // (tokens, hidden)
  std::function<Status(std::uint32_t layer, const RoutedTokens& tokens)> routed;
  std::function<Status(std::uint32_t layer, MoeBorder border)> moe;
  std::function<Status(std::uint32_t layers, const __nv_bfloat16* normed, std::uint32_t stride)> final_norm;  // (tokens, stride)
  std::function<Status(std::uint32_t first, std::uint32_t count, const float* logits)> logits;  // (count, vocabulary), tokens from `first` on
};

class Decoder {
 public:
  // Errors: too_large (memory, named), invalid_argument (a KV layout that is not this backend's).
  static Result<std::unique_ptr<Decoder>> create(const DeviceModel& model, const KvLayout& kv, const DecoderLimits& limits);

  // Device memory that a step's block is copied to. Steps take turns in two of them, so that the next one's can be sent while one runs.
  std::byte* block(std::uint32_t turn) const { return blocks_[turn].get(); }
  std::uint64_t block_bytes() const { return blocks_[0].bytes(); }
  std::uint32_t updates_max() const { return updates_max_; }
  std::uint32_t prefill_tile_tokens() const { return tile_tokens_; }
  // Where the page of entry `index` of a row's table is kept.
  std::int32_t* table_entry(std::uint32_t group, std::uint32_t row, std::uint32_t index) const {
    return tables_.get() + (std::uint64_t{group} * limits_.rows_max + row) * table_stride_ + index;
  }

  // All launches of a step whose block is block(turn). Fit for capture unless `watch` is given.
  Status enqueue(const StepShape& shape, std::uint32_t turn, cudaStream_t stream, const DecoderWatch* watch = nullptr);

  // Not ok when a step that has ended did not end well: the device's state is unknown from there on.
  Status status() const { return whole_ == nullptr ? Status(Ok{}) : whole_->status(); }
  WholeStep* whole_step() const { return whole_.get(); }
  // Whether a row at this position makes its step `far`.
  bool far(std::uint32_t position) const { return position >= WholeStep::near_positions(model_.kv_heads, limits_.processors); }
  // A page of the KV cache; kv_page_bytes() of them belong to it.
  std::byte* kv_page(PageId page) const { return pages_.get() + std::uint64_t{page.value} * page_bytes_; }
  std::uint64_t kv_page_bytes() const { return page_bytes_; }

  const DrawnRow* drawn(std::uint32_t turn) const { return drawn_[turn].get(); }  // (sampled), after the step
  // Likewise, of rows that asked: as SamplerArgs has them.
  const float* chosen_logprobs(std::uint32_t turn) const { return chosen_logprobs_[turn].get(); }
  const std::int32_t* top_tokens(std::uint32_t turn) const { return top_tokens_[turn].get(); }
  const float* top_logprobs(std::uint32_t turn) const { return top_logprobs_[turn].get(); }
  // Where the lists of a step's sampled rows go before it.
  std::byte* lists(std::uint32_t turn) const { return lists_[turn].get(); }
  const float* logits() const { return logits_.get(); }  // (sampled, vocabulary), after the step; bounds of them where the head has a screen
  // What the step counted at the experts, after it.
  const unsigned long long* tallies(std::uint32_t turn) const { return tallies_[turn].get(); }
  TallyLayout tally_layout() const;
  std::uint64_t kv_bytes() const { return pages_.bytes(); }
  std::uint64_t scratch_bytes() const;

 private:
  Decoder(const DeviceModel& model, const KvLayout& kv, const DecoderLimits& limits);
  Status allocate(const KvLayout& kv);
  Status place_layers(const KvLayout& kv);
  Status make_whole_step();
  Status begin(const StepShape& shape, cudaStream_t stream);
  Status attention(std::uint32_t layer, const StepShape& shape, cudaStream_t stream);
  Status experts(std::uint32_t layer, const StepShape& shape, cudaStream_t stream, const DecoderWatch* watch);
  Status head(const StepShape& shape, cudaStream_t stream, const DecoderWatch* watch);
  Status draw(const StepShape& shape, cudaStream_t stream);
  SamplerArgs sampler(const StepShape& shape) const;
  StepTokens tokens(const StepShape& shape) const;
  template <class T>
  const T* in_block(std::size_t offset) const {
    return reinterpret_cast<const T*>(blocks_[turn_].get() + offset);
  }

  const DeviceModel& model_;
  DecoderLimits limits_;
  std::uint32_t tile_tokens_ = 0, table_stride_ = 0, updates_max_ = 0, hidden_stride_ = 0, inner_stride_ = 0, attended_stride_ = 0;
  std::uint32_t decode_rows_max_ = 0;  // list entries for which split attention has room
  std::vector<LayerKv> kv_;            // by layer; slots are a step's
  std::vector<std::uint32_t> groups_;  // of the KV layout, by layer

  std::uint32_t turn_ = 0;  // of the step that is being enqueued
  std::uint64_t page_bytes_ = 0;
  DeviceBuffer<std::byte> blocks_[2], pages_, attention_scratch_, sampler_scratch_, screen_scratch_;
  DeviceBuffer<std::int32_t> tables_, last_drawn_, chosen_, pairs_;
  DeviceBuffer<float> residual_, cosine_, sine_, weights_, outputs_, logits_, router_logits_;
  DeviceBuffer<__nv_bfloat16> normed_, gathered_, queries_, attended_, inner_;
  DeviceBuffer<std::uint32_t> counts_;
  DeviceBuffer<unsigned long long> tallies_[2];
  DeviceBuffer<DrawnRow> drawn_[2];
  DeviceBuffer<std::byte> lists_[2];
  DeviceBuffer<float> chosen_logprobs_[2], top_logprobs_[2];
  DeviceBuffer<std::int32_t> top_tokens_[2];
  std::unique_ptr<WholeStep> whole_;  // or nullptr
};

}  // namespace althing::gpu::cuda
