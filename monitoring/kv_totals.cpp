// See the header.
#include "monitoring/kv_totals.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <string>

#include "scheduler/vocabulary/prefix_miss.hpp"

namespace althing::monitoring {
namespace {

using prometheus::Counter;
using prometheus::Registry;

Counter& counter(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}
prometheus::Gauge& gauge(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
std::vector<Counter*> counters(Registry& registry, const char* name, const char* help, const char* label, const std::vector<std::string>& values) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  std::vector<Counter*> all;
  for (const std::string& value : values) all.push_back(&family.Add({{label, value}}));
  return all;
}

// A request that misses nothing is none.
std::vector<std::string> miss_names() {
  std::vector<std::string> names;
  for (std::uint32_t i = 1; i < prefix_miss_count; ++i) names.emplace_back(name_of(static_cast<PrefixMiss>(i)));
  return names;
}

void raise(Counter& counter, std::uint64_t total) {
  const double gained = static_cast<double>(total) - counter.Value();
  if (gained > 0) counter.Increment(gained);
}

}  // namespace

KvTotals::KvTotals(Registry& registry, std::uint32_t ranks)
    : mirror_pages_(counters(registry, "althing_kv_mirror_pages_total", "KV pages and their copies, summed over ranks.", "fate",
                             {"copied", "skipped", "restored", "missing", "corrupt", "no_room"})),
      mirror_bytes_(gauge(registry, "althing_kv_mirror_bytes", "Bytes of KV pages in the mirrors of all ranks.")),
      tokens_restored_(counter(registry, "althing_kv_restored_tokens_total", "Tokens whose lost KV came back from the mirror.")),
      tokens_recomputed_(counter(registry, "althing_kv_recomputed_tokens_total", "Tokens whose lost KV was computed again.")),
      blocks_cached_(gauge(registry, "althing_kv_blocks_cached", "KV pages of earlier requests, kept for others until somebody needs the room.")),
      blocks_evicted_(counter(registry, "althing_kv_blocks_evicted_total", "Kept KV pages of earlier requests that made room.")),
      prefix_tokens_(counters(registry, "althing_prefix_tokens_total", "Prompt tokens of requests that began, by whether their KV was there.", "fate",
                              {"hit", "miss"})),
      prefix_misses_(
          counters(registry, "althing_prefix_miss_total", "Requests that began, by why no more of their prompt was there.", "reason", miss_names())),
      mirrored_(ranks) {
  auto& guesses = prometheus::BuildCounter()
                      .Name("althing_guessed_tokens_total")
                      .Help("Tokens that were guessed, by who guessed them and what the model drew in their place.")
                      .Register(registry);
  for (const char* proposer : {"lookup", "draft"})
    for (const char* verdict : {"right", "wrong"}) guesses_.push_back(&guesses.Add({{"proposer", proposer}, {"verdict", verdict}}));
}

void KvTotals::mirror(const Mirror& mirror) {
  mirror_bytes_.Set(static_cast<double>(mirror.bytes_used));
  raise(*mirror_pages_.back(), mirror.pages_unmirrored);
  raise(tokens_restored_, mirror.tokens_restored);
  raise(tokens_recomputed_, mirror.tokens_recomputed);
}

void KvTotals::prefixes(const Prefixes& prefixes) {
  blocks_cached_.Set(static_cast<double>(prefixes.pages_cached));
  raise(blocks_evicted_, prefixes.pages_evicted);
  raise(*prefix_tokens_[0], prefixes.hit_tokens);
  raise(*prefix_tokens_[1], prefixes.miss_tokens);
  for (std::size_t i = 0; i < prefix_misses_.size() && i + 1 < prefixes.misses.size(); ++i) raise(*prefix_misses_[i], prefixes.misses[i + 1]);
}

void KvTotals::guesses(const Guesses& guesses) {
  std::size_t next = 0;
  for (const Guesses::Counts& counts : {guesses.lookup, guesses.draft}) {
    raise(*guesses_[next++], counts.right);
    raise(*guesses_[next++], counts.tokens - std::min(counts.tokens, counts.right));
  }
}

void KvTotals::rank_pages(std::uint32_t rank, std::span<const std::uint64_t> counts) {
  for (std::size_t fate = 0; fate < counts.size(); ++fate) {
    std::uint64_t& seen = mirrored_[rank][fate];
    mirror_pages_[fate]->Increment(static_cast<double>(counts[fate] >= seen ? counts[fate] - seen : counts[fate]));
    seen = counts[fate];
  }
}

}  // namespace althing::monitoring
