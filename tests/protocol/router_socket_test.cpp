// The server's socket: what it refuses to listen on, and what it says about a port in use.
#include "protocol/wire/router_socket.hpp"

#include <gtest/gtest.h>

namespace althing::protocol::wire {
namespace {

TEST(router_socket, only_loopback_and_whole_addresses_are_accepted) {
  for (const char* bad : {"tcp://0.0.0.0:4550", "tcp://*:4550", "tcp://10.0.0.1:1", "ipc:///tmp/x", "tcp://127.0.0.1", "tcp://127.0.0.1:70000",
                          "tcp://127.0.0.1:x", "tcp://127.evil.example:1", "inproc://x", ""}) {
    auto bound = RouterSocket::bind(bad, Limits{});
    ASSERT_FALSE(bound) << bad;
    EXPECT_EQ(bound.error().code, ErrorCode::invalid_argument) << bad;
    EXPECT_NE(bound.error().message.find("--bind"), std::string::npos);
  }
}

TEST(router_socket, a_port_in_use_says_what_to_do) {
  auto first = RouterSocket::bind("tcp://127.0.0.1:0", Limits{});
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->endpoint().starts_with("tcp://127.0.0.1:"));
  auto second = RouterSocket::bind(first->endpoint(), Limits{});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::io);
  EXPECT_NE(second.error().message.find("--bind"), std::string::npos);
}

TEST(router_socket, a_route_that_never_was_is_gone) {
  auto bound = RouterSocket::bind("tcp://127.0.0.1:0", Limits{});
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->send("nobody", false, "ALT1j", "{}"), RouterSocket::Sent::gone);
  EXPECT_FALSE(bound->receive());
}

}  // namespace
}  // namespace althing::protocol::wire
