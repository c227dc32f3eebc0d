// The layout of ranks as settings say it: defaults, and both forms of --replicas.
#include "actors/settings.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "actors/engine_setup.hpp"
#include "actors/number_range.hpp"

namespace althing::actors {
namespace {

ServeSettings with(std::uint32_t ranks, std::uint32_t dp, std::uint32_t tp, std::uint32_t ep, const std::string& replicas) {
  ServeSettings s;
  s.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
  s.device = "cpu";
  s.ranks = ranks, s.dp = dp, s.tp = tp, s.ep = ep, s.replicas = replicas;
  return s;
}

std::vector<ExpertId> ids(std::initializer_list<std::uint32_t> numbers) {
  std::vector<ExpertId> experts;
  for (const std::uint32_t n : numbers) experts.push_back(ExpertId{n});
  return experts;
}

TEST(Settings, what_is_not_said_of_the_layout_follows_from_the_rest) {
  EXPECT_EQ(grid_of(ServeSettings{}).value(), (Grid{1, 1, 1, 1, {}}));
  EXPECT_EQ(grid_of(with(4, 1, 0, 0, "0")).value(), (Grid{4, 1, 4, 4, {}}));
  EXPECT_EQ(grid_of(with(4, 2, 0, 0, "0")).value(), (Grid{4, 2, 2, 4, {}}));
  EXPECT_EQ(grid_of(with(4, 2, 2, 1, "2")).value(), (Grid{4, 2, 2, 1, ids({0, 1})}));
  EXPECT_EQ(grid_of(with(4, 4, 1, 2, "ids=3,17,3")).value(), (Grid{4, 4, 1, 2, ids({3, 17, 3})}));
}

TEST(Settings, replicas_of_no_form_are_refused) {
  for (const char* replicas : {"", "-1", "4097", "two", "3,17", "ids=", "ids=3,", "ids=,3", "ids=3;4", "ids=-1", "ids=99999999999", "4 "}) {
    const auto status = check(with(2, 1, 2, 2, replicas));
    ASSERT_FALSE(status.ok()) << replicas;
    EXPECT_EQ(status.error().field, "replicas") << replicas;
    EXPECT_NE(status.error().message.find("ids=3,7"), std::string::npos);
  }
}

TEST(Settings, the_engine_is_set_up_as_they_say_or_refused_with_the_flag_to_change) {
  const auto setup = set_up_engine(with(4, 2, 0, 2, "ids=0")).value();
  EXPECT_EQ(setup.placements[3].dp_group, DpGroup{1});
  EXPECT_EQ(setup.placements[1].experts.front(), (HeldExpert{ExpertId{0}, 1, 3}));
  EXPECT_EQ(setup.core_config().dp_groups, 2u);
  const auto refused = [](const ServeSettings& settings, const char* field, const char* why) {
    const auto wrong = set_up_engine(settings);
    ASSERT_FALSE(wrong.ok()) << why;
    EXPECT_EQ(wrong.error().field, field);
    EXPECT_NE(wrong.error().message.find(why), std::string::npos) << wrong.error().message;
    EXPECT_NE(wrong.error().message.find("--replicas"), std::string::npos) << wrong.error().message;
  };
  refused(with(4, 3, 0, 0, "0"), "dp", "dp x tp is 3 and must be the number of ranks");
  refused(with(4, 0, 0, 0, "0"), "dp", "dp is 0");
  refused(with(0, 1, 0, 0, "0"), "ranks", "use 1 to 64 ranks");
  refused(with(3, 1, 0, 0, "0"), "tp", "query heads");
  refused(with(2, 2, 0, 3, "0"), "ep", "ep must divide the number of ranks");
  refused(with(2, 2, 0, 0, "ids=99"), "replicas", "a replica of expert 99");
}

// The pages of a rank hold the heads of its group's split: two groups have half as many pages each as one that splits the heads.
TEST(Settings, groups_divide_the_memory) {
  const auto split = set_up_engine(with(2, 1, 0, 0, "0")).value(), divided = set_up_engine(with(2, 2, 0, 0, "0")).value();
  EXPECT_EQ(divided.kv.page_bytes, 2 * split.kv.page_bytes);
  EXPECT_EQ(divided.kv.page_count, split.kv.page_count / 2);
}

TEST(Settings, of_memberships_are_checked_by_name) {
  const auto refused = [](auto change) {
    ServeSettings s = with(2, 1, 2, 2, "0");
    change(s);
    const auto status = check(s);
    return status.ok() ? std::string("taken") : status.error().field;
  };
  EXPECT_EQ(refused([](ServeSettings& s) { s.spares = 64, s.on_rank_loss = "shrink", s.quarantine_seconds = 3600; }), "taken");
  EXPECT_EQ(refused([](ServeSettings& s) { s.spares = 65; }), "spares");
  EXPECT_EQ(refused([](ServeSettings& s) { s.spares = 1, s.in_process = true; }), "spares");
  EXPECT_EQ(refused([](ServeSettings& s) { s.on_rank_loss = "panic"; }), "on-rank-loss");
  EXPECT_EQ(refused([](ServeSettings& s) { s.reasoning_history = "forget"; }), "reasoning-history");
  EXPECT_EQ(refused([](ServeSettings& s) { s.reasoning_history = "keep"; }), "taken");
  EXPECT_EQ(refused([](ServeSettings& s) { s.quarantine_seconds = 0; }), "quarantine-seconds");
  EXPECT_EQ(refused([](ServeSettings& s) { s.quarantine_seconds = 3601; }), "quarantine-seconds");
}

TEST(Settings, a_capacity_factor_is_over_the_mean_and_a_number) {
  for (const double factor : {1.0, 0.0, -2.0, 1001.0, std::numeric_limits<double>::quiet_NaN()}) {
    ServeSettings s = with(2, 1, 2, 2, "0");
    s.expert_capacity_factor = factor;
    const auto status = check(s);
    ASSERT_FALSE(status.ok()) << factor;
    EXPECT_EQ(status.error().field, "expert-capacity-factor");
  }
}

TEST(Settings, what_a_synthetic_engine_would_not_do_is_refused) {
  const auto refused = [](auto change) {
    ServeSettings s = with(1, 1, 0, 0, "0");
    s.device = "synthetic";
    EXPECT_TRUE(check(s).ok());
    change(s);
    const Status status = check(s);
    EXPECT_FALSE(status.ok());
    return status.ok() ? std::string() : status.error().field;
  };
  EXPECT_EQ(refused([](ServeSettings& s) { s.limits.speculation_tokens_max = 2; }), "speculate");
  EXPECT_EQ(refused([](ServeSettings& s) { s.draft_model = "somewhere"; }), "draft-model");
  EXPECT_EQ(refused([](ServeSettings& s) { s.capacity_policy = "drop"; }), "capacity-policy");
}

TEST(Settings, numbers_out_of_range_are_refused_with_flag_value_and_range) {
  const auto refused = [](auto change) {
    ServeSettings s = with(2, 1, 2, 2, "0");
    change(s);
    const auto status = check(s);
    return status.ok() ? std::string("taken") : status.error().message;
  };
  EXPECT_EQ(refused([](ServeSettings&) {}), "taken");
  EXPECT_EQ(refused([](ServeSettings& s) { s.ranks = 0; }), "--ranks is '0'; use a whole number from 1 to 64");
  EXPECT_EQ(refused([](ServeSettings& s) { s.threads = 257; }), "--threads is '257'; use a whole number from 1 to 256");
  EXPECT_EQ(refused([](ServeSettings& s) { s.kv_mirror_mib = 1u << 25; }), "--kv-mirror-mib is '33554432'; use a whole number from 0 to 16777216");
  EXPECT_EQ(refused([](ServeSettings& s) { s.gpu_memory_fraction = 0; }), "--gpu-memory-fraction is '0.000000'; use a number over 0, up to 1");
  EXPECT_EQ(refused([](ServeSettings& s) { s.gpu_memory_fraction = NAN; }), "--gpu-memory-fraction is 'nan'; use a number over 0, up to 1");
}

TEST(Settings, a_range_holds_its_ends_and_nothing_beyond) {
  constexpr WholeRange to_64{1, 64};
  for (const std::int64_t number : {1, 2, 64}) EXPECT_TRUE(to_64.holds(number)) << number;
  for (const std::int64_t number : {-1, 0, 65}) EXPECT_FALSE(to_64.holds(number)) << number;
  EXPECT_TRUE(any_seed.holds(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_FALSE(any_count.holds(std::uint64_t{1} << 32));
  constexpr RealRange closed{0, 2}, open{0, 1, true};
  for (const double number : {0.0, 1e-45, 2.0}) EXPECT_TRUE(closed.holds(number)) << number;
  EXPECT_FALSE(open.holds(0.0));
  for (const double number : {-1.0, 2.1, double{NAN}, double{INFINITY}}) EXPECT_FALSE(closed.holds(number) || open.holds(number)) << number;
}

TEST(Settings, addresses_that_cannot_be_are_refused_with_the_other_settings) {
  const auto refused = [](const std::string& bind, const std::string& metrics) {
    ServeSettings s = with(2, 1, 2, 2, "0");
    s.bind = bind, s.metrics = metrics;
    const auto status = check(s);
    return status.ok() ? std::string("taken") : status.error().field;
  };
  EXPECT_EQ(refused("tcp://127.0.0.1:0", "[::1]:0"), "taken");
  EXPECT_EQ(refused("tcp://127.0.0.1:0", ""), "taken");
  EXPECT_EQ(refused("tcp://127.0.0.1:0", "0.0.0.0:9464"), "metrics");
  EXPECT_EQ(refused("tcp://127.0.0.1:0", "127.0.0.1"), "metrics");
  EXPECT_EQ(refused("tcp://127.0.0.1:0", "127.0.0.1:65536"), "metrics");
  EXPECT_EQ(refused("tcp://0.0.0.0:4550", "127.0.0.1:0"), "bind");
  EXPECT_EQ(refused("tcp://127.0.0.1.1:4550", "127.0.0.1:0"), "bind");
}

// One rank where there were two of a TP group: all heads, so pages of twice the bytes and half as many of them.
TEST(EngineSetup, another_grid_has_pages_of_the_same_memory) {
  const EngineSetup pair = set_up_engine(with(2, 1, 2, 2, "0")).value();
  const EngineSetup alone = with_grid(pair, Grid{1, 1, 1, 1, {}}).value();
  EXPECT_EQ(alone.placements.size(), 1u);
  EXPECT_EQ(alone.kv.page_bytes, 2 * pair.kv.page_bytes);
  EXPECT_EQ(alone.kv.page_count, pair.kv.page_count / 2);
  EXPECT_EQ(with_grid(alone, pair.grid).value().kv, pair.kv);
  EXPECT_FALSE(with_grid(pair, Grid{3, 1, 3, 3, {}}).ok()) << "three do not divide the heads";
  EngineSetup poor = pair;
  poor.kv_mib = 1;  // a quarter of the context is more than that holds
  EXPECT_EQ(with_grid(poor, Grid{1, 1, 1, 1, {}}).error().code, ErrorCode::too_large);
}

}  // namespace
}  // namespace althing::actors
