// The ring of events: numbers, what is kept, and the way from one process to another.
#include "monitoring/event_ring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace althing::monitoring {
namespace {

using nlohmann::json;

json after(const EventRing& ring, std::uint64_t number) { return json::parse(ring.json_after(number)); }

ServerEvent death(std::uint32_t rank) { return {"rank_died", rank, "exit", "killed by signal 9", 3}; }

TEST(EventRing, is_empty_at_first) {
  const EventRing ring;
  EXPECT_EQ(after(ring, 0), json::parse(R"({"newest":0,"oldest":0,"events":[]})"));
}

TEST(EventRing, tells_what_happened) {
  EventRing ring;
  EXPECT_EQ(ring.add(death(1), 1700000000.25), 1u);
  ServerEvent recovered{"recovered", 1, "exit", "a \"quoted\"\nsentence", 3};
  recovered.next_epoch = 4;
  recovered.recovered_by = "spare";
  recovered.streams = 0;
  recovered.phase_seconds = {0.001, 0.002, 0.003, 0.004, 0.005, 0.006};
  recovered.total_seconds = 0.021;
  EXPECT_EQ(ring.add(recovered, 1700000001), 2u);
  const json events = after(ring, 0)["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0],
            json::parse(R"({"number":1,"time_ms":1700000000250,"kind":"rank_died","rank":1,"cause":"exit","how":"killed by signal 9","epoch":3})"));
  EXPECT_EQ(events[1]["phases_ms"], json::parse(R"({"detect":1,"agree":2,"weights":3,"join":4,"recompute":5,"resume":6})"));
  EXPECT_EQ(events[1]["how"], "a \"quoted\"\nsentence");
  EXPECT_EQ(events[1]["streams"], 0) << "none is told too";
  EXPECT_EQ(events[1]["total_ms"], 21);
}

TEST(EventRing, keeps_the_newest_and_gives_what_is_asked_for) {
  EventRing ring;
  for (std::uint32_t i = 0; i < EventRing::kept_max + 5; ++i) ring.add(death(i), i);
  const json all = after(ring, 0);
  EXPECT_EQ(all["oldest"], 6);
  EXPECT_EQ(all["newest"], EventRing::kept_max + 5);
  EXPECT_EQ(all["events"].size(), EventRing::kept_max);
  EXPECT_EQ(all["events"][0]["number"], 6);
  const json last = after(ring, EventRing::kept_max + 3);
  ASSERT_EQ(last["events"].size(), 2u);
  EXPECT_EQ(last["events"][0]["number"], EventRing::kept_max + 4);
  EXPECT_EQ(after(ring, 10'000)["events"].size(), 0u);
}

TEST(EventRing, travels_in_pieces_and_arrives_once) {
  EventRing from, to;
  for (std::uint32_t i = 0; i < 50; ++i) from.add(death(i), i);
  const auto pieces = from.lines_after(0, 1000);
  EXPECT_GT(pieces.size(), 3u);
  for (const std::string& piece : pieces) {
    EXPECT_LE(piece.size(), 1000u);
    to.take(piece);
    to.take(piece);  // again: nothing comes twice
  }
  EXPECT_EQ(to.json_after(0), from.json_after(0));
  EXPECT_EQ(to.newest(), 50u);
  EXPECT_TRUE(from.lines_after(50, 1000).empty());
}

TEST(EventRing, takes_no_line_that_is_none) {
  EventRing ring;
  for (const char* lines : {"", "\n\n", "x", "5", "5 ", "5 {", "{}", "-1 {}", "99999999999999999999999 {}", "5{}"}) ring.take(lines);
  EXPECT_EQ(ring.newest(), 0u);
  ring.take("7 {\"number\":7}");
  EXPECT_EQ(ring.newest(), 7u);
}

}  // namespace
}  // namespace althing::monitoring
