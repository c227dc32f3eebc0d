// `althing verify`: a good folder passes, and each kind of damage is one line that says what is wrong.
#include "gpu/weights/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/checkpoint_writer.hpp"

namespace althing::gpu {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using tests::NamedTensor;
using tests::TemporaryFolder;

const fs::path tiny = fs::path(ALTHING_SOURCE_DIR) / "examples/models/tiny";
const fs::path reference = fs::path(ALTHING_SOURCE_DIR) / "tests/data/references/gpt_oss_a/mxfp4";

TEST(Verify, a_good_model_has_no_problems_and_is_read_to_the_last_byte) {
  std::uint64_t last = 0, total = 0;
  const VerifyReport report = verify_model(tiny, [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  EXPECT_THAT(report.problems, testing::IsEmpty());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.files, 1u);
  EXPECT_EQ(report.tensors, 19u * 6 + 3);
  EXPECT_EQ(last, report.bytes);
  EXPECT_EQ(total, report.bytes);
  // 6 layers of 16 experts, hidden 288, intermediate 192; 8 and 2 heads of 64; vocabulary 2304.
  const std::uint64_t experts = 16 * (384 * 288 + 384 + 288 * 192 + 288), router = 16 * 288 + 16;
  const std::uint64_t attention = 512 * 288 + 512 + 2 * (128 * 288 + 128) + 288 * 512 + 288 + 8;
  EXPECT_EQ(report.parameters, 6 * (experts + router + attention + 2 * 288) + 2 * 2304 * 288 + 288);
}

struct Fault {
  const char* what;
  std::function<void(std::vector<NamedTensor>&)> change;
  std::vector<std::string> says;  // all in one line
};

// Sets bytes of a tensor's data.
std::function<void(std::vector<NamedTensor>&)> poke(std::string name, std::size_t at, std::string bytes) {
  return [=](std::vector<NamedTensor>& all) {
    for (NamedTensor& t : all)
      if (t.name == name) t.data.replace(at, bytes.size(), bytes);
  };
}

TEST(Verify, values_that_loading_does_not_look_at_are_found) {
  const std::string q = "model.layers.1.self_attn.q_proj.weight", scales = "model.layers.2.mlp.experts.down_proj_scales";
  const Fault faults[] = {
      {"NaN", poke(q, 2 * 777, "\xc0\x7f"), {q, "byte", "1 of 49152 values are NaN or infinite", "element 777"}},
      {"infinity in the first and last element",
       [&](std::vector<NamedTensor>& all) {
         poke(q, 0, std::string("\x80\xff", 2))(all);
         poke(q, 2 * 49151, std::string("\x80\x7f", 2))(all);
       },
       {q, "2 of 49152", "element 0"}},
      {"infinity in the odd end of a bias",
       poke("model.layers.0.mlp.router.bias", 10, std::string("\x80\x7f", 2)),
       {"router.bias", "1 of 6", "element 5"}},
      {"NaN in a norm", poke("model.norm.weight", 4, "\xff\xff"), {"model.norm.weight", "1 of 192", "element 2"}},
      {"scale 255", poke(scales, 5, "\xff"), {scales, "byte", "1 of 3456 scales are 255", "element 5"}},
      {"a huge scale", poke(scales, 9, "\x8f\xc8"), {scales, "2 of 3456 scales are above 142", "element 9"}},
  };
  for (const Fault& fault : faults) {
    TemporaryFolder folder;
    folder.write("config.json", tests::read_text(reference / "config.json"));
    folder.write("tokenizer.json", "{}");
    std::vector<NamedTensor> all = tests::tensors_of(**Checkpoint::open(reference));
    fault.change(all);
    tests::write_sharded(folder, all, 20);
    const VerifyReport report = verify_model(folder.path());
    ASSERT_EQ(report.problems.size(), 1u) << fault.what << ": " << testing::PrintToString(report.problems);
    for (const std::string& text : fault.says) EXPECT_THAT(report.problems[0], HasSubstr(text)) << fault.what;
  }
}

TEST(Verify, the_largest_finite_values_and_scales_pass) {
  TemporaryFolder folder;
  folder.write("config.json", tests::read_text(reference / "config.json"));
  folder.write("tokenizer.json", "{}");
  std::vector<NamedTensor> all = tests::tensors_of(**Checkpoint::open(reference));
  poke("model.norm.weight", 0, std::string("\x7f\x7f\x7f\xff\x00\x80", 6))(all);
  poke("model.layers.0.mlp.experts.down_proj_scales", 0, std::string("\x00\x8e", 2))(all);
  folder.write("model.safetensors", tests::safetensors_of(all));
  EXPECT_THAT(verify_model(folder.path()).problems, testing::IsEmpty());
}

TEST(Verify, everything_wrong_with_a_folder_is_said_a_line_each) {
  TemporaryFolder folder;
  folder.write("config.json", R"({"model_type":"llama"})");
  std::vector<NamedTensor> all = tests::tensors_of(**Checkpoint::open(reference));
  tests::write_sharded(folder, all, 40);
  const std::string index = tests::read_text(folder.path() / "model.safetensors.index.json");
  folder.write("model.safetensors.index.json", tests::replaced(index, "\"total_size\":", "\"total_size\":1"));
  const VerifyReport report = verify_model(folder.path());
  ASSERT_EQ(report.problems.size(), 3u) << testing::PrintToString(report.problems);
  EXPECT_THAT(report.problems[0], HasSubstr("config.json: model_type"));
  EXPECT_THAT(report.problems[1], HasSubstr("tokenizer.json: no such file"));
  EXPECT_THAT(report.problems[2], HasSubstr("total_size"));
  folder.write("tokenizer.json", "[1");
  EXPECT_THAT(verify_model(folder.path()).problems[1], HasSubstr("tokenizer.json: is not a JSON object"));
}

TEST(Verify, a_folder_that_does_not_open_is_one_problem) {
  const VerifyReport report = verify_model("/nonexistent/model");
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(report.problems[0], HasSubstr("/nonexistent/model"));
  EXPECT_EQ(report.tensors, 0u);
}

TEST(Verify, a_file_cut_while_it_is_read_is_a_line_not_a_crash) {
  TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) fs::copy_file(tiny / name, folder.path() / name);
  bool cut = false;
  const VerifyReport report = verify_model(folder.path(), [&](std::uint64_t, std::uint64_t) {
    if (!cut) fs::resize_file(folder.path() / "model.safetensors", 3'000'000);
    cut = true;
  });
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.problems.front(), HasSubstr("model.safetensors: ends at byte"));
  EXPECT_THAT(report.problems.front(), HasSubstr("(tensor 'model.layers."));
  EXPECT_THAT(report.problems.back(), HasSubstr("3000000 now"));
}

}  // namespace
}  // namespace althing::gpu
