// See the header. A fault says that it happens, in the log and in the stamps, before it does: afterwards there may be nobody left to say it.
#include "actors/rank_faults.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "actors/logging.hpp"

namespace althing::actors {
namespace {

class FaultyCommunicator final : public gpu::Communicator {
 public:
  FaultyCommunicator(std::shared_ptr<gpu::Communicator> inner, std::shared_ptr<RankFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  RankId rank() const override { return inner_->rank(); }
  std::uint32_t world() const override { return inner_->world(); }
  EpochId epoch() const override { return inner_->epoch(); }
  bool all_reduce_sum(std::span<float> values) override { return faults_->enter_collective(), inner_->all_reduce_sum(values); }
  bool all_reduce_sum(std::span<std::int64_t> values) override { return faults_->enter_collective(), inner_->all_reduce_sum(values); }
  bool all_gather(std::span<const float> mine, std::span<const std::uint32_t> counts, std::span<float> all) override {
    return faults_->enter_collective(), inner_->all_gather(mine, counts, all);
  }
  bool all_gather_sums(std::span<const float> mine, std::uint32_t group_size, std::span<const std::uint32_t> counts, std::span<float> all) override {
    return faults_->enter_collective(), inner_->all_gather_sums(mine, group_size, counts, all);
  }
  bool barrier() override { return faults_->enter_collective(), inner_->barrier(); }

 private:
  std::shared_ptr<gpu::Communicator> inner_;
  std::shared_ptr<RankFaults> faults_;
};

bool concerns_results(const FaultOrder& order) { return order.core && (order.kind == FaultKind::drop || order.kind == FaultKind::delay); }

void wait(const FaultOrder& order) { std::this_thread::sleep_for(std::chrono::milliseconds(order.ms)); }

}  // namespace

void RankFaults::arm(const FaultOrder& order) {
  const std::lock_guard lock(mutex_);
  (concerns_results(order) ? outgoing_ : incoming_).push_back({order, order.after});
  log(LogLevel::warning, "fault_armed", {{"fault", to_text(order)}});
}

std::vector<FaultOrder> RankFaults::take_due(std::vector<Armed>& waiting) {
  const std::lock_guard lock(mutex_);
  std::vector<FaultOrder> due;
  for (const Armed& armed : waiting)
    if (armed.left == 0) due.push_back(armed.order);
  std::erase_if(waiting, [](const Armed& armed) { return armed.left == 0; });
  for (Armed& armed : waiting) --armed.left;
  return due;
}

bool RankFaults::lets_in(const StepPlan& plan, gpu::Executor& executor) {
  const std::vector<FaultOrder> due = take_due(incoming_);
  collectives_ = 0;
  step_ = plan.step.value;
  epoch_ = plan.epoch.value;
  bool lets = true;
  for (const FaultOrder& order : due) lets = happen(order, plan, executor) && lets;
  return lets;
}

bool RankFaults::happen(const FaultOrder& order, const StepPlan& plan, gpu::Executor& executor) {
  const std::uint64_t step = plan.step.value, epoch = plan.epoch.value;
  if (order.collective > 0 || order.kind == FaultKind::hang_collective) {
    collective_order_ = order;
    in_collective_ = true;
    return true;
  }
  if (order.kind == FaultKind::corrupt_kv || order.kind == FaultKind::nan) {
    if (damage(order, plan, executor)) {
      happened(order, step, epoch);
      return true;
    }
    const std::lock_guard lock(mutex_);
    incoming_.push_back({order, 0});  // no row of this step can be damaged so; the next may have one
    return true;
  }
  happened(order, step, epoch);
  if (order.kind == FaultKind::drop) return false;
  if (order.kind == FaultKind::kill || order.kind == FaultKind::stop) signal_itself(order.kind);
  if (order.kind == FaultKind::oom) run_out_of_memory();
  if (order.kind == FaultKind::slow || order.kind == FaultKind::delay) wait(order);
  if (order.kind == FaultKind::slow && order.steps > 1) {
    FaultOrder rest = order;
    --rest.steps;
    const std::lock_guard lock(mutex_);
    incoming_.push_back({rest, 0});
  }
  return true;
}

bool RankFaults::lets_out(const StepResult& result) {
  bool lets = true;
  for (const FaultOrder& order : take_due(outgoing_)) {
    happened(order, result.step.value, result.epoch.value);
    if (order.kind == FaultKind::drop) lets = false;
    if (order.kind == FaultKind::delay) wait(order);
  }
  return lets;
}

std::shared_ptr<gpu::Communicator> RankFaults::around(std::shared_ptr<gpu::Communicator> inner) {
  return std::make_shared<FaultyCommunicator>(std::move(inner), shared_from_this());
}

void RankFaults::enter_collective() {
  if (!in_collective_.load(std::memory_order_relaxed)) return;
  if (++collectives_ < std::max(collective_order_.collective, 1U)) return;
  in_collective_ = false;
  happened(collective_order_, step_, epoch_);
  if (collective_order_.kind != FaultKind::hang_collective) return signal_itself(collective_order_.kind);
  while (true) ::pause();  // what hangs does not come back, whatever happens to the epoch
}

void RankFaults::happened(const FaultOrder& order, std::uint64_t step, std::uint64_t epoch) {
  log(LogLevel::warning, "fault_injected", {{"fault", to_text(order)}, {"step", step}, {"epoch", epoch}});
  stamps_->faults.fetch_add(1, std::memory_order_release);
}

void RankFaults::signal_itself(FaultKind kind) { ::kill(::getpid(), kind == FaultKind::kill ? SIGKILL : SIGSTOP); }

// The system gives this process nothing more, and the next large allocation throws, as it would in earnest.
void RankFaults::run_out_of_memory() {
  const rlimit nothing{0, 0};
  ::setrlimit(RLIMIT_AS, &nothing);
  std::vector<std::unique_ptr<std::vector<char>>> blocks;
  while (true) blocks.push_back(std::make_unique<std::vector<char>>(std::size_t{1} << 20, 'x'));
}

// The row that the damage hits is the first of the step that has what is to be damaged.
bool RankFaults::damage(const FaultOrder& order, const StepPlan& plan, gpu::Executor& executor) {
  const gpu::Damage what = order.kind == FaultKind::nan ? gpu::Damage::activations : gpu::Damage::kv_page;
  for (const RowWork& work : plan.work) {
    // Rows set in this plan have no pages yet, and activations matter where a token is drawn from them.
    const bool fresh = std::any_of(plan.set.begin(), plan.set.end(), [&](const RowSetup& setup) { return setup.row == work.row; });
    if (what == gpu::Damage::kv_page ? fresh || plan.snapshot || !work.sample : !work.sample) continue;
    const auto status = executor.damage(work.row, what);
    if (status) return true;
    log(LogLevel::warning, "fault_impossible", {{"fault", to_text(order)}, {"reason", status.error().message}});
  }
  return false;
}

}  // namespace althing::actors
