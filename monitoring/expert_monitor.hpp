// Experts as people and Prometheus see them: takes counts from whoever hears them, and renders pages. Two sources, one truth: counts that come with
// accepted steps are exact whatever dies; counts that are polled from ranks (where results carry none) miss what a rank did between its
// last report and its death. Thread-safe: one lock, held for a copy of the numbers; text is made outside of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "monitoring/expert_totals.hpp"

namespace althing::monitoring {

// What steps read of the weights, by arithmetic; in bytes, as they are kept while serving.
struct WeightSizes {
  std::uint64_t expert = 0;         // one copy of an expert in one layer
  std::uint64_t rest_of_model = 0;  // all that a step of the full grid reads besides, on all its ranks
};

struct ExpertMonitorConfig {
  ExpertGrid grid;
  double capacity_factor = 1.25;      // of the mean: an expert that takes more is saturated
  bool all_experts = false;           // the tier with a series an expert
  std::uint32_t series_max = 20'000;  // on that page
  WeightSizes weights{};
};

struct ExpertPage {
  bool found = true;  // or the text says how to turn it on
  std::string text;
  std::size_t series = 0;
  std::vector<std::pair<std::string_view, std::size_t>> families{};  // ascending by name: where each begins in the text
};

class ExpertMonitor {
 public:
  explicit ExpertMonitor(const ExpertMonitorConfig& config);
  ~ExpertMonitor();
  ExpertMonitor(const ExpertMonitor&) = delete;
  ExpertMonitor& operator=(const ExpertMonitor&) = delete;

  // Steps that follow are of this epoch and layout. False when it is not of this model.
  bool layout(std::uint64_t epoch, ExpertPlaces places);
  // StepResult::counts of an accepted step. `seconds` is any clock that does not fall. False, and nothing changes, when they cannot be read.
  bool step(std::string_view counts, double seconds);
  // What a rank has counted since its process started, (layers, experts), where results carry no counts. False when it is not of this grid.
  bool report(std::uint32_t rank, std::span<const std::uint64_t> cumulative, double seconds);
  void rank_up(std::uint32_t rank, bool up);
  void rank_lost(std::uint32_t rank);

  // Families for /metrics: their number does not depend on the number of experts.
  ExpertPage summary(double seconds) const;
  // /metrics/experts.
  ExpertPage all(double seconds) const;
  // /experts.json.
  std::string json(double seconds) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace althing::monitoring
