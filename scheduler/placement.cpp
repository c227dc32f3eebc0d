// Placement: see the header for the rules. Nothing here depends on anything but its arguments.
#include "scheduler/placement.hpp"

#include <algorithm>
#include <string>

namespace althing::scheduler {
namespace {

constexpr std::uint32_t world_max = 64;

// Part `index` of `count` things split over `parts` as evenly as possible, the larger parts first.
Range part_of(std::uint32_t count, std::uint32_t parts, std::uint32_t index) {
  const std::uint32_t base = count / parts;
  const std::uint32_t extra = count % parts;
  const std::uint32_t begin = index * base + std::min(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

std::string text(std::uint64_t number) { return std::to_string(number); }

// The numbers up to `most` that `fits` accepts, for people to choose from.
template <class Fits>
std::string choices(std::uint32_t most, Fits fits) {
  std::string list;
  for (std::uint32_t n = 1; n <= most; ++n)
    if (fits(n)) list += (list.empty() ? "" : ", ") + text(n);
  return list;
}

Error refuse(const char* field, const Grid& grid, const std::string& why) {
  return {ErrorCode::invalid_argument,
          "this model cannot be split over " + text(grid.world) + " ranks as dp " + text(grid.dp) + " x tp " + text(grid.tp) + " with ep " +
              text(grid.ep) + ": " + why,
          field};
}

bool heads_fit(const ModelShape& m, std::uint32_t tp) { return m.query_heads % tp == 0 && (m.kv_heads % tp == 0 || tp % m.kv_heads == 0); }

Status check_model(const Grid& grid, const ModelShape& m) {
  if (m.query_heads == 0 || m.kv_heads == 0 || m.experts == 0 || m.vocabulary == 0)
    return refuse("model", grid, "the model has no heads, experts or vocabulary");
  if (m.query_heads % m.kv_heads != 0)
    return refuse("model", grid, "its " + text(m.query_heads) + " query heads do not divide over its " + text(m.kv_heads) + " KV heads");
  return Ok{};
}

Status check_grid(const Grid& grid, const ModelShape& m) {
  if (grid.world == 0 || grid.world > world_max) return refuse("ranks", grid, "use 1 to " + text(world_max) + " ranks");
  if (auto status = check_model(grid, m); !status) return status;
  if (grid.dp == 0) return refuse("dp", grid, "dp is 0; use 1 or more");
  if (grid.tp == 0) return refuse("tp", grid, "tp is 0; use 1 or more");
  if (grid.ep == 0) return refuse("ep", grid, "ep is 0; use 1 or more");
  if (std::uint64_t{grid.dp} * grid.tp != grid.world)
    return refuse("dp", grid,
                  "dp x tp is " + text(std::uint64_t{grid.dp} * grid.tp) + " and must be the number of ranks; change one of the three" +
                      (grid.world % grid.tp == 0 ? ", as to dp " + text(grid.world / grid.tp) : ""));
  const std::string heads = "it has " + text(m.query_heads) + " query heads and " + text(m.kv_heads) + " KV heads; ";
  const std::string tps = "; use a tp of " + choices(m.query_heads, [&](std::uint32_t tp) { return heads_fit(m, tp); }) + ", and dp for more ranks";
  if (m.query_heads % grid.tp != 0) return refuse("tp", grid, heads + "tp must divide the query heads" + tps);
  if (!heads_fit(m, grid.tp)) return refuse("tp", grid, heads + "tp must divide the KV heads or be a multiple of their number" + tps);
  const auto divides = [&](std::uint32_t ep) { return grid.world % ep == 0 && ep <= m.experts; };
  const std::string eps = "; use an ep of " + choices(grid.world, divides);
  if (grid.world % grid.ep != 0) return refuse("ep", grid, "ep must divide the number of ranks" + eps);
  if (grid.ep > m.experts) return refuse("ep", grid, "it has only " + text(m.experts) + " experts" + eps);
  if (m.vocabulary < grid.world) return refuse("ranks", grid, "its vocabulary has only " + text(m.vocabulary) + " tokens; use at most as many ranks");
  return Ok{};
}

// By expert: the ranks that hold it, ascending. Rank r holds part r % ep of the experts; a replica goes where fewest slots are, the lower rank first.
Result<std::vector<std::vector<std::uint32_t>>> holders(const Grid& grid, std::uint32_t experts) {
  std::vector<std::vector<std::uint32_t>> ranks(experts);
  std::vector<std::uint32_t> slots(grid.world, 0);
  for (std::uint32_t rank = 0; rank < grid.world; ++rank) {
    const Range part = part_of(experts, grid.ep, rank % grid.ep);
    for (std::uint32_t expert = part.begin; expert < part.end; ++expert) ranks[expert].push_back(rank);
    slots[rank] = part.size();
  }
  for (const ExpertId expert : grid.replicas) {
    if (expert.value >= experts)
      return refuse("replicas", grid, "a replica of expert " + text(expert.value) + " is asked for; its experts are 0 to " + text(experts - 1));
    std::vector<std::uint32_t>& taken = ranks[expert.value];
    std::uint32_t best = grid.world;
    for (std::uint32_t rank = 0; rank < grid.world; ++rank) {
      const bool has_it = std::find(taken.begin(), taken.end(), rank) != taken.end();
      if (!has_it && (best == grid.world || slots[rank] < slots[best])) best = rank;
    }
    if (best == grid.world)
      return refuse("replicas", grid,
                    "a replica of expert " + text(expert.value) + " is asked for, which every rank holds already; ask for fewer replicas of it" +
                        (grid.ep < grid.world ? ", or raise ep" : ""));
    taken.insert(std::lower_bound(taken.begin(), taken.end(), best), best);
    ++slots[best];
  }
  return ranks;
}

}  // namespace

Grid default_grid(std::uint32_t world) { return {world, 1, world, world, {}}; }

Result<std::vector<RankPlacement>> place(const Grid& grid, const ModelShape& model) {
  if (auto status = check_grid(grid, model); !status) return status.error();
  const auto ranks = holders(grid, model.experts);
  if (!ranks) return ranks.error();
  const std::uint32_t heads_a_kv_head = model.query_heads / model.kv_heads;
  std::vector<RankPlacement> placements;
  for (std::uint32_t rank = 0; rank < grid.world; ++rank) {
    RankPlacement p;
    p.rank = RankId{rank};
    p.world = grid.world;
    p.dp = grid.dp;
    p.dp_group = DpGroup{rank / grid.tp};
    p.query_heads = part_of(model.query_heads, grid.tp, rank % grid.tp);
    p.kv_heads = {p.query_heads.begin / heads_a_kv_head, (p.query_heads.end - 1) / heads_a_kv_head + 1};
    p.vocabulary = part_of(model.vocabulary, grid.world, rank);
    placements.push_back(std::move(p));
  }
  for (std::uint32_t expert = 0; expert < model.experts; ++expert) {
    const auto copies = static_cast<std::uint32_t>((*ranks)[expert].size());
    for (std::uint32_t copy = 0; copy < copies; ++copy)
      placements[(*ranks)[expert][copy]].experts.push_back(HeldExpert{ExpertId{expert}, copy, copies});
  }
  return placements;
}

Result<std::vector<RankPlacement>> place(std::uint32_t world, const ModelShape& model) { return place(default_grid(world), model); }

ExpertTable expert_table(std::span<const RankPlacement> placements, std::uint32_t experts) {
  ExpertTable table(experts);
  for (const RankPlacement& p : placements)
    for (std::uint32_t slot = 0; slot < p.experts.size(); ++slot)
      table[p.experts[slot].expert.value].push_back(ExpertPlace{p.rank, ExpertSlot{slot}});
  return table;
}

ExpertPlace place_for(const ExpertTable& table, ExpertId expert, std::uint32_t token) {
  const std::vector<ExpertPlace>& places = table[expert.value];
  return places[copy_for(expert, token, static_cast<std::uint32_t>(places.size()))];
}

}  // namespace althing::scheduler
