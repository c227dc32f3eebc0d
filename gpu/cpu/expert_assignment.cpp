// See the header.
#include "gpu/cpu/expert_assignment.hpp"

#include <algorithm>
#include <cmath>

#include "gpu/cpu/elementwise.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::gpu::cpu {
namespace {

void note(const RoutedTokens& step, std::size_t pair, PairFate fate) {
  if (!step.fate.empty()) step.fate[pair] = fate;
}

bool is_padding(const RoutedTokens& step, std::uint32_t token) { return !step.padding.empty() && step.padding[token] != 0; }

struct Places {
  std::span<std::uint32_t> chosen, copy;
  std::span<float> weights;
};
Places places(const RoutedTokens& step, std::uint32_t token) {
  const std::size_t k = step.experts_per_token;
  return {step.chosen.subspan(token * k, k), step.copy.subspan(token * k, k), step.weights.subspan(token * k, k)};
}

// Softmax of the logits, divided by the temperature, over the places that are taken; as choose_experts computes it where nothing has changed.
void weigh(const float* logits, float temperature, const Places& p) {
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < p.chosen.size(); ++i)
    if (p.copy[i] != no_copy) best = std::max(best, logits[p.chosen[i]]);
  float sum = 0.0F;
  for (std::size_t i = 0; i < p.chosen.size(); ++i) {
    p.weights[i] = p.copy[i] == no_copy ? 0.0F : exp_f32((logits[p.chosen[i]] - best) / temperature);
    sum += p.weights[i];
  }
  for (std::size_t i = 0; i < p.chosen.size(); ++i)
    if (p.copy[i] != no_copy) p.weights[i] /= sum;
}

}  // namespace

ControlCounts ExpertAssignment::assign(const ExpertControl& control, double capacity_factor, const RoutedTokens& step) {
  const std::uint32_t experts = static_cast<std::uint32_t>(step.copies.size());
  std::uint64_t valid = 0;
  for (std::uint32_t t = 0; t < step.tokens; ++t) valid += is_padding(step, t) ? 0 : 1;
  const bool limited = control.overflow != OverflowPolicy::none && valid > 0;
  capacity_ = limited ? expert_capacity(valid, step.experts_per_token, experts, capacity_factor, control.capacity_multiple) : 0;
  pads_ = limited && control.overflow == OverflowPolicy::pad;
  first_copy_.assign(experts, 0);
  for (std::uint32_t e = 1; e < experts; ++e) first_copy_[e] = first_copy_[e - 1] + step.copies[e - 1];
  taken_.assign(first_copy_.back() + step.copies.back(), 0);

  ControlCounts counts;
  counts.wanted = valid * step.experts_per_token;
  for (std::uint32_t t = 0; t < step.tokens; ++t) choose_how_many(control, step, t, counts);
  measure_load(step);
  for (std::uint32_t t = 0; t < step.tokens; ++t)
    if (!is_padding(step, t)) place(control, step, t, counts);
  counts.room = std::uint64_t{capacity_} * taken_.size();
  if (pads_)
    for (const std::uint32_t taken : taken_) counts.padding += capacity_ - taken;
  return counts;
}

// Leaves the copy whose turn it is in the places that the token really gets, and weighs them.
void ExpertAssignment::choose_how_many(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, ControlCounts& counts) {
  const Places p = places(step, token);
  const float* logits = step.logits[token];
  const std::size_t k = p.chosen.size();
  std::size_t keep = is_padding(step, token) ? 0 : k;
  if (keep > 0 && control.dynamic_k == DynamicK::gap) {
    while (keep > 1 && logits[p.chosen[keep - 1]] < logits[p.chosen[0]] - control.dynamic_k_value) --keep;
  } else if (keep > 0 && control.dynamic_k == DynamicK::mass) {
    double all = 0, mass = 0;
    for (std::size_t e = 0; e < step.copies.size(); ++e) all += std::exp(double{logits[e]} - logits[p.chosen[0]]);
    for (keep = 0; keep < k && (keep == 0 || mass < control.dynamic_k_value * all); ++keep)
      mass += std::exp(double{logits[p.chosen[keep]]} - logits[p.chosen[0]]);
  }
  if (!is_padding(step, token)) counts.omitted += k - keep;
  for (std::size_t i = 0; i < k; ++i) {
    p.copy[i] = i < keep ? copy_for(ExpertId{p.chosen[i]}, token, step.copies[p.chosen[i]]) : no_copy;
    note(step, token * k + i, i < keep ? PairFate::chosen : PairFate::omitted);
  }
  weigh(logits, control.router_temperature, p);
}

void ExpertAssignment::measure_load(const RoutedTokens& step) {
  load_ = 0;
  if (capacity_ == 0) return;
  std::vector<std::uint32_t> wanted(step.copies.size(), 0);
  for (std::size_t pair = 0; pair < step.chosen.size(); ++pair)
    if (step.copy[pair] != no_copy) ++wanted[step.chosen[pair]];
  for (std::size_t e = 0; e < wanted.size(); ++e)
    load_ = std::max(load_, static_cast<double>(wanted[e]) / (static_cast<double>(capacity_) * step.copies[e]));
}

void ExpertAssignment::place(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, ControlCounts& counts) {
  const Places p = places(step, token);
  bool changed = false;
  for (std::size_t i = 0; i < p.chosen.size(); ++i) {
    if (p.copy[i] == no_copy) continue;
    const std::size_t pair = std::size_t{token} * p.chosen.size() + i;
    const std::uint32_t turn = p.copy[i];
    if (capacity_ == 0) {
      ++taken_[first_copy_[p.chosen[i]] + turn];
    } else if (take(control, step, token, pair, p.chosen[i])) {
      if (p.copy[i] == turn) continue;
      ++counts.to_replica;
      note(step, pair, PairFate::replica);
    } else {
      const std::uint32_t other = control.overflow == OverflowPolicy::reroute ? next_best(step, token) : no_copy;
      if (other == no_copy) {
        ++counts.dropped;
        note(step, pair, PairFate::dropped);
        changed = changed || control.overflow == OverflowPolicy::reroute;  // whatever became of its choices, its weights are of those that it gets
        p.copy[i] = no_copy;
        p.weights[i] = 0.0F;
      } else {
        ++counts.rerouted;
        note(step, pair, PairFate::rerouted);
        changed = true;
        p.chosen[i] = other;
        take(control, step, token, pair, other);
      }
    }
  }
  if (changed) weigh(step.logits[token], control.router_temperature, p);
}

// The copy whose turn it is; with reroute, else the next one with room.
bool ExpertAssignment::take(const ExpertControl& control, const RoutedTokens& step, std::uint32_t token, std::size_t pair, std::uint32_t expert) {
  const std::uint32_t copies = step.copies[expert], turn = copy_for(ExpertId{expert}, token, copies);
  for (std::uint32_t i = 0; i < (control.overflow == OverflowPolicy::reroute ? copies : 1); ++i) {
    const std::uint32_t copy = (turn + i) % copies;
    std::uint32_t& taken = taken_[first_copy_[expert] + copy];
    if (taken >= capacity_) continue;
    ++taken;
    step.copy[pair] = copy;
    return true;
  }
  return false;
}

// The expert with the largest logit, the smaller id among equals, that has room and that the token has not chosen already.
std::uint32_t ExpertAssignment::next_best(const RoutedTokens& step, std::uint32_t token) const {
  const Places p = places(step, token);
  const float* logits = step.logits[token];
  std::uint32_t best = no_copy;
  for (std::uint32_t e = 0; e < step.copies.size(); ++e) {
    if (std::find(p.chosen.begin(), p.chosen.end(), e) != p.chosen.end()) continue;
    const auto* first = taken_.data() + first_copy_[e];
    if (std::all_of(first, first + step.copies[e], [&](std::uint32_t taken) { return taken >= capacity_; })) continue;
    if (best == no_copy || logits[e] > logits[best]) best = e;
  }
  return best;
}

}  // namespace althing::gpu::cpu
