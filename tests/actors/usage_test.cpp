// From what a request has used to money and lines: prices by hand, cost files that are refused by line and key, a usage log whose disk is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "actors/cost_file.hpp"
#include "actors/usage_log.hpp"
#include "actors/usage_record.hpp"
#include "tests/support/checkpoint_writer.hpp"

namespace althing::actors {
namespace {

using althing::tests::TemporaryFolder;
using testing::HasSubstr;

// An hour of one rank is 3 dollars unless somebody says otherwise.
TEST(Prices, of_device_time_by_default) {
  scheduler::UsageTally tally;
  tally.device_ns = 1'200'000'000;  // 1.2 s
  tally.prompt_tokens = 1000;
  tally.completion_tokens = 1000;
  tally.kv_byte_seconds = 1e15;
  EXPECT_DOUBLE_EQ(price_of(tally, Prices{}), 0.001);
}

TEST(Prices, every_price_of_a_file_counts) {
  const auto prices = parse_prices("f",
                                   "# ours\n"
                                   "gpu_hour_usd = 0\n"
                                   "\n"
                                   "  per_million_prompt_tokens_usd=2.5   # dollars\r\n"
                                   "per_million_completion_tokens_usd = 1e1\n"
                                   "kv_gib_hour_usd = 0.5");
  ASSERT_TRUE(prices.ok()) << prices.error().message;
  scheduler::UsageTally tally;
  tally.device_ns = 3600ull * 1'000'000'000;
  tally.prompt_tokens = 1'000'000;
  tally.completion_tokens = 2'000'000;
  tally.kv_byte_seconds = 4.0 * (1u << 30) * 3600;
  EXPECT_DOUBLE_EQ(price_of(tally, *prices), 2.5 + 2 * 10 + 4 * 0.5);
}

TEST(Prices, a_file_that_is_not_understood_is_refused_by_line_and_key) {
  const auto refused = [](const std::string& text, const std::string& line, const std::string& why) {
    const auto prices = parse_prices("cost.toml", text);
    ASSERT_FALSE(prices.ok()) << text;
    EXPECT_EQ(prices.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(prices.error().field, "cost-file");
    EXPECT_THAT(prices.error().message, HasSubstr("cost.toml, line " + line + ": "));
    EXPECT_THAT(prices.error().message, HasSubstr(why));
  };
  refused("gpu_hour_usd = 1\n\ngpu_hours_usd = 2\n", "3", "there is no price 'gpu_hours_usd'; there are gpu_hour_usd, ");
  refused("gpu_hour_usd 1", "1", "'gpu_hour_usd 1' is no price");
  refused("[prices]\ngpu_hour_usd = 1", "1", "'[prices]' is no price");
  refused("kv_gib_hour_usd = 1\nkv_gib_hour_usd = 1", "2", "kv_gib_hour_usd is given already in line 1");
  for (const char* number : {"", "-1", "nan", "inf", "1e7", "\"3\"", "3 usd", "1_000", "0x10"})
    refused("\ngpu_hour_usd = " + std::string(number), "2", "gpu_hour_usd is '");
  refused("\x1b[31m = 1", "1", "'?[31m'");
  EXPECT_EQ(read_prices("/nowhere/cost.toml").error().code, ErrorCode::not_found);
  EXPECT_DOUBLE_EQ(read_prices("").value().gpu_hour_usd, 3.0);
}

TEST(UsageRecord, is_one_line_of_json_whatever_the_client_calls_its_request) {
  UsageRecord record;
  record.label = label_of("a\"\nb", "");
  record.tally.choices = 2;
  record.tally.device_ns = 1'234'567;
  record.tally.kv_byte_seconds = 1.5;
  record.tally.reason = FinishReason::cancelled;
  record.tally.code = ErrorCode::deadline;
  record.expert_tokens = 96;
  record.seconds = 0.25;
  const std::string line = to_json(record, 0.0000014, 1700000000.125);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(
      line,
      R"({"ended":1700000000.125,"request_id":"a\"\u000ab","tenant":"default","reason":"cancelled","error":"deadline","choices":2,"prompt_tokens":0,)"
      R"("completion_tokens":0,"computed_tokens":0,"recomputed_tokens":0,"restored_tokens":0,"cached_tokens":0,"expert_tokens":96,"recomputed_expert_tokens":0,)"
      R"("preemptions":0,"device_ms":1.234567,"kv_byte_seconds":1.500,"seconds":0.250000,"price_usd":0.000001})");
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A limit on the size of files is the nearest thing to a full disk that needs no disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(UsageLog, appends_lines_for_its_owner_only) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "usage.jsonl";
  for (const char* line : {"one", "two"}) {
    const auto log = UsageLog::open(path);
    ASSERT_TRUE(log.ok()) << log.error().message;
    EXPECT_TRUE((*log)->append(line));
  }
  EXPECT_EQ(text_of(path), "one\ntwo\n");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(UsageLog, a_full_disk_costs_lines_and_leaves_no_half_ones) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "usage.jsonl";
  const auto log = UsageLog::open(path).value();
  EXPECT_TRUE(log->append("first"));
  {
    const FileSizeLimit full(8);
    EXPECT_FALSE(log->append("second"));  // two bytes of it fit
    EXPECT_EQ(text_of(path), "first\n");
    EXPECT_TRUE(log->append("x"));
    EXPECT_FALSE(log->append("third"));
  }
  EXPECT_TRUE(log->append("fourth"));
  EXPECT_EQ(text_of(path), "first\nx\nfourth\n");
}

TEST(UsageLog, is_a_regular_file_that_can_be_written) {
  const TemporaryFolder folder;
  EXPECT_EQ(UsageLog::open("/dev/null").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(UsageLog::open(folder.path()).error().code, ErrorCode::io);
  EXPECT_EQ(UsageLog::open(folder.path() / "none/usage").error().field, "usage-log");
  const auto link = folder.path() / "link";
  std::filesystem::create_symlink(folder.path() / "elsewhere", link);
  EXPECT_EQ(UsageLog::open(link).error().code, ErrorCode::io);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "elsewhere"));
}

}  // namespace
}  // namespace althing::actors
