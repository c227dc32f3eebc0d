// The scheduler's shell alone, between pretend ranks and pretend frontends, under a virtual clock. What it reports to those who repair and to those
// who count is kept.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/actors/actor_fixture.hpp"

namespace althing::actors::tests {

class SchedulerActorTest : public testing::Test {
 protected:
  SchedulerActorTest() : system_(config_), coordinator_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
    options_.core.limits.context_tokens_max = 256;
    options_.core.kv = {64, 4096, {{0, 16, {1}}, {32, 16, {0}}}};
    options_.core.vocabulary = 100;
    options_.metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{"test", "test", 1, 1, 1});
    options_.report_failure = [this](std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string&) {
      failures_.emplace_back(epoch, ranks);
    };
    options_.on_ready = [this](std::uint64_t) { ++ready_; };
    options_.on_drained = [this] { ++drained_; };
  }
  ~SchedulerActorTest() override {
    for (const caf::actor& actor : actors_) caf::anon_send_exit(actor, caf::exit_reason::kill);
    coordinator_.run();
  }

  void start() {
    scheduler_ = keep(system_.spawn(scheduler_actor, options_));
    settle();
  }
  caf::actor keep(caf::actor actor) {
    actors_.push_back(actor);
    return actor;
  }
  // Beats are for ever, so run() alone would not end: deliver what is due now only.
  void settle() {
    while (coordinator_.try_run_once()) {
    }
  }
  void pass(std::chrono::milliseconds time) {
    coordinator_.advance_time(time);
    settle();
  }
  caf::actor join(std::uint64_t epoch, std::shared_ptr<PretendRank> rank) {
    caf::actor actor = keep(system_.spawn(pretend_rank, std::move(rank), scheduler_));
    caf::anon_send(scheduler_, RankReady{0, epoch, actor, actor});
    settle();
    return actor;
  }
  std::shared_ptr<Heard> submit(std::uint64_t id, std::uint32_t prompt, std::uint32_t completion, caf::actor* frontend = nullptr,
                                std::uint32_t choices = 1) {
    auto heard = std::make_shared<Heard>();
    caf::actor actor = keep(system_.spawn(recorder, heard));
    if (frontend != nullptr) *frontend = actor;
    Submitted submitted;
    submitted.request = RequestId{id};
    submitted.prompt.assign(prompt, 1);
    submitted.sampling.completion_tokens_max = completion;
    submitted.choices = choices;
    caf::anon_send(scheduler_, SubmitRequest{submitted, 0, actor});
    settle();
    return heard;
  }
  // The sum of a metric's samples, or one of them; -1 when there is none.
  double count(const std::string& series) const {
    const std::string page = options_.metrics->scrape();
    double sum = 0;
    bool seen = false;
    for (std::size_t at = page.find("\n" + series); at != std::string::npos; at = page.find("\n" + series, at + 1)) {
      const char next = page[at + 1 + series.size()];
      if (next != ' ' && next != '{') continue;
      sum += std::stod(page.substr(page.find(' ', at + 1 + series.size())));
      seen = true;
    }
    return seen ? sum : -1.0;
  }
  static std::vector<TokenId> expected(std::uint32_t prompt, std::uint32_t completion) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < completion; ++i) tokens.push_back(token_at(prompt + i));
    return tokens;
  }

  TestSystemConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& coordinator_;
  SchedulerOptions options_;
  caf::actor scheduler_;
  std::vector<caf::actor> actors_;
  std::vector<std::pair<std::uint64_t, std::vector<std::uint32_t>>> failures_;
  int ready_ = 0, drained_ = 0;
};

}  // namespace althing::actors::tests
