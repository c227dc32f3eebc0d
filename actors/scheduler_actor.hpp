// The shell around the scheduler core: it gives the core time and events, and carries out its effects. Everything impure lives here: clock, journal
// file, handles of ranks and frontends, metrics. Each step in flight has its own pending entry with a deadline; each live request has one with its
// frontend.
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/journal_file.hpp"
#include "actors/kv_mirror.hpp"
#include "actors/messages.hpp"
#include "actors/prefix_salts.hpp"
#include "actors/resume_watch.hpp"
#include "actors/usage_book.hpp"
#include "monitoring/metrics.hpp"
#include "scheduler/core.hpp"

namespace althing::actors {

struct SchedulerOptions {
  scheduler::CoreConfig core;
  std::uint32_t ranks = 1;  // of the full grid
  // Where a grid that ranks bring with them keeps KV. Null where there is only one: every RankReady then names the grid of the first.
  std::function<Result<KvShape>(const Grid&)> kv_of;
  std::chrono::milliseconds step_timeout{10'000};
  std::shared_ptr<JournalFile> journal;  // null for none
  std::shared_ptr<monitoring::Metrics> metrics;
  caf::actor monitor;     // may be null
  caf::actor accountant;  // hears what requests have used; may be null
  PrefixSalts salts{};
  std::uint64_t experts_of_a_token = 0;  // that compute it, in all layers together
  // Membership needs attention: the epoch that can make no more progress, the ranks that are to blame (may be empty), the cause. Null when nobody can
  // help: live requests then end with rank_lost.
  std::function<void(std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string& cause)> report_failure;
  std::function<void(std::uint64_t epoch)> on_ready;  // a complete membership; may be null
  // Every stream that the last loss interrupted goes on; may be null.
  std::function<void(std::uint64_t epoch, const ResumeWatch::Resumed& resumed)> on_resumed;
  std::function<void()> on_beat;     // every few hundredths of a second, whatever happens; may be null
  std::function<void()> on_step;     // a plan is about to go out; null unless faults are allowed
  std::function<void()> on_drained;  // after a drain: nothing is live any more; may be null
};

class SchedulerShell {
 public:
  static inline const char* name = "scheduler";

  // Errors: what Core::create says.
  Status start(caf::event_based_actor* self, SchedulerOptions options);

  void submit(SubmitRequest& request);
  void resubmit(ResubmitRequest& request);
  void cancel(CancelRequest& request);
  void stop(const StopRequest& stop);
  void allow(AllowDraws& allowed);
  void step_done(StepResult& result);
  void step_failed(const StepFailed& failed);
  void rank_ready(const RankReady& ready);
  void rank_status(const RankStatus& status);
  void membership_lost(const MembershipLost& lost);
  void membership_grows(const MembershipGrows& grows);
  void actor_down(const caf::actor_addr& source);
  void drain();
  // Ends every request that is left: nobody will compute for it any more.
  void stop();
  void beat();
  void probe();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    caf::actor actor, pulse;
    std::uint64_t epoch = 0;
    std::uint64_t counter = 0;  // of its progress, as last heard
    Clock::time_point progress;
    std::optional<Clock::time_point> idle_since;  // answers that it has nothing to do, while a step is on its way
    MirrorReport mirror{};                        // as it joined; dropped when the membership is complete
  };
  // The choices of one request: each is a sequence of its own, and together they are one request for whoever counts.
  struct Request {
    std::uint32_t submitted = 1;               // choices of one submission: all, or one where a dead core left them
    std::uint32_t open = 1;                    // choices that have not ended
    FinishReason reason = FinishReason::stop;  // the gravest so far
    ErrorCode code = ErrorCode::internal;      // that came with it
    bool accepted = false;                     // one of them was, and it was counted

    void note_end(FinishReason how, ErrorCode why) {
      if (how < reason) return;
      reason = how;
      code = why;
    }
  };
  struct Live {
    std::shared_ptr<Request> request;
    std::uint32_t choice = 0;
    caf::actor frontend;
    Clock::time_point accepted;
    std::uint32_t prompt_tokens = 0;
    bool waiting = true;         // no step has held it yet
    std::uint32_t tp = 0;        // under which its newest tokens were drawn, as its frontend knows; 0: none were
    std::uint32_t computed = 0;  // of a traced one: positions below it were computed by steps that were accepted
    bool constrained = false;
    // Of a constrained one: what completion tokens that were not heard of yet may be, by number; one that is not here may be any.
    std::map<std::uint32_t, std::shared_ptr<const std::string>> masks{};
  };
  struct PendingStep {
    Clock::time_point began;  // sent, or the one before it done, whichever was later
    std::uint32_t tokens = 0;
    std::vector<RequestId> traced{};  // for which it computes something
  };

  void submit(SubmitRequest& request, const std::shared_ptr<Request>& together);
  bool begin_epoch(const RankReady& ready);
  void feed(const Event& event);
  std::vector<Effect> decide(const Event& event);
  // What it holds may be moved on.
  void perform(Effect& effect);
  void run_step(StepPlan& plan);
  void commit(StepResult& result, const PendingStep& step);
  void attach(const std::string& logprobs, std::vector<Effect>& effects) const;
  void tell_usage();
  void finish(const Finished& finished);
  bool trace_is_due(RequestId request) const;
  void finish_held();
  void note_traced(const StepPlan& plan, PendingStep& pending);
  void expect_masks(const SubmitRequest& request);
  void put_masks(StepPlan& plan);
  void tell_routing(const std::string& routing, StepId step, EpochId epoch);
  void lose_epoch(std::uint64_t epoch);
  void check_progress();
  void check_messages(const RankStatus& status);
  void tell_resumed();
  void end_running(const Error& error);
  void end_all(const Error& error);
  void report();
  std::chrono::milliseconds patience() const { return options_.step_timeout * (1 << strikes_); }
  void fail(std::uint64_t epoch, const std::vector<std::uint32_t>& ranks, const std::string& cause);
  std::uint64_t now_ms() const;

  caf::event_based_actor* self_ = nullptr;
  SchedulerOptions options_;
  std::unique_ptr<scheduler::Core> core_;
  Clock::time_point started_;
  std::vector<Rank> ranks_;
  std::uint64_t epoch_ = 0;    // of the newest membership seen …
  Grid grid_{};                // … and its grid
  KvShape shape_{};            // likewise
  bool epoch_usable_ = false;  // complete and not lost
  std::uint64_t lost_ = 0;     // the newest that the supervisor called over: it, and those before, can only look complete
  bool grown_ = false;         // the newest that was complete was given up for a better one
  std::unordered_map<RequestId, Live> live_;
  std::map<std::uint64_t, PendingStep> pending_steps_;  // by step
  std::map<RowIndex, RequestId> traced_rows_;           // who had the row last, where that is traced
  std::map<RowIndex, RequestId> masked_rows_;           // likewise, where that is constrained
  // Ends of traced requests for which a step in flight computes something still: it counts once it is accepted, so it belongs to the trace.
  std::vector<Finished> held_;
  bool stopping_ = false;
  bool drained_told_ = false;
  ResumeWatch resume_;
  UsageBook usage_;
  std::uint64_t page_changes_ = 0;  // of the core's, as far as the book has heard
  scheduler::CoreStats at_ready_;   // when the membership was complete
  // Plans in a row that a rank refused although they were the first of their epoch.
  std::uint32_t refusals_ = 0;
  // Deadlines that passed in a row. Each doubles the patience: recomputing everything after a deadline that is too short would never end.
  std::uint32_t strikes_ = 0;
  std::uint32_t steps_since_strike_ = 0;
};

caf::behavior scheduler_actor(caf::stateful_actor<SchedulerShell>* self, SchedulerOptions options);

}  // namespace althing::actors
