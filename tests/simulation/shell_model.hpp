// The shell around the core as actors/scheduler_actor.cpp is, on virtual time and without metrics: it gives the core time and events, sends its plans
// to the ranks, keeps an epoch together, and finds lost messages and steps that do not end. Which streams a loss interrupted is the server's own
// ResumeWatch. One shell is one life of the core process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/resume_watch.hpp"
#include "tests/simulation/core_judge.hpp"
#include "tests/simulation/planted_core.hpp"

namespace althing::tests {

class ShellModel {
 public:
  // Whom it speaks to.
  struct Links {
    std::function<void(const StepPlan&)> run_step;  // every rank
    std::function<void(std::uint32_t rank)> probe;
    std::function<void(const Effect&)> tell;  // the frontend of the effect's request
    std::function<void(std::uint64_t epoch, const std::vector<std::uint32_t>& silent)> report_failure;
    std::function<void(std::uint64_t epoch)> on_ready, on_resumed;
    std::function<KvShape(const Grid&)> kv_of;
  };

  ShellModel(Stage& stage, CoreJudge& judge, Links links, Plant plant);

  void submit(Submitted submitted, std::uint64_t timeout_ms);
  void cancel(RequestId request, const Error& error) { feed(Cancelled{request, error}); }
  void stop(RequestId request, std::uint32_t tokens) { feed(Stopped{request, tokens}); }
  void allow(RequestId request, std::uint32_t until) { feed(DrawsReady{request, until}); }
  void step_done(const StepResult& result);
  void step_failed(std::uint64_t epoch, bool refused);
  void rank_ready(std::uint64_t epoch, std::uint32_t rank, const Grid& grid);
  void rank_status(std::uint64_t epoch, std::uint32_t rank, bool busy);
  void rank_down(std::uint64_t epoch, std::uint32_t rank);
  void membership_lost(std::uint64_t epoch);
  void membership_grows(std::uint64_t epoch);
  void drain() { feed(DrainStarted{}); }
  // Both go on by themselves as long as `alive` says so.
  void beat();
  void probe();

  scheduler::CoreStats stats() const { return core_.stats(); }
  const scheduler::Core& core() const { return core_.core(); }
  // A plan may be lost: two in a row, without a step that ends between, end requests in the server too.
  bool may_lose_plan() const { return refusals_ == 0; }
  std::uint64_t events() const { return events_; }

 private:
  struct Rank {
    bool here = false;
    std::uint64_t epoch = 0;
    Timeline::Time progress = 0;
    std::optional<Timeline::Time> idle_since;
  };

  void feed(const Event& event);
  void perform(const Effect& effect);
  bool begin_epoch(std::uint64_t epoch, const Grid& grid);
  void lose_epoch(std::uint64_t epoch);
  void check_progress();
  void end_running();
  void tell_resumed();
  void fail(std::uint64_t epoch, const std::vector<std::uint32_t>& silent);
  Timeline::Time patience() const { return std::uint64_t{stage_.setup.step_timeout_ms} * 1000 << strikes_; }
  std::uint64_t now_ms() const { return (stage_.time.now() - started_) / 1000; }
  actors::ResumeWatch::Clock::time_point clock() const {
    return actors::ResumeWatch::Clock::time_point(std::chrono::microseconds(stage_.time.now()));
  }

  Stage& stage_;
  CoreJudge& judge_;
  Links links_;
  Plant plant_;
  PlantedCore core_;
  Timeline::Time started_;
  std::vector<Rank> ranks_;
  std::uint64_t epoch_ = 0, lost_ = 0;
  Grid grid_{};
  KvShape shape_{};
  bool epoch_usable_ = false;
  std::map<RequestId, bool> live_;                         // whether a step has held it
  std::map<std::uint64_t, Timeline::Time> pending_steps_;  // since when it is the ranks' turn
  actors::ResumeWatch resume_;
  std::uint32_t refusals_ = 0, strikes_ = 0, steps_since_strike_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace althing::tests
