// Whether one more sequence would sooner or later be too much. What is taken now says little: sequences that are short today grow, and what is
// computed and then given up is computed twice. So the pages are added up at each moment at which one of those that run may end, as far as ends so
// far tell (Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025).
#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

constexpr std::uint64_t parts = 1024;  // of a page

}  // namespace

// Pages of the group that will be in use at once, when `next` runs, too. Windows do not grow, and pages that several share are given back by the
// last.
// 0 as long as nothing is known of how long completions become.
std::uint64_t Core::State::pages_ahead(const Sequence& next, DpGroup group, const PrefixHit& hit) const {
  if (!lengths.known()) return 0;
  struct End {
    std::uint64_t tokens;  // until then
    std::uint64_t pages;   // held now, that come back
  };
  std::vector<End> ends;
  std::uint64_t now = books[group.value].used(), held = 0;
  const auto add = [&](const Sequence& sequence, std::uint64_t pages, std::uint64_t coming) {
    const std::uint32_t left = sequence.sampling.completion_tokens_max - sequence.completion_count();
    ends.push_back({lengths.expected(sequence.completion_count(), left), pages + coming});
    now += coming;
    held += pages;
  };
  for (const Sequence* other : running) {
    if (other->dp_group != group) continue;
    const std::uint32_t there = other->held(), need = needs.peak(other->known());
    add(*other, there, other->decodes() ? 0 : need - std::min(need, there));
  }
  const std::uint64_t own = needs.peak(std::min(next.known() + 1, next.positions_max()));
  add(next, 0, own - std::min<std::uint64_t>(own, hit.owned_pages));
  std::uint64_t growth = 0;  // parts of a page, for a token
  for (const KvGroup& kv : config.kv.groups)
    if (kv.window == 0) growth += parts / kv.tokens_per_page;
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.tokens < b.tokens; });
  // Of pages with several owners each counts its share.
  const std::uint64_t distinct = std::min<std::uint64_t>(books[group.value].used(), held);
  std::uint64_t most = 0, back = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::uint64_t grown = (ends.size() - i) * ends[i].tokens * growth / parts;
    most = std::max(most, now + grown - std::min(now + grown, back));
    // What it has grown by until then comes back, too: it is counted for those that are left only.
    back += held > 0 ? ends[i].pages * distinct / held : ends[i].pages;
  }
  return most;
}

}  // namespace althing::scheduler
