// `althing account`: what a model weighs and what one token reads of it. Arithmetic on the model's description; no weight is read.
#pragma once

#include <cstdint>
#include <string>

namespace althing::actors {

struct AccountSettings {
  std::string model;               // a folder, dummy:20b or dummy:120b
  std::string dense = "bf16";      // bf16 or fp8
  std::uint32_t context = 0;       // tokens before the one that is counted
  double bandwidth_gbps = 4800.0;  // 10^9 bytes a second
  bool json = false;
};

// Exit codes: those of load_gpt_oss's and dummy_model's errors; 2 for another `dense` or a context over the model's.
int run_account(const AccountSettings& settings);

}  // namespace althing::actors
