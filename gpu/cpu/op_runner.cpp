// See the header. Each `run` is one op.
#include "gpu/cpu/op_runner.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/cpu/attention.hpp"
#include "gpu/cpu/elementwise.hpp"
#include "gpu/cpu/linear.hpp"
#include "gpu/cpu/router.hpp"
#include "gpu/ops/fixed_point.hpp"

namespace althing::gpu::cpu {
namespace {

void expand(const Vector& vector, std::vector<float>& out) {
  for (std::size_t i = 0; i < vector.size; ++i) out[i] = vector.at(i);
}

}  // namespace

OpRunner::OpRunner(const Program& program, const KvCache& cache, Buffers& buffers, ThreadPool& pool, const Observer& observer, ExpertCounter& counts,
                   StepCounter* step_counter, ControlledRouting* control, RoutingTracer& tracer)
    : program_(program),
      cache_(cache),
      b_(buffers),
      pool_(pool),
      observer_(observer),
      counts_(counts),
      step_counter_(step_counter),
      control_(control),
      tracer_(tracer) {
  if (control_ != nullptr) empty_row_.resize(padded(program.hidden));
}

bool OpRunner::run(StepBatch& batch, Communicator& communicator, std::span<const std::uint32_t> vocabulary_parts) {
  Step step{batch, communicator, vocabulary_parts};
  sort_tokens(step);
  fill_rotation(step);
  for (const Op& op : program_.ops)
    if (!std::visit([&](const auto& typed) { return run(typed, step); }, op)) return false;
  return true;
}

void OpRunner::sort_tokens(const Step& step) {
  group_rows_.assign(program_.dp_groups, 0);
  sum_row_.clear();
  own_.clear();
  own_normed_.clear();
  for (std::uint32_t t = 0; t < step.tokens(); ++t) {
    const DpGroup group = step.batch.tokens[t].dp_group;
    sum_row_.push_back(group_rows_[group.value]++);
    if (group != program_.dp_group) continue;
    own_.push_back(t);
    own_normed_.push_back(b_.normed[t]);
  }
  std::vector<std::uint32_t> first(program_.dp_groups, 0);
  for (std::uint32_t g = 1; g < program_.dp_groups; ++g) first[g] = first[g - 1] + group_rows_[g - 1];
  for (std::uint32_t t = 0; t < step.tokens(); ++t) sum_row_[t] += first[step.batch.tokens[t].dp_group.value];
}

void OpRunner::fill_rotation(const Step& step) {
  const auto& frequencies = program_.rotary.inverse_frequencies;
  pool_.run(step.tokens(), [&](std::uint32_t t, std::uint32_t) {
    for (std::size_t j = 0; j < frequencies.size(); ++j) {
      // The angle is a float product, as in the reference; its cosine is taken in double and rounded once.
      const double angle = static_cast<float>(step.batch.tokens[t].position) * frequencies[j];
      b_.cosine[t][j] = static_cast<float>(std::cos(angle)) * program_.rotary.attention_factor;
      b_.sine[t][j] = static_cast<float>(std::sin(angle)) * program_.rotary.attention_factor;
    }
  });
}

void OpRunner::linear(const LinearArgs& args) {
  if (args.tokens == 0) return;
  pool_.run(row_blocks(args.matrix.out), [&](std::uint32_t block, std::uint32_t thread) { linear_block(args, block, scratch(thread)); });
}

void OpRunner::show(const std::function<void(std::uint32_t, std::span<const float>)>& watcher, std::uint32_t layer, Rows& rows,
                    std::uint32_t tokens) {
  if (!watcher) return;
  std::vector<float> packed(std::size_t{tokens} * rows.width());
  for (std::size_t t = 0; t < tokens; ++t) std::copy_n(rows[t], rows.width(), packed.data() + t * rows.width());
  watcher(layer, packed);
}

bool OpRunner::run(const EmbedOp& op, Step& step) {
  pool_.run(step.tokens(), [&](std::uint32_t t, std::uint32_t thread) {
    float* expanded = scratch(thread);
    expand_rows(op.table, step.batch.tokens[t].id, 1, expanded);
    std::copy_n(expanded, program_.hidden, b_.residual[t]);
  });
  if (step.batch.damaged) std::fill_n(b_.residual[*step.batch.damaged], program_.hidden, std::numeric_limits<float>::quiet_NaN());
  note_progress();
  show(observer_.hidden, 0, b_.residual, step.tokens());
  return true;
}

bool OpRunner::run(const NormOp& op, Step& step) {
  expand(op.weight, b_.vector_a);
  pool_.run(step.tokens(),
            [&](std::uint32_t t, std::uint32_t) { rms_norm(b_.residual[t], b_.vector_a.data(), op.epsilon, program_.hidden, b_.normed[t]); });
  return true;
}

bool OpRunner::run(const QkvOp& op, Step& step) {
  if (own_.empty()) return true;
  struct Part {
    const Matrix& matrix;
    const Vector& bias;
    const Rows& outputs;
    std::uint32_t first_block;
  };
  const std::uint32_t q_blocks = row_blocks(op.q.out), k_blocks = row_blocks(op.k.out);
  const Part parts[] = {{op.q, op.q_bias, b_.queries, 0}, {op.k, op.k_bias, b_.keys, q_blocks}, {op.v, op.v_bias, b_.values, q_blocks + k_blocks}};
  pool_.run(q_blocks + 2 * k_blocks, [&](std::uint32_t block, std::uint32_t thread) {
    const Part& part = parts[block < q_blocks ? 0 : block < q_blocks + k_blocks ? 1 : 2];
    linear_block({part.matrix, part.bias, own_normed_.data(), part.outputs.rows(), own_.size()}, block - part.first_block, scratch(thread));
  });
  const std::uint32_t group = cache_.place(op.layer).group;
  pool_.run(static_cast<std::uint32_t>(own_.size()), [&](std::uint32_t i, std::uint32_t) {
    const std::uint32_t t = own_[i];
    const StepToken& token = step.batch.tokens[t];
    const std::size_t hd = op.head_dim;
    for (std::size_t h = 0; h < program_.query_heads; ++h) rotate(b_.queries[i] + h * hd, b_.cosine[t], b_.sine[t], hd / 2);
    for (std::uint32_t h = 0; h < program_.kv_heads; ++h) {
      rotate(b_.keys[i] + h * hd, b_.cosine[t], b_.sine[t], hd / 2);
      append({cache_, op.layer, h, (*token.pages)[group], token.position, op.head_dim, b_.keys[i] + h * hd, b_.values[i] + h * hd});
    }
  });
  return true;
}

bool OpRunner::run(const AttentionOp& op, Step& step) {
  const std::uint32_t group = cache_.place(op.layer).group;
  const std::uint32_t heads = op.query_heads / op.kv_heads;
  expand(op.sinks, b_.vector_a);
  pool_.run(static_cast<std::uint32_t>(own_.size()) * op.kv_heads, [&](std::uint32_t task, std::uint32_t) {
    const std::uint32_t i = task / op.kv_heads, kv_head = task % op.kv_heads;
    const StepToken& token = step.batch.tokens[own_[i]];
    const std::size_t first = std::size_t{kv_head} * heads;
    attend({cache_, op.layer, kv_head, (*token.pages)[group], token.position, op.window, op.head_dim, heads, b_.queries[i] + first * op.head_dim,
            op.sinks.empty() ? nullptr : b_.vector_a.data() + first, b_.attended[i] + first * op.head_dim});
  });
  return true;
}

bool OpRunner::run(const AttnOutOp& op, Step&) {
  linear({op.out, {}, b_.attended.const_rows(), b_.partial.rows(), own_.size()});
  return true;
}

// Nothing is added to a value that is alone in its sum, so groups of one rank give the bits of one rank.
bool OpRunner::add_over_ranks(const ReduceAddNormOp& op, Step& step) {
  const std::uint32_t tokens = step.tokens();
  if (op.source == ReduceAddNormOp::Source::fixed_point)
    return step.communicator.all_reduce_sum(std::span<std::int64_t>(b_.combined.data(), std::size_t{tokens} * (std::size_t{program_.hidden} + 1)));
  if (program_.dp_groups == 1) return step.communicator.all_reduce_sum(b_.partial.span(tokens));
  std::vector<std::uint32_t> counts;
  for (const std::uint32_t rows : group_rows_) counts.push_back(rows * static_cast<std::uint32_t>(b_.partial.stride()));
  return step.communicator.all_gather_sums(b_.partial.span(own_.size()), step.communicator.world() / program_.dp_groups, counts,
                                           b_.gathered.span(tokens));
}

bool OpRunner::run(const ReduceAddNormOp& op, Step& step) {
  const std::uint32_t tokens = step.tokens();
  const bool exact = op.source == ReduceAddNormOp::Source::fixed_point;
  if (step.communicator.world() > 1 && !add_over_ranks(op, step)) return false;
  const Rows& sums = exact || program_.dp_groups == 1 ? b_.partial : b_.gathered;
  std::fill(b_.vector_b.begin(), b_.vector_b.end(), 0.0F);
  expand(op.bias, b_.vector_b);
  expand(op.norm.weight, b_.vector_a);
  pool_.run(tokens, [&](std::uint32_t t, std::uint32_t) {
    if (exact) add_combined(t, tokens);
    float* residual = b_.residual[t];
    const float* sum = sums[exact ? t : sum_row_[t]];
    for (std::size_t i = 0; i < program_.hidden; ++i) residual[i] += sum[i] + b_.vector_b[i];
    rms_norm(residual, b_.vector_a.data(), op.norm.epsilon, program_.hidden, b_.normed[t]);
  });
  if (exact && tracer_.active()) tracer_.end_phase(RoutingPhase::merge);
  note_progress();
  if (exact) show(observer_.hidden, op.layer + 1, op.layer + 1 == program_.layers ? b_.normed : b_.residual, tokens);
  return true;
}

bool OpRunner::run(const RouteOp& op, Step& step) {
  const bool traced = tracer_.active();
  if (traced) tracer_.begin_layer(op.layer);
  linear({op.weight, op.bias, b_.normed.const_rows(), b_.router_logits.rows(), step.tokens()});
  const std::size_t k = op.experts_per_token;
  if (step_counter_ != nullptr && op.layer == 0) step_counter_->begin(step.tokens(), op.experts_per_token);
  pool_.run(step.tokens(), [&](std::uint32_t t, std::uint32_t) {
    const std::span<const float> logits{b_.router_logits[t], op.weight.out};
    choose_experts(logits, {b_.chosen.data() + t * k, k}, {b_.chosen_weights.data() + t * k, k});
    if (step_counter_ != nullptr) step_counter_->note_router(t, logits);
  });
  b_.experts_per_token = op.experts_per_token;
  const std::size_t pairs = step.tokens() * k;
  LayerChoice choice{std::span(b_.chosen).first(pairs), std::span(b_.chosen_weights).first(pairs), {}};
  if (traced) tracer_.end_phase(RoutingPhase::router);
  const std::span<PairFate> fates = traced ? tracer_.note_choice(choice.experts) : std::span<PairFate>{};
  if (control_ != nullptr) {
    const std::span<std::uint32_t> copy = std::span(b_.chosen_copy).first(pairs);
    const ControlCounts counts = control_->route(op.layer, {.tokens = step.tokens(),
                                                            .experts_per_token = op.experts_per_token,
                                                            .logits = b_.router_logits.const_rows(),
                                                            .copies = {},
                                                            .chosen = std::span(b_.chosen).first(pairs),
                                                            .weights = std::span(b_.chosen_weights).first(pairs),
                                                            .copy = copy,
                                                            .fate = fates});
    choice.copy = copy;
    choice.diverted = {counts.to_replica, counts.rerouted, counts.dropped, counts.omitted};
  }
  if (traced) {
    tracer_.end_phase(RoutingPhase::capacity);
    tracer_.add_layer(b_.router_logits.const_rows(), choice.experts, choice.weights, choice.copy);
  }
  if (step_counter_ != nullptr) step_counter_->add_layer(choice);
  show(observer_.router_logits, op.layer, b_.router_logits, step.tokens());
  return true;
}

bool OpRunner::run(const GatherOp& op, Step& step) {
  constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();
  slot_of_.assign(op.experts, nowhere);
  for (std::uint32_t slot = 0; slot < op.held.size(); ++slot) slot_of_[op.held[slot].expert.value] = slot;
  b_.pairs.resize(op.held.size());
  for (auto& pairs : b_.pairs) pairs.clear();
  std::fill(b_.pair_is_here.begin(), b_.pair_is_here.end(), std::uint8_t{0});
  const std::uint32_t k = b_.experts_per_token;
  for (std::uint32_t pair = 0; pair < step.tokens() * k; ++pair) {
    const std::uint32_t slot = slot_of_[b_.chosen[pair]];
    if (slot == nowhere || !is_here(op, slot, pair)) continue;
    b_.pairs[slot].push_back(pair);
    b_.pair_is_here[pair] = 1;
  }
  active_.clear();
  for (std::uint32_t slot = 0; slot < op.held.size(); ++slot) {
    if (b_.pairs[slot].empty()) continue;
    active_.push_back(slot);
    counts_.add(op.layer, op.held[slot].expert, b_.pairs[slot].size());
  }
  if (control_ != nullptr) pad(op);
  if (tracer_.active()) tracer_.end_phase(RoutingPhase::dispatch);
  return true;
}

bool OpRunner::is_here(const GatherOp& op, std::uint32_t slot, std::uint32_t pair) const {
  return control_ != nullptr ? b_.chosen_copy[pair] == op.held[slot].copy : computes(op.held[slot], pair / b_.experts_per_token);
}

// Empty rows of one expert share one place behind all pairs: what they give is nobody's.
void OpRunner::pad(const GatherOp& op) {
  active_.clear();
  for (std::uint32_t slot = 0; slot < op.held.size(); ++slot) {
    const HeldExpert& held = op.held[slot];
    b_.pairs[slot].insert(b_.pairs[slot].end(), control_->padding_of(held.expert.value, held.copy),
                          static_cast<std::uint32_t>(b_.chosen.size()) + held.expert.value);
    if (!b_.pairs[slot].empty()) active_.push_back(slot);
  }
}

bool OpRunner::run(const ExpertsOp& op, Step&) {
  run_experts(op);
  if (tracer_.active()) tracer_.end_phase(RoutingPhase::experts);
  return true;
}

void OpRunner::run_experts(const ExpertsOp& op) {
  const std::uint32_t active = static_cast<std::uint32_t>(active_.size());
  if (active == 0) return;
  const std::uint32_t up_blocks = row_blocks(op.gate_up[0].out), down_blocks = row_blocks(op.down[0].out);
  pool_.run(active * up_blocks,
            [&](std::uint32_t task, std::uint32_t thread) { gate_up_block(op, active_[task / up_blocks], task % up_blocks, thread); });
  pool_.run(active * down_blocks,
            [&](std::uint32_t task, std::uint32_t thread) { down_block(op, active_[task / down_blocks], task % down_blocks, thread); });
}

// Eight rows of the first matrix are four gates and four ups, interleaved: four activations of each token.
void OpRunner::gate_up_block(const ExpertsOp& op, std::uint32_t slot, std::uint32_t block, std::uint32_t thread) {
  const auto& pairs = b_.pairs[slot];
  const Matrix& matrix = op.gate_up[slot];
  const Vector& bias = op.gate_up_bias[slot];
  const float** inputs = b_.inputs[thread].data();
  for (std::size_t i = 0; i < pairs.size(); ++i)
    inputs[i] = pairs[i] < b_.chosen.size() ? b_.normed[pairs[i] / b_.experts_per_token] : empty_row_.data();
  const std::uint32_t row = block * row_block, rows = std::min(row_block, matrix.out - row);
  float* expanded = scratch(thread);
  float* sums = expanded + expansion_floats(matrix.in);
  expand_rows(matrix, row, rows, expanded);
  multiply_block(expanded, matrix.in, inputs, pairs.size(), sums);
  float added[row_block] = {};
  for (std::uint32_t r = 0; r < rows && !bias.empty(); ++r) added[r] = bias.at(row + r);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    for (std::uint32_t r = 0; r < rows; r += 2)
      b_.expert_inner[pairs[i]][(row + r) / 2] =
          swiglu(sums[i * row_block + r] + added[r], sums[i * row_block + r + 1] + added[r + 1], op.swiglu_limit, op.swiglu_alpha);
}

void OpRunner::down_block(const ExpertsOp& op, std::uint32_t slot, std::uint32_t block, std::uint32_t thread) {
  const auto& pairs = b_.pairs[slot];
  const float** inputs = b_.inputs[thread].data();
  float** outputs = b_.outputs[thread].data();
  for (std::size_t i = 0; i < pairs.size(); ++i) inputs[i] = b_.expert_inner[pairs[i]], outputs[i] = b_.expert_outer[pairs[i]];
  linear_block({op.down[slot], op.down_bias[slot], inputs, outputs, pairs.size()}, block, scratch(thread));
}

bool OpRunner::run(const CombineOp&, Step& step) {
  const std::uint32_t tokens = step.tokens();
  pool_.run(tokens, [&](std::uint32_t t, std::uint32_t) { combine_token(t, tokens); });
  return true;
}

void OpRunner::combine_token(std::uint32_t token, std::uint32_t tokens) {
  std::int64_t* sums = b_.combined.data() + std::size_t{token} * program_.hidden;
  std::int64_t& misfits = b_.combined[std::size_t{tokens} * program_.hidden + token];
  std::fill_n(sums, program_.hidden, 0);
  misfits = 0;
  for (std::uint32_t i = 0; i < b_.experts_per_token; ++i) {
    const std::size_t pair = std::size_t{token} * b_.experts_per_token + i;
    if (b_.pair_is_here[pair] == 0) continue;
    const double weight = b_.chosen_weights[pair];
    const float* output = b_.expert_outer[pair];
    for (std::size_t h = 0; h < program_.hidden; ++h) {
      const double value = weight * output[h];  // exact: two floats multiply without rounding in double
      if (fits_fixed_point(value)) {
        sums[h] += to_fixed_point(value);
      } else {
        ++misfits;
      }
    }
  }
}

// partial[token] = the exact sum, or NaN when something did not fit.
void OpRunner::add_combined(std::uint32_t token, std::uint32_t tokens) {
  const std::int64_t* sums = b_.combined.data() + std::size_t{token} * program_.hidden;
  const bool whole = b_.combined[std::size_t{tokens} * program_.hidden + token] == 0;
  for (std::size_t h = 0; h < program_.hidden; ++h)
    b_.partial[token][h] = whole ? from_fixed_point(sums[h]) : std::numeric_limits<float>::quiet_NaN();
}

bool OpRunner::run(const LogitsOp& op, Step& step) {
  const std::uint32_t count = step.batch.all_logits ? step.tokens() : static_cast<std::uint32_t>(step.batch.sampled.size());
  if (count == 0) return true;
  std::vector<const float*> inputs(count);
  for (std::uint32_t i = 0; i < count; ++i) inputs[i] = b_.normed[step.batch.all_logits ? i : step.batch.sampled[i]];
  std::vector<float> mine(std::size_t{count} * op.head.out);
  std::vector<float*> outputs(count);
  for (std::size_t i = 0; i < count; ++i) outputs[i] = mine.data() + i * op.head.out;
  linear({op.head, {}, inputs.data(), outputs.data(), count});
  if (step.communicator.world() == 1) {
    step.batch.logits = std::move(mine);
  } else if (!gather_logits(mine, count, step)) {
    return false;
  }
  if (observer_.logits && step.batch.all_logits) observer_.logits(step.batch.logits);
  return true;
}

// Ranks bring (count, their part of the vocabulary); rows are put together token by token.
bool OpRunner::gather_logits(std::span<const float> mine, std::uint32_t count, Step& step) {
  std::vector<std::uint32_t> sizes;
  for (const std::uint32_t part : step.vocabulary_parts) sizes.push_back(part * count);
  std::vector<float> parts(std::size_t{count} * program_.vocabulary);
  if (!step.communicator.all_gather(mine, sizes, parts)) return false;
  step.batch.logits.resize(parts.size());
  std::size_t from = 0, column = 0;
  for (const std::uint32_t part : step.vocabulary_parts) {
    for (std::size_t t = 0; t < count; ++t, from += part)
      std::copy_n(parts.data() + from, part, step.batch.logits.data() + t * program_.vocabulary + column);
    column += part;
  }
  return true;
}

// Draws belong to rows, which the executor keeps.
bool OpRunner::run(const SampleOp&, Step&) { return true; }

}  // namespace althing::gpu::cpu
