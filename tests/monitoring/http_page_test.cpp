// The live page over raw sockets: its files, what browsers are told, who is turned away, and chats that stream, dawdle, leave and fill the house.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "monitoring/http_pages.hpp"
#include "monitoring/page_files.hpp"
#include "tests/monitoring/http_client.hpp"

namespace althing::monitoring {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

HttpHandlers handlers() {
  HttpHandlers all;
  all.metrics = [] { return std::string("althing_x 1\n"); };
  all.ready = [] { return Readiness{true, "{}"}; };
  all.live = [] { return Readiness{true, "{\"live\":1}\n"}; };
  all.events = [](std::uint64_t after) { return "{\"after\":" + std::to_string(after) + "}\n"; };
  all.usage_json = [] { return std::string("{\"tenants\":[]}\n"); };
  all.experts_json = [] { return std::string("{\"experts\":8}\n"); };
  all.chat = [](const std::string& body, EventReader& reader) -> Status {
    if (body == "refuse") return Error{ErrorCode::busy, "not now", "tab"};
    reader.send("{\"n\":1}");
    reader.send(body);
    return Ok{};
  };
  return all;
}

std::unique_ptr<HttpEndpoint> start(HttpHandlers all = handlers()) {
  auto endpoint = HttpEndpoint::start("127.0.0.1:0", std::move(all));
  EXPECT_TRUE(endpoint.ok()) << endpoint.error().message;
  return std::move(endpoint).value();
}

std::string visit(const HttpEndpoint& endpoint, const std::string& path, const std::string& host = "127.0.0.1", const std::string& more = "") {
  return ask(endpoint, "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n");
}

std::string question(const HttpEndpoint& endpoint, const std::string& body, std::string more = "Content-Type: application/json\r\n") {
  if (more.find("Origin:") == std::string::npos) more += "Origin: http://" + endpoint.address() + "\r\n";
  return "POST /chat HTTP/1.1\r\nHost: " + endpoint.address() + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" + body;
}

TEST(HttpPage, serves_every_file_with_its_type_and_tag) {
  const auto endpoint = start();
  ASSERT_GE(page_files().size(), 3u);
  for (const PageFile& file : page_files()) {
    const std::string answer = visit(*endpoint, std::string(file.path));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n")) << file.path;
    EXPECT_THAT(answer, HasSubstr("Content-Type: " + std::string(file.type) + "\r\n"));
    EXPECT_THAT(answer, HasSubstr("ETag: " + std::string(file.etag) + "\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'self';"));
    EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
    EXPECT_EQ(body_of(answer), file.body);
    const std::string again = visit(*endpoint, std::string(file.path), "127.0.0.1", "If-None-Match: " + std::string(file.etag) + "\r\n");
    EXPECT_THAT(again, StartsWith("HTTP/1.1 304 Not Modified\r\n"));
    EXPECT_EQ(body_of(again), "");
    EXPECT_THAT(visit(*endpoint, std::string(file.path), "127.0.0.1", "If-None-Match: \"x\"\r\n"), StartsWith("HTTP/1.1 200"));
  }
}

// The policy forbids it, so a page that had one would not work.
TEST(HttpPage, has_no_inline_script_or_style_and_nothing_from_elsewhere) {
  for (const PageFile& file : page_files()) {
    const std::string body(file.body);
    if (file.type.starts_with("text/")) {
      EXPECT_EQ(body.find("//cdn"), std::string::npos);
    }
    if (!file.type.starts_with("text/html")) continue;
    for (const char* forbidden : {"<style", " style=", " onclick=", " onload=", "javascript:", "http://", "https://", "<script>"})
      EXPECT_EQ(body.find(forbidden), std::string::npos) << file.path << " has " << forbidden;
  }
}

TEST(HttpPage, scripts_never_turn_text_into_markup) {
  for (const PageFile& file : page_files())
    for (const char* forbidden : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"})
      EXPECT_EQ(std::string(file.body).find(forbidden), std::string::npos) << file.path << " has " << forbidden;
}

TEST(HttpPage, answers_what_the_page_polls) {
  const auto endpoint = start();
  EXPECT_EQ(body_of(visit(*endpoint, "/live.json")), "{\"live\":1}\n");
  EXPECT_EQ(body_of(visit(*endpoint, "/experts.json")), "{\"experts\":8}\n");
  EXPECT_EQ(body_of(visit(*endpoint, "/usage.json")), "{\"tenants\":[]}\n");
  EXPECT_EQ(body_of(visit(*endpoint, "/events.json")), "{\"after\":0}\n");
  EXPECT_EQ(body_of(visit(*endpoint, "/events.json?after=12")), "{\"after\":12}\n");
  for (const char* query : {"after=", "after=x", "after=-1", "after=1x", "before=1", "after=99999999999999999999"})
    EXPECT_THAT(visit(*endpoint, std::string("/events.json?") + query), StartsWith("HTTP/1.1 400")) << query;
  EXPECT_THAT(visit(*endpoint, "/page.html"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask(*endpoint, "PUT /live.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"), StartsWith("HTTP/1.1 405"));
}

TEST(HttpPage, an_unresponsive_server_says_so) {
  HttpHandlers all = handlers();
  all.live = [] { return Readiness{false, "{\"state\":\"unresponsive\"}\n"}; };
  const auto endpoint = start(std::move(all));
  EXPECT_THAT(visit(*endpoint, "/live.json"), StartsWith("HTTP/1.1 503"));
}

// A name that a foreign page has rebound to this machine does not open the page; machines may call /metrics what they like.
TEST(HttpPage, is_for_this_machines_names_only) {
  const auto endpoint = start();
  for (const char* path : {"/", "/page.js", "/live.json", "/events.json", "/experts.json", "/usage.json"}) {
    for (const char* host : {"evil.example", "127.0.0.1.evil.example", "192.168.1.5:9464"})
      EXPECT_THAT(visit(*endpoint, path, host), StartsWith("HTTP/1.1 403")) << path << " as " << host;
    EXPECT_THAT(ask(*endpoint, std::string("GET ") + path + " HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 403")) << "no Host at all";
    for (const char* host : {"localhost:1", "127.0.0.1", "[::1]:80"}) EXPECT_THAT(visit(*endpoint, path, host), StartsWith("HTTP/1.1 200")) << host;
  }
  for (const char* path : {"/metrics", "/ready", "/live"})
    EXPECT_THAT(visit(*endpoint, path, "prometheus.example"), StartsWith("HTTP/1.1 200")) << path;
}

TEST(HttpPage, without_what_it_shows_it_is_not_there) {
  HttpHandlers bare = handlers();
  bare.live = nullptr;
  bare.events = nullptr;
  bare.experts_json = nullptr;
  bare.usage_json = nullptr;
  bare.chat = nullptr;
  const auto endpoint = start(std::move(bare));
  for (const char* path : {"/", "/page.js", "/live.json", "/events.json", "/experts.json", "/usage.json", "/chat"})
    EXPECT_THAT(visit(*endpoint, path), StartsWith("HTTP/1.1 404")) << path;
}

TEST(HttpPage, a_chat_streams) {
  const auto endpoint = start();
  const std::string answer = ask(*endpoint, question(*endpoint, "{\"q\":2}"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_EQ(body_of(answer), "data: {\"n\":1}\n\ndata: {\"q\":2}\n\n");
}

TEST(HttpPage, an_error_before_the_stream_is_a_status) {
  const auto endpoint = start();
  const std::string answer = ask(*endpoint, question(*endpoint, "refuse"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 429"));
  EXPECT_EQ(body_of(answer), "{\"type\":\"error\",\"error\":{\"code\":\"busy\",\"message\":\"not now\",\"field\":\"tab\"}}\n");
}

TEST(HttpPage, foreign_pages_cannot_chat) {
  std::atomic<int> asked{0};
  HttpHandlers all = handlers();
  all.chat = [&](const std::string&, EventReader& reader) -> Status {
    ++asked;
    reader.send("x");
    return Ok{};
  };
  const auto endpoint = start(std::move(all));
  const std::string json = "Content-Type: application/json\r\n";
  for (const std::string& more : {json + "Origin: http://evil.example\r\n", json + "Origin: null\r\n", json + "Origin: http://localhost:1\r\n",
                                  json + "Sec-Fetch-Site: cross-site\r\n", json + "Sec-Fetch-Site: same-site\r\n"})
    EXPECT_THAT(ask(*endpoint, question(*endpoint, "{}", more)), StartsWith("HTTP/1.1 403")) << more;
  for (const std::string& more : {std::string("Content-Type: text/plain\r\n"), std::string()})
    EXPECT_THAT(ask(*endpoint, question(*endpoint, "{}", more)), StartsWith("HTTP/1.1 415")) << more;
  EXPECT_THAT(ask(*endpoint, "POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n" + json + "\r\n{}"), StartsWith("HTTP/1.1 403"))
      << "no browser posts without Origin";
  EXPECT_THAT(ask(*endpoint, "POST /chat HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nContent-Length: 2\r\n" + json + "\r\n{}"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(visit(*endpoint, "/chat"), StartsWith("HTTP/1.1 405"));
  const std::string preflight = ask(*endpoint, "OPTIONS /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example\r\n\r\n");
  EXPECT_THAT(preflight, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(preflight, Not(HasSubstr("Access-Control")));
  EXPECT_EQ(asked, 0);
  EXPECT_THAT(ask(*endpoint, question(*endpoint, "{}", json + "Sec-Fetch-Site: same-origin\r\n")), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(asked, 1) << "and our own can";
}

TEST(HttpPage, a_body_is_bounded_and_its_length_is_told) {
  const auto endpoint = start();
  const std::string head = "POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Type: application/json\r\n";
  EXPECT_THAT(ask(*endpoint, head + "Content-Length: 1048577\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask(*endpoint, head + "\r\n"), StartsWith("HTTP/1.1 411"));
  EXPECT_THAT(ask(*endpoint, head + "Content-Length: 100\r\n\r\nshort"), StartsWith("HTTP/1.1 408")) << "after the time that a client has";
  const std::string largest = "\"" + std::string(HttpEndpoint::chat_bytes_max - 2, 'a') + "\"";
  EXPECT_THAT(ask(*endpoint, question(*endpoint, largest)), HasSubstr("data: " + largest + "\n\n"));
}

// A gate that chats wait at: a test knows how many there are, and lets them go.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0, left = 0;
  bool open = false;

  Status chat(EventReader& reader) {
    reader.send("in");
    std::unique_lock lock(mutex);
    ++inside;
    changed.notify_all();
    while (!open && reader.reads()) changed.wait_for(lock, std::chrono::milliseconds(20));
    ++left;
    changed.notify_all();
    return Ok{};
  }
  bool wait_until(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), condition);
  }
  void release() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};

HttpHandlers gated(Gate& gate) {
  HttpHandlers all = handlers();
  all.chat = [&gate](const std::string&, EventReader& reader) { return gate.chat(reader); };
  return all;
}

TEST(HttpPage, all_chats_run_and_everything_else_is_still_answered) {
  Gate gate;
  const auto endpoint = start(gated(gate));
  std::vector<std::unique_ptr<Client>> chats;
  for (int i = 0; i < HttpEndpoint::chats_max; ++i) {
    chats.push_back(std::make_unique<Client>(*endpoint));
    chats.back()->send(question(*endpoint, "{}"));
  }
  ASSERT_TRUE(gate.wait_until([&] { return gate.inside == HttpEndpoint::chats_max; }));
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(visit(*endpoint, "/metrics"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(visit(*endpoint, "/ready"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(visit(*endpoint, "/"), StartsWith("HTTP/1.1 200"));
  const std::string one_more = ask(*endpoint, question(*endpoint, "{}"));
  EXPECT_THAT(one_more, StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(one_more, HasSubstr("\"code\":\"busy\""));
  gate.release();
  for (auto& chat : chats) EXPECT_THAT(chat->read_all(), HasSubstr("data: in\n\n"));
  EXPECT_THAT(ask(*endpoint, question(*endpoint, "{}")), StartsWith("HTTP/1.1 200")) << "their places are free again";
}

TEST(HttpPage, a_reader_that_leaves_is_noticed_also_in_silence) {
  Gate gate;
  const auto endpoint = start(gated(gate));
  {
    Client client(*endpoint);
    client.send(question(*endpoint, "{}"));
    EXPECT_THAT(client.read_until("data: in\n\n"), HasSubstr("data: in"));
    EXPECT_EQ(gate.left, 0);
  }
  EXPECT_TRUE(gate.wait_until([&] { return gate.left == 1; }));
}

TEST(HttpPage, a_reader_that_takes_nothing_loses_its_stream_and_delays_nobody) {
  std::atomic<bool> ended{false};
  HttpHandlers all = handlers();
  all.chat = [&](const std::string&, EventReader& reader) -> Status {
    const std::string piece(100'000, 'x');
    while (reader.send(piece)) {
    }
    ended = true;
    return Ok{};
  };
  const auto endpoint = start(std::move(all));
  Client lazy(*endpoint);
  lazy.send(question(*endpoint, "{}"));
  lazy.read_until("data: ");
  int answered = 0;
  while (!ended && answered < 100'000) answered += visit(*endpoint, "/ready").starts_with("HTTP/1.1 200") ? 1 : 0;
  EXPECT_TRUE(ended);
  EXPECT_GT(answered, 10);
}

TEST(HttpPage, the_end_of_the_server_ends_chats_at_once) {
  Gate gate;
  auto endpoint = start(gated(gate));
  Client client(*endpoint);
  client.send(question(*endpoint, "{}"));
  ASSERT_TRUE(gate.wait_until([&] { return gate.inside == 1; }));
  const auto before = std::chrono::steady_clock::now();
  endpoint.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(1500));
  EXPECT_EQ(gate.left, 1);
}

TEST(HttpPage, a_throwing_chat_is_a_500) {
  HttpHandlers all = handlers();
  all.chat = [](const std::string&, EventReader&) -> Status { throw std::runtime_error("no"); };
  const auto endpoint = start(std::move(all));
  EXPECT_THAT(ask(*endpoint, question(*endpoint, "{}")), StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(visit(*endpoint, "/live"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace althing::monitoring
