// `althing top` without a server: the screen as a function of a reading, and answers of HTTP that are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/commands/top_screen.hpp"
#include "actors/http_get.hpp"

namespace althing::actors {
namespace {

using testing::HasSubstr;
using testing::Not;

TopReading reading() {
  const auto json = [](const char* text) { return *protocol::wire::parse_json(text, 8); };
  return {json(R"({"model":"tiny","state":"ready","uptime_seconds":12.5,"epoch":3,"degraded":true,"spares":1,"quarantined":0,"running":2,"waiting":0,
                   "tokens_out_per_second":812.25,"tokens_in_per_second":40,"requests_ended":9,
                   "first_token_ms":{"count":4,"p50":12,"p95":30.5,"p99":60000,"bound":60000},"inter_token_ms":{"count":0,"p50":null,"p95":null,"p99":null},
                   "ranks":[{"rank":0,"state":"serving","epoch":3,"experts":4,"expert_ids":"0-3","kv_pages_used":32,"kv_pages":64,"progress_age_ms":12},
                            {"rank":1,"state":"absent","epoch":0,"experts":0,"expert_ids":"","kv_pages_used":0,"kv_pages":64,"progress_age_ms":null}]})"),
          json(R"({"layers":2,"experts":4,"top_k":2,"window":[[10,10,10,10],[0,5,15,60]],"imbalance":[1,3],"hot":[[1,3,0.75]],"dead":[[1,0]]})"),
          json(R"([{"number":1,"time_ms":1700000000000,"kind":"rank_died","rank":1,"cause":"exit","how":"killed by signal 9","epoch":2},
                   {"number":2,"time_ms":1700000001000,"kind":"recovered","rank":1,"recovered_by":"spare","epoch":2,"total_ms":210}])"),
          ""};
}

TEST(TopScreen, shows_what_was_read) {
  const std::string screen = top_screen(reading(), {120, 0, false});
  for (const char* part :
       {"tiny", "ready", "epoch 3", "812.2 tok/s", "running 2", "p50 12 p95 30 p99 >=60000 ms", "p50 - p95 - p99 - ms",
        "0     serving   3      4: 0-3              ████░░░░ 32/64", "12 ms", "absent", "fewer ranks serve", "hot L1 E3 75 %", "dead L1 E0",
        "▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓  1.00", "····░░░░▒▒▒▒████  3.00", "rank_died rank 1  exit  killed by signal 9", "recovered rank 1  by spare  210 ms"})
    EXPECT_THAT(screen, HasSubstr(part));
  EXPECT_THAT(screen, Not(HasSubstr("\033"))) << "no colour, no escape";
  EXPECT_LT(screen.find("recovered rank"), screen.find("rank_died rank")) << "the newest first";
}

std::size_t width(const std::string& line) {
  std::size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

TEST(TopScreen, fits_every_window) {
  TopReading all = reading();
  all.experts["window"] = nlohmann::ordered_json::array();
  for (int layer = 0; layer < 36; ++layer) all.experts["window"].push_back(std::vector<int>(128, layer));
  for (const std::uint32_t columns : {1u, 20u, 79u, 80u, 200u})
    for (const std::uint32_t rows : {1u, 5u, 24u, 60u}) {
      const std::string screen = top_screen(all, {columns, rows, false});
      EXPECT_LE(std::count(screen.begin(), screen.end(), '\n'), rows);
      std::istringstream lines(screen);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(width(line), columns) << line;
    }
  EXPECT_THAT(top_screen(all, {80, 24, false}), HasSubstr("more layers do not fit this window"));
}

TEST(TopScreen, passes_no_control_characters_on) {
  TopReading evil = reading();
  evil.live["model"] = "a\033[2Jb\nc\x7f\xc2\x9b";
  evil.live["ranks"][0]["state"] = "\033]0;x\007";
  evil.events[0]["how"] = "x\033[31m\r\n";
  evil.trouble = "bad\033c";
  const std::string screen = top_screen(evil, {300, 0, false});
  for (const char c : screen) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
  EXPECT_THAT(screen, HasSubstr("a?[2Jb?c???"));
}

TEST(TopScreen, odd_members_show_as_dashes) {
  TopReading odd;
  odd.live = *protocol::wire::parse_json(R"({"ranks":[7,{"rank":"x"}],"state":4,"first_token_ms":[],"epoch":"e"})", 8);
  odd.experts = *protocol::wire::parse_json(R"({"window":[[null,"x"],3],"hot":[[1],"x",[1,2,"y"]],"imbalance":{}})", 8);
  odd.events = *protocol::wire::parse_json(R"([7,{"kind":1}])", 8);
  EXPECT_THAT(top_screen(odd, {80, 0, true}), HasSubstr("Althing"));
  odd.experts = nullptr;
  EXPECT_THAT(top_screen(odd, {80, 0, false}), HasSubstr("does not count them"));
}

TEST(TopScreen, shades_share_characters_when_experts_are_many) {
  EXPECT_EQ(shades_of({}, 80), "");
  EXPECT_EQ(shades_of({1, 1}, 0), "");
  EXPECT_EQ(shades_of({0, 0}, 2), "··");
  std::vector<double> many(128, 1);
  many[127] = 500;
  const std::string text = shades_of(many, 64);
  EXPECT_EQ(width(text), 64u);
  EXPECT_TRUE(text.ends_with("█")) << "the hot one of two is what shows";
}

TEST(HttpAnswer, is_read_or_refused) {
  const auto answer = http_answer_of("HTTP/1.1 503 Service Unavailable\r\nX: 1\r\ncontent-LENGTH: 3\r\n\r\nabc");
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "abc");
  EXPECT_TRUE(http_answer_of("HTTP/1.0 200 OK\r\n\r\nwhatever").ok()) << "until the end";
  for (const char* bytes : {"", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1\r\n\r\n", "HTTP/1.1 xx\r\n\r\n", "HTTP/1.1 9999 x\r\n\r\n",
                            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"})
    EXPECT_FALSE(http_answer_of(bytes).ok()) << bytes;
}

TEST(HttpGet, says_that_nobody_is_there) {
  const auto answer = http_get({"127.0.0.1", 1}, "/live.json", std::chrono::milliseconds(500));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
  EXPECT_THAT(answer.error().message, HasSubstr("nobody answers at http://127.0.0.1:1"));
  EXPECT_THAT(answer.error().message, HasSubstr("althing serve"));
}

}  // namespace
}  // namespace althing::actors
