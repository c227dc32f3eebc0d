// See the header. Everything that can be wrong with a step is found before the first number changes.
#include "monitoring/expert_totals.hpp"

#include <algorithm>
#include <utility>

namespace althing::monitoring {

ExpertTotals::ExpertTotals(ExpertGrid grid)
    : grid_(grid),
      expert_tokens_(std::size_t{grid.layers} * grid.experts),
      rank_tokens_(std::size_t{grid.layers} * grid.ranks),
      gate_weights_(std::size_t{grid.layers} * grid.experts),
      diverted_(grid.layers) {}

bool ExpertTotals::use_layout(ExpertPlaces places) {
  if (places.size() != grid_.experts) return false;
  for (const auto& copies : places)
    for (const ExpertPlace& place : copies)
      if (place.rank >= grid_.ranks) return false;
  places_ = std::move(places);
  slot_of_.assign(places_.size(), {});
  for (std::uint32_t expert = 0; expert < places_.size(); ++expert)
    for (const ExpertPlace& place : places_[expert]) {
      SlotTokens& tokens = slot_tokens_[{expert, place.rank, place.slot}];
      tokens.resize(grid_.layers);
      slot_of_[expert].push_back(&tokens);
    }
  return true;
}

bool ExpertTotals::add(const StepCounts& step) {
  if (step.layers.size() != grid_.layers || step.experts != grid_.experts || step.experts_per_token != grid_.experts_per_token) return false;
  for (const LayerCounts& layer : step.layers)
    for (const ExpertCount& count : layer.experts)
      if (count.expert >= places_.size() || count.copy >= places_[count.expert].size()) return false;
  for (std::size_t l = 0; l < step.layers.size(); ++l) {
    const DivertedPairs& diverted = step.layers[l].diverted;
    diverted_[l].to_replica += diverted.to_replica;
    diverted_[l].rerouted += diverted.rerouted;
    diverted_[l].dropped += diverted.dropped;
    diverted_[l].omitted += diverted.omitted;
    for (const ExpertCount& count : step.layers[l].experts) {
      if (count.tokens > 0) ++met_;
      expert_tokens_[l * grid_.experts + count.expert] += count.tokens;
      gate_weights_[l * grid_.experts + count.expert].add(count.gate_weight);
      rank_tokens_[l * grid_.ranks + places_[count.expert][count.copy].rank] += count.tokens;
      (*slot_of_[count.expert][count.copy])[l] += count.tokens;
    }
  }
  ++steps_;
  computed_ += step.tokens;
  return true;
}

void ExpertTotals::add_of_rank(std::uint32_t rank, std::span<const std::uint64_t> gained) {
  for (std::size_t l = 0; l < grid_.layers; ++l)
    for (std::size_t e = 0; e < grid_.experts; ++e) {
      const std::uint64_t tokens = gained[l * grid_.experts + e];
      if (tokens == 0) continue;
      expert_tokens_[l * grid_.experts + e] += tokens;
      rank_tokens_[l * grid_.ranks + rank] += tokens;
      if (e >= places_.size()) continue;
      const auto place = std::find_if(places_[e].begin(), places_[e].end(), [&](const ExpertPlace& p) { return p.rank == rank; });
      if (place != places_[e].end()) (*slot_of_[e][static_cast<std::size_t>(place - places_[e].begin())])[l] += tokens;
    }
}

}  // namespace althing::monitoring
