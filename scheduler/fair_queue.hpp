// Who waits, and whose turn it is. Tenants with work share the tokens that the server computes: each has a virtual token counter, which grows with
// what is computed for it, and of those that wait the one with the lowest counter goes next (Sheng et al., "Fairness in Serving Large Language
// Models", OSDI 2024: a token that is generated counts twice one of a prompt, and who comes back from idleness starts no lower than those that were
// busy). Within a tenant the earlier arrival goes first, where a priority and a near deadline count as having come earlier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "scheduler/sequence.hpp"

namespace althing::scheduler {

// When requests ended, lately.
class EndTimes {
 public:
  void note(std::uint64_t now_ms);
  // How long so many more ends may take; 0: not known.
  std::uint32_t wait_ms(std::size_t ends) const;

 private:
  std::array<std::uint64_t, 16> times_{};
  std::size_t count_ = 0;
};

struct Tenant {
  struct Earlier {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->arrival_ms != b->arrival_ms ? a->arrival_ms < b->arrival_ms : a->number < b->number;
    }
  };
  TenantId id;
  std::uint64_t served = 0;     // virtual tokens
  std::uint32_t sequences = 0;  // accepted and not finished
  std::uint32_t running = 0;
  std::set<Sequence*, Earlier> waiting;
  EndTimes ends;
};

class FairQueue {
 public:
  // An accepted request waits. Sets sequence.tenant.
  void enter(Sequence& sequence, TenantId tenant);
  // It waits no longer and runs, or the other way round.
  void start(Sequence& sequence);
  void wait_again(Sequence& sequence);
  // It has ended, wherever it was.
  void leave(Sequence& sequence, std::uint64_t now_ms);
  // Positions below `end` are computed or in a step in flight. What is computed again costs nothing: it was not the tenant who lost it.
  static void charge(Sequence& sequence, std::uint32_t end);

  std::size_t waiting() const { return waiting_; }
  std::size_t active() const { return active_; }  // tenants with requests
  // Those of whom somebody waits, in no order.
  const std::vector<Tenant*>& queueing() const { return queueing_; }
  // Null when nothing is known of it.
  const Tenant* find(TenantId tenant) const;
  const EndTimes& ends() const { return ends_; }
  // Empty, or what is wrong.
  std::string check() const;

 private:
  void lift(Tenant& tenant);
  void add(Sequence& sequence);
  void take(Sequence& sequence);

  std::map<TenantId, std::unique_ptr<Tenant>> tenants_;  // those that owe something, too
  std::vector<Tenant*> queueing_;
  std::size_t waiting_ = 0, active_ = 0;
  EndTimes ends_;
};

}  // namespace althing::scheduler
