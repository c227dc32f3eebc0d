// Where a server's keys come from and go to, and when a list of keys that has changed counts.
#include "actors/door_keys.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "actors/allow_list_watch.hpp"
#include "actors/serving_addresses.hpp"
#include "protocol/curve/key_file.hpp"

#include <gtest/gtest.h>

namespace althing::actors::tests {
namespace {

namespace curve = protocol::curve;

class DoorKeysTest : public testing::Test {
 protected:
  DoorKeysTest() {
    char name[] = "/tmp/althing-door-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    list_ = folder_ + "/allowed";
    EXPECT_TRUE(curve::write_key_pair(folder_ + "/server", server_, curve::Role::server, "server"));
    write_list({{curve::Role::client, "a", a_.public_key, "acme"}});
    settings_.model = "somewhere";
    settings_.curve_key = folder_ + "/server.key";
    settings_.curve_allow = list_;
  }
  ~DoorKeysTest() override { std::filesystem::remove_all(folder_); }

  void write_list(const curve::AllowList& entries) {
    std::string text;
    for (const curve::KeyEntry& entry : entries) text += curve::to_line(entry) + "\n";
    put(text);
  }
  void put(const std::string& text) {
    std::ofstream(list_ + ".new") << text;
    std::filesystem::rename(list_ + ".new", list_);
  }

  curve::KeyPair server_ = *curve::KeyPair::make(), a_ = *curve::KeyPair::make(), b_ = *curve::KeyPair::make();
  std::string folder_, list_;
  ServeSettings settings_;
};

class Taken {
 public:
  void hear(bool taken) {
    const std::lock_guard lock(mutex_);
    taken ? ++taken_ : ++refused_;
    changed_.notify_all();
  }
  bool wait_for(int taken, int refused) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return taken_ >= taken && refused_ >= refused; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int taken_ = 0, refused_ = 0;
};

TEST_F(DoorKeysTest, keys_come_back_from_sealed_memory_as_often_as_cores_start) {
  auto keys = make_door_keys(settings_);
  ASSERT_TRUE(keys) << keys.error().message;
  auto sealed = seal(*keys);
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_LT(::write(sealed->get(), "x", 1), 0) << "nobody can change it";
  for (int core = 0; core < 2; ++core) {
    auto again = unseal(*sealed);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->server->public_key(), server_.public_key);
    EXPECT_EQ(again->inside->public_key, keys->inside->public_key);
    EXPECT_EQ(again->inside_entry().role, curve::Role::gateway);
    EXPECT_EQ((*again->client_keys())->server, server_.public_key);
  }
  auto for_client = seal_for_client(*keys);
  ASSERT_TRUE(for_client);
  auto client = unseal_client_keys(*for_client);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ((*client)->server, server_.public_key);
  EXPECT_EQ((*client)->own.public_key, keys->inside->public_key);
  EXPECT_FALSE(unseal_client_keys(Descriptor()));
  EXPECT_NE(make_door_keys(settings_)->inside->public_key, keys->inside->public_key) << "drawn anew by each server";
}

TEST_F(DoorKeysTest, settings_that_would_open_the_door_are_refused) {
  EXPECT_TRUE(check(settings_)) << check(settings_).error().message;
  const auto field = [](const ServeSettings& settings) { return check(settings) ? "" : check(settings).error().field; };
  ServeSettings wrong = settings_;
  wrong.curve_allow.clear();
  EXPECT_EQ(field(wrong), "curve-allow");
  wrong = settings_;
  wrong.curve_key.clear();
  EXPECT_EQ(field(wrong), "curve-key");
  wrong.curve_allow.clear();
  wrong.bind = "tcp://0.0.0.0:0";
  EXPECT_EQ(field(wrong), "bind");
  EXPECT_TRUE(serving_addresses("tcp://0.0.0.0:0", "", true));
  EXPECT_FALSE(serving_addresses("tcp://0.0.0.0:0", "0.0.0.0:0", true)) << "the pages have no keys";
  wrong = settings_;
  wrong.bind = "tcp://0.0.0.0:0";
  EXPECT_TRUE(check(wrong));
  wrong = settings_;
  wrong.curve_key = server_.secret.text();
  EXPECT_EQ(check(wrong).error().message.find(server_.secret.text()), std::string::npos);
  write_list({{curve::Role::client, "a", server_.public_key, ""}});
  EXPECT_EQ(field(settings_), "curve-allow") << "a server's own key in its list";
  put("junk\n");
  EXPECT_EQ(field(settings_), "curve-allow");
  ::chmod(settings_.curve_key.c_str(), 0644);
  EXPECT_EQ(field(settings_), "curve-key");
  wrong = settings_;
  wrong.child = "core";
  EXPECT_TRUE(check(wrong)) << "a core has its keys from the supervisor";
}

TEST_F(DoorKeysTest, a_list_that_changes_counts_and_one_that_is_wrong_does_not) {
  auto ring = std::make_shared<curve::KeyRing>(*read_allow_list(list_), curve::AllowList{});
  Taken taken;
  AllowListWatch watch(list_, ring, [&](bool ok) { taken.hear(ok); });
  ASSERT_TRUE(taken.wait_for(1, 0)) << "read once more at the start, so that no change is missed";
  write_list({{curve::Role::client, "a", a_.public_key, "acme"}, {curve::Role::gateway, "b", b_.public_key, ""}});
  ASSERT_TRUE(taken.wait_for(2, 0));
  EXPECT_TRUE(ring->find(b_.public_key.text));
  put("junk\n");
  ASSERT_TRUE(taken.wait_for(2, 1));
  EXPECT_TRUE(ring->find(a_.public_key.text)) << "the list before goes on to count";
  std::filesystem::remove(list_);
  ASSERT_TRUE(taken.wait_for(2, 2));
  EXPECT_TRUE(ring->find(a_.public_key.text));
  EXPECT_EQ(ring->revocations(), 0u);
  write_list({{curve::Role::gateway, "b", b_.public_key, ""}});
  ASSERT_TRUE(taken.wait_for(3, 2));
  EXPECT_FALSE(ring->find(a_.public_key.text));
  EXPECT_EQ(ring->revocations(), 1u);
  watch.reload();
  EXPECT_TRUE(taken.wait_for(4, 2)) << "when it is asked to, changed or not";
}

}  // namespace
}  // namespace althing::actors::tests
