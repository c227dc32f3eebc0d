// See decoder.hpp. A layer is seven launches: qkv, attention, attention output, norm and router, gate/up, down, combine and norm.
#include "gpu/cuda/decoder.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "gpu/cuda/epilogues.cuh"
#include "gpu/cuda/linear.hpp"
#include "gpu/cuda/sampler_lists.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint32_t segments_split_max = 1024;  // split attention keeps that many segments a row: 131,072 positions
constexpr std::uint32_t logits_rows_min = 16;       // rows of logits for observers, when few rows are sampled

}  // namespace

Decoder::Decoder(const DeviceModel& model, const KvLayout& kv, const DecoderLimits& limits) : model_(model), limits_(limits) {
  tile_tokens_ = cuda::prefill_tile_tokens({model.query_heads, model.kv_heads, model.head_dim});
  hidden_stride_ = k_padded(model.hidden);
  inner_stride_ = k_padded(model.intermediate);
  attended_stride_ = k_padded(model.query_heads * model.head_dim);
  updates_max_ = kv.page_count + 1024;
  for (const KvGroup& group : kv.groups) table_stride_ = std::max(table_stride_, limits.context_max / group.tokens_per_page + 2);
}

Result<std::unique_ptr<Decoder>> Decoder::create(const DeviceModel& model, const KvLayout& kv, const DecoderLimits& limits) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(model, kv, limits));
  if (auto s = decoder->allocate(kv); !s) return s.error();
  if (auto s = decoder->place_layers(kv); !s) return s.error();
  if (auto s = decoder->make_whole_step(); !s) return s.error();
  return Result<std::unique_ptr<Decoder>>(std::move(decoder));
}

Status Decoder::allocate(const KvLayout& kv) {
  const DeviceModel& m = model_;
  const std::size_t t = limits_.tokens_max, rows = limits_.rows_max, pairs = t * m.experts_per_token;
  std::optional<Error> error;
  const auto take = [&]<class T>(DeviceBuffer<T>& buffer, std::size_t size, const char* what) {
    if (error) return;
    auto memory = allocate_device<T>(size, what);
    if (memory) {
      buffer = std::move(*memory);
    } else {
      error = memory.error();
    }
  };
  take(pages_, kv.page_bytes * kv.page_count, "the KV cache");
  page_bytes_ = kv.page_bytes;
  take(tables_, kv.groups.size() * rows * table_stride_, "page tables");
  const StepShape most{limits_.tokens_max, limits_.tokens_max, limits_.tokens_max, limits_.rows_max, false};
  for (auto& block : blocks_) take(block, step_offsets(most).updates + updates_max_ * sizeof(TableUpdate), "the step's block");
  take(residual_, t * m.hidden, "residuals");
  take(normed_, t * hidden_stride_, "normed tokens");
  take(gathered_, rows * hidden_stride_, "sampled tokens");
  take(queries_, t * m.query_heads * m.head_dim, "queries");
  take(attended_, t * attended_stride_, "attention outputs");
  take(cosine_, t * m.head_dim / 2, "rotation angles");
  take(sine_, t * m.head_dim / 2, "rotation angles");
  take(chosen_, pairs, "chosen experts");
  take(weights_, pairs, "experts' weights");
  take(counts_, m.experts, "experts' counts");
  take(pairs_, std::size_t{m.experts} * t, "experts' lists");
  take(inner_, pairs * inner_stride_, "experts' activations");
  take(outputs_, pairs * m.hidden, "experts' outputs");
  take(router_logits_, t * m.experts, "router logits");
  take(logits_, std::max<std::size_t>(rows, logits_rows_min) * m.vocabulary, "logits");
  for (auto& tallies : tallies_) take(tallies, tally_layout().words(), "experts' counts");
  for (auto& drawn : drawn_) take(drawn, rows, "draws");
  for (auto& lists : lists_)
    take(lists, list_bytes_max(limits_.rows_max, limits_.context_max, m.vocabulary, limits_.biases_max), "penalties and biases");
  for (auto& chosen : chosen_logprobs_) take(chosen, rows, "logprobs");
  for (auto& top : top_tokens_) take(top, rows * logprobs_max, "logprobs");
  for (auto& top : top_logprobs_) take(top, rows * logprobs_max, "logprobs");
  take(last_drawn_, rows, "draws");
  take(sampler_scratch_, sampler_scratch_bytes, "sampling");
  take(screen_scratch_, screen_scratch_bytes, "sampling");
  // Splits stop at two blocks a processor, so only that many rows are ever split.
  decode_rows_max_ = std::min(limits_.rows_max, 2 * limits_.processors / m.kv_heads);
  const std::uint32_t segments = std::min(attention_segments_max(limits_.context_max, 0), segments_split_max);
  take(attention_scratch_, attention_scratch_bytes({decode_rows_max_, m.kv_heads, segments}, m.query_heads, 2), "attention");
  if (error) return *error;
  return Ok{};
}

Status Decoder::place_layers(const KvLayout& kv) {
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::invalid_argument, "the KV layout does not fit the CUDA backend: " + why, "kv"};
  };
  kv_.resize(model_.layers.size());
  groups_.resize(model_.layers.size());
  if (kv.groups.size() > kv_groups_max)
    return refuse(std::to_string(kv.groups.size()) + " groups of layers; it takes up to " + std::to_string(kv_groups_max));
  std::size_t placed = 0;
  for (std::uint32_t g = 0; g < kv.groups.size(); ++g) {
    const KvGroup& group = kv.groups[g];
    const std::uint64_t layer_bytes = std::uint64_t{group.tokens_per_page} * model_.kv_heads * model_.head_dim * 2 * sizeof(__nv_bfloat16);
    if (group.tokens_per_page < attention_page_tokens_min || (group.tokens_per_page & (group.tokens_per_page - 1)) != 0)
      return refuse(std::to_string(group.tokens_per_page) + " tokens a page; a power of two of at least 16 is needed");
    if (layer_bytes * group.layers.size() > kv.page_bytes)
      return refuse("pages of " + std::to_string(kv.page_bytes) + " bytes do not hold group " + std::to_string(g));
    for (std::size_t i = 0; i < group.layers.size(); ++i, ++placed) {
      if (group.layers[i] >= kv_.size() || model_.layers[group.layers[i]].window != group.window)
        return refuse("layer " + std::to_string(group.layers[i]) + " does not exist or has another window");
      kv_[group.layers[i]] = {pages_.get(),  kv.page_bytes,         i * layer_bytes, table_entry(g, 0, 0),
                              table_stride_, group.tokens_per_page, model_.head_dim};
      groups_[group.layers[i]] = g;
    }
  }
  if (placed != kv_.size()) return refuse(std::to_string(placed) + " of " + std::to_string(kv_.size()) + " layers are named");
  return Ok{};
}

Status Decoder::make_whole_step() {
  if (!limits_.whole_steps) return Ok{};
  DecodeScratch scratch;
  scratch.residual = residual_.get();
  scratch.normed = normed_.get();
  scratch.attention = attention_scratch_.get();
  scratch.attention_segments_max = decode_rows_max_ == 0 ? 1 : std::min(attention_segments_max(limits_.context_max, 0), segments_split_max);
  scratch.logits = logits_.get();
  auto whole = WholeStep::create(model_, kv_, scratch, limits_.processors);
  if (!whole) return whole.error();
  whole_ = std::move(*whole);
  return Ok{};
}

std::uint64_t Decoder::scratch_bytes() const {
  return (whole_ == nullptr ? 0 : whole_->bytes()) + 2 * blocks_[0].bytes() + attention_scratch_.bytes() + sampler_scratch_.bytes() +
         screen_scratch_.bytes() + tables_.bytes() + last_drawn_.bytes() + chosen_.bytes() + pairs_.bytes() + residual_.bytes() + cosine_.bytes() +
         sine_.bytes() + weights_.bytes() + outputs_.bytes() + logits_.bytes() + router_logits_.bytes() + normed_.bytes() + gathered_.bytes() +
         queries_.bytes() + attended_.bytes() + inner_.bytes() + counts_.bytes() + 2 * tallies_[0].bytes() + 2 * drawn_[0].bytes() +
         2 * (lists_[0].bytes() + chosen_logprobs_[0].bytes() + top_tokens_[0].bytes() + top_logprobs_[0].bytes());
}

TallyLayout Decoder::tally_layout() const { return {static_cast<std::uint32_t>(model_.layers.size()), model_.experts, model_.experts_per_token}; }

StepTokens Decoder::tokens(const StepShape& shape) const {
  const StepOffsets o = step_offsets(shape);
  return {in_block<std::int32_t>(o.rows), in_block<std::int32_t>(o.positions), shape.tokens};
}

Status Decoder::enqueue(const StepShape& shape, std::uint32_t turn, cudaStream_t stream, const DecoderWatch* watch) {
  turn_ = turn;
  if (auto s = begin(shape, stream); !s) return s;
  if (shape.tokens == 0) return Ok{};  // pages may have changed all the same
  if (whole_ != nullptr && watch == nullptr && shape.tokens == 1 && shape.all_sampled()) {
    const WholeStep::Inputs inputs{tokens(shape),        cosine_.get(), sine_.get(), in_block<std::int32_t>(step_offsets(shape).slots),
                                   tallies_[turn].get(), shape.far};
    if (auto s = whole_->enqueue(inputs, groups_, stream); !s) return s;
    return draw(shape, stream);
  }
  for (std::uint32_t layer = 0; layer < model_.layers.size(); ++layer) {
    if (watch != nullptr && watch->layer_input)
      if (auto s = watch->layer_input(layer, residual_.get()); !s) return s;
    if (auto s = attention(layer, shape, stream); !s) return s;
    if (auto s = experts(layer, shape, stream, watch); !s) return s;
  }
  if (watch != nullptr && watch->final_norm)
    if (auto s = watch->final_norm(static_cast<std::uint32_t>(model_.layers.size()), normed_.get(), hidden_stride_); !s) return s;
  return head(shape, stream, watch);
}

Status Decoder::begin(const StepShape& shape, cudaStream_t stream) {
  const StepOffsets o = step_offsets(shape);
  BeginArgs a;
  a.tokens = tokens(shape);
  a.ids = in_block<std::int32_t>(o.ids);
  a.last_drawn = last_drawn_.get();
  a.table = model_.embedding;
  a.norm = model_.first_norm.weight;
  a.epsilon = model_.first_norm.epsilon;
  a.hidden = model_.hidden;
  a.half = model_.head_dim / 2;
  a.inverse_frequencies = model_.inverse_frequencies;
  a.attention_factor = model_.attention_factor;
  a.updates = in_block<TableUpdate>(o.updates);
  a.update_count = in_block<std::uint32_t>(o.update_count);
  a.counts = counts_.get();
  a.experts = model_.experts;
  a.residual = residual_.get();
  a.normed = normed_.get();
  a.stride = hidden_stride_;
  a.cosine = cosine_.get();
  a.sine = sine_.get();
  a.tallies = tallies_[turn_].get();
  a.tally_words = static_cast<std::uint32_t>(tallies_[turn_].size());
  if (whole_ != nullptr) a.cleared = whole_->cleared(), a.cleared_words = whole_->cleared_words(), a.step = whole_->step();
  return check(begin_step(a, stream), "beginning a step");
}

Status Decoder::attention(std::uint32_t layer, const StepShape& shape, cudaStream_t stream) {
  const DeviceLayer& l = model_.layers[layer];
  const StepOffsets o = step_offsets(shape);
  LayerKv kv = kv_[layer];
  kv.slots = in_block<std::int32_t>(o.slots) + std::uint64_t{groups_[layer]} * shape.tokens;
  LinearArgs<QkvEpilogue> qkv;
  qkv.weights = l.qkv;
  qkv.input = normed_.get();
  qkv.input_stride = hidden_stride_;
  qkv.columns.count = qkv.columns_max = qkv.columns_expected = shape.tokens;
  qkv.epilogue = {l.qkv_bias, cosine_.get(), sine_.get(), queries_.get(), tokens(shape), kv, model_.query_heads, model_.kv_heads, model_.head_dim};
  if (auto s = check(linear(qkv, limits_.processors, stream), "qkv"); !s) return s;

  AttentionArgs both;
  both.tokens = tokens(shape);
  both.queries = queries_.get();
  both.kv = kv;
  both.query_heads = model_.query_heads;
  both.kv_heads = model_.kv_heads;
  both.window = l.window;
  both.sinks = l.sinks;
  both.attended = attended_.get();
  both.attended_stride = attended_stride_;
  if (shape.decodes != 0) {
    AttentionDecodeArgs decode{both, in_block<std::int32_t>(o.decodes), shape.decodes};
    decode.segments_max = std::min(attention_segments_max(limits_.context_max, l.window), segments_split_max);
    decode.splits =
        shape.decodes > decode_rows_max_ ? 1 : attention_splits({shape.decodes, model_.kv_heads, decode.segments_max}, limits_.processors);
    decode.scratch = attention_scratch_.get();
    if (auto s = check(attention_decode(decode, stream), "attention"); !s) return s;
  }
  if (shape.tiles != 0)
    if (auto s = check(attention_prefill({both, in_block<PrefillTile>(o.tiles), shape.tiles}, stream), "attention"); !s) return s;

  LinearArgs<ResidualEpilogue> out;
  out.weights = l.out;
  out.input = attended_.get();
  out.input_stride = attended_stride_;
  out.columns.count = out.columns_max = out.columns_expected = shape.tokens;
  out.epilogue = {l.out_bias, residual_.get(), model_.hidden};
  return check(linear(out, limits_.processors, stream), "the attention output");
}

Status Decoder::experts(std::uint32_t layer, const StepShape& shape, cudaStream_t stream, const DecoderWatch* watch) {
  const DeviceLayer& l = model_.layers[layer];
  const std::uint32_t k = l.experts_per_token, t = shape.tokens;
  const bool watched = watch != nullptr && watch->routed;
  const auto tell = [&](MoeBorder border) { return watch != nullptr && watch->moe ? watch->moe(layer, border) : Status(Ok{}); };
  if (auto s = tell(MoeBorder::begins); !s) return s;
  NormRouteArgs route;
  route.tokens = tokens(shape);
  route.residual = residual_.get();
  route.norm = l.moe_norm.weight;
  route.epsilon = l.moe_norm.epsilon;
  route.hidden = model_.hidden;
  route.normed = normed_.get();
  route.stride = hidden_stride_;
  route.weights = l.router;
  route.bias = l.router_bias;
  route.experts_per_token = k;
  route.routing = {chosen_.get(), weights_.get(), counts_.get(), pairs_.get(), limits_.tokens_max};
  route.logits = watched ? router_logits_.get() : nullptr;
  if (limits_.counts) route.tallies = tally_layout().of(tallies_[turn_].get(), layer);
  if (auto s = check(norm_route(route, stream), "routing"); !s) return s;
  if (watched)
    if (auto s = watch->routed(layer, {router_logits_.get(), chosen_.get(), weights_.get()}); !s) return s;

  LinearArgs<SwigluEpilogue> gate_up;
  gate_up.weights = l.gate_up;
  gate_up.input = normed_.get();
  gate_up.input_stride = hidden_stride_;
  gate_up.columns = {pairs_.get(), counts_.get(), 0, limits_.tokens_max, k};
  gate_up.epilogue = {l.gate_up_bias, inner_.get(), model_.intermediate, inner_stride_, l.swiglu_limit, l.swiglu_alpha};
  if (t == 1) gate_up.columns.only = chosen_.get(), gate_up.columns.count = k;
  gate_up.columns_max = t;
  gate_up.columns_expected = ceil_div(t * k, model_.experts);
  gate_up.matrices = std::min(model_.experts, t * k);
  gate_up.weights_are_known = false;
  if (auto s = check(linear(gate_up, limits_.processors, stream), "gate and up"); !s) return s;

  LinearArgs<PlainEpilogue> down;
  down.weights = l.down;
  down.input = inner_.get();
  down.input_stride = inner_stride_;
  down.columns = {pairs_.get(), counts_.get(), 0, limits_.tokens_max, 1};
  down.epilogue = {l.down_bias, outputs_.get(), model_.hidden};
  down.columns.only = gate_up.columns.only;
  down.columns.count = gate_up.columns.count;
  down.columns_max = t;
  down.columns_expected = gate_up.columns_expected;
  down.matrices = gate_up.matrices;
  if (auto s = check(linear(down, limits_.processors, stream), "down"); !s) return s;
  if (auto s = tell(MoeBorder::computed); !s) return s;

  CombineNormArgs combine;
  combine.tokens = route.tokens;
  combine.routing = route.routing;
  combine.experts = model_.experts;
  combine.experts_per_token = k;
  combine.outputs = outputs_.get();
  combine.norm = l.next_norm.weight;
  combine.epsilon = l.next_norm.epsilon;
  combine.hidden = model_.hidden;
  combine.residual = residual_.get();
  combine.normed = normed_.get();
  combine.stride = hidden_stride_;
  if (auto s = check(combine_norm(combine, stream), "combining experts"); !s) return s;
  return tell(MoeBorder::merged);
}

Status Decoder::head(const StepShape& shape, cudaStream_t stream, const DecoderWatch* watch) {
  const StepOffsets o = step_offsets(shape);
  LinearArgs<PlainEpilogue> logits;
  logits.weights = model_.head;
  logits.input = normed_.get();
  logits.input_stride = hidden_stride_;
  logits.epilogue = {nullptr, logits_.get(), model_.vocabulary};
  // Observers see every token, a few at a time, before the sampled ones are computed as always.
  for (std::uint32_t first = 0; watch != nullptr && watch->logits && first < shape.tokens; first += logits_rows_min) {
    const std::uint32_t count = std::min(logits_rows_min, shape.tokens - first);
    logits.input = normed_.get() + std::uint64_t{first} * hidden_stride_;
    logits.columns = {};
    logits.columns.count = logits.columns_max = logits.columns_expected = count;
    if (auto s = check(linear(logits, limits_.processors, stream), "logits"); !s) return s;
    if (auto s = watch->logits(first, count, logits_.get()); !s) return s;
  }
  if (shape.sampled == 0) return Ok{};
  logits.columns = {};
  logits.columns.count = logits.columns_max = logits.columns_expected = shape.sampled;
  logits.input = normed_.get();
  if (!shape.all_sampled()) {
    logits.input = gathered_.get();
    if (auto s =
            check(gather_rows({in_block<std::int32_t>(o.sampled), shape.sampled, normed_.get(), gathered_.get(), hidden_stride_}, stream), "logits");
        !s)
      return s;
  }
  if (model_.screen.codes != nullptr && shape.sampled <= screen_rows_max && !shape.filters && !shape.adjustments) {
    const ScreenedDrawArgs draw{sampler(shape), model_.head, model_.screen, logits.input, hidden_stride_, screen_scratch_.get()};
    return check(draw_screened(draw, limits_.processors, stream), "sampling");
  }
  if (auto s = check(linear(logits, limits_.processors, stream), "logits"); !s) return s;
  return draw(shape, stream);
}

Status Decoder::draw(const StepShape& shape, cudaStream_t stream) { return check(sample(sampler(shape), stream), "sampling"); }

SamplerArgs Decoder::sampler(const StepShape& shape) const {
  const StepOffsets o = step_offsets(shape);
  SamplerArgs draw;
  draw.logits = logits_.get();
  draw.rows = in_block<SamplerRow>(o.samplers);
  draw.count = shape.sampled;
  draw.vocabulary = model_.vocabulary;
  draw.with_adjustments = shape.adjustments;
  draw.with_filters = shape.filters;
  draw.scratch = sampler_scratch_.get();
  draw.drawn = drawn_[turn_].get();
  draw.last_token = last_drawn_.get();
  draw.chosen_logprobs = chosen_logprobs_[turn_].get();
  draw.top_tokens = top_tokens_[turn_].get();
  draw.top_logprobs = top_logprobs_[turn_].get();
  return draw;
}

}  // namespace althing::gpu::cuda
