// Who may use the page: hosts that are this machine and hosts that only look like it, origins of our own page and of others.
#include "monitoring/http_origin.hpp"

#include <gtest/gtest.h>

namespace althing::monitoring {
namespace {

TEST(HttpOrigin, hosts_of_this_machine) {
  for (const char* host : {"localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:9464", "127.3.2.1:1", "[::1]", "[::1]:9464"})
    EXPECT_TRUE(names_loopback(host)) << host;
}

// A name that was rebound to 127.0.0.1 arrives here with its own Host header.
TEST(HttpOrigin, hosts_that_are_not) {
  for (const char* host : {"",
                           "evil.example",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "evil.example:127",
                           "localhost:",
                           "localhost:9464x",
                           "localhost:123456",
                           "localhost:-1",
                           "localhost@evil.example",
                           "0.0.0.0",
                           "10.0.0.1:9464",
                           "128.0.0.1",
                           "127.1",
                           "0x7f.0.0.1",
                           "2130706433",
                           "[::1",
                           "[::2]",
                           "[::1]x",
                           "[::ffff:127.0.0.1]",
                           "::1",
                           "localhost.",
                           " localhost",
                           "localhost ",
                           "localhost:80:80"})
    EXPECT_FALSE(names_loopback(host)) << host;
}

TEST(HttpOrigin, our_own_page_may_post) {
  EXPECT_EQ(why_foreign("127.0.0.1:9464", "http://127.0.0.1:9464", "same-origin"), "");
  EXPECT_EQ(why_foreign("localhost:9464", "http://LOCALHOST:9464", ""), "") << "older browsers do not send Sec-Fetch-Site";
  EXPECT_EQ(why_foreign("[::1]:9464", "http://[::1]:9464", "same-origin"), "");
}

TEST(HttpOrigin, others_may_not) {
  const char* host = "127.0.0.1:9464";
  for (const char* origin : {"", "null", "https://127.0.0.1:9464", "http://127.0.0.1", "http://127.0.0.1:9465", "http://localhost:9464",
                             "http://evil.example", "http://127.0.0.1:9464.evil.example", "http://evil.example/http://127.0.0.1:9464"})
    EXPECT_NE(why_foreign(host, origin, ""), "") << origin;
  for (const char* site : {"cross-site", "same-site", "none"}) EXPECT_NE(why_foreign(host, "http://127.0.0.1:9464", site), "") << site;
  EXPECT_NE(why_foreign("evil.example", "http://evil.example", "same-origin"), "") << "same origin, but not this machine";
}

TEST(HttpOrigin, only_json_is_json) {
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8", "application/json ;x"}) EXPECT_TRUE(is_json(type)) << type;
  for (const char* type : {"", "text/plain", "application/jsonx", "text/plain; application/json", "application/x-www-form-urlencoded"})
    EXPECT_FALSE(is_json(type)) << type;
}

}  // namespace
}  // namespace althing::monitoring
