// See the header. A rank fills its own words and leaves the others 0, so the sum is everybody's words side by side; experts' words are added up.
#include "gpu/introduction.hpp"

#include <string>

namespace althing::gpu {
namespace {

enum RankWord : std::size_t { vocabulary_begin, vocabulary_end, heads_begin, heads_end, group, groups, rank_words };
// Holders, their copies as bits, and sum and squares of how many copies each believes in.
enum ExpertWord : std::size_t { holders, copy_bits, copies_sum, copies_squares, expert_words };
// Behind those, a word for each rank and expert: where the rank has it, 0 where it has not.
constexpr std::uint32_t copies_bound = 64;
std::size_t homes_at(const RankPlacement& p, const ModelShape& model) { return p.world * rank_words + model.experts * expert_words; }

Error refuse(const std::string& why) { return {ErrorCode::invalid_argument, "the ranks do not make one model: " + why, "placement"}; }

std::string text(std::int64_t number) { return std::to_string(number); }

Status check_groups(std::span<const std::int64_t> sum, const RankPlacement& p, const ModelShape& model) {
  std::int64_t end = 0;
  for (std::uint32_t rank = 0; rank < p.world; ++rank) {
    const std::int64_t* told = sum.data() + rank * rank_words;
    const bool first = rank % p.tp() == 0, last = rank % p.tp() == p.tp() - 1;
    if (told[groups] != p.dp || told[group] != rank / p.tp())
      return refuse("rank " + text(rank) + " is in group " + text(told[group]) + " of " + text(told[groups]) + ", and must be in " +
                    text(rank / p.tp()) + " of " + text(p.dp));
    if (first) end = 0;
    if (told[heads_begin] != end || told[heads_end] <= end) return refuse("the query heads of rank " + text(rank) + " do not join at " + text(end));
    end = told[heads_end];
    if (last && end != model.query_heads) return refuse("group " + text(told[group]) + " has the query heads up to " + text(end));
  }
  return Ok{};
}

// Copies are numbered without gaps when as many powers of two as there are holders add up to that many ones; they all believe in the same number of
// copies when its mean and its mean square say so.
Status check_experts(std::span<const std::int64_t> sum, const RankPlacement& p, const ModelShape& model) {
  for (std::uint32_t expert = 0; expert < model.experts; ++expert) {
    const std::int64_t* told = sum.data() + p.world * rank_words + expert * expert_words;
    const std::int64_t n = told[holders];
    const bool numbered = n > 0 && n < 64 && static_cast<std::uint64_t>(told[copy_bits]) == (std::uint64_t{1} << n) - 1;
    const bool all_64 = n == 64 && told[copy_bits] == -1;
    if (!(numbered || all_64) || told[copies_sum] != n * n || told[copies_squares] != n * n * n)
      return refuse("expert " + text(expert) + " is held by " + text(n) + " ranks, which do not agree on who computes it");
  }
  return Ok{};
}

}  // namespace

std::vector<std::int64_t> introduce(const RankPlacement& p, const ModelShape& model) {
  std::vector<std::int64_t> told(homes_at(p, model) + std::size_t{p.world} * model.experts);
  std::int64_t* own = told.data() + p.rank.value * rank_words;
  own[vocabulary_begin] = p.vocabulary.begin;
  own[vocabulary_end] = p.vocabulary.end;
  own[heads_begin] = p.query_heads.begin;
  own[heads_end] = p.query_heads.end;
  own[group] = p.dp_group.value;
  own[groups] = p.dp;
  for (std::uint32_t slot = 0; slot < p.experts.size(); ++slot) {
    const HeldExpert& held = p.experts[slot];
    told[homes_at(p, model) + std::size_t{p.rank.value} * model.experts + held.expert.value] =
        std::int64_t{slot} * copies_bound + held.copy % copies_bound + 1;
    std::int64_t* expert = told.data() + p.world * rank_words + held.expert.value * expert_words;
    ++expert[holders];
    expert[copy_bits] += static_cast<std::int64_t>(std::uint64_t{1} << (held.copy % 64));
    expert[copies_sum] += held.copies;
    expert[copies_squares] += std::int64_t{held.copies} * held.copies;
  }
  return told;
}

Result<std::vector<std::uint32_t>> vocabulary_parts(std::span<const std::int64_t> sum, const RankPlacement& p, const ModelShape& model) {
  if (auto status = check_groups(sum, p, model); !status) return status.error();
  if (auto status = check_experts(sum, p, model); !status) return status.error();
  std::vector<std::uint32_t> parts;
  std::int64_t end = 0;
  for (std::uint32_t rank = 0; rank < p.world; ++rank) {
    const std::int64_t* told = sum.data() + rank * rank_words;
    if (told[vocabulary_begin] != end || told[vocabulary_end] <= end) return refuse("their parts of the vocabulary do not join at " + text(end));
    parts.push_back(static_cast<std::uint32_t>(told[vocabulary_end] - end));
    end = told[vocabulary_end];
  }
  if (end != model.vocabulary) return refuse("they hold the vocabulary up to " + text(end) + " of " + text(model.vocabulary));
  return parts;
}

std::vector<std::uint32_t> expert_copies(std::span<const std::int64_t> sum, const RankPlacement& p, const ModelShape& model) {
  std::vector<std::uint32_t> copies;
  for (std::uint32_t expert = 0; expert < model.experts; ++expert)
    copies.push_back(static_cast<std::uint32_t>(sum[p.world * rank_words + expert * expert_words + holders]));
  return copies;
}

std::vector<std::vector<ExpertHome>> expert_homes(std::span<const std::int64_t> sum, const RankPlacement& p, const ModelShape& model) {
  const std::vector<std::uint32_t> copies = expert_copies(sum, p, model);
  std::vector<std::vector<ExpertHome>> homes;
  for (const std::uint32_t count : copies) homes.emplace_back(count);
  for (std::uint32_t rank = 0; rank < p.world; ++rank)
    for (std::uint32_t expert = 0; expert < model.experts; ++expert) {
      const std::int64_t told = sum[homes_at(p, model) + std::size_t{rank} * model.experts + expert];
      if (told == 0) continue;
      const std::uint32_t copy = static_cast<std::uint32_t>((told - 1) % copies_bound);
      if (copy < copies[expert]) homes[expert][copy] = {static_cast<std::uint16_t>(rank), static_cast<std::uint16_t>((told - 1) / copies_bound)};
    }
  return homes;
}

}  // namespace althing::gpu
