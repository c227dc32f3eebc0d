// Random but legal lives of the scheduler core: submissions, cancellations, clocks, results, lost and new memberships, drains, and ranks that
// answer nonsense, cores that die, and mirrors that are late, lose pages or spoil them, over tiny pools, one to four DP groups and odd limits that
// differ by seed. Every event is judged (core_harness.hpp); then faults stop and everything must come to its end, with the pool back at its baseline.
// A failure prints the seed that repeats it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "scheduler/journal.hpp"
#include "tests/scheduler/core_harness.hpp"
#include "tests/simulation/dice.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::tests {
namespace {

scheduler::CoreConfig random_config(Dice& dice) {
  scheduler::CoreConfig config;
  Limits& l = config.limits;
  l.rows_max = dice.between(1, 8);
  l.step_tokens_max = l.rows_max + dice.between(0, dice.one_in(3) ? 200 : dice.one_in(2) ? 4 : 40);
  l.prefill_chunk_max = dice.between(1, l.step_tokens_max);
  l.steps_in_flight_max = dice.between(1, 2);
  l.sequences_max = l.rows_max + dice.between(0, 12);
  l.context_tokens_max = dice.between(2, 96);
  l.completion_tokens_max = dice.between(1, 64);
  config.vocabulary = dice.between(1, 60);
  config.dp_groups = dice.one_in(2) ? 1 : dice.between(2, 4);
  const std::uint32_t groups = dice.between(1, 3);
  for (std::uint32_t g = 0; g < groups; ++g) {
    KvGroup group;
    group.window = dice.one_in(2) ? 0 : dice.between(1, 24);
    group.tokens_per_page = dice.between(1, 8);
    group.layers = {g};
    config.kv.groups.push_back(group);
  }
  // A block of all groups' pages is small in most layouts that are there.
  if (!dice.one_in(4))
    for (KvGroup& group : config.kv.groups) group.tokens_per_page = config.kv.groups[0].tokens_per_page << dice.between(0, 1);
  config.kv.page_bytes = 64;
  // From "one long request is too much" over "one fits exactly" to "a few fit"; room for all would never preempt.
  std::uint32_t one_request = 0;
  for (const KvGroup& group : config.kv.groups) {
    const std::uint32_t tokens = group.window == 0 ? l.context_tokens_max : std::min(l.context_tokens_max, group.window + group.tokens_per_page);
    one_request += tokens / group.tokens_per_page + 1;
  }
  const std::uint32_t extra = one_request * dice.between(1, 3) / config.dp_groups;
  config.kv.page_count = std::max(groups, one_request / 2 + dice.between(0, extra));
  if (dice.one_in(3)) l.tenant_sequences_max = dice.between(1, l.sequences_max);
  if (dice.one_in(2)) l.speculation_tokens_max = dice.between(1, 6), l.draft_model = dice.one_in(2);
  l.priority_ms = dice.between(0, 100);
  l.deadline_near_ms = dice.between(0, 100);
  if (!dice.one_in(3)) config.mirror_slots = dice.one_in(2) ? dice.between(1, one_request) : 10 * one_request;
  config.mirror_identity = dice.bits();
  config.share_prefixes = !dice.one_in(3);
  return config;
}

// Which faults a seed has at all, as one in N events (0: never): a fault that is always present hides what needs its absence.
struct Faults {
  std::uint32_t cancel = 0, lose = 0, replace = 0, spoil = 0, zombie = 0, deadline = 0, invalid = 0, drain = 0;
  std::uint32_t submit = 0, delay = 0, takeover = 0, die = 0, reshape = 0;
  std::uint32_t copy = 0, drop = 0, damage = 0;   // of the mirror
  std::uint32_t fork = 0, tenant = 0, trace = 0;  // no faults: who asks for what
  std::uint32_t tenants = 0;                      // one more than this
  std::uint32_t constrain = 0;                    // somebody decides about each draw
};

Faults random_faults(Dice& dice) {
  const auto maybe = [&](std::uint32_t low, std::uint32_t high) { return dice.one_in(2) ? 0u : dice.between(low, high); };
  Faults f;
  f.cancel = maybe(5, 60);
  f.lose = maybe(10, 200);
  f.replace = maybe(100, 300);
  f.spoil = maybe(5, 60);
  f.zombie = maybe(2, 20);
  f.deadline = maybe(2, 6);
  f.invalid = maybe(3, 10);
  f.drain = dice.one_in(6) ? dice.between(100, 400) : 0;
  f.submit = dice.between(2, 12);
  f.delay = maybe(2, 4);
  f.takeover = maybe(1, 8);
  f.die = dice.one_in(4) ? dice.between(50, 300) : 0;
  f.copy = dice.between(1, 3);
  f.drop = maybe(5, 50);
  f.damage = maybe(5, 100);
  f.reshape = maybe(1, 4);
  f.fork = maybe(1, 3);
  f.tenant = maybe(2, 8);
  f.trace = maybe(4, 40);
  f.tenants = maybe(1, 5);
  f.constrain = maybe(1, 4);
  return f;
}

class Life {
 public:
  Life(std::uint64_t seed, std::uint32_t events)
      : dice_(seed), events_(events), config_(random_config(dice_)), faults_(random_faults(dice_)), harness_(config_) {
    // The twin lives on the journal alone.
    const auto config = scheduler::from_config_line(scheduler::to_config_line(config_));
    auto twin = config.ok() ? scheduler::Core::create(*config) : Result<std::unique_ptr<scheduler::Core>>(config.error());
    if (twin.ok())
      twin_ = std::move(*twin);
    else
      replay_broken_ = twin.error().message;
  }

  // Empty, or what went wrong and when.
  std::string run() {
    for (; event_ < events_ && broken().empty(); ++event_) step();
    for (; broken().empty() && harness_.live() > 0 && event_ < events_ + events_to_end_max; ++event_) step_to_end();
    while (broken().empty() && harness_.awaited() > 0) deliver();
    if (!broken().empty()) return where() + broken();
    if (harness_.live() > 0) return where() + std::to_string(harness_.live()) + " requests never end";
    const auto stats = harness_.stats();
    if (stats.pages_used != 0) return where() + std::to_string(stats.pages_used) + " pages are not back";
    if (stats.running + stats.waiting != 0) return where() + "sequences are left";
    return {};
  }

  std::uint64_t events() const { return event_; }
  std::uint64_t requests() const { return requests_before_ + harness_.streams().size(); }
  std::uint64_t tokens_restored() const { return ended_.tokens_restored + harness_.stats().tokens_restored; }
  std::uint64_t pages_unrestored() const { return ended_.pages_unrestored + harness_.stats().pages_unrestored; }
  scheduler::CoreStats prefixes() const {
    scheduler::CoreStats sum = ended_;
    add_prefixes(sum, harness_.stats());
    return sum;
  }
  const CoreHarness& harness() const { return harness_; }
  static void add_prefixes(scheduler::CoreStats& sum, const scheduler::CoreStats& more) {
    sum.preemptions_for_share += more.preemptions_for_share;
    sum.guessed_tokens += more.guessed_tokens;
    sum.guessed_right += more.guessed_right;
    sum.prefix_hit_tokens += more.prefix_hit_tokens;
    sum.prefix_pages_evicted += more.prefix_pages_evicted;
    for (std::size_t i = 0; i < prefix_miss_count; ++i) sum.prefix_misses[i] += more.prefix_misses[i];
  }

 private:
  static constexpr std::uint32_t events_to_end_max = 200'000;

  const std::string& broken() const { return harness_.broken().empty() ? replay_broken_ : harness_.broken(); }

  void on(const Event& event) {
    const auto& effects = harness_.on(event);
    const std::string line = scheduler::to_line(event);
    const auto again = scheduler::from_line(line);
    if (!again.ok()) {
      replay_broken_ = "the journal does not read its own line: " + again.error().message;
      return;
    }
    const auto replayed = twin_->on(*again);
    if (!std::equal(effects.begin(), effects.end(), replayed.begin(), replayed.end()))
      replay_broken_ = "the journal replays to other effects: " + line.substr(0, 200);
  }

  void deliver() { on(StepDone{StepResult(harness_.next_result())}); }

  std::string where() const { return "event " + std::to_string(event_) + ": "; }

  void step() {
    // Just after a preemption pages are on their way between owners: the best moment for someone to leave.
    const bool preempted = std::exchange(preemptions_, harness_.stats().preemptions) != harness_.stats().preemptions;
    mirror();
    if (dice_.one_in(faults_.die)) return die();
    if (dice_.one_in(preempted && faults_.cancel > 0 ? 2 : faults_.cancel)) return cancel();
    if (dice_.one_in(faults_.lose)) return lose();
    if (dice_.one_in(faults_.replace)) return replace();
    if (dice_.one_in(faults_.zombie) && !harness_.voided().empty()) return zombie();
    if (dice_.one_in(faults_.drain)) return void(on(DrainStarted{}));
    if (dice_.one_in(faults_.submit)) return submit();
    if (dice_.one_in(6)) return void(on(Ticked{now_ += dice_.between(0, 20)}));
    if (faults_.constrain > 0 && dice_.one_in(2) && allow_draws(dice_.between(1, 3))) return;
    if (!harness_.stats().ready) return dice_.one_in(3) ? replace() : submit();
    if (harness_.awaited() == 0) return submit();
    if (dice_.one_in(faults_.delay)) return void(on(Ticked{now_}));
    if (dice_.one_in(faults_.spoil)) return spoil();
    deliver();
  }

  void step_to_end() {
    if (!harness_.stats().ready) return replace();
    if (dice_.one_in(2) && allow_draws(100)) return;
    if (harness_.awaited() == 0) return void(on(Ticked{++now_}));
    mirror();
    deliver();
  }

  // Somebody has decided about some draws of one of those that wait for it; false when nobody does.
  bool allow_draws(std::uint32_t more) {
    std::vector<std::pair<RequestId, std::uint32_t>> waiting;
    for (const auto& [request, stream] : harness_.streams())
      if (!stream.finished && stream.submitted.constrained && stream.draws_ready <= stream.tokens.size())
        waiting.emplace_back(request, static_cast<std::uint32_t>(stream.tokens.size()));
    if (waiting.empty()) return false;
    const auto [request, tokens] = waiting[dice_.bits() % waiting.size()];
    on(DrawsReady{request, tokens + more});
    return true;
  }

  // Copies are made in their own time; some never are, some are spoilt.
  void mirror() {
    if (dice_.one_in(faults_.drop)) harness_.rank().mirror().drop_one();
    if (dice_.one_in(faults_.damage)) harness_.rank().mirror().damage(dice_.bits(), dice_.one_in(2));
    if (!dice_.one_in(faults_.copy)) return;
    for (std::uint32_t i = dice_.between(1, 8); i > 0 && harness_.rank().copy_one(); --i) {
    }
  }

  // The core dies; the next one knows what a token log tells it, and hears from the ranks what is in the mirror.
  void die() {
    std::vector<Submitted> live;
    for (const auto& [request, stream] : harness_.streams()) {
      if (stream.finished) continue;
      live.push_back(stream.submitted);
      live.back().drawn = stream.tokens;
      live.back().draws_ready = 0;  // the next core's frontends have to say so again
    }
    const EpochId epoch = harness_.epoch();
    ended_.tokens_restored += harness_.stats().tokens_restored;
    ended_.pages_unrestored += harness_.stats().pages_unrestored;
    add_prefixes(ended_, harness_.stats());
    requests_before_ += harness_.streams().size() - live.size();
    harness_.replace_core();
    twin_ = std::move(*scheduler::Core::create(harness_.config()));
    preemptions_ = 0;
    on(RanksLost{epoch});
    for (Submitted& submitted : live)
      if (broken().empty()) on(submitted);
  }

  void submit() {
    Submitted s;
    s.choices = dice_.one_in(4) ? dice_.between(1, 6) : 1;
    s.request = RequestId{dice_.one_in(40) ? dice_.between(1, next_request_) : next_request_};
    if (s.request.value == next_request_) next_request_ += s.choices;
    const std::uint32_t context = config_.limits.context_tokens_max;
    const std::uint32_t length = dice_.between(dice_.one_in(20) ? 0 : 1, dice_.one_in(3) ? context : std::min(12u, context));
    if (dice_.one_in(faults_.fork)) go_on(s);
    for (std::uint32_t i = 0; i < length && s.prompt.size() < context; ++i) s.prompt.push_back(dice_.between(0, config_.vocabulary - 1));
    for (std::uint32_t i = dice_.between(0, 3); i > 0; --i) s.boundaries.push_back(dice_.between(0, s.prompt.size()));
    std::sort(s.boundaries.begin(), s.boundaries.end());
    if (dice_.one_in(faults_.tenant)) s.salt = {dice_.between(0, 2), 7};
    if (dice_.one_in(faults_.trace)) s.trace_top_m = 1;
    s.constrained = dice_.one_in(faults_.constrain);
    if (s.constrained) s.draws_ready = dice_.between(0, 3);
    s.tenant = TenantId{dice_.between(0, faults_.tenants)};
    if (dice_.one_in(3)) s.priority = static_cast<std::int32_t>(dice_.between(0, 8)) - 4;
    s.sampling.seed = dice_.between(0, 40);
    s.sampling.completion_tokens_max = dice_.between(1, dice_.one_in(3) ? 100 : 12);
    s.sampling.ignore_stop = dice_.one_in(4);
    if (dice_.one_in(3)) s.sampling.frequency_penalty = 0.5F;  // ranks must be told its tokens
    for (std::uint32_t i = dice_.between(0, 2); i > 0; --i) s.sampling.stop_tokens.push_back(dice_.between(0, config_.vocabulary - 1));
    if (dice_.one_in(faults_.deadline)) s.deadline_ms = now_ + dice_.between(0, 200);
    if (dice_.one_in(faults_.takeover) && s.choices == 1 && !s.prompt.empty() && s.prompt.size() < context) take_over(s);
    if (dice_.one_in(faults_.invalid)) make_invalid(s);
    on(s);
  }

  // Somebody goes on with what another has said and heard, from its end or from somewhere before.
  void go_on(Submitted& s) {
    const auto& streams = harness_.streams();
    if (streams.empty()) return;
    const auto newest = std::prev(streams.end(), static_cast<std::ptrdiff_t>(dice_.between(1, std::min<std::size_t>(streams.size(), 6))));
    s.prompt = newest->second.submitted.prompt;
    s.prompt.insert(s.prompt.end(), newest->second.tokens.begin(), newest->second.tokens.end());
    if (dice_.one_in(2)) s.prompt.resize(dice_.between(0, s.prompt.size()));
    s.salt = newest->second.submitted.salt;
  }

  // It began at a core that has died since, which drew some of its tokens, or all but said so to nobody.
  void take_over(Submitted& s) {
    s.drawn = lone_run(s, config_.limits, config_.vocabulary).tokens;
    s.drawn.resize(dice_.between(0, s.drawn.size()));
  }

  void make_invalid(Submitted& s) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    switch (dice_.between(0, 8)) {
      case 0:
        s.sampling.temperature = dice_.one_in(2) ? nan : -1.0F;
        break;
      case 1:
        s.sampling.top_p = dice_.one_in(2) ? nan : 0.0F;
        break;
      case 2:
        s.sampling.min_p = dice_.one_in(2) ? nan : 1.5F;
        break;
      case 3:
        s.sampling.stop_tokens.assign(config_.limits.stop_tokens_max + 1, 0);
        break;
      case 4:
        s.sampling.completion_tokens_max = 0;
        break;
      case 5:
        s.prompt.push_back(config_.vocabulary + dice_.between(0, 3));
        break;
      case 7:
        s.priority = dice_.one_in(2) ? priority_min - 1 : priority_max + 1;
        break;
      case 6:
        s.choices = dice_.one_in(2) ? 0 : config_.limits.choices_max + 1;
        break;
      default:
        s.boundaries = {1, 0};
    }
    harness_.expect_refused(s.request);
  }

  // Mostly a recent request, which is likely to live; now and then one that ended long ago or never was.
  void cancel() {
    const std::uint32_t oldest = dice_.one_in(8) || next_request_ < 12 ? 1 : next_request_ - 11;
    // Or its reader has found the end in what it says, some tokens ago, or never got as far as it says.
    if (dice_.one_in(3)) return on(Stopped{RequestId{dice_.between(oldest, next_request_ + 1)}, dice_.between(0, 12)});
    on(Cancelled{RequestId{dice_.between(oldest, next_request_ + 1)}, Error{ErrorCode::cancelled, "the client left", {}}});
  }

  // Now and then the news is old, or about a membership that never was ready.
  void lose() {
    const std::uint64_t epoch = harness_.epoch().value;
    on(RanksLost{EpochId{dice_.one_in(4) ? dice_.between(0, epoch + 1) : epoch}});
  }

  void replace() {
    const std::uint64_t known = std::max(harness_.epoch().value, harness_.lost().value);
    const bool old_news = dice_.one_in(5) && event_ < events_;
    RanksReady ready = harness_.ready(EpochId{old_news ? dice_.between(0, known) : known + dice_.between(1, 3)});
    ready.shape = random_shape();
    // Mirrors of another shape hold none of these pages.
    if (ready.shape && *ready.shape != harness_.shape()) ready.mirrored.clear();
    on(ready);
  }

  // Mostly none: as before. Else other groups and pages, now and then so few that what was accepted does not fit any more.
  std::optional<KvShape> random_shape() {
    if (faults_.reshape == 0 || !dice_.one_in(faults_.reshape)) return std::nullopt;
    KvShape shape{dice_.between(1, 4), config_.kv, dice_.one_in(4) ? dice_.between(0, 40) : config_.mirror_slots, dice_.bits()};
    const auto groups = static_cast<std::uint32_t>(config_.kv.groups.size());
    shape.layout.page_count = dice_.one_in(3) ? config_.kv.page_count : dice_.between(groups, config_.kv.page_count * 2);
    return shape;
  }

  // A rank of an epoch that is over answers after all.
  void zombie() {
    const auto& old = harness_.voided();
    on(StepDone{StepResult(old[dice_.bits() % old.size()])});
  }

  // A rank answers nonsense to the step in hand.
  void spoil() {
    StepResult result = harness_.next_result();
    for (const DrawnToken& drawn : result.drawn) harness_.expect_spoilt(drawn.request);
    if (result.drawn.empty()) result.drawn.push_back({RowIndex{dice_.between(0, 100)}, RequestId{9999}, 0, false});
    DrawnToken& some = result.drawn[dice_.bits() % result.drawn.size()];
    switch (dice_.between(0, 7)) {
      case 0:
        some.token = config_.vocabulary + dice_.between(0, 1000);
        break;
      case 1:
        some.row = RowIndex{dice_.between(0, 4'000'000'000)};
        break;
      case 2:
        some.request = RequestId{dice_.bits()};
        break;
      case 3:
        result.drawn.clear();
        break;
      case 4:
        result.drawn.push_back(DrawnToken(some));
        break;
      case 5:
        if (result.drawn.front().row != result.drawn.back().row) std::swap(result.drawn.front(), result.drawn.back());
        break;
      case 6:
        result.step = StepId{result.step.value + dice_.between(1, 3)};
        break;
      default:
        result.epoch = EpochId{result.epoch.value + dice_.between(1, 3)};
    }
    on(StepDone{std::move(result)});
  }

  Dice dice_;
  std::uint32_t events_;
  std::uint32_t event_ = 0;
  scheduler::CoreConfig config_;
  Faults faults_;
  CoreHarness harness_;
  std::unique_ptr<scheduler::Core> twin_;
  std::string replay_broken_;
  std::uint32_t next_request_ = 1;
  std::uint64_t now_ = 0;
  std::uint64_t preemptions_ = 0;
  scheduler::CoreStats ended_;  // of cores that died
  std::uint64_t requests_before_ = 0;
};

int simulate(std::uint64_t first_seed, std::uint64_t seeds, std::uint64_t events) {
  Verdict verdict;
  scheduler::CoreStats prefixes;
  std::uint64_t all_events = 0, steps = 0, preemptions = 0, requests = 0, tokens = 0, restored = 0, unrestored = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    Life life(seed, static_cast<std::uint32_t>(events / seeds));
    const std::string broken = life.run();
    const auto stats = life.harness().stats();
    all_events += life.events();
    steps += stats.steps_done;
    preemptions += stats.preemptions;
    tokens += stats.completion_tokens;
    requests += life.requests();
    restored += life.tokens_restored();
    unrestored += life.pages_unrestored();
    Life::add_prefixes(prefixes, life.prefixes());
    const std::string name = "seed " + std::to_string(seed);
    if (broken.empty())
      verdict.pass();
    else
      verdict.fail(name, broken + " (core_random --seed " + std::to_string(seed) + " --seeds 1 --events " + std::to_string(events / seeds) + ")");
  }
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("%llu events, %llu requests, %llu steps, %llu tokens, %llu preemptions, %llu tokens from the mirror, %llu pages that it did not have\n",
              number(all_events), number(requests), number(steps), number(tokens), number(preemptions), number(restored), number(unrestored));
  std::printf("%llu tokens guessed, %llu right\n", number(prefixes.guessed_tokens), number(prefixes.guessed_right));
  std::printf("%llu preemptions for a tenant's share, %llu tokens from shared prefixes, %llu pages evicted; missed:",
              number(prefixes.preemptions_for_share), number(prefixes.prefix_hit_tokens), number(prefixes.prefix_pages_evicted));
  for (std::uint32_t i = 0; i < prefix_miss_count; ++i)
    std::printf(" %s %llu", std::string(name_of(static_cast<PrefixMiss>(i))).c_str(), number(prefixes.prefix_misses[i]));
  std::printf("\n");
  // A simulation in which the mirror is never used, or never fails, would say nothing about it.
  if (events >= 50'000 && seeds >= 50) {
    restored > 0 ? verdict.pass() : verdict.fail("mirror", "no token ever came back from a mirror");
    unrestored > 0 ? verdict.pass() : verdict.fail("mirror faults", "no page was ever missing when it was wanted back");
    prefixes.guessed_right > 0 && prefixes.guessed_right < prefixes.guessed_tokens ? verdict.pass()
                                                                                   : verdict.fail("guesses", "none ever held, or all of them did");
    prefixes.preemptions_for_share > 0 ? verdict.pass() : verdict.fail("shares", "no tenant ever got what another had too much of");
    prefixes.prefix_hit_tokens > 0 ? verdict.pass() : verdict.fail("prefixes", "no request ever went on from another's pages");
    prefixes.prefix_pages_evicted > 0 ? verdict.pass() : verdict.fail("evictions", "no cached page ever made room");
    for (std::uint32_t i = 0; i < prefix_miss_count; ++i)
      if (prefixes.prefix_misses[i] == 0) verdict.fail("misses", "none was ever " + std::string(name_of(static_cast<PrefixMiss>(i))));
  }
  return verdict.close();
}

}  // namespace
}  // namespace althing::tests

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "core_random [--events N] [--seed FIRST] [--seeds N]\n"
                             "Random lives of the scheduler's core against the rank model; N events in all, spread over the seeds."))
    return 0;
  std::uint64_t events = 100'000, seed = 1, seeds = 200;
  for (int i = 1; i < argc; ++i) {
    std::uint64_t* const value = std::strcmp(argv[i], "--events") == 0  ? &events
                                 : std::strcmp(argv[i], "--seed") == 0  ? &seed
                                 : std::strcmp(argv[i], "--seeds") == 0 ? &seeds
                                                                        : nullptr;
    char* end = nullptr;
    if (value != nullptr && i + 1 < argc) *value = std::strtoull(argv[++i], &end, 10);
    if (end == nullptr || *end != '\0' || end == argv[i] || seeds == 0) {
      std::fprintf(stderr, "usage: core_random [--events N] [--seed FIRST] [--seeds N]; N events in all, spread over the seeds\n");
      return 2;
    }
  }
  return althing::tests::simulate(seed, seeds, events);
}
