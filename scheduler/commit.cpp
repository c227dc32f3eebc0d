// What a step's result changes: tokens are appended and reported, requests end, windows slide, and pages kept for the step go back.
// Invariant: a result counts only for the oldest step in flight of the current epoch, and each of its planned draws counts once, whatever
// else the result holds.
#include <algorithm>
#include <string>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// All draws of the work, null where they are missing. Results arrive in the plan's order, so the hint is nearly always right; a result that is not in
// order is searched. Of several draws none counts unless all are there: nobody could tell which of them it is.
void find_draws(const std::vector<DrawnToken>& drawn, std::size_t hint, const FlightWork& work, std::vector<const DrawnToken*>& found) {
  const auto fits = [&](const DrawnToken& d) { return d.row == work.row && d.request == work.request; };
  found.clear();
  for (std::size_t i = hint; i < drawn.size() && found.size() < work.draws && fits(drawn[i]); ++i) found.push_back(&drawn[i]);
  if (found.size() == work.draws) return;
  found.clear();
  for (const DrawnToken& d : drawn)
    if (fits(d) && found.size() < work.draws) found.push_back(&d);
  if (found.size() < work.draws) found.assign(work.draws, nullptr);
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
  std::vector<const DrawnToken*> drawn;
  for (const FlightWork& work : flight.work) {
    if (!work.decode) totals.prompt_tokens += work.count;
    drawn.clear();
    if (work.sample) find_draws(result.drawn, draw_index, work, drawn);
    draw_index += drawn.size();
    if (work.sequence == nullptr || !work.sequence->running)
      for (const DrawnToken* one : drawn) orphaned_nan = orphaned_nan || one == nullptr || one->nonfinite;
    if (work.sequence == nullptr) continue;
    Sequence& sequence = *work.sequence;
    const std::uint32_t start = sequence.starts[0];
    --sequence.in_flight;
    if (work.guesses > 0) sequence.asked = false;
    sequence.starts[0] = sequence.starts[1];
    sequence.pending -= static_cast<std::uint32_t>(drawn.size());
    if (!sequence.guessed.empty()) {
      take_verified(sequence, flight.step, drawn);
      continue;
    }
    note_computed(sequence, start, start + work.count);
    if (drawn.empty()) continue;
    sequence.pace.drawn();
    take_draw(sequence, flight.step, drawn[0]);
  }
  take_drafts(flight, result.guesses);
  if (orphaned_nan) {
    quarantine_released();
    for (const LeftPage& left : flight.release) books[left.dp_group.value].taint(left.page);
    flight.dirty.insert(flight.dirty.end(), flight.release.begin(), flight.release.end());
    flight.release.clear();
  }
  for (const LeftPage& left : flight.release) release(left);
  for (const LeftPage& left : flight.scrub) books[left.dp_group.value].scrubbed(left.page);
  for (const LeftPage& left : flight.dirty) release(left);
}

// These positions hold what the known tokens make of them.
void Core::State::note_computed(Sequence& sequence, std::uint32_t start, std::uint32_t end) {
  totals.tokens_recomputed += std::min(end, sequence.computed_most) - std::min(start, sequence.computed_most);
  sequence.computed_most = std::max(sequence.computed_most, end);
  if (!sequence.running) return;
  enter_blocks(sequence, end);
  slide_windows(sequence);
}

// Appends the token, reports it, and ends the request when it must. False when `sequence` is gone.
bool Core::State::take_draw(Sequence& sequence, StepId step, const DrawnToken* drawn) {
  const auto where = [&] { return " in step " + std::to_string(step.value) + " at position " + std::to_string(sequence.known()); };
  const auto fail = [&](ErrorCode code, std::string why) {
    finish(sequence, FinishReason::error, Error{code, std::move(why), {}}, Pages::dirty);
    return false;
  };
  if (drawn == nullptr) return fail(ErrorCode::internal, "the ranks reported no token for this request" + where() + "; please report this");
  if (drawn->nonfinite)
    return fail(ErrorCode::nonfinite, "the logits held NaN or infinity" + where() + "; the weights or the hardware may be damaged");
  if (drawn->token >= config.vocabulary)
    return fail(ErrorCode::internal, "the ranks drew token " + std::to_string(drawn->token) + where() + ", and ids end at " +
                                         std::to_string(config.vocabulary - 1) + "; please report this");
  if (sequence.running) prove_blocks(sequence);
  effects.emplace_back(
      TokensDrawn{sequence.request, sequence.completion_count(), {drawn->token}, sequence.preemptions, {}, sequence.cached_tokens, sequence.miss});
  sequence.tokens.push_back(drawn->token);
  sequence.drafts.clear();
  ++totals.completion_tokens;
  return !end_if_complete(sequence);
}

// Ends the request when its last token says so; `sequence` is gone then. REQUIRES: a completion token.
bool Core::State::end_if_complete(Sequence& sequence) {
  const auto& stops = sequence.sampling.stop_tokens;
  const bool stops_here = !sequence.sampling.ignore_stop && std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end();
  if (!stops_here && sequence.completion_count() < sequence.sampling.completion_tokens_max) return false;
  finish(sequence, stops_here ? FinishReason::stop : FinishReason::length, Error{});
  return true;
}

// Gives back what neither a step in flight nor any later one reads.
void Core::State::slide_windows(Sequence& sequence) {
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    PageTable& table = sequence.tables[g];
    const std::uint32_t first = first_page_read(config.kv.groups[g], sequence.oldest_start());
    for (; table.released < first; ++table.released) release({sequence.dp_group, table.pages[table.released]});
  }
}

}  // namespace althing::scheduler
