// Answers as bytes, errors as OpenAI's clients read them, and the order in which a route and a connection may use an exchange.
#include "protocol/http/message.hpp"

#include <gtest/gtest.h>

#include "protocol/http/error_reply.hpp"
#include "protocol/http/exchange.hpp"

namespace althing::protocol::http {
namespace {

using Json = nlohmann::ordered_json;

TEST(HttpMessage, heads_say_how_the_body_ends) {
  const Response response{200, "{}", "application/json", {{"Retry-After", "1"}}};
  EXPECT_EQ(head_of(response, {"req_1", true, Framing::length}),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nRetry-After: 1\r\nx-request-id: req_1\r\n"
            "Connection: keep-alive\r\n\r\n");
  EXPECT_EQ(head_of({404, "", "text/plain"}, {"", false, Framing::chunks}),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(head_of({503, ""}, {"a", false, Framing::close}).find("Content-Length"), std::string::npos);
}

TEST(HttpMessage, chunks_have_their_length_in_hexadecimal_and_none_is_the_last) {
  EXPECT_EQ(chunk_of("0123456789abcdefg"), "11\r\n0123456789abcdefg\r\n");
  EXPECT_EQ(chunk_of(""), "");
  EXPECT_EQ(chunk_of(std::string(4096, 'x')).substr(0, 6), "1000\r\n");
}

TEST(HttpMessage, request_ids_are_repeated_only_when_they_are_harmless) {
  for (const char* id : {"a", "req-1_2.3", "00000000-0000-0000-0000-000000000000"}) EXPECT_TRUE(is_request_id(id)) << id;
  for (const std::string& id : {std::string(), std::string("a b"), std::string("a\r\nSet-Cookie: x"), std::string(129, 'a'), std::string("\xc3\xa9")})
    EXPECT_FALSE(is_request_id(id)) << id;
  EXPECT_TRUE(is_request_id(std::string(128, 'a')));
}

TEST(HttpMessage, json_is_known_by_its_type_whatever_follows) {
  for (const char* type : {"application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x"})
    EXPECT_TRUE(is_json(type)) << type;
  for (const char* type : {"", "text/plain", "application/jsonx", "application/x-www-form-urlencoded", "json"}) EXPECT_FALSE(is_json(type)) << type;
}

TEST(HttpErrors, every_class_has_a_status_that_says_whether_to_try_again) {
  const std::map<ErrorCode, int> statuses = {
      {ErrorCode::invalid_argument, 400}, {ErrorCode::not_found, 404},   {ErrorCode::corrupt, 400},   {ErrorCode::unsupported, 400},
      {ErrorCode::too_large, 400},        {ErrorCode::busy, 503},        {ErrorCode::draining, 503},  {ErrorCode::cancelled, 500},
      {ErrorCode::deadline, 504},         {ErrorCode::slow_reader, 500}, {ErrorCode::rank_lost, 503}, {ErrorCode::core_lost, 503},
      {ErrorCode::unavailable, 503},      {ErrorCode::version, 500},     {ErrorCode::nonfinite, 500}, {ErrorCode::io, 500},
      {ErrorCode::internal, 500},         {ErrorCode::denied, 500}};
  ASSERT_EQ(statuses.size(), static_cast<std::size_t>(error_code_count));
  for (const auto& [code, status] : statuses) {
    const Response response = to_response(reply_for({code, "why", "field"}));
    EXPECT_EQ(response.status, status) << name_of(code);
    EXPECT_EQ(response.headers.empty(), status != 503) << name_of(code) << ": Retry-After";
    const Json body = Json::parse(response.body);
    EXPECT_EQ(body["error"]["message"], "why");
    EXPECT_EQ(body["error"]["param"], "field");
    EXPECT_TRUE(body["error"]["type"].is_string() && body["error"]["code"].is_string()) << body;
  }
  EXPECT_TRUE(Json::parse(to_response(reply_for({ErrorCode::internal, "\xff", ""})).body)["error"]["param"].is_null());
  EXPECT_EQ(reply_for({ErrorCode::busy, "", "", 2'300}).retry_after_seconds, 3U);
  EXPECT_EQ(reply_for({ErrorCode::busy, "", "", 50}).retry_after_seconds, 1U);
  EXPECT_EQ(reply_for({ErrorCode::too_large, "", "prompt"}).code, "context_length_exceeded");
  EXPECT_EQ(reply_for({ErrorCode::too_large, "", "tools"}).code, "too_large");
}

Request request(const std::string& method) {
  Request r;
  r.method = method;
  r.id = "r";
  return r;
}

TEST(HttpExchange, a_stream_is_chunks_and_one_end) {
  Exchange exchange(request("POST"), true, true);
  int told = 0;
  exchange.on_output = [&] { ++told; };
  exchange.start({200, "", "text/event-stream"});
  EXPECT_NE(exchange.take().find("Transfer-Encoding: chunked"), std::string::npos);
  exchange.write("ab");
  exchange.write("");
  exchange.write("c");
  exchange.finish();
  exchange.finish();
  exchange.write("late");
  EXPECT_EQ(exchange.take(), "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
  EXPECT_EQ(told, 4);
  EXPECT_TRUE(exchange.keeps_alive());
}

TEST(HttpExchange, a_client_of_the_old_version_gets_bytes_until_the_connection_ends) {
  Exchange exchange(request("POST"), false, true);
  exchange.start({200, "", "text/event-stream"});
  EXPECT_NE(exchange.take().find("Connection: close"), std::string::npos);
  exchange.write("ab");
  exchange.finish();
  EXPECT_EQ(exchange.take(), "ab");
  EXPECT_FALSE(exchange.keeps_alive());
}

TEST(HttpExchange, head_gets_the_length_and_no_body) {
  Exchange exchange(request("HEAD"), true, true);
  exchange.respond({200, "body"});
  const std::string bytes = exchange.take();
  EXPECT_NE(bytes.find("Content-Length: 4"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("\r\n\r\n"));
}

TEST(HttpExchange, who_is_gone_is_told_of_once_and_only_before_the_end) {
  int gone = 0;
  Exchange open(request("POST"), true, true);
  open.on_gone = [&] { ++gone; };
  open.start({});
  open.lost();
  open.lost();
  EXPECT_EQ(gone, 1);
  open.take();
  open.write("nobody reads this");
  EXPECT_FALSE(open.has_output());
  Exchange over(request("POST"), true, true);
  over.on_gone = [&] { ++gone; };
  over.respond({});
  over.lost();
  EXPECT_EQ(gone, 1);
}

}  // namespace
}  // namespace althing::protocol::http
