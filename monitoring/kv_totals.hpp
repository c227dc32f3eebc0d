// What becomes of KV pages beside the sequences that run: copies in the mirror, and beginnings that requests share; and of tokens that were guessed.
// Counters are monotone whatever they are told, so a core that follows a dead one takes nothing back. Not thread-safe: Metrics calls it under its
// lock.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Registry;
}  // namespace prometheus

namespace althing::monitoring {

class KvTotals {
 public:
  static constexpr std::size_t rank_fates = 5;  // of pages and their copies, that ranks count

  // The KV mirror as the scheduler sees it. Cumulative, but for the bytes.
  struct Mirror {
    std::uint64_t bytes_used = 0;        // on all ranks
    std::uint64_t pages_unmirrored = 0;  // for which it had no room
    std::uint64_t tokens_restored = 0;   // that came back and need not be computed again
    std::uint64_t tokens_recomputed = 0;
  };
  // Prefixes that requests share, likewise. Cumulative, but for the cached pages.
  struct Prefixes {
    std::uint64_t pages_cached = 0;  // of all DP groups
    std::uint64_t pages_evicted = 0;
    std::uint64_t hit_tokens = 0;  // of prompts, that were there already
    std::uint64_t miss_tokens = 0;
    std::span<const std::uint64_t> misses{};  // requests, by PrefixMiss
  };

  // Tokens that were guessed and verified. Cumulative.
  struct Guesses {
    struct Counts {
      std::uint64_t tokens = 0;
      std::uint64_t right = 0;  // of these
    };
    Counts lookup, draft;  // by who guessed them
  };

  // REQUIRES: the registry outlives this.
  KvTotals(prometheus::Registry& registry, std::uint32_t ranks);

  void mirror(const Mirror& mirror);
  void prefixes(const Prefixes& prefixes);
  void guesses(const Guesses& guesses);
  // Cumulative counts of the rank's pages since its process started. REQUIRES: rank_fates of them at most.
  void rank_pages(std::uint32_t rank, std::span<const std::uint64_t> counts);
  void rank_failed(std::uint32_t rank) { mirrored_[rank] = {}; }

 private:
  std::vector<prometheus::Counter*> mirror_pages_;  // by fate
  prometheus::Gauge& mirror_bytes_;
  prometheus::Counter &tokens_restored_, &tokens_recomputed_;
  prometheus::Gauge& blocks_cached_;
  prometheus::Counter& blocks_evicted_;
  std::vector<prometheus::Counter*> prefix_tokens_;              // hit, miss
  std::vector<prometheus::Counter*> prefix_misses_;              // by PrefixMiss, without the first
  std::vector<prometheus::Counter*> guesses_;                    // lookup's right and wrong, the draft model's
  std::vector<std::array<std::uint64_t, rank_fates>> mirrored_;  // by rank, as last heard
};

}  // namespace althing::monitoring
