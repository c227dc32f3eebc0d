// See step_trace.hpp.
#include "gpu/cuda/step_trace.hpp"

#include <utility>

namespace althing::gpu::cuda {
namespace {

constexpr const char* what = "tracing a step";
// Borders of a layer: its router begins, has ended; what it chose is copied; experts have ended; their outputs are summed.
enum : std::size_t { router_begins, routed, copied, experts_ended, merged };

std::uint32_t count_of(const StepTrace::Row& row) { return row.traced.tokens.empty() ? 1 : static_cast<std::uint32_t>(row.traced.tokens.size()); }

}  // namespace

StepTrace::~StepTrace() {
  for (const Borders& layer : borders_)
    for (const cudaEvent_t event : layer.at)
      if (event != nullptr) cudaEventDestroy(event);
}

Status StepTrace::begin(std::vector<Row> rows, const TraceSizes& sizes) {
  rows_ = std::move(rows);
  sizes_ = sizes;
  tokens_ = 0;
  for (const Row& row : rows_) tokens_ += count_of(row);
  if (rows_.empty()) return Ok{};
  while (borders_.size() < sizes_.layers) {
    Borders& made = borders_.emplace_back();
    for (cudaEvent_t& event : made.at)
      if (auto s = check(cudaEventCreate(&event), what); !s) return s;
  }
  const std::size_t needed = layer_bytes() * sizes_.layers;
  if (needed <= memory_.size()) return Ok{};
  memory_ = {};
  auto memory = allocate_pinned<std::byte>(needed, what);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  return Ok{};
}

StepTrace::Layer StepTrace::layer(std::uint32_t index) const {
  auto* const logits = reinterpret_cast<float*>(memory_.get() + layer_bytes() * index);
  float* const weights = logits + tokens_ * sizes_.experts;
  return {logits, weights, reinterpret_cast<std::int32_t*>(weights + tokens_ * sizes_.experts_per_token)};
}

Status StepTrace::mark(std::uint32_t layer, std::size_t border, cudaStream_t stream) {
  return check(cudaEventRecord(borders_[layer].at[border], stream), what);
}

Status StepTrace::copy(std::uint32_t index, const RoutedTokens& from, cudaStream_t stream) {
  const Layer to = layer(index);
  const std::size_t experts = sizes_.experts, k = sizes_.experts_per_token;
  std::size_t token = 0;
  for (const Row& row : rows_) {
    const std::size_t count = count_of(row), first = row.traced.first;
    const auto fetch = [&]<class T>(T* target, const T* source, std::size_t width) {
      return check(cudaMemcpyAsync(target + token * width, source + first * width, count * width * sizeof(T), cudaMemcpyDeviceToHost, stream), what);
    };
    if (auto s = fetch(to.logits, from.logits, experts); !s) return s;
    if (auto s = fetch(to.weights, from.weights, k); !s) return s;
    if (auto s = fetch(to.chosen, from.chosen, k); !s) return s;
    token += count;
  }
  return Ok{};
}

void StepTrace::join(DecoderWatch& watch, cudaStream_t stream) {
  watch.routed = [this, stream, others = std::move(watch.routed)](std::uint32_t layer, const RoutedTokens& from) -> Status {
    if (auto s = mark(layer, routed, stream); !s) return s;
    if (auto s = copy(layer, from, stream); !s) return s;
    if (others)
      if (auto s = others(layer, from); !s) return s;
    return mark(layer, copied, stream);
  };
  watch.moe = [this, stream](std::uint32_t layer, MoeBorder border) {
    switch (border) {
      case MoeBorder::begins:
        return mark(layer, router_begins, stream);
      case MoeBorder::computed:
        return mark(layer, experts_ended, stream);
      case MoeBorder::merged:
        return mark(layer, merged, stream);
    }
    return Status(Ok{});
  };
}

std::string StepTrace::take(std::span<const TokenId> last_drawn, const std::vector<std::vector<ExpertHome>>& homes) {
  cpu::RoutingTracer tracer(sizes_.layers, sizes_.experts);
  tracer.know_homes(homes);
  std::vector<cpu::TracedRow> rows;
  std::uint32_t token = 0;
  for (Row& row : rows_) {
    const std::uint32_t count = count_of(row);
    if (row.traced.tokens.empty()) row.traced.tokens.push_back(last_drawn[row.row.value]);
    row.traced.first = token;
    rows.push_back(std::move(row.traced));
    token += count;
  }
  rows_.clear();
  tracer.begin(std::move(rows), sizes_.experts_per_token);
  const std::size_t pairs = tokens_ * sizes_.experts_per_token;
  std::vector<const float*> logits(tokens_);
  for (std::uint32_t index = 0; index < sizes_.layers; ++index) {
    const Layer from = layer(index);
    for (std::size_t t = 0; t < tokens_; ++t) logits[t] = from.logits + t * sizes_.experts;
    const std::vector<std::uint32_t> chosen(from.chosen, from.chosen + pairs);
    tracer.begin_layer(index);
    tracer.note_choice(chosen);
    tracer.add_layer(logits.data(), chosen, {from.weights, pairs}, {});
    const auto nanoseconds = [&](std::size_t begin, std::size_t end) {
      float milliseconds = 0;
      const auto& at = borders_[index].at;
      return cudaEventElapsedTime(&milliseconds, at[begin], at[end]) == cudaSuccess ? static_cast<std::uint64_t>(milliseconds * 1e6F) : 0;
    };
    tracer.set_phase(RoutingPhase::router, nanoseconds(router_begins, routed));
    tracer.set_phase(RoutingPhase::experts, nanoseconds(copied, experts_ended));
    tracer.set_phase(RoutingPhase::merge, nanoseconds(experts_ended, merged));
  }
  return tracer.take();
}

}  // namespace althing::gpu::cuda
