// The file of API keys: what of it is read, what is refused with which words, who is found, how quotas fill, and where one may listen without keys.
#include "actors/api_keys.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "actors/http_address.hpp"
#include "actors/key_desk.hpp"
#include "actors/key_quota.hpp"
#include "actors/settings.hpp"

namespace althing::actors {
namespace {

// printf %s secret | sha256sum, and of other.
const std::string secret_hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const std::string other_hash = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

class KeyFile {
 public:
  explicit KeyFile(const std::string& text, mode_t mode = 0600)
      : path_(std::filesystem::temp_directory_path() / ("althing-keys-" + std::to_string(::getpid()))) {
    write(text, mode);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  void write(const std::string& text, mode_t mode = 0600) {
    const auto aside = path_.string() + ".new";
    std::ofstream(aside) << text;
    ::chmod(aside.c_str(), mode);
    std::filesystem::rename(aside, path_);
  }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ApiKeys, lines_are_keys_and_comments) {
  const auto keys = ApiKeys::parse("# who\n\nalice " + secret_hash + " tenant=acme requests_per_minute=60 tokens_per_minute=1000 # note\n  bob\t" +
                                   other_hash + "\r\n");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  EXPECT_EQ(keys->size(), 2U);
  const ApiKey* alice = keys->find("secret");
  ASSERT_NE(alice, nullptr);
  EXPECT_EQ(alice->name, "alice");
  EXPECT_EQ(alice->tenant, "acme");
  EXPECT_EQ(alice->requests_per_minute, 60U);
  EXPECT_EQ(alice->tokens_per_minute, 1000U);
  const ApiKey* bob = keys->find("other");
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(bob->tenant, "bob");
  EXPECT_EQ(bob->requests_per_minute, 0U);
  for (const char* wrong : {"", "Secret", "secret ", "nobody"}) EXPECT_EQ(keys->find(wrong), nullptr) << wrong;
}

TEST(ApiKeys, lines_that_cannot_be_read_are_named) {
  for (const std::string& line :
       {std::string("alice"), "alice " + secret_hash.substr(1), "alice " + secret_hash + "0", "alice z" + secret_hash.substr(1),
        "al/ice " + secret_hash, "alice " + secret_hash + " tenant=", "alice " + secret_hash + " tenant=a/b",
        "alice " + secret_hash + " requests_per_minute=0", "alice " + secret_hash + " requests_per_minute=-1",
        "alice " + secret_hash + " tokens_per_minute=9999999999", "alice " + secret_hash + " colour=red", "bob " + other_hash, "alice " + secret_hash,
        "alice " + other_hash + " tenant=a tenant=b"}) {
    const auto keys = ApiKeys::parse("bob " + secret_hash + "\n" + line);
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_EQ(keys.error().field, "api-keys");
    EXPECT_NE(keys.error().message.find("line 2"), std::string::npos) << keys.error().message;
    EXPECT_EQ(keys.error().message.find(secret_hash), std::string::npos) << "hashes stay out of logs";
  }
  EXPECT_FALSE(ApiKeys::parse("# nobody\n").ok());
}

TEST(ApiKeys, a_file_that_others_may_read_is_refused) {
  const std::string line = "alice " + secret_hash + "\n";
  EXPECT_EQ(ApiKeys::read("/nonexistent/keys").error().code, ErrorCode::not_found);
  EXPECT_FALSE(ApiKeys::read("/dev/null").ok());
  KeyFile file(line);
  EXPECT_TRUE(ApiKeys::read(file.path()).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    file.write(line, mode);
    const auto keys = ApiKeys::read(file.path());
    ASSERT_FALSE(keys.ok()) << mode;
    EXPECT_NE(keys.error().message.find("chmod 600"), std::string::npos);
  }
  file.write(line);
  const std::string link = file.path() + ".link";
  std::filesystem::create_symlink(file.path(), link);
  EXPECT_FALSE(ApiKeys::read(link).ok());
  std::filesystem::remove(link);
}

TEST(ApiKeys, bearers_are_read_in_any_case_and_nothing_else_is) {
  EXPECT_EQ(bearer_of("Bearer secret"), "secret");
  EXPECT_EQ(bearer_of("bearer  secret "), "secret");
  for (const char* other : {"", "Bearer", "Bearer ", "Basic c2VjcmV0", "secret", "Bearersecret"}) EXPECT_EQ(bearer_of(other), "") << other;
}

TEST(KeyQuota, requests_fill_by_the_minute_and_waiting_is_told) {
  KeyQuota quota({2, 0}, 100);
  EXPECT_EQ(quota.take(100), 0U);
  EXPECT_EQ(quota.take(100), 0U);
  EXPECT_EQ(quota.take(100), 30U);
  EXPECT_EQ(quota.take(129.5), 1U);
  EXPECT_EQ(quota.take(130), 0U);
  EXPECT_EQ(quota.take(10'000), 0U);
  EXPECT_EQ(quota.take(10'000), 0U);
  EXPECT_EQ(quota.take(10'000), 30U) << "no more than a minute's worth is saved";
  EXPECT_EQ(quota.take(0), 30U) << "a clock that goes back takes nothing away";
}

TEST(KeyQuota, tokens_are_paid_afterwards_and_debts_are_waited_for) {
  KeyQuota quota({0, 60}, 0);
  EXPECT_EQ(quota.take(0), 0U);
  quota.used(120, 0);
  EXPECT_EQ(quota.take(0), 61U);
  EXPECT_EQ(quota.take(60.5), 1U);
  EXPECT_EQ(quota.take(61), 0U);
  KeyQuota free({0, 0}, 0);
  free.used(1'000'000, 0);
  EXPECT_EQ(free.take(0), 0U);
}

TEST(KeyDesk, keys_change_with_the_file_and_stay_when_it_is_broken) {
  KeyFile file("alice " + secret_hash + " tenant=acme requests_per_minute=1\n");
  auto opened = KeyDesk::open(file.path());
  ASSERT_TRUE(opened.ok());
  KeyDesk desk = std::move(*opened);
  const auto admits = [&](const std::string& secret) {
    protocol::http::Request head;
    head.authorization = "Bearer " + secret;
    return desk.admit(head);
  };
  const auto alice = admits("secret");
  ASSERT_TRUE(std::holds_alternative<protocol::openai::Caller>(alice));
  EXPECT_EQ(std::get<0>(alice).tenant, "acme");
  EXPECT_FALSE(desk.charge(std::get<0>(alice)));
  const auto wait = desk.charge(std::get<0>(alice));
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->status, 429);
  EXPECT_GT(wait->retry_after_seconds, 0U);
  // Missing and wrong get the same answer.
  const auto wrong = admits("other"), none = desk.admit({});
  ASSERT_TRUE(std::holds_alternative<protocol::http::ErrorReply>(wrong) && std::holds_alternative<protocol::http::ErrorReply>(none));
  EXPECT_EQ(std::get<1>(wrong).message, std::get<1>(none).message);
  EXPECT_EQ(std::get<1>(wrong).status, 401);
  file.write("bob " + other_hash + "\n");
  desk.reload(false);
  EXPECT_EQ(admits("secret").index(), 1U);
  EXPECT_EQ(admits("other").index(), 0U);
  file.write("broken\n");
  desk.reload(false);
  EXPECT_EQ(admits("other").index(), 0U) << "a file that cannot be read changes nothing";
  file.write("alice " + secret_hash + "\n", 0644);
  desk.reload(false);
  EXPECT_EQ(admits("secret").index(), 1U) << "others could have written it";
  ASSERT_EQ(::chmod(file.path().c_str(), 0600), 0);
  desk.reload(false);
  EXPECT_EQ(admits("secret").index(), 0U) << "what the error asked for was done, and nothing else of the file changed";
}

TEST(HttpAddress, other_machines_are_served_only_with_keys) {
  for (const char* text : {"127.0.0.1:0", "127.1.2.3:80", "localhost:8080", "[::1]:8080"}) {
    const auto address = http_address(text, false, "http");
    ASSERT_TRUE(address.ok()) << text << address.error().message;
    EXPECT_TRUE(address->loopback);
  }
  EXPECT_EQ(http_address("[::1]:8080", false, "http")->host, "::1");
  for (const char* text : {"0.0.0.0:80", "192.168.1.1:80", "[::]:80"}) {
    const auto refused = http_address(text, false, "http");
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message.find("--api-keys"), std::string::npos);
    EXPECT_FALSE(http_address(text, true, "http")->loopback) << text;
  }
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "host.example:80", ":80", "127.0.0.1:80 "})
    EXPECT_EQ(http_address(text, true, "http").error().field, "http") << text;
}

TEST(HttpSettings, contradictions_are_refused_by_flag) {
  const auto field = [](auto change) {
    ServeSettings s;
    s.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
    change(s);
    const auto status = check(s);
    return status ? std::string() : status.error().field;
  };
  EXPECT_EQ(field([](ServeSettings&) {}), "");
  EXPECT_EQ(field([](ServeSettings& s) { s.http = "127.0.0.1:0"; }), "");
  EXPECT_EQ(field([](ServeSettings& s) { s.http = "0.0.0.0:0"; }), "http");
  EXPECT_EQ(field([](ServeSettings& s) { s.http = "0.0.0.0:0", s.api_keys = "f"; }), "");
  EXPECT_EQ(field([](ServeSettings& s) { s.api_keys = "f"; }), "api-keys");
  EXPECT_EQ(field([](ServeSettings& s) { s.http_metrics = "127.0.0.1:0"; }), "http-metrics");
  EXPECT_EQ(field([](ServeSettings& s) { s.http = "127.0.0.1:0", s.http_metrics = "0.0.0.0:0"; }), "http-metrics");
  EXPECT_EQ(field([](ServeSettings& s) { s.http = "127.0.0.1:0", s.in_process = true; }), "http");
}

}  // namespace
}  // namespace althing::actors
