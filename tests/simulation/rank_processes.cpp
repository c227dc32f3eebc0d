// The ranks: see the header.
#include "tests/simulation/rank_processes.hpp"

#include <algorithm>

namespace althing::tests {

void RankProcesses::begin_epoch(std::uint64_t epoch, const Grid& grid, const std::vector<std::uint32_t>& members) {
  abort();
  epoch_ = epoch;
  grid_ = grid;
  ranks_.assign(grid.world, Rank{});
  for (std::uint32_t rank = 0; rank < grid.world; ++rank) ranks_[rank].member = members[rank];
  aborted_ = computing_ = lose_result_ = false;
}

void RankProcesses::abort() {
  if (aborted_) return;
  aborted_ = true;
  // The last collective may have been over: then the answer is on its way, to a core that wants it no more.
  if (!computing_ || !stage_.dice.one_in(2) || !answers(ranks_[0])) return;
  links_.done(links_.result_of(ranks_[0].queue.front().step), true);
}

void RankProcesses::join(std::uint64_t epoch, std::uint32_t rank) {
  if (epoch != epoch_ || aborted_ || !answers(ranks_[rank])) return;
  ranks_[rank].joined = true;
  links_.ready(epoch, rank, grid_);
}

void RankProcesses::take(const Work& work, std::uint32_t number) {
  if (work.epoch != epoch_ || number >= ranks_.size()) return;
  Rank& rank = ranks_[number];
  if (!answers(rank) || !rank.joined || rank.over || aborted_) return;
  // A plan before this one has never come here.
  if (!work.snapshot && work.base != rank.last) {
    rank.over = true;
    return links_.failed(epoch_, true);
  }
  rank.last = work.step;
  rank.queue.push_back(work);
  compute();
}

void RankProcesses::probe(std::uint32_t rank) {
  if (rank < ranks_.size() && answers(ranks_[rank])) links_.status(epoch_, rank, !ranks_[rank].queue.empty());
}

void RankProcesses::compute() {
  if (computing_ || aborted_) return;
  for (const Rank& rank : ranks_)
    if (rank.over || rank.queue.empty() || !answers(rank) || rank.queue.front().step != ranks_[0].queue.front().step) return;
  computing_ = true;
  const std::uint64_t takes_us = stage_.setup.step_us + std::uint64_t{stage_.setup.token_us} * ranks_[0].queue.front().tokens;
  stage_.time.after(takes_us, [this, epoch = epoch_] { end_step(epoch); });
}

void RankProcesses::end_step(std::uint64_t epoch) {
  if (epoch != epoch_ || aborted_) return;
  // One that hangs, or is gone, leaves the others in a collective; nothing moves before somebody does something about it.
  if (!std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) { return answers(rank); })) return;
  computing_ = false;
  const StepId step = ranks_[0].queue.front().step;
  for (Rank& rank : ranks_) rank.queue.pop_front();
  links_.copy();
  StepResult result = links_.result_of(step);
  if (!std::exchange(lose_result_, false)) links_.done(result, false);
  compute();
}

}  // namespace althing::tests
