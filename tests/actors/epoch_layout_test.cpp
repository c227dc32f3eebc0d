// A grid as text: what was written comes back, also with thousands of replicas over a control channel's message; anything else is refused.
#include "actors/epoch_layout.hpp"

#include <gtest/gtest.h>

#include "actors/control_channel.hpp"

namespace althing::actors::tests {
namespace {

TEST(EpochLayout, grids_and_places_come_back) {
  Grid many{8, 2, 4, 8, {}};
  for (std::uint32_t i = 0; i < 4096; ++i) many.replicas.push_back(ExpertId{i % 2 == 0 ? 4000 + i % 90 : 100});
  for (const Grid& grid : {Grid{}, Grid{4, 2, 2, 2, {}}, Grid{2, 1, 2, 2, {ExpertId{0}, ExpertId{1}, ExpertId{2}, ExpertId{2}, ExpertId{9}}}, many}) {
    const auto back = grid_of_text(to_text(grid));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, grid);
    const auto place = place_of_text(to_text(Place{grid.world - 1, grid}));
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(*place, (Place{grid.world - 1, grid}));
  }
  EXPECT_EQ(to_text(Grid{4, 2, 2, 2, {ExpertId{0}, ExpertId{1}, ExpertId{3}}}), "4:2:2:2:0-1,3");
  auto ends = ControlChannel::pair();
  ASSERT_TRUE(ends.ok());
  ASSERT_TRUE(ends->first.send("join 1 2 3 " + to_text(many)));
  const auto message = ends->second.receive(std::chrono::milliseconds(1000));
  ASSERT_TRUE(message && message->words.size() == 5);
  EXPECT_EQ(*grid_of_text(message->words[4]), many);
}

TEST(EpochLayout, anything_else_is_refused) {
  for (const char* text :
       {"", "4", "4:2:2:2", "4:2:2:2:", "4:2:2:x:-", "4:2:2:-1:-", "4:2:2:2:3-1", "4:2:2:2:1,", "4:2:2:2:0-4096", "4:2:2:2:- ", " 4:2:2:2:-"})
    EXPECT_FALSE(grid_of_text(text).ok()) << text;
  for (const char* text : {"1", "@4:2:2:2:-", "4@4:2:2:2:-", "x@4:2:2:2:-", "-1@4:2:2:2:-"}) EXPECT_FALSE(place_of_text(text).ok()) << text;
}

}  // namespace
}  // namespace althing::actors::tests
