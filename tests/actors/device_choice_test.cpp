// Which device is used, for every kind of machine; and what else the settings leave to be found out.
#include "actors/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "actors/engine_setup.hpp"

namespace althing::actors {
namespace {

using testing::HasSubstr;

gpu::CudaReport machine(std::vector<gpu::CudaDevice> devices) {
  gpu::CudaReport report;
  report.devices = std::move(devices);
  if (report.devices.empty()) report.reason = "no driver";
  return report;
}
const gpu::CudaDevice hopper{"H200", std::uint64_t{140} << 30, 9, 0}, smaller{"H100", std::uint64_t{80} << 30, 9, 0}, other{"A100", 1, 8, 0};

TEST(DeviceChoice, auto_takes_a_gpu_where_each_rank_has_one_and_says_why_not) {
  const auto choice = choose_device("auto", 1, machine({hopper, other})).value();
  EXPECT_EQ(choice.device, gpu::Device::cuda);
  EXPECT_EQ(choice.why, "H200");
  EXPECT_EQ(choose_device("auto", 2, machine({hopper, smaller}))->memory_bytes, smaller.memory_bytes);
  for (const auto& [report, why] :
       {std::pair{machine({}), "no driver"}, std::pair{machine({hopper}), "2 ranks need a GPU each"}, std::pair{machine({hopper, other}), "A100"}}) {
    const auto fallback = choose_device("auto", 2, report).value();
    EXPECT_EQ(fallback.device, gpu::Device::cpu);
    EXPECT_THAT(fallback.why, HasSubstr(why));
    const auto refused = choose_device("cuda", 2, report);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr(why));
  }
}

TEST(DeviceChoice, what_is_asked_for_is_taken_and_nonsense_refused) {
  EXPECT_EQ(choose_device("cpu", 1, machine({hopper}))->device, gpu::Device::cpu);
  EXPECT_EQ(choose_device("synthetic", 1, machine({hopper}))->device, gpu::Device::synthetic);
  EXPECT_EQ(choose_device("tpu", 1, machine({hopper})).error().code, ErrorCode::invalid_argument);
}

ServeSettings tiny() {
  ServeSettings settings;
  settings.model = ALTHING_SOURCE_DIR "/examples/models/tiny";
  settings.device = "cpu";
  return settings;
}

// The supervisor hands device and kv_mib to its children.
TEST(EngineSetup, what_was_found_out_leads_to_the_same_setup) {
  ServeSettings settings = tiny();
  const EngineSetup first = set_up_engine(settings).value();
  EXPECT_EQ(first.kv_mib, 256u);
  settings.device = gpu::name_of(first.device);
  settings.kv_mib = first.kv_mib;
  EXPECT_EQ(set_up_engine(settings)->kv, first.kv);
  // On a GPU the same memory holds twice the pages of half the bytes; nobody looks for one here.
  settings.device = "cuda";
  const EngineSetup on_gpu = set_up_engine(settings).value();
  EXPECT_EQ(on_gpu.kv.page_bytes * 2, first.kv.page_bytes);
  EXPECT_EQ(on_gpu.executor_config(0, 1, 0, nullptr).device, gpu::Device::cuda);
}

TEST(EngineSetup, a_dummy_model_is_not_for_cpu_ranks) {
  ServeSettings settings;
  settings.load = "dummy:20b";
  settings.device = "cpu";
  ASSERT_TRUE(check(settings).ok());
  EXPECT_EQ(set_up_engine(settings).error().code, ErrorCode::unsupported);
  EXPECT_EQ(model_name(settings), "dummy-20b");
  settings.device = "cuda";
  settings.kv_mib = 1024;
  const EngineSetup setup = set_up_engine(settings).value();
  EXPECT_EQ(setup.kv.page_bytes, 16u * 12 * 8 * 64 * 2 * 2);
  EXPECT_EQ(setup.model->stop_tokens, (std::vector<TokenId>{200002, 199999, 200012}));
  settings.load = "dummy:7b";
  EXPECT_EQ(set_up_engine(settings).error().code, ErrorCode::invalid_argument);
}

TEST(EngineSetup, a_tokenizer_comes_from_its_folder_the_model_s_or_the_ranks_alone) {
  ServeSettings settings;
  settings.load = "dummy:20b";
  EXPECT_THAT(chat_format(settings).error().message, HasSubstr("--tokenizer"));
  settings.tokenizer = ALTHING_SOURCE_DIR "/tests/data";
  const auto from_ranks = chat_format(settings);
  ASSERT_TRUE(from_ranks.ok()) << from_ranks.error().message;
  EXPECT_EQ(from_ranks->harmony()->return_, 200002u);
  settings.tokenizer.clear();
  settings.model = tiny().model;
  EXPECT_EQ(chat_format(settings)->tokenizer()->vocabulary_size(), chat_format(tiny())->tokenizer()->vocabulary_size());
  settings.tokenizer = "/nonexistent";
  EXPECT_EQ(chat_format(settings).error().code, ErrorCode::not_found);
}

TEST(Settings, wrong_values_say_what_to_use) {
  const auto complains = [](auto change, const char* what) {
    ServeSettings settings = tiny();
    change(settings);
    const auto status = check(settings);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_THAT(status.error().message, HasSubstr(what));
  };
  complains([](ServeSettings& s) { s.model.clear(); }, "no model is given");
  complains([](ServeSettings& s) { s.load = "20b"; }, "dummy:20b");
  complains([](ServeSettings& s) { s.gpu_memory_fraction = 0; }, "--gpu-memory-fraction");
  complains([](ServeSettings& s) { s.gpu_memory_fraction = 1.5; }, "--gpu-memory-fraction");
  complains([](ServeSettings& s) { s.kv_mib = 1u << 25; }, "--kv-mib");
}

TEST(EngineSetup, the_memory_table_of_a_gpu_is_about_its_own_memory) {
  EngineSetup setup = set_up_engine(tiny()).value();
  const gpu::ExecutorMemory memory{1u << 30, 2u << 20, 3u << 20, std::uint64_t{140} << 30, std::uint64_t{100} << 30};
  EXPECT_THAT(memory_table(setup, memory), HasSubstr("mapped from the checkpoint"));
  setup.device = gpu::Device::cuda;
  const std::string table = memory_table(setup, memory);
  EXPECT_THAT(table, HasSubstr("GPU memory of each rank, 1 in all"));
  EXPECT_THAT(table, HasSubstr("free       102400.0  of 143360.0 on the GPU"));
}

}  // namespace
}  // namespace althing::actors
