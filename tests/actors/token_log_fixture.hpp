// What tests of the token log share: a log, its bytes as a core that was killed would leave them, and the next core's look at them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "actors/token_log.hpp"

namespace althing::actors::tests {

using Bytes = std::vector<std::byte>;

inline LoggedSubmit logged_submit(const std::string& request_id = "r", std::uint32_t completion_tokens_max = 100) {
  LoggedSubmit submit;
  submit.client_id = "a client nobody can guess";
  submit.request_id = request_id;
  submit.prompt = {1, 2, 3, 200'000};
  submit.boundaries = {1, 3};
  submit.sampling = {0.7F, 0.9F, 40, 0.1F, 0xFEDC'BA98'7654'3210, 2, completion_tokens_max, {7, 8}, true};
  submit.sampling.repetition_penalty = 1.1F;
  submit.sampling.presence_penalty = -0.5F;
  submit.sampling.frequency_penalty = 2.0F;
  submit.sampling.logit_bias = {{3, -100.0F}, {9, 0.1F}};
  submit.stop = {"\n\n", "B\u00FCcher"};
  submit.return_tokens = true;
  submit.credit = 5;
  submit.deadline_ns = 1'234'567'890'123;
  submit.trace_top_m = 3;
  submit.traced_cuts_max = 4;
  submit.tenant = "somebody";
  submit.priority = -4;
  submit.owner = std::string(40, 'k');
  submit.grammar = {protocol::wire::GrammarKind::regex, "[a-z]+"};
  submit.has_tools = true;
  return submit;
}

class TokenLogFixture {
 public:
  explicit TokenLogFixture(std::size_t bytes = std::size_t{256} << 10) : file_(*TokenLog::create(bytes, "first")) {
    log = TokenLog::take_over(file_, "other")->log;
  }

  StreamLog open(const LoggedSubmit& submit) {
    auto stream = log->open(submit, submit.sampling.completion_tokens_max);
    EXPECT_TRUE(stream.ok()) << (stream.ok() ? "" : stream.error().message);
    return stream.ok() ? std::move(*stream) : StreamLog();
  }
  // As they are in this moment: what SIGKILL would leave.
  Bytes image() const { return {log->bytes().begin(), log->bytes().end()}; }

  // A core is started over these bytes.
  static TokenLog::TakenOver next_core(const Bytes& image) {
    Descriptor file(::memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(::write(file.get(), image.data(), image.size()), static_cast<ssize_t>(image.size()));
    auto taken = TokenLog::take_over(file, "fresh");
    EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().message);
    return std::move(*taken);
  }

  std::shared_ptr<TokenLog> log;

 private:
  Descriptor file_;
};

}  // namespace althing::actors::tests
