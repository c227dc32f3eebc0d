// A CAF system in which nothing runs by itself: messages are delivered one by one, timers follow a virtual clock. With a pretend rank whose tokens
// are a function of position, and a recorder that keeps what it hears.
#pragma once

#include <gtest/gtest.h>

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/scoped_actor.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/actor_system.hpp"
#include "actors/messages.hpp"
#include "actors/scheduler_actor.hpp"

namespace althing::actors::tests {

class TestSystemConfig : public LocalSystemConfig {
 public:
  TestSystemConfig() { set("scheduler.policy", caf::atom("testing")); }
};

// What one recorder heard.
struct Heard {
  int accepted = 0;
  std::vector<Rejected> rejected;
  std::vector<TokenId> tokens;
  std::vector<Finished> finished;
  std::vector<protocol::wire::ServerMessage> to_client;
  int closed = 0;
  std::vector<std::uint32_t> tps;  // under which tokens were drawn, whenever it was told
  std::vector<Routed> routed;
  std::vector<TokensDrawn> drawn{};
  std::vector<std::string> order;  // of what follows: routed, tokens, finished
};

inline caf::behavior recorder(caf::event_based_actor*, std::shared_ptr<Heard> heard) {
  return {
      [=](const Accepted&) { ++heard->accepted; },
      [=](const Rejected& rejected) { heard->rejected.push_back(rejected); },
      [=](const TokensDrawn& drawn) {
        EXPECT_EQ(drawn.first, heard->tokens.size()) << "a gap or a double";
        heard->tokens.insert(heard->tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
        heard->drawn.push_back(drawn);
        heard->order.emplace_back("tokens");
      },
      [=](const Finished& finished) {
        heard->finished.push_back(finished);
        heard->order.emplace_back("finished");
      },
      [=](const Routed& routed) {
        heard->routed.push_back(routed);
        heard->order.emplace_back("routed");
      },
      [=](const ToClient& out) { heard->to_client.push_back(out.message); },
      [=](const StreamClosed&) { ++heard->closed; },
      [=](const DrawnUnder& under) { heard->tps.push_back(under.tp); },
      [=](const SubmitRequest&) {},
      [=](const CancelRequest&) {},
      [=](const StopRequest&) {},
  };
}

// The token at a position, whatever came before: enough to see gaps and doubles.
constexpr TokenId token_at(std::uint32_t position) { return 10 + position % 50; }

struct PretendRank {
  bool answering = true;
  int plans = 0;
  std::vector<StepPlan> seen;
  std::map<RowIndex, RequestId> rows;
};

inline caf::behavior pretend_rank(caf::event_based_actor* self, std::shared_ptr<PretendRank> state, caf::actor scheduler) {
  return {
      [=](const StepPlan& plan) {
        ++state->plans;
        state->seen.push_back(plan);
        if (plan.snapshot) state->rows.clear();
        for (const RowIndex row : plan.cleared) state->rows.erase(row);
        for (const RowSetup& setup : plan.set) state->rows[setup.row] = setup.request;
        if (!state->answering) return;
        StepResult result{plan.step, plan.epoch, {}};
        for (const RowWork& work : plan.work)
          if (work.sample) result.drawn.push_back({work.row, state->rows[work.row], token_at(work.start + work.count), false});
        self->send(scheduler, result);
      },
      [=](const Probe&) {},
  };
}

}  // namespace althing::actors::tests
