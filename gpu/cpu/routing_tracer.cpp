// See the header.
#include "gpu/cpu/routing_tracer.hpp"

#include <algorithm>
#include <utility>

#include "gpu/cpu/router.hpp"
#include "scheduler/vocabulary/placement.hpp"

namespace althing::gpu::cpu {

void RoutingTracer::begin(std::vector<TracedRow> rows, std::uint32_t experts_per_token) {
  rows_ = std::move(rows);
  parts_.clear();
  experts_per_token_ = experts_per_token;
  nanoseconds_.assign(layers_, {});
  for (const TracedRow& row : rows_) {
    StepRouting& part = parts_.emplace_back();
    part.start = row.start;
    part.layers = layers_;
    part.top_m = std::min(row.top_m, experts_);
    part.experts_per_token = experts_per_token;
    part.tokens = row.tokens;
    part.logits.resize(row.tokens.size() * layers_ * part.top_m);
    part.experts.resize(row.tokens.size() * layers_ * experts_per_token);
  }
}

void RoutingTracer::begin_layer(std::uint32_t layer) {
  layer_ = layer;
  phase_began_ = std::chrono::steady_clock::now();
}

void RoutingTracer::end_phase(RoutingPhase phase) {
  const auto now = std::chrono::steady_clock::now();
  nanoseconds_[layer_][static_cast<std::size_t>(phase)] +=
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - phase_began_).count());
  phase_began_ = now;
}

std::span<PairFate> RoutingTracer::note_choice(std::span<const std::uint32_t> chosen) {
  chosen_.assign(chosen.begin(), chosen.end());
  fates_.assign(chosen.size(), PairFate::chosen);
  phase_began_ = std::chrono::steady_clock::now();
  return fates_;
}

RoutedExpert RoutingTracer::routed(std::uint32_t token, std::uint32_t expert, std::uint32_t copy, std::size_t pair) const {
  RoutedExpert to;
  to.expert = static_cast<std::uint16_t>(expert);
  to.chosen = static_cast<std::uint16_t>(chosen_[pair]);
  to.fate = fates_[pair];
  if (!is_computed(to.fate)) return to;
  const auto& homes = homes_[expert];
  const std::uint32_t computing = copy == no_copy ? copy_for(ExpertId{expert}, token, static_cast<std::uint32_t>(homes.size())) : copy;
  to.copy = static_cast<std::uint16_t>(computing);
  to.rank = homes[computing].rank;
  to.slot = homes[computing].slot;
  return to;
}

void RoutingTracer::add_layer(const float* const* logits, std::span<const std::uint32_t> experts, std::span<const float> weights,
                              std::span<const std::uint32_t> copy) {
  std::vector<std::uint32_t> best;
  std::vector<float> ignored;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    StepRouting& part = parts_[r];
    best.resize(part.top_m);
    ignored.resize(part.top_m);
    for (std::uint32_t i = 0; i < part.tokens.size(); ++i) {
      const std::uint32_t token = rows_[r].first + i;
      const std::size_t cell = std::size_t{i} * layers_ + layer_;
      choose_experts({logits[token], experts_}, best, ignored);
      for (std::size_t m = 0; m < best.size(); ++m) part.logits[cell * part.top_m + m] = {best[m], logits[token][best[m]]};
      for (std::uint32_t place = 0; place < experts_per_token_; ++place) {
        const std::size_t pair = std::size_t{token} * experts_per_token_ + place;
        RoutedExpert& to = part.experts[cell * experts_per_token_ + place];
        to = routed(token, experts[pair], copy.empty() ? no_copy : copy[pair], pair);
        to.weight = weights[pair];
      }
    }
  }
  phase_began_ = std::chrono::steady_clock::now();
}

std::string RoutingTracer::take() {
  std::string bytes;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    parts_[r].nanoseconds = nanoseconds_;
    append_routing(bytes, rows_[r].request, parts_[r]);
  }
  rows_.clear();
  parts_.clear();
  return bytes;
}

}  // namespace althing::gpu::cpu
