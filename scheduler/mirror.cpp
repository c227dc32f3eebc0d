// Copies of full pages outside of the KV cache: which pages are copied, and how far a sequence that lost its pages comes back from them. The core
// only orders; whether a copy was made is known when a membership begins (RanksReady) or when it is wanted back (StepResult::unrestored). Invariant:
// a restored position has every page that computing it reads; where one is missing, the sequence comes back to an earlier position, or is computed
// from its tokens alone. So what the mirror lacks costs time and never a bit.
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// Pages of a window group stay claimed for a while after they slid out: the newest pages may be missing, and the window of an earlier position begins
// earlier.
constexpr std::uint32_t slid_pages_kept = 2;

}  // namespace

// The first page of a group that a sequence at `position` may still want back.
std::uint32_t Core::State::first_needed(std::uint32_t group, std::uint32_t position) const {
  const std::uint32_t first = first_page_read(config.kv.groups[group], position);
  return first - std::min(first, slid_pages_kept);
}

// What the ranks have is the truth: a copy that was ordered and never made is not there, and one that another core ordered is.
void Core::State::adopt_mirror(const RanksReady& event) {
  const bool other_keys = std::exchange(mirror_seed, event.mirror_seed) != event.mirror_seed;
  for (MirrorDirectory& mirror : mirrors) mirror.clear();
  // Mirrors of another shape keep what they have until their shape comes back.
  std::vector<Forgotten> still_there;
  std::copy_if(forget_due.begin(), forget_due.end(), std::back_inserter(still_there), [this](const Forgotten& f) { return !is_here(f); });
  for (const MirroredPage& page : event.mirrored) {
    if (page.dp_group.value >= mirrors.size() || page.slot.value >= config.mirror_slots) continue;
    const auto forgotten = [&](const Forgotten& f) { return is_here(f) && f.place == SlotOfGroup{page.dp_group, page.slot} && f.key == page.key; };
    const auto found = std::find_if(forget_due.begin(), forget_due.end(), forgotten);
    if (found == forget_due.end())
      mirrors[page.dp_group.value].assume(page.slot, page.key);
    else
      still_there.push_back(*found);
  }
  forget_due = std::move(still_there);
  for (const auto& [request, sequence] : sequences) {
    for (MirrorTable& table : sequence->mirror) {
      table.claims.clear();
      table.needed = 0;
      if (other_keys) table.keys.clear();
    }
    if (other_keys) sequence->chain = TokenChain(mirror_seed, config.mirror_identity);
    // Some that never had a row may have had one under a core that died; to the others the mirror is of no use, or of some.
    sequence->may_restore = true;
    claim_restorable(*sequence);
  }
}

// Keys of all pages that the first `tokens` tokens fill. REQUIRES: tokens <= known().
void Core::State::extend_keys(Sequence& sequence, std::uint32_t tokens) {
  while (sequence.chain.tokens() < tokens) {
    sequence.chain.add(sequence.tokens[sequence.chain.tokens()]);
    for (std::uint32_t g = 0; g < sequence.mirror.size(); ++g)
      if (sequence.chain.tokens() % config.kv.groups[g].tokens_per_page == 0) sequence.mirror[g].keys.push_back(sequence.chain.key(g));
  }
}

// The most positions that the mirror of a group can give back; one token at least is left to compute.
std::uint32_t Core::State::restorable(Sequence& sequence, DpGroup dp_group) {
  if (!mirrors_pages() || !sequence.may_restore || sequence.known() < 2) return 0;
  extend_keys(sequence, sequence.known());
  const MirrorDirectory& mirror = mirrors[dp_group.value];
  const auto has = [&](std::uint32_t group, std::uint32_t page) {
    const std::vector<PageKey>& keys = sequence.mirror[group].keys;
    return page < keys.size() && mirror.find(keys[page]).has_value();
  };
  std::uint32_t position = sequence.known() - 1;
  for (std::uint32_t g = 0; g < sequence.mirror.size() && position > 0; ++g) {
    if (config.kv.groups[g].window != 0) continue;
    std::uint32_t page = 0;
    while (page < pages_covering(config.kv.groups[g], position) && has(g, page)) ++page;
    position = std::min(position, page * config.kv.groups[g].tokens_per_page);
  }
  // Each gap in a window moves the position down to where the gap is not needed.
  for (std::uint32_t g = 0; g < sequence.mirror.size() && position > 0;) {
    const KvGroup& group = config.kv.groups[g];
    std::uint32_t page = pages_covering(group, position);
    const std::uint32_t first = first_page_read(group, position);
    while (page > first && has(g, page - 1)) --page;
    if (group.window == 0 || page == first) {
      ++g;
      continue;
    }
    position = (page - 1) * group.tokens_per_page;
    g = 0;
  }
  // Windows of one token may need no page at all at a page's end; then there is nothing to fetch, and nothing that would say how far it is.
  for (const KvGroup& group : config.kv.groups)
    if (first_page_read(group, position) < pages_covering(group, position)) return position;
  return 0;
}

// REQUIRES: the sequence has just got its row, position == restorable(sequence, its group), and the pool has the pages.
void Core::State::restore(Sequence& sequence, std::uint32_t position, StepPlan& plan, Flight& flight) {
  claim_up_to(sequence, sequence.dp_group, position);
  FlightRestore restored{&sequence, position, sequence.dp_group, {}};
  for (std::uint32_t g = 0; g < sequence.tables.size(); ++g) {
    const std::uint32_t first = first_page_read(config.kv.groups[g], position);
    PageTable& table = sequence.tables[g];
    table.pages.assign(first, PageId{});
    table.released = first;
    PageGrant grant{sequence.row, g, first, {}};
    for (std::uint32_t page = first; page < pages_covering(config.kv.groups[g], position); ++page) {
      table.pages.push_back(book_of(sequence).take());
      grant.pages.push_back(table.pages.back());
      const MirrorSlot slot = sequence.mirror[g].claims[page];
      plan.restore.push_back(MirrorPage{sequence.dp_group, g, table.pages.back(), slot, sequence.mirror[g].keys[page]});
      restored.pages.emplace_back(slot, sequence.mirror[g].keys[page]);
    }
    if (!grant.pages.empty()) plan.pages.push_back(std::move(grant));
  }
  sequence.restoring = true;
  sequence.planned = position;
  sequence.starts[sequence.in_flight++] = position;
  flight.restores.push_back(std::move(restored));
}

// A sequence whose pages did not all come back waits again: the pages that failed it are forgotten, and it starts from what is left.
void Core::State::finish_restores(Flight& flight, const std::vector<SlotOfGroup>& unrestored) {
  for (FlightRestore& restored : flight.restores) {
    const auto failed = [&](const auto& page) {
      return std::find(unrestored.begin(), unrestored.end(), SlotOfGroup{restored.dp_group, page.first}) != unrestored.end();
    };
    const auto missing = static_cast<std::uint64_t>(std::count_if(restored.pages.begin(), restored.pages.end(), failed));
    totals.pages_unrestored += missing;
    totals.pages_restored += restored.pages.size() - missing;
    Sequence* const sequence = restored.sequence;
    if (sequence != nullptr) {
      --sequence->in_flight;
      sequence->starts[0] = sequence->starts[1];
    }
    if (sequence != nullptr && sequence->restoring) {
      sequence->restoring = false;
      if (missing == 0) {
        totals.tokens_restored += restored.position;
      } else {
        leave_row(*sequence);
        fair.wait_again(*sequence);
      }
    }
    // The slot may have been given to another page since, if the request ended meanwhile.
    for (const auto& page : restored.pages)
      if (failed(page) && mirrors[restored.dp_group.value].find(page.second) == page.first) forget_page({restored.dp_group, page.first});
  }
}

// Pages that are full once the steps planned so far are done. Those that have slid out of a window by then are of no use to anybody who comes back.
void Core::State::offer_pages(Sequence& sequence, StepPlan& plan) {
  if (sequence.restoring) return;
  const std::uint32_t end = std::min(sequence.planned, sequence.known());
  for (std::uint32_t g = 0; g < sequence.mirror.size(); ++g) {
    MirrorTable& table = sequence.mirror[g];
    const std::uint32_t needed = first_needed(g, sequence.oldest_start());
    table.needed = std::min(table.needed, needed);  // it may have begun again before where it was
    for (; table.needed < needed; ++table.needed) {
      if (!table.claimed(table.needed)) continue;
      mirrors[sequence.mirror_group.value].unclaim(std::exchange(table.claims[table.needed], MirrorTable::unclaimed));
    }
    const std::uint32_t full = end / config.kv.groups[g].tokens_per_page;
    std::uint32_t page = std::max({table.offered, sequence.tables[g].released, first_needed(g, end)});
    if (page < full) extend_keys(sequence, full * config.kv.groups[g].tokens_per_page);
    for (; page < full; ++page) offer_page(sequence, g, page, plan);
    table.offered = std::max(table.offered, full);
  }
}

void Core::State::offer_page(Sequence& sequence, std::uint32_t group, std::uint32_t page, StepPlan& plan) {
  MirrorTable& table = sequence.mirror[group];
  if (table.claimed(page)) return;
  if (sequence.mirror_group != sequence.dp_group) {
    unclaim_all(sequence);
    sequence.mirror_group = sequence.dp_group;
  }
  MirrorDirectory& mirror = mirrors[sequence.dp_group.value];
  const PageKey key = table.keys[page];
  // Another sequence with the same beginning may have brought it here.
  auto slot = mirror.find(key);
  if (slot) {
    mirror.claim(*slot);
  } else {
    slot = mirror.take(key);
    if (!slot) {
      ++totals.pages_unmirrored;
      return;
    }
    ++totals.pages_mirrored;
    plan.mirror.push_back(MirrorPage{sequence.dp_group, group, sequence.tables[group].pages[page], *slot, key});
  }
  table.claims.resize(table.keys.size(), MirrorTable::unclaimed);
  table.claims[page] = *slot;
}

// In the group whose mirror has most of it, the lower one among equals.
void Core::State::claim_restorable(Sequence& sequence) {
  if (!mirrors_pages()) return;
  std::uint32_t best = 0;
  DpGroup group{};
  for (std::uint32_t g = 0; g < mirrors.size(); ++g) {
    const std::uint32_t position = restorable(sequence, DpGroup{g});
    if (position > best) std::tie(best, group) = std::pair{position, DpGroup{g}};
  }
  if (best > 0) claim_up_to(sequence, group, best);
}

// Claims whatever a sequence needs to come back to `position` or a little before. REQUIRES: position <= restorable(sequence, group).
void Core::State::claim_up_to(Sequence& sequence, DpGroup group, std::uint32_t position) {
  if (sequence.mirror_group != group) {
    unclaim_all(sequence);
    sequence.mirror_group = group;
  }
  for (std::uint32_t g = 0; g < sequence.mirror.size(); ++g) {
    MirrorTable& table = sequence.mirror[g];
    table.claims.resize(table.keys.size(), MirrorTable::unclaimed);
    table.needed = std::min(table.needed, first_needed(g, position));
    for (std::uint32_t page = first_needed(g, position); page < pages_covering(config.kv.groups[g], position); ++page) {
      const auto slot = mirrors[group.value].find(table.keys[page]);
      if (!slot || table.claimed(page)) continue;
      mirrors[group.value].claim(*slot);
      table.claims[page] = *slot;
    }
  }
}

// From the end: a beginning is worth more than what follows it, so it is the last to make room.
void Core::State::unclaim_all(Sequence& sequence) {
  for (MirrorTable& table : sequence.mirror) {
    for (std::size_t page = table.claims.size(); page-- > 0;)
      if (table.claims[page] != MirrorTable::unclaimed) mirrors[sequence.mirror_group.value].unclaim(table.claims[page]);
    table.claims.clear();
    table.needed = 0;
  }
}

// It ended with NaN: whatever it has brought anywhere is used by nobody, also what slid out of a window, and where the first pages were good.
void Core::State::forget_pages_of(const Sequence& sequence) {
  for (const MirrorTable& table : sequence.mirror)
    for (const PageKey& key : table.keys)
      for (std::uint32_t g = 0; g < mirrors.size(); ++g)
        if (const auto slot = mirrors[g].find(key)) forget_page({DpGroup{g}, *slot});
}

void Core::State::forget_page(SlotOfGroup place) {
  MirrorDirectory& mirror = mirrors[place.dp_group.value];
  for (const auto& [request, sequence] : sequences) {
    if (sequence->mirror_group != place.dp_group) continue;
    for (MirrorTable& table : sequence->mirror)
      for (MirrorSlot& claim : table.claims)
        if (claim == place.slot) mirror.unclaim(std::exchange(claim, MirrorTable::unclaimed));
  }
  forget_due.push_back({place, mirror.key_of(place.slot), config.mirror_identity});
  mirror.forget(place.slot);
}

}  // namespace althing::scheduler
