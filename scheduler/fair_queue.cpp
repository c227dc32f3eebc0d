// Counters only ever grow, and are compared, never read as amounts: what matters is who is behind whom.
#include "scheduler/fair_queue.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

namespace althing::scheduler {
namespace {

constexpr std::uint64_t prompt_weight = 1, completion_weight = 2;
constexpr std::uint32_t wait_ms_min = 50, wait_ms_max = 60'000;

}  // namespace

void EndTimes::note(std::uint64_t now_ms) { times_[count_++ % times_.size()] = now_ms; }

std::uint32_t EndTimes::wait_ms(std::size_t ends) const {
  const std::size_t known = std::min(count_, times_.size());
  if (known < 2) return 0;
  const std::uint64_t span = times_[(count_ - 1) % times_.size()] - times_[(count_ - known) % times_.size()];
  const std::uint64_t wait = span * ends / (known - 1);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wait, wait_ms_min, wait_ms_max));
}

void FairQueue::enter(Sequence& sequence, TenantId id) {
  auto& place = tenants_[id];
  if (!place) place = std::make_unique<Tenant>(Tenant{id, 0, 0, 0, {}, {}});
  if (place->sequences == 0) lift(*place);
  ++place->sequences;
  sequence.tenant = place.get();
  add(sequence);
}

// Who was idle has saved nothing up, and who left owing something still owes it; a debt that everybody else has passed is none.
void FairQueue::lift(Tenant& tenant) {
  ++active_;
  std::optional<std::uint64_t> lowest;
  for (const auto& [id, other] : tenants_)
    if (other->sequences > 0 && (!lowest || other->served < *lowest)) lowest = other->served;
  const std::uint64_t floor = lowest.value_or(std::numeric_limits<std::uint64_t>::max());  // nobody is there to owe anything to
  std::erase_if(tenants_,
                [&](const auto& entry) { return entry.second->sequences == 0 && entry.second.get() != &tenant && entry.second->served <= floor; });
  tenant.served = lowest ? std::max(tenant.served, *lowest) : 0;
}

void FairQueue::add(Sequence& sequence) {
  Tenant& tenant = *sequence.tenant;
  if (tenant.waiting.empty()) queueing_.push_back(&tenant);
  tenant.waiting.insert(&sequence);
  ++waiting_;
}

void FairQueue::take(Sequence& sequence) {
  Tenant& tenant = *sequence.tenant;
  tenant.waiting.erase(&sequence);
  if (tenant.waiting.empty()) std::erase(queueing_, &tenant);
  --waiting_;
}

void FairQueue::start(Sequence& sequence) {
  take(sequence);
  ++sequence.tenant->running;
}

void FairQueue::wait_again(Sequence& sequence) {
  --sequence.tenant->running;
  add(sequence);
}

void FairQueue::leave(Sequence& sequence, std::uint64_t now_ms) {
  Tenant& tenant = *sequence.tenant;
  ends_.note(now_ms);
  tenant.ends.note(now_ms);
  if (tenant.waiting.contains(&sequence))
    take(sequence);
  else
    --tenant.running;
  if (--tenant.sequences == 0) --active_;
}

void FairQueue::charge(Sequence& sequence, std::uint32_t end) {
  if (end <= sequence.charged) return;
  const std::uint32_t prompt = std::min(end, sequence.prompt_count) - std::min(sequence.charged, sequence.prompt_count);
  const std::uint32_t completion = end - sequence.charged - prompt;
  sequence.tenant->served += prompt_weight * prompt + completion_weight * completion;
  sequence.charged = end;
}

const Tenant* FairQueue::find(TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? nullptr : found->second.get();
}

std::string FairQueue::check() const {
  std::size_t waiting = 0, active = 0, queueing = 0;
  for (const auto& [id, tenant] : tenants_) {
    waiting += tenant->waiting.size();
    active += tenant->sequences > 0 ? 1 : 0;
    queueing += tenant->waiting.empty() ? 0 : 1;
    if (tenant->running + tenant->waiting.size() != tenant->sequences)
      return "tenant " + std::to_string(id.value) + " has " + std::to_string(tenant->sequences) + " sequences, and " +
             std::to_string(tenant->running) + " run and " + std::to_string(tenant->waiting.size()) + " wait";
  }
  if (waiting != waiting_ || active != active_ || queueing != queueing_.size()) return "the fair queue has miscounted its tenants";
  return {};
}

}  // namespace althing::scheduler
