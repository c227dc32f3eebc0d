// `althing moe-sweep` and `althing load-table`: what limits on experts cost and give, and how evenly a batch loads them, measured on this machine's
// CPU with one rank. Both are experiments on a model, not on a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace althing::actors {

struct MoeBatchSettings {
  std::string model{};
  std::string prompts{};  // a text file, one prompt a line; "" for some of our own
  std::vector<std::uint32_t> batches;
  std::uint32_t steps = 0;  // decode steps that are measured
  std::uint32_t threads = 1;
  std::uint64_t seed = 1;
  bool json = false;  // JSON lines instead of a table
};

struct MoeSweepSettings {
  MoeBatchSettings batch{.batches = {1, 8, 32}, .steps = 24};
  std::vector<std::string> policies{"reroute", "drop", "pad"};
  std::vector<double> factors{0.8, 1.0, 1.25, 1.5, 2.0};
  std::vector<double> temperatures{1.0};
  std::vector<std::string> dynamic_k;  // gap:VALUE, mass:VALUE
  std::uint32_t capacity_multiple = 1;
};

int run_moe_sweep(const MoeSweepSettings& settings);
int run_load_table(const MoeBatchSettings& settings);

}  // namespace althing::actors
