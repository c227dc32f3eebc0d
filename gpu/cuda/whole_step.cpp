// See whole_step.hpp.
#include "gpu/cuda/whole_step.hpp"

#include <iterator>
#include <optional>
#include <utility>

namespace althing::gpu::cuda {
namespace {

// Far above what a step of any size takes, far below what anyone would wait for.
constexpr std::uint64_t deadline_ns = 2'000'000'000;

// Of each block's share of qkv: what memory can bring while a token's experts are being chosen.
constexpr std::uint32_t prefetch_bytes = 128u << 10;

DecodeSizes sizes_of(const DeviceModel& m) {
  return {m.layers.empty() ? WeightFormat::bf16 : m.layers[0].qkv.format,
          static_cast<std::uint32_t>(m.layers.size()),
          m.hidden,
          m.query_heads,
          m.kv_heads,
          m.head_dim,
          m.experts,
          m.experts_per_token,
          m.intermediate,
          m.vocabulary};
}

// Layers are alike, and in the formats that the kernel reads.
bool takes(const DeviceModel& m, const DecodeSizes& sizes) {
  for (const DeviceLayer& l : m.layers)
    if (l.qkv.format != sizes.dense || l.out.format != sizes.dense || l.router.format != WeightFormat::bf16 ||
        l.gate_up.format != WeightFormat::mxfp4 || l.down.format != WeightFormat::mxfp4 || l.experts_per_token != sizes.experts_per_token)
      return false;
  return m.head.format == sizes.dense;
}

DecodeLayer layer_of(const DeviceLayer& l, const LayerKv& kv) {
  DecodeLayer d;
  d.weights[phase_qkv] = l.qkv.data;
  d.weights[phase_out] = l.out.data;
  d.weights[phase_router] = l.router.data;
  d.weights[phase_gate_up] = l.gate_up.data;
  d.weights[phase_down] = l.down.data;
  d.biases[phase_qkv] = l.qkv_bias;
  d.sinks = l.sinks;
  d.biases[phase_out] = l.out_bias;
  d.moe_norm = l.moe_norm.weight;
  d.biases[phase_router] = l.router_bias;
  d.biases[phase_gate_up] = l.gate_up_bias;
  d.biases[phase_down] = l.down_bias;
  d.next_norm = l.next_norm.weight;
  d.moe_epsilon = l.moe_norm.epsilon;
  d.next_epsilon = l.next_norm.epsilon;
  d.swiglu_limit = l.swiglu_limit;
  d.swiglu_alpha = l.swiglu_alpha;
  d.window = l.window;
  d.kv = kv;
  return d;
}

}  // namespace

Result<std::unique_ptr<WholeStep>> WholeStep::create(const DeviceModel& model, const std::vector<LayerKv>& kv, const DecodeScratch& scratch,
                                                     std::uint32_t processors) {
  using Made = std::unique_ptr<WholeStep>;
  const DecodeSizes sizes = sizes_of(model);
  if (!takes(model, sizes) || decode_step_refuses(sizes, processors) != nullptr) return Result<Made>(Made());
  Made step(new WholeStep());
  step->blocks_ = processors;
  std::optional<Error> error;
  const auto take = [&]<class Buffer>(Buffer& buffer, Result<Buffer> memory) {
    if (memory) {
      buffer = std::move(*memory);
    } else if (!error) {
      error = memory.error();
    }
  };
  constexpr const char* what = "steps of one token";
  const std::uint32_t sync = decode_sync_words(sizes), hidden = model.hidden;
  const std::size_t parts = std::size_t{2} * processors * decode_segments_max * row_tile;
  const std::size_t qkv = std::size_t{model.query_heads + 2 * model.kv_heads} * model.head_dim / 2;
  const std::size_t router = std::size_t{k_segments(hidden)} * ceil_div(model.experts, row_tile) * row_tile;
  const std::size_t attended = std::size_t{model.query_heads} * model.head_dim / 2;
  const std::size_t inner = std::size_t{model.experts_per_token} * model.intermediate / 2;
  take(step->cleared_, allocate_device<std::uint32_t>(sync + 2 * hidden, what));
  take(step->step_, allocate_device<std::uint32_t>(1, what));
  take(step->sums_, allocate_device<unsigned long long>(2 * std::size_t{hidden}, what));
  take(step->words_, allocate_device<unsigned long long>(parts + qkv + hidden + router + attended + inner, what));
  take(step->shares_, allocate_device<PhaseShare>(std::size_t{processors} * decode_phases, what));
  take(step->status_, allocate_pinned<std::uint32_t>(1, what));
  if (error) return *error;
  *step->status_.get() = decode_ok;
  std::vector<DecodeShares> shares(processors);
  for (std::uint32_t block = 0; block < processors; ++block) shares[block] = decode_shares(sizes, block, processors);
  if (auto s = upload(step->shares_.get(), shares.data(), step->shares_.bytes(), what); !s) return s.error();

  DecodeStepArgs& a = step->args_;
  a.sizes = sizes;
  a.scratch = scratch;
  a.scratch.sync = step->cleared_.get();
  a.scratch.sums[0] = reinterpret_cast<unsigned long long*>(step->cleared_.get() + sync);
  a.scratch.sums[1] = step->sums_.get();
  a.scratch.sums[2] = step->sums_.get() + hidden;
  a.scratch.step = step->step_.get();
  unsigned long long* words = step->words_.get();
  unsigned long long** const lists[] = {&a.scratch.words.parts,  &a.scratch.words.qkv,      &a.scratch.words.residual,
                                        &a.scratch.words.router, &a.scratch.words.attended, &a.scratch.words.inner};
  const std::size_t sizes_of_lists[] = {parts, qkv, hidden, router, attended, inner};
  for (std::size_t i = 0; i < std::size(lists); ++i) *lists[i] = words, words += sizes_of_lists[i];
  a.head = model.head.data;
  a.shares = step->shares_.get();
  a.deadline_ns = deadline_ns;
  a.status = step->status_.get();
  a.prefetch_bytes = prefetch_bytes;
  for (std::size_t i = 0; i < model.layers.size(); ++i) a.layers[i] = layer_of(model.layers[i], kv[i]);
  return Result<Made>(std::move(step));
}

Status WholeStep::enqueue(const Inputs& inputs, const std::vector<std::uint32_t>& groups, cudaStream_t stream) {
  args_.tokens = inputs.tokens;
  args_.cosine = inputs.cosine;
  args_.sine = inputs.sine;
  args_.scratch.counted = inputs.counted;
  args_.attention_stages = inputs.far ? 3 : 1;
  args_.slots = decode_slots(args_.sizes, args_.attention_stages);
  for (std::size_t i = 0; i < groups.size(); ++i) args_.layers[i].kv.slots = inputs.slots + groups[i];
  return check(decode_step(args_, blocks_, stream), "a step of one token");
}

Status WholeStep::status() const {
  const std::uint32_t status = *static_cast<const volatile std::uint32_t*>(status_.get());
  if (status == decode_ok) return Ok{};
  return Error{
      ErrorCode::internal,
      status == decode_timed_out ? "the blocks of a decode step waited for each other for more than two seconds" : "a decode step was told to stop",
      "device"};
}

}  // namespace althing::gpu::cuda
