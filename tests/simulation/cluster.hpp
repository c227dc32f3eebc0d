// A whole cluster on virtual time, from one seed: clients, frontends with their token log, the shell, the real core, the supervisor with the real
// membership, ranks, and the messages between them, which take their time and keep their order. Faults happen until a while after the last request;
// then everything that was accepted must end, and nothing may be left over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/clients_model.hpp"
#include "tests/simulation/shell_model.hpp"
#include "tests/simulation/supervisor_model.hpp"

namespace althing::tests {

// One run of a seed, in numbers. `broken` is empty, or what went wrong and when.
struct Outcome {
  std::string broken;
  std::uint64_t trace = 0;  // a hash of all that happened
  std::uint64_t requests = 0, whole = 0, failed = 0, given_up = 0, retries = 0;
  std::uint64_t tokens = 0, steps = 0, epochs = 0, rank_deaths = 0, core_deaths = 0, restored_streams = 0;
  std::uint64_t preemptions = 0, evictions = 0, hit_tokens = 0, tokens_restored = 0, pages_unrestored = 0;
  std::uint64_t core_events = 0, happened = 0, virtual_us = 0, worst_wait = 0, guessed = 0, guessed_right = 0, worst_lead = 0, worst_gap = 0,
                share_preemptions = 0;
};

class Cluster {
 public:
  Cluster(std::uint64_t seed, std::uint32_t requests, Plant plant);
  Outcome run();

 private:
  RankProcesses::Links rank_links();
  SupervisorModel::Links supervisor_links();
  FrontendsModel::Links frontend_links();
  ClientsModel::Links client_links();
  ShellModel::Links shell_links();

  void start_core();
  void kill_core();
  void beat(std::uint64_t life);
  void probe(std::uint64_t life);
  void look();
  void start_faults();
  void repeat(std::uint32_t mean_us, std::function<void()> what);
  void send_plan(const StepPlan& plan);
  void turn_of_mirror();
  KvShape kv_of(const Grid& grid) const;
  std::string leftovers();
  void add_core_stats();

  // A message on its way. `lane`: those of one lane keep their order. It is lost when the core process that sent it, or was to have it, has died.
  void post(std::uint64_t lane, std::uint64_t takes_us, std::function<void()> what);
  // Between two actors of the core process.
  void post_inside(std::function<void()> what);
  std::uint64_t way_us();

  Stage stage_;
  Plant plant_;
  CoreJudge judge_;
  std::unique_ptr<ShellModel> shell_;  // null: there is no core
  RankProcesses ranks_;
  SupervisorModel supervisor_;
  FrontendsModel frontends_;
  ClientsModel clients_;
  std::map<std::uint64_t, Timeline::Time> lanes_;  // when the newest message of each arrives
  std::uint64_t core_life_ = 0, core_deaths_ = 0;
  bool lose_plan_ = false, draining_ = false;
  Outcome outcome_;
};

}  // namespace althing::tests
