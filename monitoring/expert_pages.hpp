// The three pages about experts, made from one consistent view. The text is Prometheus' format 0.0.4, written by hand: thousands of series with a
// label an expert take a registry longer than the numbers are worth.
// Invariant: names and labels come from this file and from small integers, never from outside; a page's series do not depend on traffic.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "monitoring/expert_monitor.hpp"
#include "monitoring/expert_totals.hpp"
#include "monitoring/expert_window.hpp"

namespace althing::monitoring {

struct ExpertView {
  ExpertGrid grid;
  std::uint64_t epoch = 0, first_epoch = 0;  // the newest that is counted, and the first: what an older one computed, another process has counted
  std::uint64_t steps = 0, tokens = 0;       // counted with steps
  std::uint64_t expert_bytes = 0, weight_bytes = 0;  // that those steps read: of experts, and in all
  bool whole_window = false;
  std::vector<std::uint64_t> window;       // (layers, experts)
  std::vector<std::uint64_t> rank_window;  // (layers, ranks)
  std::vector<std::uint64_t> rank_tokens;  // (layers, ranks)
  std::vector<std::uint32_t> slots_held;   // by rank, the same in every layer
  std::vector<RouterMeans> router;         // by layer
  std::vector<double> active;              // likewise
  std::vector<double> saturation_minutes;  // likewise
  std::vector<DivertedPairs> diverted;     // likewise
  // Not of a summary.
  std::vector<std::uint64_t> expert_tokens;                                 // (layers, experts)
  std::vector<FixedSum> gate_weights;                                       // likewise
  std::vector<std::pair<SlotKey, std::vector<std::uint64_t>>> slot_tokens;  // by layer
};

ExpertPage summary_page(const ExpertView& view);
// Slots only where they fit; nothing but the reason when the experts themselves are more than series_max.
ExpertPage all_experts_page(const ExpertView& view, std::uint32_t series_max);
std::string experts_json(const ExpertView& view);

}  // namespace althing::monitoring
