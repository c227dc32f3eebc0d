// Simulates whole clusters, one a seed, and says what went wrong and how to see it again. With --plant it proves that it would notice: each planted
// bug must be found within a thousand seeds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulation/cluster.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

constexpr const char* usage_text =
    "cluster_sim [--seed FIRST] [--seeds N] [--requests N] [--threads N] [--plant KIND|all]\n"
    "Whole clusters on virtual time, one a seed, with N requests each; the same seed is the same run, to the last event.\n"
    "--plant: the same with a bug of this kind in it, which must be found within N seeds; all: each of them.";

struct Options {
  std::uint64_t seed = 1, seeds = 100, requests = 100, threads = 0;
  std::string plant;
};

// All seeds, on some threads; outcomes in the order of seeds, whoever made them. With `first_only` none is begun behind one that is broken.
std::vector<Outcome> simulate(const Options& o, Plant plant, bool first_only) {
  std::vector<Outcome> outcomes(o.seeds);
  std::atomic<std::uint64_t> next = 0, broken_at = o.seeds;
  const auto work = [&] {
    for (std::uint64_t i = next++; i < o.seeds && !(first_only && i > broken_at); i = next++) {
      outcomes[i] = Cluster(o.seed + i, static_cast<std::uint32_t>(o.requests), plant).run();
      std::uint64_t known = broken_at;
      while (!outcomes[i].broken.empty() && i < known && !broken_at.compare_exchange_weak(known, i)) {
      }
    }
  };
  std::vector<std::thread> threads;
  const std::uint64_t count = o.threads > 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  for (std::uint64_t i = 1; i < std::min(count, o.seeds); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Outcome sum_of(const std::vector<Outcome>& outcomes) {
  Outcome sum;
  for (const Outcome& one : outcomes) {
    sum.trace = mix(sum.trace, one.trace);
    for (const auto number : {&Outcome::requests,
                              &Outcome::whole,
                              &Outcome::failed,
                              &Outcome::given_up,
                              &Outcome::retries,
                              &Outcome::tokens,
                              &Outcome::steps,
                              &Outcome::epochs,
                              &Outcome::rank_deaths,
                              &Outcome::core_deaths,
                              &Outcome::restored_streams,
                              &Outcome::preemptions,
                              &Outcome::share_preemptions,
                              &Outcome::guessed,
                              &Outcome::guessed_right,
                              &Outcome::evictions,
                              &Outcome::hit_tokens,
                              &Outcome::tokens_restored,
                              &Outcome::pages_unrestored,
                              &Outcome::core_events,
                              &Outcome::happened,
                              &Outcome::virtual_us})
      sum.*number += one.*number;
    sum.worst_wait = std::max(sum.worst_wait, one.worst_wait);
    sum.worst_gap = std::max(sum.worst_gap, one.worst_gap);
    sum.worst_lead = std::max(sum.worst_lead, one.worst_lead);
  }
  return sum;
}

unsigned long long n(std::uint64_t value) { return value; }

void tell(const Outcome& sum, std::uint64_t seeds, double seconds) {
  std::printf("%llu seeds, %llu requests: %llu whole, %llu failed as they should, %llu given up; %llu tried again when the server was full\n",
              n(seeds), n(sum.requests), n(sum.whole), n(sum.failed), n(sum.given_up), n(sum.retries));
  std::printf(
      "%llu tokens heard, %llu of them guessed right and %llu guessed in vain, %llu steps, %llu epochs, %llu ranks died, %llu cores died, %llu "
      "streams taken over\n",
      n(sum.tokens), n(sum.guessed_right), n(sum.guessed - sum.guessed_right), n(sum.steps), n(sum.epochs), n(sum.rank_deaths), n(sum.core_deaths),
      n(sum.restored_streams));
  std::printf(
      "%llu preemptions, %llu of them for a tenant's share, %llu pages evicted, %llu tokens from shared prefixes, %llu from the mirror, %llu pages "
      "that it lacked\n",
      n(sum.preemptions), n(sum.share_preemptions), n(sum.evictions), n(sum.hit_tokens), n(sum.tokens_restored), n(sum.pages_unrestored));
  std::printf(
      "%llu things happened in %.0f virtual seconds, %llu of them to the core; the longest wait was %.1f %% (between tokens %.1f %%), a tenant's "
      "greatest lead %.1f %% of "
      "what is allowed\n",
      n(sum.happened), static_cast<double>(sum.virtual_us) / 1e6, n(sum.core_events), static_cast<double>(sum.worst_wait) / 10,
      static_cast<double>(sum.worst_gap) / 10, static_cast<double>(sum.worst_lead) / 10);
  std::printf("trace %016llx; %.1f s, %.1f us a request\n", n(sum.trace), seconds,
              seconds * 1e6 / static_cast<double>(std::max<std::uint64_t>(sum.requests, 1)));
}

std::string again(const Options& o, std::uint64_t seed, Plant plant) {
  return " (cluster_sim --seed " + std::to_string(seed) + " --seeds 1 --requests " + std::to_string(o.requests) +
         (plant == Plant::none ? "" : " --plant " + std::string(name_of(plant))) + ")";
}

void run_clean(const Options& o, Verdict& verdict) {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes = simulate(o, Plant::none, false);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    outcomes[i].broken.empty() ? verdict.pass()
                               : verdict.fail("seed " + std::to_string(o.seed + i), outcomes[i].broken + again(o, o.seed + i, Plant::none));
  const Outcome sum = sum_of(outcomes);
  tell(sum, o.seeds, seconds);
  const Outcome twice = Cluster(o.seed, static_cast<std::uint32_t>(o.requests), Plant::none).run();
  twice.trace == outcomes.front().trace ? verdict.pass() : verdict.fail("same seed", "two runs of one seed differ");
  // A simulation in which something never happens would say nothing about it.
  if (o.seeds * o.requests < 5'000) return;
  const auto some = [&](const char* name, std::uint64_t count) { count > 0 ? verdict.pass() : verdict.fail(name, "this has not happened once"); };
  some("preemptions", sum.preemptions);
  some("preemptions for a share", sum.share_preemptions);
  some("right guesses", sum.guessed_right);
  some("wrong guesses", sum.guessed - sum.guessed_right);
  some("evictions", sum.evictions);
  some("shared prefixes", sum.hit_tokens);
  some("mirror", sum.tokens_restored);
  some("mirror faults", sum.pages_unrestored);
  some("rank deaths", sum.rank_deaths);
  some("core deaths", sum.core_deaths);
  some("streams taken over", sum.restored_streams);
  some("failures", sum.failed);
  some("a full server", sum.retries);
}

void find(const Options& o, Plant plant, Verdict& verdict) {
  const std::vector<Outcome> outcomes = simulate(o, plant, true);
  const std::string name(name_of(plant));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].broken.empty()) continue;
    std::printf("%-20s found by seed %llu: %s\n", name.c_str(), n(o.seed + i), outcomes[i].broken.c_str());
    return verdict.pass();
  }
  verdict.fail(name, "planted, and not found in " + std::to_string(o.seeds) + " seeds");
}

}  // namespace

int run(int argc, char** argv) {
  Options o;
  bool seeds_given = false;
  for (int i = 1; i < argc; ++i) {
    std::uint64_t* const value = std::strcmp(argv[i], "--seed") == 0       ? &o.seed
                                 : std::strcmp(argv[i], "--seeds") == 0    ? &o.seeds
                                 : std::strcmp(argv[i], "--requests") == 0 ? &o.requests
                                 : std::strcmp(argv[i], "--threads") == 0  ? &o.threads
                                                                           : nullptr;
    const bool plant = std::strcmp(argv[i], "--plant") == 0;
    seeds_given = seeds_given || value == &o.seeds;
    char* end = nullptr;
    if (plant && i + 1 < argc) o.plant = argv[++i];
    if (value != nullptr && i + 1 < argc) *value = std::strtoull(argv[++i], &end, 10);
    const bool known = plant ? o.plant == "all" || plant_of(o.plant).has_value() : end != nullptr && end != argv[i] && *end == '\0';
    if (!known || o.seeds == 0 || o.requests == 0) {
      std::fprintf(stderr, "usage: %s\n", usage_text);
      return 2;
    }
  }
  Verdict verdict;
  if (o.plant.empty()) {
    run_clean(o, verdict);
  } else {
    if (!seeds_given) o.seeds = 1000;
    for (int i = 1; i < plant_count; ++i)
      if (o.plant == "all" || o.plant == name_of(static_cast<Plant>(i))) find(o, static_cast<Plant>(i), verdict);
  }
  return verdict.close();
}

}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv, althing::tests::usage_text)) return 0;
  return althing::tests::run(argc, argv);
}
