// The store of responses: whose they are, how many there may be, and what goes first.
#include "protocol/openai/response_store.hpp"

#include <gtest/gtest.h>

#include "tests/protocol/harmony_support.hpp"

namespace althing::protocol::openai {
namespace {

using Json = nlohmann::ordered_json;

KeptResponse turn(const std::string& id, const std::string& previous = "", const std::string& said = "x") {
  KeptResponse kept;
  kept.response = {{"id", id},
                   {"previous_response_id", previous.empty() ? Json() : Json(previous)},
                   {"output", Json::array({{{"id", "msg_" + id}, {"type", "message"}, {"text", said}}})}};
  kept.input = Json::array();
  for (int i = 0; i < 3; ++i) kept.input.push_back({{"id", id + "_in" + std::to_string(i)}, {"type", "message"}});
  kept.messages.push_back({harmony::Role::assistant, {}, {}, "final", {}, {harmony::TextContent{said}}, {1, 2, 3}});
  return kept;
}

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::internal : result.error().code;
}

TEST(OpenAiResponseStoreTest, a_response_is_there_for_its_owner_only) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("ann", turn("resp_1")));
  EXPECT_EQ(tests::must(store.get("ann", "resp_1"))["id"], "resp_1");
  EXPECT_TRUE(store.item("ann", "msg_resp_1"));
  for (const char* other : {"bob", ""}) {
    EXPECT_EQ(code_of(store.get(other, "resp_1")), ErrorCode::not_found);
    EXPECT_EQ(code_of(store.remove(other, "resp_1")), ErrorCode::not_found);
    EXPECT_EQ(code_of(store.input_items(other, "resp_1", {})), ErrorCode::not_found);
    EXPECT_EQ(code_of(store.history(other, "resp_1")), ErrorCode::not_found);
    EXPECT_FALSE(store.item(other, "msg_resp_1"));
  }
  // The same words as for one that never was: nobody learns what others have.
  EXPECT_EQ(store.get("bob", "resp_1").error().message, ResponseStore().get("bob", "resp_1").error().message);
  EXPECT_EQ(store.size(), 1U);
}

TEST(OpenAiResponseStoreTest, what_is_removed_is_gone_with_its_items_and_bytes) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("ann", turn("resp_1")));
  ASSERT_TRUE(store.keep("ann", turn("resp_2", "resp_1")));
  EXPECT_EQ(tests::must(store.remove("ann", "resp_1")), (Json{{"id", "resp_1"}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(code_of(store.get("ann", "resp_1")), ErrorCode::not_found);
  EXPECT_EQ(code_of(store.remove("ann", "resp_1")), ErrorCode::not_found);
  EXPECT_FALSE(store.item("ann", "msg_resp_1"));
  // A later turn is still there to be looked at, and cannot be continued without what it builds on.
  EXPECT_TRUE(store.get("ann", "resp_2"));
  const auto broken = store.history("ann", "resp_2");
  ASSERT_EQ(code_of(broken), ErrorCode::not_found);
  EXPECT_EQ(broken.error().field, "previous_response_id");
  EXPECT_NE(broken.error().message.find("resp_1"), std::string::npos);
  EXPECT_TRUE(store.remove("ann", "resp_2"));
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(OpenAiResponseStoreTest, history_is_all_turns_oldest_first_with_their_ids_of_tokens) {
  ResponseStore store;
  KeptResponse first = turn("resp_1", "", "one"), second = turn("resp_2", "resp_1", "two");
  first.calls = {{"a", "f"}, {"b", "g"}};
  second.calls = {{"b", "h"}};
  ASSERT_TRUE(store.keep("ann", first));
  ASSERT_TRUE(store.keep("ann", second));
  const History history = tests::must(store.history("ann", "resp_2"));
  ASSERT_EQ(history.messages.size(), 2U);
  EXPECT_EQ(tests::text_of(history.messages[0]), "one");
  EXPECT_EQ(tests::text_of(history.messages[1]), "two");
  EXPECT_EQ(history.messages[1].tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(history.calls, (CallNames{{"a", "f"}, {"b", "h"}}));
  EXPECT_EQ(tests::must(store.history("ann", "resp_1")).messages.size(), 1U);
}

TEST(OpenAiResponseStoreTest, a_chain_has_a_greatest_length) {
  ResponseStore store({100, std::size_t{1} << 20, 3});
  ASSERT_TRUE(store.keep("", turn("resp_0")));
  for (int i = 1; i < 4; ++i) ASSERT_TRUE(store.keep("", turn("resp_" + std::to_string(i), "resp_" + std::to_string(i - 1))));
  EXPECT_TRUE(store.history("", "resp_2"));
  const auto too_long = store.history("", "resp_3");
  ASSERT_EQ(code_of(too_long), ErrorCode::too_large);
  EXPECT_EQ(too_long.error().field, "previous_response_id");
}

TEST(OpenAiResponseStoreTest, what_was_unused_for_longest_goes_first) {
  ResponseStore store({3, std::size_t{1} << 20, 8});
  for (const char* id : {"resp_1", "resp_2", "resp_3"}) ASSERT_TRUE(store.keep("ann", turn(id)));
  EXPECT_TRUE(store.get("ann", "resp_1"));
  ASSERT_TRUE(store.keep("ann", turn("resp_4")));
  EXPECT_TRUE(store.get("ann", "resp_1"));
  EXPECT_FALSE(store.get("ann", "resp_2"));
  EXPECT_TRUE(store.history("ann", "resp_3"));  // a use as well
  ASSERT_TRUE(store.keep("ann", turn("resp_5")));
  EXPECT_FALSE(store.get("ann", "resp_4"));
  EXPECT_TRUE(store.get("ann", "resp_3"));
  EXPECT_EQ(store.size(), 3U);
}

TEST(OpenAiResponseStoreTest, going_on_keeps_the_whole_conversation_in_use) {
  ResponseStore store({4, std::size_t{1} << 20, 8});
  ASSERT_TRUE(store.keep("ann", turn("resp_1")));
  ASSERT_TRUE(store.keep("ann", turn("resp_2", "resp_1")));
  ASSERT_TRUE(store.keep("ann", turn("resp_a")));
  ASSERT_TRUE(store.keep("ann", turn("resp_b")));
  EXPECT_TRUE(store.history("ann", "resp_2"));
  ASSERT_TRUE(store.keep("ann", turn("resp_3", "resp_2")));
  EXPECT_FALSE(store.get("ann", "resp_a"));
  EXPECT_TRUE(store.history("ann", "resp_3"));
}

TEST(OpenAiResponseStoreTest, who_floods_it_pushes_out_his_own) {
  ResponseStore store({10, std::size_t{1} << 20, 8});
  ASSERT_TRUE(store.keep("ann", turn("resp_ann")));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(store.keep("bob", turn("resp_" + std::to_string(i))));
  EXPECT_TRUE(store.get("ann", "resp_ann"));
  EXPECT_TRUE(store.get("bob", "resp_99"));
  EXPECT_TRUE(store.get("bob", "resp_91"));
  EXPECT_FALSE(store.get("bob", "resp_90"));
  EXPECT_EQ(store.size(), 10U);
}

TEST(OpenAiResponseStoreTest, bytes_are_bounded_and_what_is_too_large_changes_nothing) {
  const std::size_t most = 64 << 10;
  ResponseStore store({1000, most, 8});
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store.keep("ann", turn("resp_" + std::to_string(i), "", std::string(4096, 'x'))));
    ASSERT_LE(store.bytes(), most);
  }
  const std::size_t kept = store.size();
  EXPECT_GE(kept, 4U);
  EXPECT_LE(kept, 8U);  // a text is held twice: as an item, and as a message
  EXPECT_EQ(code_of(store.keep("ann", turn("resp_big", "", std::string(most, 'x')))), ErrorCode::too_large);
  EXPECT_EQ(store.size(), kept);
  EXPECT_FALSE(store.item("ann", "msg_resp_0"));
  EXPECT_TRUE(store.item("ann", "msg_resp_49"));
}

TEST(OpenAiResponseStoreTest, the_same_id_again_replaces) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("ann", turn("resp_1", "", "one")));
  const std::size_t bytes = store.bytes();
  ASSERT_TRUE(store.keep("ann", turn("resp_1", "", "two")));
  EXPECT_EQ(store.bytes(), bytes);
  EXPECT_EQ(tests::text_of(tests::must(store.history("ann", "resp_1")).messages.at(0)), "two");
}

std::vector<std::string> ids_of(const Json& list) {
  std::vector<std::string> ids;
  for (const Json& item : list["data"]) ids.push_back(item["id"]);
  return ids;
}

TEST(OpenAiResponseStoreTest, input_items_are_listed_in_pages) {
  ResponseStore store;
  ASSERT_TRUE(store.keep("", turn("r")));
  const auto page = [&](const char* query) { return tests::must(store.input_items("", "r", tests::must(items_query_from(query)))); };
  EXPECT_EQ(ids_of(page("")), (std::vector<std::string>{"r_in2", "r_in1", "r_in0"}));
  const Json first = page("limit=2&order=asc&include=x");
  EXPECT_EQ(ids_of(first), (std::vector<std::string>{"r_in0", "r_in1"}));
  EXPECT_EQ(first["object"], "list");
  EXPECT_EQ(first["first_id"], "r_in0");
  EXPECT_EQ(first["last_id"], "r_in1");
  EXPECT_EQ(first["has_more"], true);
  const Json second = page("order=asc&after=r_in1");
  EXPECT_EQ(ids_of(second), (std::vector<std::string>{"r_in2"}));
  EXPECT_EQ(second["has_more"], false);
  EXPECT_EQ(page("order=asc&after=r_in2"),
            (Json{{"object", "list"}, {"data", Json::array()}, {"first_id", nullptr}, {"last_id", nullptr}, {"has_more", false}}));
  EXPECT_EQ(code_of(store.input_items("", "r", {20, true, "nobody"})), ErrorCode::not_found);
  for (const char* bad : {"limit=0", "limit=101", "limit=", "limit=x", "limit=2x", "order=up", "order"}) EXPECT_FALSE(items_query_from(bad)) << bad;
  for (const char* good : {"&", "limit=100", "after=", "=", "x"}) EXPECT_TRUE(items_query_from(good)) << good;
}

}  // namespace
}  // namespace althing::protocol::openai
