// The guesses themselves, and what the core does with them. A row that guesses is in one step at a time, because what follows depends on which
// guesses held; while one is in flight for it, it waits when there is something to guess behind it, and goes on as any other when there is not.
#include "scheduler/speculation.hpp"

#include <algorithm>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

constexpr std::uint32_t rest_first = 4, rest_doublings = 5;
constexpr std::size_t buckets_first = 256;
// Of a step's tokens: what is computed beside the model's weights' way through the caches costs little as long as it is few.
constexpr std::uint32_t step_share = 8;

}  // namespace

std::size_t PromptLookup::bucket(std::span<const TokenId> tokens, std::size_t end) const {
  std::uint64_t hash = 0;
  for (std::size_t i = end - match_tokens; i < end; ++i) hash = (hash ^ tokens[i]) * 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(hash >> 32) & (ends_.size() - 1);
}

void PromptLookup::insert(std::span<const TokenId> tokens, std::size_t end) { ends_[bucket(tokens, end)] = static_cast<std::uint32_t>(end); }

void PromptLookup::read(std::span<const TokenId> tokens) {
  if (tokens.size() * 2 > ends_.size()) {
    std::size_t size = std::max(ends_.size(), buckets_first);
    while (size < tokens.size() * 4) size *= 2;
    ends_.assign(size, 0);
    read_ = 0;
  }
  // The last three are what is looked up, so they wait until something is behind them.
  for (read_ = std::max<std::size_t>(read_, match_tokens); read_ < tokens.size(); ++read_) insert(tokens, read_);
}

std::vector<TokenId> PromptLookup::guess(std::span<const TokenId> tokens, std::uint32_t most) const {
  if (tokens.size() <= match_tokens || ends_.empty() || most == 0) return {};
  const std::uint32_t end = ends_[bucket(tokens, tokens.size())];
  if (end == 0 || !std::equal(tokens.end() - match_tokens, tokens.end(), tokens.begin() + end - match_tokens)) return {};
  std::vector<TokenId> guessed;
  // What repeats itself within the guess goes on repeating.
  for (std::size_t i = end; guessed.size() < most; ++i) guessed.push_back(i < tokens.size() ? tokens[i] : guessed[i - tokens.size()]);
  return guessed;
}

std::uint32_t SpeculationPace::length(std::uint32_t most) const { return rest_ > 0 ? 0 : std::min(length_, most); }

void SpeculationPace::verified(std::uint32_t guessed, std::uint32_t held, bool drafted) {
  if (held == guessed) {
    length_ *= length_ < 64 ? 2 : 1;
  } else {
    length_ = std::max(held, 1u);
  }
  failures_ = held > 0 ? 0 : std::min(failures_ + 1, rest_doublings);
  if (held == 0 && (!drafted || failures_ > 1)) rest_ = rest_first << failures_;
}

// Where a draw depends on the draws in front of it, somebody decides about it, or more is told of it than which it is, rows go token by token.
bool Core::State::may_be_guessed(const Sequence& sequence) const {
  return config.limits.speculation_tokens_max > 0 && !sequence.sampling.penalizes() && !sequence.sampling.logprobs && sequence.trace_top_m == 0 &&
         !sequence.constrained;
}

bool Core::State::may_speculate(const Sequence& sequence) const {
  return may_be_guessed(sequence) && sequence.decodes() && sequence.completion_count() > 0;
}

// Guesses for the step that is being planned. REQUIRES: may_speculate(sequence), and nothing is in flight for it.
std::vector<TokenId> Core::State::guesses(Sequence& sequence, const Room& room) {
  const std::uint32_t left = sequence.sampling.completion_tokens_max - sequence.completion_count() - 1;
  const std::uint32_t chunk = config.limits.prefill_chunk_max - 1;
  const std::uint32_t most = sequence.pace.length(std::min({config.limits.speculation_tokens_max, left, chunk, room.guesses, room.tokens}));
  if (most == 0) return {};
  // The draft model has seen all of the sequence, where the lookup goes by three tokens.
  sequence.drafted = !sequence.drafts.empty();
  if (sequence.drafted) {
    std::vector<TokenId> drafts = std::exchange(sequence.drafts, {});
    drafts.resize(std::min<std::size_t>(drafts.size(), most));
    return drafts;
  }
  sequence.lookup.read(sequence.tokens);
  return sequence.lookup.guess(sequence.tokens, most);
}

// How many the draft model shall guess behind the draw that is being planned: what the step after it can verify.
std::uint32_t Core::State::ask_for_guesses(Sequence& sequence) {
  if (!config.limits.draft_model || !may_be_guessed(sequence)) return 0;
  const std::uint32_t drawn = sequence.completion_count() + sequence.pending + 1, chunk = config.limits.prefill_chunk_max - 1;
  if (drawn + 1 >= sequence.sampling.completion_tokens_max) return 0;
  const std::uint32_t left = sequence.sampling.completion_tokens_max - drawn - 1;
  const std::uint32_t guesses = sequence.pace.length(std::min({config.limits.speculation_tokens_max, left, chunk, guesses_to_ask}));
  guesses_to_ask -= guesses;
  sequence.asked = guesses > 0;
  return guesses;
}

void Core::State::take_drafts(const Flight& flight, const std::vector<RowGuesses>& guesses) {
  for (const FlightWork& work : flight.work) {
    if (work.guesses == 0) continue;
    const auto found = sequences.find(work.request);
    if (found == sequences.end()) continue;
    Sequence& sequence = *found->second;
    const auto is_its = [&](const RowGuesses& row) { return row.row == work.row && row.request == work.request; };
    const auto stranger = [&](TokenId token) { return token >= config.vocabulary; };
    if (const auto row = std::find_if(guesses.begin(), guesses.end(), is_its); row != guesses.end())
      sequence.drafts.assign(row->tokens.begin(), std::find_if(row->tokens.begin(), row->tokens.end(), stranger));
    sequence.drafts.resize(std::min<std::size_t>(sequence.drafts.size(), work.guesses));
    // To wait for guesses that do not come is as bad as wrong ones.
    if (sequence.drafts.empty()) sequence.pace.verified(1, 0);
  }
}

// Its last draw is on its way, and there will probably be guesses when it is known.
bool Core::State::waits_to_guess(Sequence& sequence) {
  const std::uint32_t left = sequence.sampling.completion_tokens_max - sequence.completion_count() - 1;
  if (left < 2 || sequence.pace.length(config.limits.speculation_tokens_max) == 0) return false;
  sequence.lookup.read(sequence.tokens);
  return !sequence.lookup.guess(sequence.tokens, 1).empty();
}

// A step draws as often as there are rows, so guesses take the place of rows that nobody wants.
std::uint32_t Core::State::room_for_guesses(std::uint32_t tokens_left) const {
  if (config.limits.speculation_tokens_max == 0 || fair.waiting() > 0) return 0;
  const std::uint32_t decodes = config.limits.step_tokens_max - tokens_left, share = config.limits.step_tokens_max / step_share;
  return share > decodes ? std::min({share - decodes, tokens_left, static_cast<std::uint32_t>(rows.size() - running.size())}) : 0;
}

// The draws of a step that verified guesses: those up to the first that was guessed wrong count, and what is computed behind it is computed again.
// `sequence` may be gone afterwards.
void Core::State::take_verified(Sequence& sequence, StepId step, std::span<const DrawnToken* const> drawn) {
  const std::vector<TokenId> guessed = std::exchange(sequence.guessed, {});
  const std::uint32_t before = sequence.known();
  // Behind a wrong guess NaN says nothing of the request, but it may be in its pages: they serve nobody any more.
  const bool nan = std::any_of(drawn.begin(), drawn.end(), [](const DrawnToken* one) { return one == nullptr || one->nonfinite; });
  if (nan && sequence.running)
    for (const PageTable& table : sequence.tables)
      for (std::size_t i = table.released; i < table.pages.size(); ++i) book_of(sequence).taint(table.pages[i]);
  std::uint32_t held = 0;
  for (std::uint32_t i = 0; i <= held; ++i) {
    const bool holds = i < guessed.size() && drawn[i] != nullptr && drawn[i]->token == guessed[i];
    if (!take_draw(sequence, step, drawn[i])) return;
    held += holds ? 1 : 0;
  }
  totals.guessed_tokens += guessed.size();
  totals.guessed_right += held;
  if (sequence.drafted) totals.drafted_tokens += guessed.size(), totals.drafted_right += held;
  sequence.pace.verified(static_cast<std::uint32_t>(guessed.size()), held, sequence.drafted);
  if (!sequence.running) return;
  sequence.planned = sequence.known() - 1;
  note_computed(sequence, before - 1, sequence.planned);
  if (!nan) return;
  leave_row(sequence, Pages::dirty);
  fair.wait_again(sequence);
}

}  // namespace althing::scheduler
