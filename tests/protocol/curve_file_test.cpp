// Key files on disk: what is written, and what is never read because somebody else could have written or read it.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "protocol/curve/key_file.hpp"

#include <gtest/gtest.h>

namespace althing::protocol::curve {
namespace {

class KeyFileTest : public testing::Test {
 protected:
  KeyFileTest() {
    char name[] = "/tmp/althing-keys-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    EXPECT_TRUE(write_key_pair(path("me"), pair_, Role::client, "me"));
  }
  ~KeyFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string put(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(path(name)) << text;
    ::chmod(path(name).c_str(), mode);
    return path(name);
  }
  static std::string text_of(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static mode_t mode_of(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 07777u;
  }
  // Refused, and the error says neither the secret nor nothing.
  void expect_refused(const std::string& file, const std::string& words) const {
    auto read = read_secret_key(file);
    ASSERT_FALSE(read) << file;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
    EXPECT_EQ(read.error().message.find(pair_.secret.text()), std::string::npos);
  }

  KeyPair pair_ = *KeyPair::make();
  std::string folder_;
};

TEST_F(KeyFileTest, a_pair_is_written_once_and_read_back) {
  EXPECT_EQ(mode_of(path("me.key")), 0600u);
  EXPECT_EQ(mode_of(path("me.pub")), 0644u);
  EXPECT_EQ(text_of(path("me.pub")).find(pair_.secret.text()), std::string::npos);
  EXPECT_EQ(read_secret_key(path("me.key"))->public_key(), pair_.public_key);
  EXPECT_EQ(*read_public_key(path("me.pub")), (KeyEntry{Role::client, "me", pair_.public_key, ""}));
  EXPECT_EQ(*public_key_from(path("me.pub")), pair_.public_key);
  EXPECT_EQ(*public_key_from(pair_.public_key.text), pair_.public_key);
  auto over = write_key_pair(path("me"), pair_, Role::client, "me");
  ASSERT_FALSE(over);
  EXPECT_NE(over.error().message.find("never written over"), std::string::npos);
  put("half.pub", "x", 0644);
  EXPECT_FALSE(write_key_pair(path("half"), pair_, Role::client, "half"));
  EXPECT_FALSE(std::filesystem::exists(path("half.key"))) << "no secret without its public half";
  EXPECT_FALSE(write_key_pair(path("b,d"), pair_, Role::client, "b,d"));
}

TEST_F(KeyFileTest, a_secret_that_others_could_read_or_change_is_refused) {
  for (const mode_t mode : {0640u, 0604u, 0660u, 0601u, 0610u, 0644u, 0666u}) {
    ::chmod(path("me.key").c_str(), mode);
    expect_refused(path("me.key"), "chmod 600");
  }
  ::chmod(path("me.key").c_str(), 0400);
  EXPECT_TRUE(read_secret_key(path("me.key")));
}

TEST_F(KeyFileTest, a_secret_of_somebody_else_is_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(path("me.key").c_str(), 12345, 12345), 0);
  expect_refused(path("me.key"), "belongs to user 12345");
  ASSERT_EQ(::chown(path("me.pub").c_str(), 12345, 12345), 0);
  EXPECT_FALSE(read_public_key(path("me.pub")));
}

TEST_F(KeyFileTest, what_is_no_regular_file_is_refused_and_waited_for_by_nobody) {
  ASSERT_EQ(::symlink(path("me.key").c_str(), path("link.key").c_str()), 0);
  expect_refused(path("link.key"), "symbolic link");
  ASSERT_EQ(::mkfifo(path("pipe.key").c_str(), 0600), 0);
  expect_refused(path("pipe.key"), "not a regular file");
  expect_refused(folder_, "not a regular file");
  expect_refused(path("none.key"), "does not exist");
  expect_refused("/dev/zero", "");
}

TEST_F(KeyFileTest, truncated_files_and_junk_are_no_keys) {
  const std::string whole = text_of(path("me.key"));
  const std::string secret = pair_.secret.text();
  for (std::size_t length = 0; length + 1 < whole.size(); length += 7) expect_refused(put("cut.key", whole.substr(0, length), 0600), "is none");
  for (const std::string& junk :
       {secret + "\n", "secret " + secret + "x\n", "secret " + secret + "\nsecret " + secret + "\n", "secret  " + secret, std::string(1000, 's'),
        std::string(1000, '#'), std::string("\0\0\0", 3), "public " + secret, std::string("\xff\xfe\n#\n")})
    expect_refused(put("junk.key", junk, 0600), "is none");
  EXPECT_TRUE(read_secret_key(put("bare.key", "secret " + secret, 0600))) << "an editor that drops the last line's end does no harm";
  expect_refused(put("example.key", "secret JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n", 0600), "example");
  EXPECT_FALSE(read_public_key(put("example.pub", "client x rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n", 0644)));
}

TEST_F(KeyFileTest, a_secret_in_the_wrong_place_is_not_repeated) {
  const std::string secret = pair_.secret.text();
  for (const Error& error :
       {read_secret_key(secret).error(), read_public_key(path("me.key")).error(), read_public_key(secret).error(), read_allow_list(secret).error()})
    EXPECT_EQ(error.message.find(secret), std::string::npos) << error.message;
  EXPECT_NE(read_public_key(path("me.key")).error().message.find("secret"), std::string::npos);
}

TEST_F(KeyFileTest, a_list_that_others_may_write_is_refused) {
  const std::string list = put("list", to_line({Role::client, "me", pair_.public_key, ""}) + "\n", 0644);
  EXPECT_TRUE(read_allow_list(list));
  for (const mode_t mode : {0664u, 0646u, 0666u}) {
    ::chmod(list.c_str(), mode);
    EXPECT_FALSE(read_allow_list(list)) << mode;
  }
  ::chmod(list.c_str(), 0640);
  ASSERT_EQ(::symlink(list.c_str(), path("other").c_str()), 0);
  EXPECT_FALSE(read_allow_list(path("other")));
  EXPECT_EQ(read_allow_list(path("none")).error().code, ErrorCode::not_found);
}

TEST_F(KeyFileTest, editing_replaces_the_whole_list_and_takes_turns) {
  const std::string list = path("list");
  EXPECT_FALSE(edit_allow_list(list, false, [](std::string_view text) { return Result<std::string>(std::string(text)); })) << "not made unless asked";
  std::vector<std::thread> editors;
  for (int i = 0; i < 8; ++i)
    editors.emplace_back([&, i] {
      const KeyEntry entry{Role::client, "n" + std::to_string(i), KeyPair::make()->public_key, ""};
      EXPECT_TRUE(edit_allow_list(list, true, [&](std::string_view text) { return with_key(text, entry); }));
    });
  for (std::thread& editor : editors) editor.join();
  EXPECT_EQ(mode_of(list), 0600u);
  auto read = allow_list_of(*read_allow_list(list));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->size(), editors.size()) << "no edit was lost";
  ::chmod(list.c_str(), 0644);
  const std::string before = text_of(list);
  EXPECT_FALSE(edit_allow_list(list, false, [](std::string_view text) { return without_key(text, "nobody"); }));
  EXPECT_EQ(text_of(list), before);
  EXPECT_TRUE(edit_allow_list(list, false, [](std::string_view text) { return without_key(text, "n3"); }));
  EXPECT_EQ(mode_of(list), 0644u) << "who may read it stays";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 3) << "nothing is left beside it";
}

}  // namespace
}  // namespace althing::protocol::curve
