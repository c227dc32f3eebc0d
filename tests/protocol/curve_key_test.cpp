// Keys and lists of keys as text: what is a key, what is never taken for one, and what an allow-list may hold.
#include <fstream>
#include <sstream>

#include "protocol/curve/allow_list.hpp"
#include "protocol/curve/key_ring.hpp"

#include <gtest/gtest.h>

namespace althing::protocol::curve {
namespace {

const std::string example_client = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const std::string example_server = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
const std::string example_client_secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
const std::string example_server_secret = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";

std::string fresh_key() { return KeyPair::make()->public_key.text; }

TEST(curve_key, a_pair_is_two_halves_of_one_key) {
  auto pair = KeyPair::make();
  ASSERT_TRUE(pair) << pair.error().message;
  EXPECT_EQ(pair->secret.public_key(), pair->public_key);
  EXPECT_NE(pair->public_key.text, pair->secret.text());
  EXPECT_TRUE(public_key_of(pair->public_key.text));
  auto again = SecretKey::of(pair->secret.text());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->public_key(), pair->public_key);
  EXPECT_NE(KeyPair::make()->public_key, pair->public_key);
}

TEST(curve_key, what_is_no_key_is_refused_and_never_repeated) {
  const std::string good = fresh_key();
  for (const std::string& bad : {std::string(), std::string("short"), good.substr(1), good + "0", good.substr(1) + " ", good.substr(1) + "\"",
                                 good.substr(1) + std::string(1, '\0'), good.substr(1) + "\xff", std::string(40, '#')}) {
    EXPECT_FALSE(looks_like_key(bad)) << bad;
    for (const Error& error : {public_key_of(bad).error(), SecretKey::of(bad).error()}) {
      EXPECT_EQ(error.code, ErrorCode::invalid_argument);
      if (bad.size() < 6) continue;
      EXPECT_EQ(error.message.find(bad.substr(0, 6)), std::string::npos) << "an error must not hold what may be a secret";
    }
  }
}

TEST(curve_key, example_keys_of_the_manual_and_zeros_are_refused) {
  for (const std::string& known : {example_client, example_server, std::string(40, '0')}) EXPECT_FALSE(public_key_of(known)) << known;
  for (const std::string& known : {example_client_secret, example_server_secret}) {
    auto secret = SecretKey::of(known);
    ASSERT_FALSE(secret);
    EXPECT_NE(secret.error().message.find("example"), std::string::npos);
    EXPECT_EQ(secret.error().message.find(known.substr(0, 6)), std::string::npos);
  }
}

// "dd" in smaps is what the kernel says of memory that no core dump holds.
TEST(curve_key, a_secret_is_in_no_core_dump) {
  auto pair = KeyPair::make();
  ASSERT_TRUE(pair);
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(pair->secret.text()) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool inside = false, found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(start.str())) inside = true;
    if (!inside || !line.starts_with("VmFlags:")) continue;
    found = true;
    EXPECT_NE(line.find(" dd"), std::string::npos) << line;
    break;
  }
  EXPECT_TRUE(found);
}

TEST(allow_list, lines_are_read_and_written_alike) {
  const std::string one = fresh_key(), two = fresh_key(), three = fresh_key();
  const std::string text = "# who may\n\nclient alice " + one + "\n   gateway   web-1 " + two + " acme\nadmin root.2 " + three;
  auto list = allow_list_of(text);
  ASSERT_TRUE(list) << list.error().message;
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[0], (KeyEntry{Role::client, "alice", {one}, ""}));
  EXPECT_EQ((*list)[1], (KeyEntry{Role::gateway, "web-1", {two}, "acme"}));
  EXPECT_EQ((*list)[2].role, Role::admin);
  for (const KeyEntry& entry : *list) EXPECT_EQ(*entry_of(to_line(entry)), entry);
  EXPECT_TRUE(allow_list_of(""));
}

TEST(allow_list, a_wrong_line_is_refused_by_its_number_and_not_repeated) {
  const std::string key = fresh_key(), other = fresh_key();
  const std::string good = "client alice " + key + "\n";
  for (const std::string& bad :
       {std::string("client bob"), std::string("client"), "dancer bob " + other, "client b,b " + other, "client bob " + other.substr(1),
        "client bob " + other + " t/t", "client bob " + other + " t more", "client bob " + key, "client alice " + other, "server bob " + other,
        "client bob " + example_client, "client bob " + std::string(40, '0'), other, "client bob " + other + "\r", "client\tbob " + other,
        std::string("client bob \0", 12) + other, "client " + std::string(65, 'n') + " " + other,
        "client bob " + other + " " + std::string(65, 't')}) {
    auto list = allow_list_of(good + bad + "\n");
    ASSERT_FALSE(list) << bad;
    EXPECT_NE(list.error().message.find("line 2"), std::string::npos) << list.error().message;
    EXPECT_EQ(list.error().message.find(other), std::string::npos);
  }
  EXPECT_EQ(allow_list_of(std::string(allow_list_bytes_max + 1, '\n')).error().code, ErrorCode::too_large);
}

TEST(allow_list, editing_keeps_what_it_is_not_about) {
  const std::string one = fresh_key(), two = fresh_key();
  const std::string text = "# mine\nclient alice " + one;
  auto more = with_key(text, {Role::gateway, "web", {two}, "acme"});
  ASSERT_TRUE(more) << more.error().message;
  EXPECT_EQ(*more, text + "\ngateway web " + two + " acme\n");
  EXPECT_FALSE(with_key(*more, {Role::client, "third", {one}, ""})) << "a key twice";
  EXPECT_FALSE(with_key(*more, {Role::client, "web", {fresh_key()}, ""})) << "a name twice";
  EXPECT_EQ(*without_key(*more, "web"), text + "\n");
  EXPECT_EQ(*without_key(*more, one), "# mine\ngateway web " + two + " acme\n");
  EXPECT_EQ(without_key(*more, "nobody").error().code, ErrorCode::not_found);
  EXPECT_EQ(without_key("junk\n", "junk").error().code, ErrorCode::invalid_argument);
}

TEST(key_ring, lists_are_exchanged_and_own_keys_stay) {
  const KeyEntry own{Role::gateway, "inside", {fresh_key()}, ""}, a{Role::client, "a", {fresh_key()}, "t"}, b{Role::client, "b", {fresh_key()}, ""};
  KeyRing ring({a}, {own});
  EXPECT_EQ(ring.find(a.key.text), a);
  EXPECT_EQ(ring.find(own.key.text), own);
  EXPECT_FALSE(ring.find(b.key.text));
  EXPECT_FALSE(ring.find(""));
  auto change = ring.replace({a, b});
  EXPECT_EQ(change.added, 1u);
  EXPECT_EQ(change.revoked, 0u);
  EXPECT_EQ(ring.revocations(), 0u);
  change = ring.replace({b});
  EXPECT_EQ(change.revoked, 1u);
  EXPECT_EQ(ring.revocations(), 1u);
  EXPECT_FALSE(ring.find(a.key.text));
  EXPECT_EQ(ring.replace({}).keys, 0u);
  EXPECT_EQ(ring.find(own.key.text), own);
}

}  // namespace
}  // namespace althing::protocol::curve
