// What a step's result changes: tokens are appended and reported, requests end, windows slide, and pages kept for the step go back.
// Invariant: a result counts only for the oldest step in flight of the current epoch, and each of its planned draws counts once, whatever
// else the result holds.
#include <algorithm>
#include <string>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// Results arrive in the plan's order, so the hint is nearly always right; a result that is not in order is searched.
const DrawnToken* find_draw(const std::vector<DrawnToken>& drawn, std::size_t hint, const FlightWork& work) {
  const auto fits = [&](const DrawnToken& d) { return d.row == work.row && d.request == work.request; };
  if (hint < drawn.size() && fits(drawn[hint])) return &drawn[hint];
  const auto found = std::find_if(drawn.begin(), drawn.end(), fits);
  return found == drawn.end() ? nullptr : &*found;
}

}  // namespace

void Core::State::commit(const StepResult& result) {
  if (!ready || flights.empty() || result.epoch != epoch || result.step != flights.front().step) return;
  // It stays in `flights` no longer: what ends now need not wait for it.
  Flight flight = std::move(flights.front());
  flights.pop_front();
  ++totals.steps_done;
  finish_restores(flight, result.unrestored);
  std::size_t draw_index = 0;
  bool orphaned_nan = false;
  for (const FlightWork& work : flight.work) {
    const std::size_t hint = draw_index;
    if (work.sample) ++draw_index;
    if (!work.decode) totals.prompt_tokens += work.count;
    if (work.sample && (work.sequence == nullptr || !work.sequence->running)) {
      const DrawnToken* drawn = find_draw(result.drawn, hint, work);
      orphaned_nan = orphaned_nan || drawn == nullptr || drawn->nonfinite;
    }
    if (work.sequence == nullptr) continue;
    Sequence& sequence = *work.sequence;
    const std::uint32_t end = sequence.starts[0] + work.count;
    totals.tokens_recomputed += std::min(end, sequence.computed_most) - std::min(sequence.starts[0], sequence.computed_most);
    sequence.computed_most = std::max(sequence.computed_most, end);
    --sequence.in_flight;
    sequence.starts[0] = sequence.starts[1];
    if (sequence.running) slide_windows(sequence);
    if (!work.sample) continue;
    --sequence.pending;
    take_draw(sequence, flight.step, find_draw(result.drawn, hint, work));
  }
  if (orphaned_nan) {
    quarantine_released();
    flight.dirty.insert(flight.dirty.end(), flight.release.begin(), flight.release.end());
    flight.release.clear();
  }
  for (const auto* pages : {&flight.release, &flight.scrub})
    for (const LeftPage& left : *pages) release(left);
  scrub_due.insert(scrub_due.end(), flight.dirty.begin(), flight.dirty.end());
}

// Appends the token, reports it, and ends the request when it must. `sequence` may be gone afterwards.
void Core::State::take_draw(Sequence& sequence, StepId step, const DrawnToken* drawn) {
  const auto where = [&] { return " in step " + std::to_string(step.value) + " at position " + std::to_string(sequence.known()); };
  if (drawn == nullptr)
    return finish(sequence, FinishReason::error,
                  Error{ErrorCode::internal, "the ranks reported no token for this request" + where() + "; please report this", {}}, Pages::dirty);
  if (drawn->nonfinite)
    return finish(sequence, FinishReason::error,
                  Error{ErrorCode::nonfinite, "the logits held NaN or infinity" + where() + "; the weights or the hardware may be damaged", {}},
                  Pages::dirty);
  if (drawn->token >= config.vocabulary)
    return finish(sequence, FinishReason::error,
                  Error{ErrorCode::internal,
                        "the ranks drew token " + std::to_string(drawn->token) + where() + ", and ids end at " +
                            std::to_string(config.vocabulary - 1) + "; please report this",
                        {}},
                  Pages::dirty);
  effects.emplace_back(TokensDrawn{sequence.request, sequence.completion_count(), {drawn->token}});
  sequence.tokens.push_back(drawn->token);
  ++totals.completion_tokens;
  end_if_complete(sequence);
}

// Ends the request when its last token says so; `sequence` is gone then. REQUIRES: a completion token.
void Core::State::end_if_complete(Sequence& sequence) {
  const auto& stops = sequence.sampling.stop_tokens;
  if (!sequence.sampling.ignore_stop && std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end())
    return finish(sequence, FinishReason::stop, Error{});
  if (sequence.completion_count() >= sequence.sampling.completion_tokens_max) finish(sequence, FinishReason::length, Error{});
}

// Gives back what neither a step in flight nor any later one reads.
void Core::State::slide_windows(Sequence& sequence) {
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    PageTable& table = sequence.tables[g];
    const std::uint32_t first = first_page_read(config.kv.groups[g], sequence.oldest_start());
    for (; table.released < first; ++table.released) pool_of(sequence).release(table.pages[table.released]);
  }
}

}  // namespace althing::scheduler
