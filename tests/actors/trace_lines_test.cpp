// What `althing trace` prints, draws and sums up, from deltas made by hand.
#include "actors/commands/trace_lines.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "actors/commands/heat_map.hpp"

namespace althing::actors {
namespace {

namespace wire = protocol::wire;
using testing::HasSubstr;
using testing::Not;

wire::Delta two_tokens() {
  StepRouting part;
  part.step = StepId{7};
  part.epoch = EpochId{2};
  part.start = 4;
  part.recomputed = 1;
  part.layers = 2;
  part.top_m = 1;
  part.experts_per_token = 2;
  part.tokens = {100, 101};
  part.nanoseconds = {{1000, 0, 2000, 30'000, 4000}, {3000, 0, 2000, 50'000, 4000}};
  part.logits = {{3, 1.5F}, {0, 0.1F}, {3, std::numeric_limits<float>::quiet_NaN()}, {1, -2.0F}};
  const auto pair = [](std::uint16_t expert, float weight, PairFate fate = PairFate::chosen) {
    return RoutedExpert{expert, expert, 1, 2, 5, fate, 0, weight};
  };
  part.experts = {pair(3, 0.75F), pair(1, 0.25F), pair(0, 1.0F),   pair(2, 0.0F, PairFate::dropped),
                  pair(3, 0.5F),  pair(2, 0.5F),  pair(1, 0.625F), pair(0, 0.375F)};
  return {"r \"1\"", 1, 0, {}, {}, {part}};
}

TEST(TraceLines, a_line_is_a_token_in_a_layer) {
  TraceLines lines;
  const std::string text = lines.take(two_tokens());
  EXPECT_EQ(lines.lines(), 4u);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            R"({"request":"r \"1\"","choice":0,"step":7,"epoch":2,"position":4,"token":100,"recomputed":true,"layer":0,"logits":[[3,1.5]],)"
            R"("experts":[{"expert":3,"chosen":3,"weight":0.75,"fate":"chosen","rank":2,"slot":5,"copy":1},)"
            R"({"expert":1,"chosen":1,"weight":0.25,"fate":"chosen","rank":2,"slot":5,"copy":1}],)"
            R"("step_nanoseconds":{"router":1000,"capacity":0,"dispatch":2000,"experts":30000,"merge":4000}})");
  EXPECT_THAT(text, HasSubstr(R"({"expert":2,"chosen":2,"weight":0,"fate":"dropped"}])")) << "nobody computes it, so it is nowhere";
  EXPECT_THAT(text, HasSubstr(R"("position":5,"token":101,"recomputed":false,"layer":0,"logits":[[3,null]])"));
}

TEST(TraceLines, times_are_of_layers_and_a_step_counts_once) {
  TraceLines lines;
  EXPECT_EQ(lines.timings(), "nothing was timed\n");
  lines.take(two_tokens());
  lines.take(two_tokens());  // another piece of the same step
  const std::string said = lines.timings();
  EXPECT_THAT(said, HasSubstr("over 1 steps"));
  EXPECT_THAT(said, HasSubstr("router            1.0         3.0\n"));
  EXPECT_THAT(said, HasSubstr("experts          30.0        50.0\n"));
  EXPECT_THAT(said, HasSubstr("together         37.0        59.0\n"));
  wire::Delta another = two_tokens();
  another.routing[0].epoch = EpochId{3};
  lines.take(another);
  EXPECT_THAT(lines.timings(), HasSubstr("over 2 steps")) << "another core begins with step 1 again";
}

TEST(TraceLines, percentiles_are_values_that_were_there) {
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 1; i <= 100; ++i) values.push_back(101 - i);
  EXPECT_EQ(percentile(values, 50), 50u);
  EXPECT_EQ(percentile(values, 95), 95u);
  EXPECT_EQ(percentile(values, 100), 100u);
  EXPECT_EQ(percentile({7}, 50), 7u);
  EXPECT_EQ(percentile({7, 9}, 50), 7u);
  EXPECT_EQ(percentile({7, 9}, 95), 9u);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(TraceLines, maps_show_what_was_computed_and_the_first_weights) {
  TraceLines lines;
  lines.take(two_tokens());
  const std::string svg = lines.heat_maps("a & b <c>");
  EXPECT_THAT(svg, HasSubstr("<title>a &amp; b &lt;c></title>"));
  EXPECT_THAT(svg, HasSubstr("<title>expert 3, layer 0: 2 tokens</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>expert 2, layer 1: 0 tokens</title>")) << "what was dropped was not computed";
  EXPECT_THAT(svg, HasSubstr("<title>token 5, layer 1: 0.625 gate weight</title>"));
  EXPECT_EQ(count(svg, "<rect x="), 2 * 4 + 2 * 2u);
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

TEST(TraceLines, a_map_of_nothing_is_still_a_picture) { EXPECT_THAT(TraceLines().heat_maps("none"), HasSubstr("</svg>")); }

TEST(HeatMap, the_strongest_cell_is_opaque_and_what_is_not_there_is_left_out) {
  const std::string svg = to_svg(
      "t", {{"m", "column", "row", 10, 3, 1, {0, 4, std::numeric_limits<double>::quiet_NaN()}, "u"}, {"all 0", "column", "row", 0, 1, 1, {0}, "u"}});
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.050\"><title>column 10, row 0: 0 u</title>"));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"1.000\"><title>column 11, row 0: 4 u</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("column 12,")));
  EXPECT_THAT(svg, HasSubstr("strongest: 4 u"));
  EXPECT_EQ(count(svg, "<rect x="), 3u);
}

}  // namespace
}  // namespace althing::actors
