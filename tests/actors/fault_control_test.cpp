// Orders for faults: their text form, what is refused, and the socket they come through.
#include "actors/fault_control.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace althing::actors::tests {
namespace {

Result<FaultOrder> order(const std::vector<std::string>& words) { return fault_order_of(words); }

TEST(FaultOrder, survives_its_text_form) {
  const auto given = order({"kill", "rank=3", "after=17", "collective=2"});
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->kind, FaultKind::kill);
  EXPECT_EQ(given->rank, 3U);
  EXPECT_EQ(given->after, 17U);
  std::vector<std::string> words;
  std::istringstream text(to_text(*given));
  for (std::string word; text >> word;) words.push_back(word);
  EXPECT_EQ(*order(words), *given);
}

TEST(FaultOrder, refuses_what_cannot_happen_and_says_why) {
  for (const auto& [words, part] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{}, "no fault is named"},
                                                                     {{"explode"}, "no fault 'explode'; use kill"},
                                                                     {{"kill", "rank=-1"}, "'rank=-1'"},
                                                                     {{"kill", "rank=99999999999"}, "99999999999"},
                                                                     {{"kill", "rank"}, "'rank'"},
                                                                     {{"slow", "rank=0", "ms=600001"}, "600001"},
                                                                     {{"slow", "rank=0", "steps=0"}, "0 steps"},
                                                                     {{"nan", "core"}, "--rank"},
                                                                     {{"slow", "rank=0", "collective=1"}, "--collective"},
                                                                     {{"kill", "core", "collective=1"}, "--collective"}}) {
    const auto refused = order(words);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

class FaultControlTest : public testing::Test {
 protected:
  FaultControlTest() {
    auto control = FaultControl::listen("");
    EXPECT_TRUE(control.ok());
    control_.emplace(std::move(*control));
    char name[] = "/tmp/althing-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~FaultControlTest() override { std::filesystem::remove_all(folder_); }
  // Asks from another thread while this one serves.
  Result<std::string> ask(const FaultOrder& wanted, const FaultControl::Handler& handler, const std::function<void()>& after = {}) {
    std::atomic<bool> answered{false};
    std::optional<Result<std::string>> answer;
    std::jthread client([&] {
      answer = order_fault(control_->path(), wanted);
      answered = true;
    });
    while (!answered) {
      control_->serve(handler);
      if (after) after();
    }
    client.join();
    return *answer;
  }

  std::optional<FaultControl> control_;
  std::string folder_;
};

TEST_F(FaultControlTest, a_socket_with_a_path_is_for_its_user_only_and_goes_with_it) {
  struct stat status {};
  const std::string path = folder_ + "/control";
  control_.emplace(std::move(*FaultControl::listen(path)));
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_FALSE(FaultControl::listen(path).ok()) << "a path that is taken";
  control_.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(order_fault(path, {}).error().code, ErrorCode::not_found);
  EXPECT_EQ(FaultControl::listen(std::string(200, 'x')).error().code, ErrorCode::invalid_argument);
}

// The whole names of all sockets of this machine that are in no folder.
std::set<std::string> abstract_sockets() {
  std::set<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);)
    if (const auto at = line.find('@'); at != std::string::npos) names.insert(line.substr(at));
  return names;
}

TEST_F(FaultControlTest, a_socket_without_a_path_leaves_nothing_behind_even_when_its_server_is_killed) {
  EXPECT_EQ(control_->path().size(), std::string("@althing-").size() + 32);
  EXPECT_TRUE(abstract_sockets().contains(control_->path()));
  EXPECT_FALSE(FaultControl::listen(control_->path()).ok()) << "a name that is taken";
  int names[2];
  ASSERT_EQ(::pipe(names), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    const auto control = FaultControl::listen("");
    const std::string name = control ? control->path() : "";
    if (::write(names[1], name.data(), name.size()) < 0) ::_exit(1);
    while (true) ::pause();
  }
  char text[128] = "";
  ASSERT_GT(::read(names[0], text, sizeof text - 1), 0);
  const std::string killed = text;
  EXPECT_NE(killed, control_->path());
  EXPECT_TRUE(abstract_sockets().contains(killed));
  ::kill(server, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(server, &status, 0), server);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(abstract_sockets().contains(killed));
  EXPECT_EQ(order_fault(killed, {}).error().code, ErrorCode::not_found);
  EXPECT_TRUE(FaultControl::listen(killed).ok()) << "the name is free again";
  // The control: the one that lives.
  EXPECT_TRUE(abstract_sockets().contains(control_->path()));
  EXPECT_TRUE(ask({}, [](const FaultOrder&, std::uint64_t) { return "ok it is there"; }).ok());
  ::close(names[0]);
  ::close(names[1]);
}

TEST_F(FaultControlTest, a_killed_servers_socket_is_taken_over_and_nothing_else) {
  control_.emplace(std::move(*FaultControl::listen(folder_ + "/control")));
  const std::string left = folder_ + "/left", file = folder_ + "/file";
  // Bound and never unlinked, as by a process that was killed.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(left.begin(), left.end(), address.sun_path);
  {
    const Descriptor dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_TRUE(FaultControl::listen(left).ok());
  EXPECT_FALSE(FaultControl::listen(control_->path()).ok()) << "somebody listens there";
  std::ofstream(file) << "precious";
  EXPECT_FALSE(FaultControl::listen(file).ok());
  EXPECT_TRUE(std::filesystem::remove(file)) << "a file was taken for a socket";
}

TEST_F(FaultControlTest, answers_at_once_or_later) {
  const FaultOrder wanted{FaultKind::drop, false, 1, 4, 0, 50, 1};
  std::optional<FaultOrder> heard;
  const auto at_once = ask(wanted, [&](const FaultOrder& fault, std::uint64_t) -> std::optional<std::string> {
    heard = fault;
    return "ok it is done";
  });
  ASSERT_TRUE(at_once.ok());
  EXPECT_EQ(*at_once, "it is done");
  EXPECT_EQ(heard, wanted);
  std::optional<std::uint64_t> later;
  const auto refused = ask(
      wanted,
      [&](const FaultOrder&, std::uint64_t id) -> std::optional<std::string> {
        later = id;
        return std::nullopt;
      },
      [&] {
        if (later) control_->answer(*later, "refused no such luck");
      });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "no such luck");
}

}  // namespace
}  // namespace althing::actors::tests
