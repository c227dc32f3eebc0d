// Everything that must add up after every event, checked from scratch: nothing here trusts a counter it could recompute.
// Linear in pages and tokens held; meant for tests and debug builds.
#include <algorithm>
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
  for (const auto& part : {check_places(), check_pages(), check_flights()})
    if (!part.empty()) return part;
  for (const auto& [request, sequence] : sequences)
    if (auto broken = check_sequence(*sequence); !broken.empty()) return name(*sequence) + ": " + broken;
  if (ready && !sequences.empty() && flights.empty()) return "there is work, a membership and a free slot, but no step in flight";
  if (!ready && !(flights.empty() && running.empty())) return "steps or rows without a membership";
  return {};
}

// Every sequence is in exactly one place and in order of acceptance.
std::string Core::State::check_places() const {
  if (sequences.size() > config.limits.sequences_max) return differ("sequences, at most", config.limits.sequences_max, sequences.size());
  if (running.size() + waiting.size() != sequences.size())
    return differ("running and waiting sequences", sequences.size(), running.size() + waiting.size());
  std::set<RequestId> seen;
  const Sequence* previous = nullptr;
  const auto visit = [&](const Sequence& sequence, bool runs) -> std::string {
    const auto found = sequences.find(sequence.request);
    if (found == sequences.end() || found->second.get() != &sequence) return name(sequence) + " is in a queue but not accepted";
    if (!seen.insert(sequence.request).second) return name(sequence) + " is in two places";
    if (sequence.running != runs) return name(sequence) + " does not know whether it runs";
    if (previous != nullptr && previous->number >= sequence.number) return name(sequence) + " is behind a later one";
    previous = &sequence;
    return {};
  };
  for (const Sequence* sequence : running)
    if (auto broken = visit(*sequence, true); !broken.empty()) return broken;
  previous = nullptr;
  for (const Sequence* sequence : waiting)
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

// Every page is free, or held once by a sequence, or kept once for a step in flight.
std::string Core::State::check_pages() const {
  std::vector<bool> seen(pool.total(), false);
  std::size_t count = 0;
  const auto visit = [&](PageId page) -> std::string {
    if (!pool.taken(page)) return "page " + std::to_string(page.value) + " is held, but free in the pool";
    if (seen[page.value]) return "page " + std::to_string(page.value) + " is in two places";
    seen[page.value] = true;
    ++count;
    return {};
  };
  for (const auto& [request, sequence] : sequences)
    for (const PageTable& table : sequence->tables)
      for (std::size_t i = table.released; i < table.pages.size(); ++i)
        if (auto broken = visit(table.pages[i]); !broken.empty()) return broken;
  for (const Flight& flight : flights)
    for (const PageId page : flight.release)
      if (auto broken = visit(page); !broken.empty()) return broken;
  return count == pool.used() ? std::string{} : differ("pages held", pool.used(), count);
}

std::string Core::State::check_sequence(const Sequence& s) const {
  if (s.planned > s.length()) return differ("planned positions, at most", s.length(), s.planned);
  if (s.running && s.pending > 0 && s.left() != 1) return differ("positions left while a draw is in flight", 1, s.left());
  if (s.completion_count() + s.pending > s.sampling.completion_tokens_max)
    return differ("draws, at most", s.sampling.completion_tokens_max, s.completion_count() + s.pending);
  if (s.known() + s.pending > request_tokens_max()) return differ("tokens, at most", request_tokens_max(), s.known() + s.pending);
  std::uint32_t in_flight = 0;
  std::uint32_t draws = 0;
  for (const Flight& flight : flights)
    for (const FlightWork& work : flight.work)
      if (work.sequence == &s) {
        ++in_flight;
        draws += work.sample ? 1 : 0;
      }
  if (in_flight != s.in_flight) return differ("steps in flight", in_flight, s.in_flight);
  if (draws != s.pending) return differ("draws in flight", draws, s.pending);
  for (std::size_t g = 0; g < s.tables.size(); ++g) {
    const KvGroup& group = config.kv.groups[g];
    const std::string where = " of group " + std::to_string(g);
    const std::uint32_t covering = pages_covering(group, s.planned);
    if (s.tables[g].pages.size() != covering) return differ("page table" + where, covering, s.tables[g].pages.size());
    const std::uint32_t first = s.running ? first_page_read(group, s.oldest_start()) : 0;
    if (s.tables[g].released != first) return differ("pages slid out" + where, first, s.tables[g].released);
  }
  return {};
}

std::string Core::State::check_flights() const {
  const Limits& limits = config.limits;
  if (flights.size() > limits.steps_in_flight_max) return differ("steps in flight, at most", limits.steps_in_flight_max, flights.size());
  std::uint64_t step = last_step.value - flights.size();
  for (const Flight& flight : flights) {
    if (flight.step.value != ++step) return differ("step in flight", step, flight.step.value);
    const std::string where = "step " + std::to_string(step);
    if (flight.work.empty()) return where + " has no work";
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
