// docs/protocol.md promises the bytes of every message. Each example there (a comment naming it, its JSON, its Cap'n Proto bytes in hexadecimal) is
// decoded and encoded again, and must come out as it is printed; every kind of message must have one. A failure prints what the page should say.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "protocol/wire/codec.hpp"

namespace althing::protocol::wire {
namespace {

struct Example {
  std::string name;  // "client hello"
  std::string json;
  std::string bytes;
};

std::string block_after(const std::string& page, std::size_t& at, const std::string& fence) {
  const std::size_t open = page.find("```" + fence + "\n", at);
  if (open == std::string::npos) return "";
  const std::size_t from = open + 4 + fence.size();
  const std::size_t to = page.find("\n```", from);
  at = to;
  return page.substr(from, to - from);
}

std::string bytes_of(const std::string& hex) {
  std::istringstream words(hex);
  std::string bytes, word;
  while (words >> word) bytes += static_cast<char>(std::stoi(word, nullptr, 16));
  return bytes;
}

std::string hex_of(const std::string& bytes) {
  std::string hex;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (i > 0) hex += i % 32 == 0 ? '\n' : ' ';
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  return hex;
}

std::vector<Example> examples() {
  std::ifstream file(ALTHING_SOURCE_DIR "/docs/protocol.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str(), mark = "<!-- frame: ";
  std::vector<Example> found;
  for (std::size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at)) {
    Example example;
    example.name = page.substr(at + mark.size(), page.find(" -->", at) - at - mark.size());
    example.json = block_after(page, at, "json");
    example.bytes = block_after(page, at, "text");
    found.push_back(example);
  }
  return found;
}

Limits roomy() {
  Limits limits;
  limits.context_tokens_max = 131072;
  return limits;
}

template <class Decode>
void expect_documented(const Example& example, Decode decode) {
  const auto from_json = decode(example.json, Encoding::json);
  ASSERT_TRUE(from_json.ok()) << from_json.error().message;
  EXPECT_EQ(encode(*from_json, Encoding::json), example.json);
  EXPECT_EQ(hex_of(encode(*from_json, Encoding::capnp)), example.bytes);
  const auto from_bytes = decode(bytes_of(example.bytes), Encoding::capnp);
  ASSERT_TRUE(from_bytes.ok()) << from_bytes.error().message;
  EXPECT_EQ(encode(*from_bytes, Encoding::json), example.json);
}

TEST(WireDocs, every_example_is_what_the_code_writes) {
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.name + " " + example.json);
    if (example.name.starts_with("client "))
      expect_documented(example, [](std::string_view body, Encoding encoding) { return decode_client(body, encoding, roomy()); });
    else
      expect_documented(example, [](std::string_view body, Encoding encoding) { return decode_server(body, encoding, roomy()); });
  }
}

TEST(WireDocs, every_message_has_an_example) {
  std::set<std::string> names;
  for (const Example& example : examples()) names.insert(example.name);
  EXPECT_EQ(names, (std::set<std::string>{"client hello", "client submit", "client cancel", "client resume", "client grant", "client ping",
                                          "server welcome", "server accepted", "server delta", "server done", "server error", "server pong"}));
}

TEST(WireDocs, every_error_code_is_explained) {
  std::ifstream file(ALTHING_SOURCE_DIR "/docs/protocol.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str(), table = page.substr(page.find("## Errors"), page.find("## Limits") - page.find("## Errors"));
  for (int i = 0; i < error_code_count; ++i) {
    const std::string name(name_of(static_cast<ErrorCode>(i)));
    EXPECT_TRUE(table.find("| " + name) != std::string::npos || table.find(", " + name) != std::string::npos) << name;
  }
}

}  // namespace
}  // namespace althing::protocol::wire
