// Everything that must add up after every event, checked from scratch: nothing here trusts a counter it could recompute.
// Linear in pages and tokens held; meant for tests and debug builds.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

std::string name(const Sequence& sequence) { return "request " + std::to_string(sequence.request.value); }

std::string differ(const std::string& what, std::uint64_t expected, std::uint64_t actual) {
  return what + ": expected " + std::to_string(expected) + ", found " + std::to_string(actual);
}

}  // namespace

std::string Core::State::check() const {
  for (const auto& part : {check_places(), check_pages(), check_flights(), check_mirrors()})
    if (!part.empty()) return part;
  for (const auto& [request, sequence] : sequences)
    if (auto broken = check_sequence(*sequence); !broken.empty()) return name(*sequence) + ": " + broken;
  // One whose draw nobody has decided about may hold what all others need.
  const auto may_go_on = [](const auto& entry) { return entry.second->may_draw(); };
  if (ready && !sequences.empty() && flights.empty() && std::all_of(sequences.begin(), sequences.end(), may_go_on))
    return "there is work, a membership and a free slot, but no step in flight";
  if (!ready && !(flights.empty() && running.empty())) return "steps or rows without a membership";
  return {};
}

// Every sequence is in exactly one place, and those that run are in order of their turns.
std::string Core::State::check_places() const {
  if (sequences.size() > config.limits.sequences_max) return differ("sequences, at most", config.limits.sequences_max, sequences.size());
  if (running.size() + fair.waiting() != sequences.size())
    return differ("running and waiting sequences", sequences.size(), running.size() + fair.waiting());
  if (auto broken = fair.check(); !broken.empty()) return broken;
  std::size_t with_deadline = 0;
  for (const auto& [request, sequence] : sequences) with_deadline += sequence->deadline_ms != 0 ? 1 : 0;
  if (with_deadline != deadlines.size()) return differ("deadlines", with_deadline, deadlines.size());
  std::set<RequestId> seen;
  const Sequence* previous = nullptr;
  const auto visit = [&](const Sequence& sequence, bool runs) -> std::string {
    const auto found = sequences.find(sequence.request);
    if (found == sequences.end() || found->second.get() != &sequence) return name(sequence) + " is in a queue but not accepted";
    if (!seen.insert(sequence.request).second) return name(sequence) + " is in two places";
    if (sequence.running != runs) return name(sequence) + " does not know whether it runs";
    if (runs && (!sequence.started() || (previous != nullptr && previous->turn >= sequence.turn))) return name(sequence) + " is behind a younger one";
    previous = &sequence;
    return {};
  };
  for (const Sequence* sequence : running)
    if (auto broken = visit(*sequence, true); !broken.empty()) return broken;
  for (const Tenant* tenant : fair.queueing())
    for (const Sequence* sequence : tenant->waiting)
      if (auto broken = visit(*sequence, false); !broken.empty()) return broken;
  std::size_t occupied = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == nullptr) continue;
    ++occupied;
    if (std::find(running.begin(), running.end(), rows[row]) == running.end()) return "row " + std::to_string(row) + " holds nothing that runs";
    if (rows[row]->row.value != row) return differ("row of " + name(*rows[row]), row, rows[row]->row.value);
  }
  return occupied == running.size() ? std::string{} : differ("occupied rows", running.size(), occupied);
}

// Every page of every group's pool is free, cached, or in quarantine, or it has as many owners as sequences of the group and steps in flight have it.
std::string Core::State::check_pages() const {
  std::vector<std::vector<std::uint32_t>> owners(books.size(), std::vector<std::uint32_t>(config.kv.page_count, 0));
  std::vector<std::vector<bool>> quarantine(books.size(), std::vector<bool>(config.kv.page_count, false));
  for (const auto& [request, sequence] : sequences)
    for (const PageTable& table : sequence->tables)
      for (std::size_t i = table.released; i < table.pages.size(); ++i) ++owners[sequence->dp_group.value][table.pages[i].value];
  for (const Flight& flight : flights)
    for (const auto* pages : {&flight.release, &flight.dirty})
      for (const LeftPage& left : *pages) ++owners[left.dp_group.value][left.page.value];
  const auto visit = [&](const LeftPage& left) -> std::string {
    if (left.dp_group.value >= books.size()) return differ("DP group, below", books.size(), left.dp_group.value);
    if (quarantine[left.dp_group.value][left.page.value]) return "page " + std::to_string(left.page.value) + " is in quarantine twice";
    quarantine[left.dp_group.value][left.page.value] = true;
    return {};
  };
  for (const Flight& flight : flights)
    for (const LeftPage& left : flight.scrub)
      if (auto broken = visit(left); !broken.empty()) return broken;
  for (const LeftPage& left : scrub_due)
    if (auto broken = visit(left); !broken.empty()) return broken;
  for (std::size_t g = 0; g < books.size(); ++g)
    if (auto broken = books[g].check(owners[g], quarantine[g]); !broken.empty()) return "DP group " + std::to_string(g) + ": " + broken;
  return {};
}

std::string Core::State::check_sequence(const Sequence& s) const {
  if (s.planned > s.length()) return differ("planned positions, at most", s.length(), s.planned);
  if (!s.running && s.trail.blocks > 0) return "it is in the prefix index and does not run";
  if (s.running && s.pending > 0 && s.left() != 1) return differ("positions left while a draw is in flight", 1, s.left());
  if (s.completion_count() + s.pending > s.sampling.completion_tokens_max)
    return differ("draws, at most", s.sampling.completion_tokens_max, s.completion_count() + s.pending);
  if (s.known() + s.pending > request_tokens_max()) return differ("tokens, at most", request_tokens_max(), s.known() + s.pending);
  std::uint32_t in_flight = 0;
  std::uint32_t draws = 0;
  bool asked = false;
  for (const Flight& flight : flights)
    for (const FlightWork& work : flight.work)
      if (work.sequence == &s) {
        ++in_flight;
        draws += work.sample ? work.draws : 0;
        asked = asked || work.guesses > 0;
      }
  std::uint32_t restores = 0;
  for (const Flight& flight : flights)
    for (const FlightRestore& restored : flight.restores) restores += restored.sequence == &s ? 1 : 0;
  if (s.restoring && (restores != 1 || in_flight != 0)) return "its pages come back in another step than one that does nothing else for it";
  in_flight += restores;
  if (in_flight != s.in_flight) return differ("steps in flight", in_flight, s.in_flight);
  if (draws != s.pending) return differ("draws in flight", draws, s.pending);
  if (asked != s.asked) return "guesses are asked for and not waited for, or the other way round";
  for (std::size_t g = 0; g < s.tables.size(); ++g) {
    const KvGroup& group = config.kv.groups[g];
    const std::string where = " of group " + std::to_string(g);
    const std::uint32_t covering = pages_covering(group, s.planned);
    const std::uint32_t most = pages_covering(group, s.planned + pages_ahead_tokens());
    const std::size_t there = s.tables[g].pages.size();
    if (there < covering || (there > covering && (!s.running || there > most))) return differ("page table" + where, covering, there);
    const std::uint32_t first = s.running ? first_page_read(group, s.oldest_start()) : 0;
    if (s.tables[g].released != first) return differ("pages slid out" + where, first, s.tables[g].released);
  }
  return {};
}

// Every mirror adds up, and what a sequence has claimed holds the very page that it will need.
std::string Core::State::check_mirrors() const {
  std::vector<std::map<MirrorSlot, std::uint32_t>> claims(mirrors.size());
  for (const auto& [request, sequence] : sequences) {
    if (sequence->mirror.size() != (mirrors_pages() ? config.kv.groups.size() : 0)) return name(*sequence) + " has mirror tables for other groups";
    for (const MirrorTable& table : sequence->mirror) {
      if (table.claims.size() > table.keys.size())
        return differ("claims of " + name(*sequence) + ", at most", table.keys.size(), table.claims.size());
      for (std::uint32_t page = 0; page < table.claims.size(); ++page) {
        if (!table.claimed(page)) continue;
        const std::string what = name(*sequence) + ", page " + std::to_string(page) + ": ";
        if (page < table.needed) return what + "is claimed and not needed";
        if (mirrors[sequence->mirror_group.value].find(table.keys[page]) != table.claims[page]) return what + "is claimed and not in the mirror";
        ++claims[sequence->mirror_group.value][table.claims[page]];
      }
    }
  }
  for (std::size_t g = 0; g < mirrors.size(); ++g)
    if (auto broken = mirrors[g].check(claims[g]); !broken.empty()) return "DP group " + std::to_string(g) + ": " + broken;
  return {};
}

std::string Core::State::check_flights() const {
  const Limits& limits = config.limits;
  if (flights.size() > limits.steps_in_flight_max) return differ("steps in flight, at most", limits.steps_in_flight_max, flights.size());
  std::uint64_t step = last_step.value - flights.size();
  for (const Flight& flight : flights) {
    if (flight.step.value != ++step) return differ("step in flight", step, flight.step.value);
    const std::string where = "step " + std::to_string(step);
    if (flight.work.empty() && flight.scrub.empty() && flight.restores.empty()) return where + " has no work";
    std::uint64_t tokens = 0;
    for (std::size_t i = 0; i < flight.work.size(); ++i) {
      const FlightWork& work = flight.work[i];
      tokens += work.count;
      if (work.count == 0 || work.count > limits.prefill_chunk_max)
        return differ(where + " tokens of a row, at most", limits.prefill_chunk_max, work.count);
      if (work.row.value >= limits.rows_max) return differ(where + " row, below", limits.rows_max, work.row.value);
      if (i > 0 && !(flight.work[i - 1].row < work.row)) return where + " does not ascend by row";
    }
    if (tokens > limits.step_tokens_max) return differ(where + " tokens, at most", limits.step_tokens_max, tokens);
  }
  return {};
}

}  // namespace althing::scheduler
