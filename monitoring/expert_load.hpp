// Turns the ranks' cumulative expert counts into monotone totals and a recent window. Pure accounting: no clock, no lock, no metric library.
//
// Totals: a rank's process may die and start again from zero; what it had counted stays counted. A report with any number below its predecessor
// starts a new run of that rank, and so does the first report after `rank_lost`.
// Window: the last one to two buckets of a layer. A bucket closes when the layer's experts took bucket_tokens_per_expert tokens on average, so the
// ratios rest on enough tokens to mean something, whatever the traffic is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace althing::monitoring {

struct ExpertGrid {
  std::uint32_t ranks = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;  // a layer
};

struct LayerLoad {
  double imbalance = 0;            // max / mean over the experts; 1 is perfect, 0 means no tokens yet
  std::uint32_t experts_idle = 0;  // experts without a token in the window; 0 until the window holds a whole bucket
};

class ExpertLoad {
 public:
  static constexpr std::uint64_t bucket_tokens_per_expert = 128;

  explicit ExpertLoad(ExpertGrid grid);

  // Adds what `rank` counted since its last report. `layer_major_tokens` is (layers, experts), cumulative since the process started.
  // Gives the tokens each layer of this rank gained, (layers); empty when the rank or the size is not of this grid.
  std::span<const std::uint64_t> report(std::uint32_t rank, std::span<const std::uint64_t> layer_major_tokens);

  // The rank's next report counts from zero.
  void rank_lost(std::uint32_t rank);

  // REQUIRES: layer < grid.layers.
  LayerLoad load(std::uint32_t layer) const;

 private:
  struct Window {
    std::vector<std::uint64_t> closed;   // (experts) of the last whole bucket; empty before the first
    std::vector<std::uint64_t> current;  // (experts)
    std::uint64_t current_tokens = 0;
  };

  std::size_t cells() const { return std::size_t{grid_.layers} * grid_.experts; }

  ExpertGrid grid_;
  std::vector<std::vector<std::uint64_t>> last_;  // by rank, (layers, experts); the last report
  std::vector<Window> windows_;                   // by layer
  std::vector<std::uint64_t> gained_;             // (layers); what report() returns
};

}  // namespace althing::monitoring
