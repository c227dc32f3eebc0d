// Membership without processes: each way of recovery by example, and every life of small worlds up to a depth, with rules that no decision may break.
#include "actors/membership.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "scheduler/placement.hpp"
#include "scheduler/smaller_grid.hpp"

namespace althing::actors::tests {
namespace {

constexpr ModelShape tiny{8, 2, 16, 2304};
using Clock = Membership::Clock;
using std::chrono::milliseconds;

MembershipConfig config_of(const Grid& full, std::uint32_t spares, bool shrink = false, std::uint32_t deaths_max = 100) {
  MembershipConfig config;
  config.grids = scheduler::grids_by_preference(full, tiny);
  config.spares = spares;
  config.shrink = shrink;
  config.deaths_max = deaths_max;
  config.hold_whole_model = [](const Grid& grid, const std::vector<bool>& alive) {
    const auto placements = scheduler::place(grid, tiny);
    return placements.ok() && scheduler::hold_whole_model(*placements, alive);
  };
  return config;
}

Clock::time_point at(int ms) { return Clock::time_point(milliseconds(1'000'000 + ms)); }

// Short words for a life: whoever is not told to fail does what a healthy process does.
struct World {
  explicit World(MembershipConfig config) : membership(std::move(config)) {
    for (std::uint32_t m = 0; m < membership.size(); ++m) membership.started(m);
    for (std::uint32_t m = 0; m < membership.size(); ++m) membership.loaded(m);
    serve();
  }
  // The next epoch, announced and complete.
  RecoveredBy serve() {
    const auto next = announce();
    if (next) membership.served(), membership.resumed();
    return next ? next->by : RecoveredBy::epoch;
  }
  std::optional<Membership::Next> announce() {
    auto next = membership.next();
    if (next) membership.announced(*next, at(0));
    return next;
  }
  milliseconds die(std::uint32_t member, int ms = 0) { return membership.died(member, at(ms)); }
  void come_back(std::uint32_t member) {
    membership.started(member);
    membership.loaded(member);
  }
  std::vector<std::uint32_t> members() const { return membership.current().members; }
  const Grid& grid() const { return membership.current().grid; }

  Membership membership;
};

using Members = std::vector<std::uint32_t>;

TEST(Membership, a_lost_rank_is_waited_for_in_its_place) {
  World world(config_of({2, 1, 2, 2, {}}, 0));
  EXPECT_EQ(world.members(), (Members{0, 1}));
  world.die(1);
  EXPECT_EQ(world.membership.place_for(1), (Place{1, {2, 1, 2, 2, {}}}));
  world.membership.started(1);
  EXPECT_EQ(world.serve(), RecoveredBy::respawn);
  EXPECT_EQ(world.members(), (Members{0, 1}));
  EXPECT_FALSE(world.membership.degraded());
}

TEST(Membership, a_spare_takes_the_place_and_the_dead_one_becomes_the_spare) {
  World world(config_of({2, 1, 2, 2, {}}, 1));
  EXPECT_EQ(world.membership.spares_ready(), 1u);
  world.die(0);
  EXPECT_EQ(world.membership.place_for(0), std::nullopt) << "it comes back as a spare";
  world.membership.started(0);
  EXPECT_EQ(world.serve(), RecoveredBy::spare);
  EXPECT_EQ(world.members(), (Members{2, 1}));
  EXPECT_EQ(world.membership.spares_ready(), 0u);
  world.membership.loaded(0);
  EXPECT_EQ(world.membership.spares_ready(), 1u);
  EXPECT_FALSE(world.membership.can_grow()) << "nothing would be better";
  world.die(2);
  world.membership.started(2);
  EXPECT_EQ(world.serve(), RecoveredBy::spare);
  EXPECT_EQ(world.members(), (Members{0, 1}));
}

TEST(Membership, a_spare_that_dies_while_it_takes_over_is_replaced_by_whoever_is_first) {
  World world(config_of({2, 1, 2, 2, {}}, 1));
  world.die(0);
  world.membership.started(0);
  world.announce();
  EXPECT_EQ(world.members(), (Members{2, 1}));
  world.die(2);
  world.membership.started(2);
  EXPECT_EQ(world.serve(), RecoveredBy::respawn);
  EXPECT_TRUE(world.membership.current().rank_of(1) == 1u && world.members().size() == 2);
  world.membership.loaded(0);
  world.die(1);
  world.membership.started(1);
  const auto next = world.membership.next();
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(next->layout.rank_of(0).has_value()) << "who is ready goes before who is not";
}

TEST(Membership, survivors_that_hold_the_model_go_on_and_grow_again) {
  World world(config_of({2, 2, 1, 1, {}}, 0));
  world.die(0);
  world.membership.started(0);
  EXPECT_EQ(world.serve(), RecoveredBy::replica);
  EXPECT_EQ(world.members(), (Members{1}));
  EXPECT_EQ(world.grid().tp, 1u);
  EXPECT_TRUE(world.membership.degraded());
  EXPECT_FALSE(world.membership.can_grow());
  EXPECT_EQ(world.membership.place_for(0), (Place{0, {2, 2, 1, 1, {}}})) << "what it will be when it is back";
  world.membership.loaded(0);
  EXPECT_TRUE(world.membership.can_grow());
  EXPECT_EQ(world.serve(), RecoveredBy::grow);
  EXPECT_EQ(world.members(), (Members{0, 1}));
  EXPECT_FALSE(world.membership.degraded());
}

TEST(Membership, growth_waits_until_the_streams_that_were_interrupted_have_gone_on) {
  World world(config_of({2, 2, 1, 1, {}}, 0));
  world.die(0);
  world.come_back(0);
  world.die(1);
  world.membership.started(1);
  ASSERT_EQ(world.announce()->layout.members, (Members{0}));
  world.membership.loaded(1);
  EXPECT_FALSE(world.membership.can_grow()) << "it does not even serve";
  world.membership.served();
  EXPECT_FALSE(world.membership.can_grow()) << "it serves, and its streams have no token yet";
  world.membership.resumed();
  EXPECT_TRUE(world.membership.can_grow());
  world.announce();
  EXPECT_FALSE(world.membership.can_grow()) << "the next one interrupts them again";
}

TEST(Membership, a_spare_that_waited_is_no_flapper) {
  World world(config_of({2, 1, 2, 2, {}}, 1, false, 2));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(world.die(2, i * 100'000).count(), 0) << "it was ready while others served, so its deaths are not in a row";
    world.come_back(2);
    world.serve();
  }
}

TEST(Membership, each_change_is_called_by_what_happened) {
  Membership fresh(config_of({2, 1, 2, 2, {}}, 0, true));
  const auto announce = [&] {
    const auto next = fresh.next();
    fresh.announced(*next, at(0));
    return next->by;
  };
  fresh.started(0), fresh.started(1);
  EXPECT_EQ(announce(), RecoveredBy::start) << "the core is there first, and the ranks load still";
  fresh.loaded(0), fresh.loaded(1);
  EXPECT_EQ(announce(), RecoveredBy::start) << "announced once more, because it did not become complete";
  fresh.died(1, at(1));
  fresh.started(1);
  EXPECT_EQ(announce(), RecoveredBy::respawn) << "a death in the start is one";
  fresh.loaded(1);
  fresh.served(), fresh.resumed();
  EXPECT_EQ(announce(), RecoveredBy::epoch) << "the same ranks: the core is another, or nothing moved";
  fresh.served(), fresh.resumed();
  fresh.died(1, at(2));
  fresh.started(1);
  EXPECT_EQ(announce(), RecoveredBy::shrink);
  EXPECT_EQ(announce(), RecoveredBy::shrink) << "once more, as before";
  fresh.served(), fresh.resumed();
  fresh.loaded(1);
  EXPECT_EQ(announce(), RecoveredBy::grow);
  EXPECT_EQ(announce(), RecoveredBy::grow);
  fresh.died(0, at(3));
  fresh.started(0);
  EXPECT_EQ(announce(), RecoveredBy::shrink) << "a death while it grows is a fault";
}

TEST(Membership, says_which_ranks_are_left_out_since_when_and_why) {
  auto config = config_of({4, 2, 2, 2, {}}, 0, false, 0);
  config.quarantine = milliseconds(30'000);
  World world(config);
  EXPECT_EQ(world.membership.why_left_out(3, at(0)), "") << "it has its place";
  world.die(3, 1000);
  const auto next = world.membership.next();
  world.membership.announced(*next, at(2000));
  ASSERT_EQ(world.grid().world, 2u);
  EXPECT_EQ(world.membership.why_left_out(1, at(7'000)), "");
  EXPECT_EQ(world.membership.why_left_out(4, at(7'000)), "") << "there never was such a rank";
  const std::string why = world.membership.why_left_out(3, at(7'000));
  EXPECT_EQ(why,
            "rank 3 is left out since 5 s: 2 of 4 ranks serve; member 2 waits for its place; member 3 is in quarantine for another 24 s, deaths: 1");
  world.membership.served();
  world.die(1, 8000);
  world.membership.announced(*world.membership.next(), at(9000));
  EXPECT_NE(world.membership.why_left_out(3, at(10'000)).find("rank 3 is left out since 8 s"), std::string::npos) << "since the first time";
}

TEST(Membership, the_grid_of_a_replica_takeover_has_the_same_tp) {
  World world(config_of({4, 2, 2, 2, {}}, 0));
  world.die(1);
  world.membership.started(1);
  EXPECT_EQ(world.serve(), RecoveredBy::replica);
  EXPECT_EQ(world.grid().tp, 2u);
  EXPECT_EQ(world.grid().world, 2u) << "three are left, and a grid of three would have another tp";
  EXPECT_EQ(world.membership.spares_ready(), 1u) << "the third waits";
  // With the third one dead as well, the two that are left are enough.
  const Members left = world.members();
  for (std::uint32_t m = 0; m < 4; ++m)
    if (m != 1 && !world.membership.current().rank_of(m)) world.die(m);
  EXPECT_EQ(world.members(), left);
}

TEST(Membership, shrink_goes_on_with_another_tp_and_respawn_does_not) {
  for (const bool shrink : {true, false}) {
    World world(config_of({2, 1, 2, 2, {}}, 0, shrink));
    world.die(0);
    world.membership.started(0);
    EXPECT_EQ(world.serve(), shrink ? RecoveredBy::shrink : RecoveredBy::respawn);
    EXPECT_EQ(world.members(), shrink ? Members{1} : (Members{0, 1}));
    EXPECT_EQ(world.grid().tp, shrink ? 1u : 2u);
    world.membership.loaded(0);
    EXPECT_EQ(world.membership.can_grow(), shrink);
    world.serve();
    EXPECT_EQ(world.members(), (Members{0, 1}));
  }
}

TEST(Membership, who_flaps_is_left_out_for_a_time_that_doubles_and_is_forgiven) {
  auto config = config_of({2, 1, 2, 2, {}}, 0, false, 3);
  config.quarantine = milliseconds(10'000);
  config.window = milliseconds(60'000);
  World world(config);
  int now = 0;
  const auto flap = [&] {
    milliseconds locked_up{0};
    int deaths = 0;
    while (locked_up.count() == 0 && deaths < 10) {
      locked_up = world.die(1, now += 10);
      ++deaths;
      if (locked_up.count() > 0) break;
      world.come_back(1);
      world.serve();
    }
    EXPECT_EQ(deaths, 4) << "one more than the limit";
    return locked_up;
  };
  EXPECT_EQ(flap(), milliseconds(10'000));
  EXPECT_EQ(world.membership.quarantined(), 1u);
  EXPECT_EQ(world.serve(), RecoveredBy::shrink) << "although the policy is to wait";
  EXPECT_EQ(world.members(), (Members{0}));
  EXPECT_TRUE(world.membership.released(at(now + 9'999)).empty());
  EXPECT_EQ(world.membership.released(at(now += 10'000)), (Members{1}));
  EXPECT_FALSE(world.membership.can_grow()) << "not before it has loaded";
  EXPECT_EQ(world.membership.next()->layout.members, (Members{0})) << "nobody stops serving to wait for it";
  world.come_back(1);
  EXPECT_TRUE(world.membership.can_grow());
  world.serve();
  EXPECT_EQ(flap(), milliseconds(20'000));
  world.serve();
  world.membership.released(at(now += 20'000));
  world.come_back(1);
  world.serve();
  now += 90'001;  // longer than it was locked up, and a minute
  EXPECT_EQ(flap(), milliseconds(10'000));
}

TEST(Membership, deaths_without_serving_in_between_count_however_slow_they_are) {
  World world(config_of({2, 1, 2, 2, {}}, 0, false, 3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(world.die(1, i * 100'000).count(), 0);
    world.come_back(1);
  }
  EXPECT_GT(world.die(1, 300'000).count(), 0);
}

TEST(Membership, without_a_legal_grid_there_is_no_next_one) {
  World alone(config_of({1, 1, 1, 1, {}}, 0, false, 0));
  alone.die(0);
  EXPECT_FALSE(alone.membership.next().has_value());
  World both(config_of({2, 1, 2, 2, {}}, 0, false, 0));
  both.die(0);
  EXPECT_TRUE(both.membership.next().has_value());
  both.die(1);
  EXPECT_FALSE(both.membership.next().has_value());
  // Before the full grid ever served, a smaller one is no way out: something is wrong with the start.
  Membership fresh(config_of({2, 1, 2, 2, {}}, 0, true, 0));
  fresh.started(0);
  fresh.started(1);
  fresh.died(1, at(0));
  EXPECT_FALSE(fresh.next().has_value());
}

TEST(Membership, while_the_server_starts_a_spare_that_is_first_takes_no_place) {
  Membership fresh(config_of({2, 1, 2, 2, {}}, 1));
  for (std::uint32_t m = 0; m < 3; ++m) fresh.started(m);
  fresh.loaded(2);
  EXPECT_EQ(fresh.next()->layout.members, (Members{0, 1}));
  EXPECT_EQ(fresh.place_for(1), (Place{1, {2, 1, 2, 2, {}}}));
  EXPECT_EQ(fresh.place_for(2), std::nullopt);
}

TEST(Membership, who_makes_itself_into_something_else_is_a_survivor) {
  World world(config_of({2, 2, 1, 1, {}}, 0));
  world.membership.building(1);
  world.die(0);
  world.membership.started(0);
  const auto next = world.announce();
  EXPECT_EQ(next->by, RecoveredBy::replica) << "what it makes itself into is there sooner than a process that starts";
  EXPECT_EQ(next->layout.members, (Members{1}));
  EXPECT_FALSE(world.membership.can_grow()) << "growth waits for nobody";
}

// Every life of up to `depth` events. States that were seen before are not gone through again.
class Explorer {
 public:
  explicit Explorer(MembershipConfig config) : config_(std::move(config)) {}

  void run(int depth) {
    World world(config_);
    go(world, depth, 0);
  }
  std::size_t states() const { return seen_.size(); }

 private:
  void go(const World& world, int depth, int now) {
    judge(world.membership);
    const auto [found, fresh] = seen_.emplace(key(world.membership), depth);
    if (testing::Test::HasFatalFailure() || depth == 0 || (!fresh && found->second >= depth)) return;
    found->second = depth;
    for (std::uint32_t m = 0; m < world.membership.size(); ++m) {
      World died = world;
      if (died.die(m, now + 1).count() == 0) died.membership.started(m);
      go(died, depth - 1, now + 1);
      World loaded = world;
      loaded.membership.loaded(m);
      go(loaded, depth - 1, now + 1);
    }
    World announced = world;
    if (announced.announce()) go(announced, depth - 1, now + 1);
    World served = world;
    if (all_ready(served.membership, served.members())) {
      served.membership.served();
      go(served, depth - 1, now + 1);
      served.membership.resumed();
      go(served, depth - 1, now + 1);
    }
    World freed = world;
    for (const std::uint32_t m : freed.membership.released(at(now + 40'000'000))) freed.membership.started(m);
    go(freed, depth - 1, now + 1);
  }

  // What is known of a membership from outside; deaths by number.
  std::string key(const Membership& m) const {
    std::string text =
        std::to_string(m.current().grid.world) + "/" + std::to_string(m.current().grid.tp) + (m.degraded() ? "d" : "") + (m.can_grow() ? "g" : "");
    for (const std::uint32_t member : m.current().members) text += "," + std::to_string(member);
    for (std::uint32_t member = 0; member < m.size(); ++member) text += state(m, member) + std::to_string(m.deaths(member));
    return text;
  }

  static bool all_ready(const Membership& m, const Members& members) {
    return std::all_of(members.begin(), members.end(), [&](std::uint32_t member) { return m.is_ready(member); });
  }
  static std::string state(const Membership& m, std::uint32_t member) { return m.is_ready(member) ? "r" : m.is_expected(member) ? "s" : "q"; }

  void judge(const Membership& m) const {
    std::uint32_t ready = 0, expected = 0;
    for (std::uint32_t member = 0; member < m.size(); ++member) ready += m.is_ready(member), expected += m.is_expected(member);
    const auto next = m.next();
    bool legal = false;
    for (const Grid& grid : config_.grids) legal = legal || grid.world <= expected;
    ASSERT_EQ(next.has_value(), legal) << key(m);
    if (!next) return;
    const EpochLayout& layout = next->layout;
    ASSERT_NE(std::find(config_.grids.begin(), config_.grids.end(), layout.grid), config_.grids.end());
    ASSERT_EQ(layout.members.size(), layout.grid.world);
    ASSERT_EQ(std::set(layout.members.begin(), layout.members.end()).size(), layout.grid.world) << "somebody is two ranks: " << key(m);
    std::uint32_t waiting = 0, ready_in = 0;
    for (const std::uint32_t member : layout.members) {
      ASSERT_LT(member, m.size());
      ASSERT_TRUE(m.is_expected(member)) << "in quarantine, and a rank: " << key(m);
      ++(m.is_ready(member) ? ready_in : waiting);
    }
    ASSERT_TRUE(waiting == 0 || ready_in == ready) << "waits for somebody although another could be there: " << key(m);
    if (waiting > 0) {
      ASSERT_TRUE(!config_.shrink || ready == 0) << "shrink never waits while anybody can serve: " << key(m);
    }
    if (ready >= config_.grids.front().world) {
      ASSERT_EQ(layout.grid, config_.grids.front()) << "all are there: " << key(m);
    }
    if (next->by == RecoveredBy::replica) {
      ASSERT_EQ(layout.grid.tp, m.current().grid.tp) << key(m);
    }
    if (next->by == RecoveredBy::replica || next->by == RecoveredBy::spare) {
      ASSERT_EQ(waiting, 0u) << key(m);
    }
    if (m.can_grow()) {
      ASSERT_EQ(waiting, 0u) << "stops serving to wait: " << key(m);
    }
  }

  MembershipConfig config_;
  std::map<std::string, int> seen_;
};

TEST(Membership, no_life_of_a_small_world_breaks_a_rule) {
  std::size_t states = 0;
  for (const Grid& full : {Grid{1, 1, 1, 1, {}}, Grid{2, 1, 2, 2, {}}, Grid{2, 2, 1, 1, {}}, Grid{2, 2, 1, 2, {}}, Grid{4, 2, 2, 2, {}}})
    for (const std::uint32_t spares : {0u, 1u, 2u})
      for (const bool shrink : {false, true})
        for (const std::uint32_t deaths_max : {0u, 1u, 100u}) {
          Explorer explorer(config_of(full, spares, shrink, deaths_max));
          explorer.run(full.world > 2 ? 4 : 6);
          states += explorer.states();
          ASSERT_FALSE(HasFatalFailure()) << full.world << "/" << full.tp << " spares " << spares << " shrink " << shrink << " max " << deaths_max;
        }
  EXPECT_GT(states, 5'000u);
}

// Whatever happened, when everybody is back the full grid serves after one step of growth.
TEST(Membership, when_everybody_is_back_the_full_grid_follows) {
  for (const bool shrink : {false, true})
    for (const Grid& full : {Grid{2, 1, 2, 2, {}}, Grid{4, 2, 2, 2, {}}, Grid{3, 3, 1, 1, {}}})
      for (std::uint32_t mask = 1; mask < (1u << full.world); ++mask) {
        World world(config_of(full, 0, shrink));
        for (std::uint32_t m = 0; m < full.world; ++m)
          if ((mask >> m & 1u) != 0) world.die(m), world.membership.started(m);
        world.announce();
        for (std::uint32_t m = 0; m < full.world; ++m) world.membership.loaded(m);
        world.membership.served();
        ASSERT_FALSE(world.membership.can_grow());
        world.membership.resumed();
        if (world.grid() != full) {
          ASSERT_TRUE(world.membership.can_grow());
          world.serve();
        }
        ASSERT_EQ(world.grid(), full);
        ASSERT_FALSE(world.membership.can_grow());
      }
}

}  // namespace
}  // namespace althing::actors::tests
