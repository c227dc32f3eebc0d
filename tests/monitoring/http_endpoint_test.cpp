// The HTTP pages over raw sockets: answers, junk, clients that dawdle or vanish, and addresses that must be refused.
#include "monitoring/http_endpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "monitoring/loopback_address.hpp"
#include "tests/monitoring/http_client.hpp"

namespace althing::monitoring {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

HttpHandlers plain_handlers() {
  return {[] { return std::string("althing_x 1\n"); },
          [] {
            return Readiness{true, "{\"ready\":true}"};
          },
          [] {
            return ExpertPage{true, "althing_e 2\n", 1};
          },
          [] { return std::string("{\"layers\":2}\n"); }};
}

std::unique_ptr<HttpEndpoint> start(HttpHandlers handlers = plain_handlers()) {
  auto endpoint = HttpEndpoint::start("127.0.0.1:0", std::move(handlers));
  EXPECT_TRUE(endpoint.ok()) << endpoint.error().message;
  return std::move(endpoint).value();
}

TEST(HttpEndpoint, serves_experts_or_says_how_to_turn_them_on) {
  const auto endpoint = start();
  const std::string experts = get(*endpoint, "/metrics/experts");
  EXPECT_THAT(experts, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(experts, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_EQ(body_of(experts), "althing_e 2\n");
  const std::string json = get(*endpoint, "/experts.json");
  EXPECT_THAT(json, HasSubstr("Content-Type: application/json"));
  EXPECT_EQ(body_of(json), "{\"layers\":2}\n");
  HttpHandlers off = plain_handlers();
  off.experts = [] { return ExpertPage{false, "turn it on\n", 0}; };
  const std::string refused = get(*start(std::move(off)), "/metrics/experts");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(body_of(refused), "turn it on\n");
}

TEST(HttpEndpoint, serves_the_three_pages_and_nothing_else) {
  const auto endpoint = start();
  const std::string metrics = get(*endpoint, "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_EQ(body_of(metrics), "althing_x 1\n");
  EXPECT_THAT(get(*endpoint, "/live"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(body_of(get(*endpoint, "/ready")), "{\"ready\":true}");
  EXPECT_EQ(body_of(get(*endpoint, "/metrics?name[]=x")), "althing_x 1\n") << "a query string is allowed and ignored";
  for (const char* path : {"/", "/metrics/", "/Metrics", "/etc/passwd", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/index.html"})
    EXPECT_THAT(get(*endpoint, path), StartsWith("HTTP/1.1 404")) << path;
}

TEST(HttpEndpoint, head_has_the_headers_of_get_and_no_body) {
  const auto endpoint = start();
  for (const char* path : {"/metrics", "/live", "/ready", "/nothing"}) {
    const std::string head = ask(*endpoint, std::string("HEAD ") + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string whole = get(*endpoint, path);
    EXPECT_EQ(head, whole.substr(0, whole.find("\r\n\r\n") + 4)) << path;
  }
}

TEST(HttpEndpoint, other_methods_are_refused) {
  const auto endpoint = start();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string answer = ask(*endpoint, std::string(method) + " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD")) << method;
  }
}

TEST(HttpEndpoint, readiness_follows_the_callback_and_liveness_does_not) {
  std::atomic<bool> ready{false};
  const auto endpoint = start({[] { return std::string(); }, [&] { return Readiness{ready, ready ? "{}" : "{\"reason\":\"loading\"}"}; }});
  const std::string answer = get(*endpoint, "/ready");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_EQ(body_of(answer), "{\"reason\":\"loading\"}");
  EXPECT_THAT(get(*endpoint, "/live"), StartsWith("HTTP/1.1 200"));
  ready = true;
  EXPECT_THAT(get(*endpoint, "/ready"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpEndpoint, a_throwing_callback_is_a_500) {
  const auto endpoint = start({[]() -> std::string { throw std::runtime_error("no"); }, [] { return Readiness{}; }});
  EXPECT_THAT(get(*endpoint, "/metrics"), StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(get(*endpoint, "/live"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpEndpoint, a_large_page_arrives_whole) {
  const std::string large(3'000'000, 'x');
  const auto endpoint = start({[&] { return large; }, [] { return Readiness{}; }});
  EXPECT_TRUE(body_of(get(*endpoint, "/metrics")) == large);
}

TEST(HttpEndpoint, survives_junk) {
  const auto endpoint = start();
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string junk(1 + random() % 300, '\0');
    for (char& c : junk) c = static_cast<char>(random());
    if (i % 4 == 0) junk = "GET /metrics HTTP/1.1\r\n" + junk;
    Client client(*endpoint);
    client.send(junk + "\r\n\r\n");
    if (i % 2 == 0) client.read_all();  // and every other one vanishes without reading
  }
  EXPECT_THAT(ask(*endpoint, "nonsense\r\n\r\n"), HasSubstr("not a request that can be answered"));
  const std::string longer_than_allowed = "GET /metrics HTTP/1.1\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n";
  EXPECT_THAT(ask(*endpoint, longer_than_allowed), testing::Not(HasSubstr("200 OK")));
  EXPECT_THAT(ask(*endpoint, "GET /" + std::string(7000, 'a') + " HTTP/1.1\r\n\r\n"), testing::Not(HasSubstr("200 OK")));
  EXPECT_EQ(body_of(get(*endpoint, "/metrics")), "althing_x 1\n");
}

TEST(HttpEndpoint, slow_clients_are_cut_off_and_others_are_served) {
  const auto endpoint = start();
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 8; ++i) {  // twice the server's threads
    slow.push_back(std::make_unique<Client>(*endpoint));
    slow.back()->send("GET /metrics HT");
  }
  EXPECT_EQ(body_of(get(*endpoint, "/metrics")), "althing_x 1\n") << "served once the slow ones ran into their time limit";
  for (auto& client : slow) EXPECT_THAT(client->read_all(), testing::Not(HasSubstr("did not close")));
}

TEST(HttpEndpoint, concurrent_scrapes_are_all_answered) {
  const auto endpoint = start();
  std::atomic<int> answered{0};
  std::vector<std::thread> scrapers;
  for (int t = 0; t < 8; ++t)
    scrapers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) answered += body_of(get(*endpoint, "/metrics")) == "althing_x 1\n" ? 1 : 0;
    });
  for (auto& scraper : scrapers) scraper.join();
  EXPECT_EQ(answered, 160);
}

TEST(HttpEndpoint, a_port_in_use_says_what_to_do) {
  const auto first = start();
  const auto second = HttpEndpoint::start(first->address(), plain_handlers());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::io);
  EXPECT_THAT(second.error().message, HasSubstr(first->address()));
  EXPECT_THAT(second.error().message, HasSubstr("choose another port"));
}

TEST(HttpEndpoint, its_port_is_free_again_after_it_ends) {
  auto first = start();
  get(*first, "/live");
  const std::string address = first->address();
  first.reset();
  EXPECT_TRUE(HttpEndpoint::start(address, plain_handlers()).ok());
}

TEST(HttpEndpoint, only_loopback_is_accepted) {
  for (const char* address :
       {"0.0.0.0:0", "10.0.0.1:80", "[::]:0", "example.com:80", "::1:80", ":80", "*:80", "128.0.0.1:1", "127.1:80", "localhost.:1", "127.0.0.1",
        "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8x", "127.0.0.1:+8", "127.0.0.1: 8", "", "127.0.0.1,0.0.0.0:80"}) {
    const auto endpoint = HttpEndpoint::start(address, plain_handlers());
    ASSERT_FALSE(endpoint.ok()) << address;
    EXPECT_EQ(endpoint.error().code, ErrorCode::invalid_argument) << address;
    EXPECT_EQ(endpoint.error().field, "address");
  }
}

TEST(LoopbackAddress, reads_every_loopback_name) {
  EXPECT_EQ(*parse_loopback_address("127.0.0.1:9464"), (LoopbackAddress{"127.0.0.1", 9464}));
  EXPECT_EQ(*parse_loopback_address("127.9.8.7:0"), (LoopbackAddress{"127.9.8.7", 0}));
  EXPECT_EQ(*parse_loopback_address("localhost:65535"), (LoopbackAddress{"127.0.0.1", 65535}));
  EXPECT_EQ(*parse_loopback_address("[::1]:1"), (LoopbackAddress{"::1", 1}));
  EXPECT_EQ(parse_loopback_address("[::1]:1")->text(), "[::1]:1");
}

TEST(HttpEndpoint, listens_on_every_loopback_host) {
  for (const char* address : {"127.0.0.2:0", "localhost:0"}) {
    const auto endpoint = HttpEndpoint::start(address, plain_handlers());
    ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
    EXPECT_NE(parse_loopback_address(endpoint.value()->address())->port, 0) << address;
  }
}

TEST(HttpEndpoint, ipv6_works_or_says_that_it_does_not) {
  const auto endpoint = HttpEndpoint::start("[::1]:0", plain_handlers());
  if (endpoint.ok())
    EXPECT_THAT(endpoint.value()->address(), StartsWith("[::1]:"));
  else
    EXPECT_THAT(endpoint.error().message, HasSubstr("use 127.0.0.1"));
}

// Stopping took two seconds before the acceptor was woken.
TEST(HttpEndpoint, stops_at_once) {
  auto endpoint = start();
  get(*endpoint, "/live");
  const auto before = std::chrono::steady_clock::now();
  endpoint.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(1500));
}

}  // namespace
}  // namespace althing::monitoring
