// Placement: see the header for the rules. Nothing here depends on anything but its arguments.
#include "scheduler/placement.hpp"

#include <string>

namespace althing::scheduler {
namespace {

// Part `index` of `count` things split over `parts` as evenly as possible, the larger parts first.
Range part_of(std::uint32_t count, std::uint32_t parts, std::uint32_t index) {
  const std::uint32_t base = count / parts;
  const std::uint32_t extra = count % parts;
  const std::uint32_t begin = index * base + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

Status check(std::uint32_t world, const ModelShape& m) {
  const auto refuse = [&](const std::string& why) -> Status {
    return Error{ErrorCode::invalid_argument, "this model cannot be split over " + std::to_string(world) + " ranks: " + why, "ranks"};
  };
  if (world == 0 || world > 64) return refuse("use 1 to 64 ranks");
  if (m.query_heads == 0 || m.kv_heads == 0 || m.experts == 0 || m.vocabulary == 0) return refuse("the model has no heads, experts or vocabulary");
  if (m.query_heads % m.kv_heads != 0)
    return refuse(std::to_string(m.query_heads) + " query heads do not divide over " + std::to_string(m.kv_heads) + " KV heads");
  if (m.query_heads % world != 0) return refuse("it has " + std::to_string(m.query_heads) + " query heads, which the number of ranks must divide");
  if (m.kv_heads % world != 0 && world % m.kv_heads != 0)
    return refuse("it has " + std::to_string(m.kv_heads) + " KV heads, and neither number divides the other");
  if (m.experts < world) return refuse("it has only " + std::to_string(m.experts) + " experts");
  if (m.vocabulary < world) return refuse("its vocabulary has only " + std::to_string(m.vocabulary) + " tokens");
  return Ok{};
}

}  // namespace

Result<std::vector<RankPlacement>> place(std::uint32_t world, const ModelShape& model) {
  if (auto status = check(world, model); !status) return status.error();
  const std::uint32_t group = model.query_heads / model.kv_heads;  // query heads that share one KV head
  std::vector<RankPlacement> placements;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    RankPlacement p;
    p.rank = RankId{rank};
    p.world = world;
    p.query_heads = part_of(model.query_heads, world, rank);
    p.kv_heads = {p.query_heads.begin / group, (p.query_heads.end - 1) / group + 1};
    const Range experts = part_of(model.experts, world, rank);
    for (std::uint32_t e = experts.begin; e < experts.end; ++e) p.experts.push_back(ExpertId{e});
    p.vocabulary = part_of(model.vocabulary, world, rank);
    placements.push_back(std::move(p));
  }
  return placements;
}

}  // namespace althing::scheduler
