// The core as the shell sees it, and on request with a bug: events are altered on their way in, effects on their way out, as close as may be to where
// a bug of the core's own would do the same. The simulation has to find each of them; one that it does not find says what it is blind to. Bugs of
// the shell and of the frontends are planted there, under the same names.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "scheduler/core.hpp"
#include "tests/simulation/dice.hpp"

namespace althing::tests {

enum class Plant : std::uint8_t {
  none,
  // What goes in.
  cancel_lost,
  stop_lost,
  deadline_lost,
  drain_lost,
  loss_unheard,        // the core plans on for an epoch that is over
  stale_result_taken,  // a result of an epoch that is over counts for the present one
  drawn_again,         // of what a dead core drew, the last token is forgotten
  draws_unasked,       // a token is drawn before anybody has decided about it
  unrestored_unheard,  // a page that the mirror lacks counts as fetched
  // What comes out.
  end_twice,
  end_lost,
  token_lost,
  token_twice,
  tokens_swapped,    // two requests get each other's
  page_twice,        // a page is given to a second row
  kept_page_wrong,   // a shared beginning is somebody else's
  scrub_lost,        // NaN stays where it was
  recomputed_wrong,  // a request goes on from another token than it had drawn
  snapshot_lost,     // the first plan of an epoch is a difference
  // Both.
  row_leaks,          // a cancelled request keeps its row and its pages until it would have ended by itself
  tenants_forgotten,  // everybody is of one tenant
  priority_reversed,
  starvation,  // a request is accepted, and served when nobody else is there
  // Around the core.
  resubmission_lost,    // one request of a dead core is not submitted again
  resubmission_untold,  // or without what was drawn
  end_untold,           // the frontend does not log how a choice ended
  stop_too_late,        // it lets the client hear what is behind a stop string
  credit_ignored,       // it says more than the client has room for
};
inline constexpr int plant_count = static_cast<int>(Plant::credit_ignored) + 1;
std::string_view name_of(Plant plant);
std::optional<Plant> plant_of(std::string_view name);

class PlantedCore {
 public:
  // REQUIRES: Core::create takes the configuration.
  PlantedCore(const scheduler::CoreConfig& config, Plant plant, std::uint64_t seed);

  // As Core::on; valid until the next call.
  const std::vector<Effect>& on(const Event& event);
  // As a core that has this bug would count.
  scheduler::CoreStats stats() const {
    scheduler::CoreStats stats = core_->stats();
    stats.waiting += static_cast<std::uint32_t>(starved_.size());
    return stats;
  }
  const scheduler::Core& core() const { return *core_; }
  bool clean() const { return plant_ == Plant::none; }

 private:
  bool now(std::uint32_t n) { return dice_.one_in(n); }
  void feed(const Event& event);
  // The event as the bug lets it through; none: it is lost.
  std::optional<Event> altered(const Event& event);
  std::optional<Event> altered(const Cancelled& event);
  std::optional<Event> altered(const StepDone& event);
  std::optional<Event> altered(const Submitted& event);
  void alter_effects();
  void alter_plan(StepPlan& plan);
  void let_starved_in();

  std::unique_ptr<scheduler::Core> core_;
  Plant plant_;
  Dice dice_;
  std::vector<Effect> effects_;
  std::set<RequestId> ghosts_;        // ended for everybody but the core
  std::map<RequestId, Usage> usage_;  // as it was told
  std::deque<Submitted> starved_;     // accepted, and unknown to the core
  std::deque<StepId> in_flight_;
  EpochId epoch_;
  std::vector<PageId> granted_;  // not long ago
};

}  // namespace althing::tests
