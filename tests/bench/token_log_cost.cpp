// What the token log costs while nothing fails: nanoseconds a token, as a frontend writes it (one commit a token, one cut for each delta of 1 or of
// 32 tokens), for one stream and for 64 in turns; then what a restart reads: a log with many streams of many tokens.
//
//   token_log_cost [TOKENS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "actors/token_log.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using namespace althing::actors;
using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point then) { return std::chrono::duration<double, std::nano>(Clock::now() - then).count(); }

LoggedSubmit submit(std::uint32_t completion_tokens_max) {
  LoggedSubmit logged;
  logged.client_id = "bench";
  logged.request_id = "r";
  logged.prompt.assign(512, 1);
  logged.sampling.completion_tokens_max = completion_tokens_max;
  return logged;
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "token_log_cost [TOKENS]\n"
                             "Nanoseconds a token that the token log costs, and what a restart reads."))
    return 0;
  const auto tokens = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 20'000);
  const Descriptor file = *TokenLog::create(std::size_t{256} << 20, "bench");
  auto log = TokenLog::take_over(file, "other")->log;
  for (const std::size_t streams : {std::size_t{1}, std::size_t{64}})
    for (const std::uint32_t every : {1u, 32u}) {
      std::vector<StreamLog> open;
      for (std::size_t i = 0; i < streams; ++i) open.push_back(*log->open(submit(tokens), tokens));
      const auto began = Clock::now();
      for (TokenId token = 0; token < tokens; ++token)
        for (StreamLog& stream : open) {
          stream.tokens(std::span(&token, 1));
          if (token % every == every - 1) stream.cut();
        }
      std::printf("%2zu streams, a cut every %2u tokens: %.1f ns a token\n", streams, every,
                  nanoseconds_since(began) / tokens / static_cast<double>(streams));
    }
  std::vector<StreamLog> open;
  for (int i = 0; i < 64; ++i) {
    open.push_back(*log->open(submit(2000), 2000));
    open.back().accepted();
    for (TokenId token = 0; token < 2000; ++token) open.back().tokens(std::span(&token, 1));
  }
  const auto began = Clock::now();
  const auto contents = token_log::read(log->bytes());
  std::printf("reading %zu streams of 512 + 2000 tokens: %.2f ms\n", contents.requests.size(), nanoseconds_since(began) / 1e6);
  return contents.requests.size() == 64 ? 0 : 1;
}
