// The cluster put together: see the header.
#include "tests/simulation/cluster.hpp"

#include <algorithm>

namespace althing::tests {
namespace {

constexpr Timeline::Time beat_us = 20'000, probe_us = 200'000, look_us = 100'000;
// After faults and asking are over, everything must have ended within this much virtual time: a few step deadlines, each twice as long as the one
// before, and whatever a full queue takes on the slowest cluster.
constexpr Timeline::Time ending_us = 240'000'000;
constexpr Timeline::Time calm_us = 8'000'000;  // until timers of those who vanished have run
constexpr std::uint64_t core_deaths_max = 4;   // a request over which five cores die is given up

// Lanes of messages: those of one keep their order.
constexpr std::uint64_t lane_to_client = 1u << 20, lane_to_server = 2u << 20, lane_to_rank = 3u << 20, lane_from_rank = 4u << 20;
constexpr std::uint64_t lane_late = 5u << 20, lane_control = 6u << 20, lane_connection = 7u << 20;

std::uint32_t tokens_max_of(const scheduler::CoreConfig& config) { return (*scheduler::Core::create(config))->request_tokens_max(); }

}  // namespace

Cluster::Cluster(std::uint64_t seed, std::uint32_t requests, Plant plant)
    : stage_(seed, requests),
      plant_(plant),
      judge_(stage_),
      ranks_(stage_, stage_.setup.grids.front().world + stage_.setup.spares, rank_links()),
      supervisor_(stage_, ranks_, supervisor_links()),
      frontends_(stage_, frontend_links(), plant),
      clients_(stage_, client_links(), tokens_max_of(stage_.setup.core)) {}

std::uint64_t Cluster::way_us() {
  const ClusterSetup& setup = stage_.setup;
  const std::uint64_t way = stage_.dice.between(setup.net_us / 3, setup.net_us);
  return stage_.faults() && stage_.dice.one_in(setup.slow_message) ? way * 50 : way;
}

void Cluster::post(std::uint64_t lane, std::uint64_t takes_us, std::function<void()> what) {
  Timeline::Time& newest = lanes_[lane];
  newest = std::max(newest, stage_.time.now() + takes_us);
  stage_.time.at(newest, [this, life = core_life_, deliver = std::move(what)] {
    if (life == core_life_ && shell_) deliver();
  });
}

void Cluster::post_inside(std::function<void()> what) {
  stage_.time.after(stage_.setup.local_us, [this, life = core_life_, deliver = std::move(what)] {
    if (life == core_life_ && shell_) deliver();
  });
}

RankProcesses::Links Cluster::rank_links() {
  RankProcesses::Links links;
  links.ready = [this](std::uint64_t epoch, std::uint32_t rank, const Grid& grid) {
    post(lane_from_rank + rank, way_us(), [this, epoch, rank, grid] { shell_->rank_ready(epoch, rank, grid); });
  };
  links.status = [this](std::uint64_t epoch, std::uint32_t rank, bool busy) {
    post(lane_from_rank + rank, way_us(), [this, epoch, rank, busy] { shell_->rank_status(epoch, rank, busy); });
  };
  links.failed = [this](std::uint64_t epoch, bool refused) {
    post(lane_from_rank, way_us(), [this, epoch, refused] { shell_->step_failed(epoch, refused); });
  };
  links.done = [this](const StepResult& result, bool late) {
    post(late ? lane_late : lane_from_rank, late ? 40 * way_us() : way_us(), [this, result] { shell_->step_done(result); });
  };
  links.result_of = [this](StepId step) { return judge_.take_result(step); };
  links.copy = [this] { turn_of_mirror(); };
  return links;
}

SupervisorModel::Links Cluster::supervisor_links() {
  SupervisorModel::Links links;
  links.lost = [this](std::uint64_t epoch) { post(lane_control, way_us(), [this, epoch] { shell_->membership_lost(epoch); }); };
  links.grows = [this](std::uint64_t epoch) { post(lane_control, way_us(), [this, epoch] { shell_->membership_grows(epoch); }); };
  links.connection_ended = [this](std::uint64_t epoch, std::uint32_t rank) {
    post(lane_connection + rank, way_us(), [this, epoch, rank] { shell_->rank_down(epoch, rank); });
  };
  return links;
}

FrontendsModel::Links Cluster::frontend_links() {
  FrontendsModel::Links links;
  links.submit = [this](Submitted submitted, std::uint64_t timeout_ms) {
    post_inside([this, submitted = std::move(submitted), timeout_ms] { shell_->submit(submitted, timeout_ms); });
  };
  links.resubmit = [this](const Submitted& submitted, std::uint64_t timeout_ms) { shell_->submit(submitted, timeout_ms); };
  links.cancel = [this](RequestId request, const Error& error) { post_inside([this, request, error] { shell_->cancel(request, error); }); };
  links.stop = [this](RequestId request, std::uint32_t tokens) { post_inside([this, request, tokens] { shell_->stop(request, tokens); }); };
  links.allow = [this](RequestId request, std::uint32_t until) { post_inside([this, request, until] { shell_->allow(request, until); }); };
  links.to_client = [this](std::uint32_t number, ToClient message) {
    post(lane_to_client + number, way_us(), [this, number, message = std::move(message)] { clients_.hear(number, message); });
  };
  return links;
}

ClientsModel::Links Cluster::client_links() {
  ClientsModel::Links links;
  links.open = [this](std::uint32_t number, const StreamRequest& request, const std::vector<std::uint32_t>& heard, std::uint32_t room) {
    post(lane_to_server + number, way_us(), [this, number, request, heard, room] { frontends_.open(number, request, heard, room); });
  };
  links.grant = [this](std::uint32_t number, std::uint32_t credit) {
    post(lane_to_server + number, way_us(), [this, number, credit] { frontends_.grant(number, credit); });
  };
  links.cancel = [this](std::uint32_t number, const Error& error) {
    post(lane_to_server + number, way_us(), [this, number, error] { frontends_.cancel(number, error); });
  };
  return links;
}

ShellModel::Links Cluster::shell_links() {
  ShellModel::Links links;
  links.run_step = [this](const StepPlan& plan) { send_plan(plan); };
  links.probe = [this](std::uint32_t rank) {
    post(lane_to_rank + rank, way_us(), [this, rank, epoch = ranks_.epoch()] {
      if (epoch == ranks_.epoch()) ranks_.probe(rank);
    });
  };
  links.tell = [this](const Effect& effect) {
    if (!std::holds_alternative<RunStep>(effect)) post_inside([this, effect] { frontends_.hear(effect); });
  };
  links.report_failure = [this](std::uint64_t epoch, const std::vector<std::uint32_t>& silent) {
    post(lane_control + 1, way_us(), [this, epoch, silent] { supervisor_.failed(epoch, silent); });
  };
  links.on_ready = [this](std::uint64_t epoch) { post(lane_control + 1, way_us(), [this, epoch] { supervisor_.ready(epoch); }); };
  links.on_resumed = [this](std::uint64_t epoch) { post(lane_control + 1, way_us(), [this, epoch] { supervisor_.resumed(epoch); }); };
  links.kv_of = [this](const Grid& grid) { return kv_of(grid); };
  return links;
}

// Another TP degree makes other bits, so its pages are others.
KvShape Cluster::kv_of(const Grid& grid) const {
  const ClusterSetup& setup = stage_.setup;
  KvShape shape{grid.dp, setup.core.kv, setup.core.mirror_slots, setup.core.mirror_identity + grid.tp - setup.grids.front().tp};
  if (setup.smaller_pools && grid.world < setup.grids.front().world)
    shape.layout.page_count = std::max<std::uint32_t>(shape.layout.page_count * 2 / 3, static_cast<std::uint32_t>(shape.layout.groups.size()));
  return shape;
}

void Cluster::send_plan(const StepPlan& plan) {
  RankProcesses::Work work{plan.step, plan.base, plan.epoch.value, plan.snapshot, 0};
  for (const RowWork& row : plan.work) work.tokens += row.count;
  const std::uint32_t world = stage_.setup.grids.front().world;
  const std::uint32_t lost_on_the_way_to = lose_plan_ && shell_->may_lose_plan() ? stage_.dice.between(0, world - 1) : world;
  if (lost_on_the_way_to < world) lose_plan_ = false;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    if (rank != lost_on_the_way_to) post(lane_to_rank + rank, way_us(), [this, work, rank] { ranks_.take(work, rank); });
}

// Copies are made in their own time; some never are, some are spoilt.
void Cluster::turn_of_mirror() {
  Dice& dice = stage_.dice;
  MirrorModel& mirror = judge_.rank().mirror();
  if (stage_.faults() && dice.one_in(stage_.setup.faults.mirror_drop)) mirror.drop_one();
  if (stage_.faults() && dice.one_in(stage_.setup.faults.mirror_damage)) mirror.damage(dice.bits(), dice.one_in(2));
  for (std::uint32_t i = dice.between(0, 6); i > 0 && judge_.rank().copy_one(); --i) {
  }
}

void Cluster::start_core() {
  ++core_life_;
  shell_ = std::make_unique<ShellModel>(stage_, judge_, shell_links(), plant_);
  frontends_.restore();
  supervisor_.core_is(true);
  if (draining_) post(lane_control, way_us(), [this] { shell_->drain(); });
  beat(core_life_);
  probe(core_life_);
  clients_.reconnect();
}

void Cluster::kill_core() {
  if (!shell_ || core_deaths_ == core_deaths_max) return;
  ++core_deaths_;
  add_core_stats();
  stage_.note(core_deaths_, stage_.time.now());
  shell_.reset();
  judge_.replace_core();
  frontends_.core_died();
  supervisor_.core_is(false);
  stage_.time.after(stage_.setup.core_restart_us, [this] { start_core(); });
}

void Cluster::beat(std::uint64_t life) {
  if (life != core_life_ || !shell_) return;
  shell_->beat();
  stage_.time.after(beat_us, [this, life] { beat(life); });
}

void Cluster::probe(std::uint64_t life) {
  if (life != core_life_ || !shell_) return;
  shell_->probe();
  stage_.time.after(probe_us, [this, life] { probe(life); });
}

void Cluster::look() {
  supervisor_.look();
  stage_.time.after(look_us, [this] { look(); });
}

// At distances that are as likely short as long.
void Cluster::repeat(std::uint32_t mean_us, std::function<void()> what) {
  if (mean_us == 0) return;
  stage_.time.after(stage_.dice.between(0, 2 * std::uint64_t{mean_us}), [this, mean_us, what = std::move(what)] {
    if (!stage_.faults()) return;
    what();
    repeat(mean_us, what);
  });
}

void Cluster::start_faults() {
  const FaultRates& rates = stage_.setup.faults;
  repeat(rates.rank_dies, [this] { supervisor_.kill_some(); });
  repeat(rates.rank_hangs, [this] { supervisor_.hang_some(); });
  repeat(rates.core_dies, [this] { kill_core(); });
  repeat(rates.plan_lost, [this] { lose_plan_ = true; });
  repeat(rates.result_lost, [this] { ranks_.lose_result(); });
  repeat(rates.false_alarm, [this] { supervisor_.alarm_for_nothing(); });
  if (stage_.setup.drain_at_us > 0)
    stage_.time.at(stage_.setup.drain_at_us, [this] {
      draining_ = true;
      if (shell_) post(lane_control, way_us(), [this] { shell_->drain(); });
    });
}

Outcome Cluster::run() {
  supervisor_.begin();
  start_core();
  look();
  clients_.begin();
  start_faults();
  // An ask may wait for the answer to another, so the time for the end begins when the last is asked.
  Timeline::Time until = stage_.setup.faults_until_us + ending_us;
  while (stage_.broken.empty() && !(clients_.over() && frontends_.idle() && judge_.live() == 0 && !stage_.faults())) {
    if (!clients_.asked()) until = std::max(stage_.time.now(), stage_.setup.faults_until_us) + ending_us;
    if (stage_.time.now() > until) stage_.fail("it never ends: " + clients_.missing());
    if (!stage_.time.step()) stage_.fail("time stands still");
  }
  const Timeline::Time calm = stage_.time.now() + calm_us;
  while (stage_.broken.empty() && stage_.time.now() < calm) stage_.time.step();
  if (stage_.broken.empty())
    if (auto left = leftovers(); !left.empty()) stage_.fail(std::move(left));
  if (shell_) add_core_stats();
  const ClientsModel::Sums& clients = clients_.sums();
  const CoreJudge::Sums& judged = judge_.sums();
  outcome_.broken = stage_.broken;
  outcome_.trace = stage_.trace;
  outcome_.requests = stage_.setup.workload.asks;
  outcome_.whole = clients.whole;
  outcome_.failed = clients.failed;
  outcome_.given_up = clients.given_up;
  outcome_.retries = clients.retries;
  outcome_.tokens = clients.tokens;
  outcome_.steps = judged.steps;
  outcome_.worst_wait = judged.worst_wait;
  outcome_.worst_gap = judged.worst_gap;
  outcome_.worst_lead = judge_.worst_lead();
  outcome_.epochs = supervisor_.epochs();
  outcome_.rank_deaths = supervisor_.deaths();
  outcome_.core_deaths = core_deaths_;
  outcome_.restored_streams = frontends_.restored();
  outcome_.happened = stage_.time.happened();
  outcome_.virtual_us = stage_.time.now();
  return outcome_;
}

void Cluster::add_core_stats() {
  const scheduler::CoreStats stats = shell_->stats();
  outcome_.core_events += shell_->events();
  outcome_.preemptions += stats.preemptions;
  outcome_.share_preemptions += stats.preemptions_for_share;
  outcome_.evictions += stats.prefix_pages_evicted;
  outcome_.hit_tokens += stats.prefix_hit_tokens;
  outcome_.guessed += stats.guessed_tokens;
  outcome_.guessed_right += stats.guessed_right;
  outcome_.tokens_restored += stats.tokens_restored;
  outcome_.pages_unrestored += stats.pages_unrestored;
}

std::string Cluster::leftovers() {
  if (!shell_) return "there is no core at the end";
  const scheduler::CoreStats stats = shell_->stats();
  if (!stats.ready) return "there is no membership at the end";
  if (stats.running + stats.waiting != 0) return "sequences are left";
  if (stats.steps_in_flight != 0) return "steps are in flight and nobody waits for them";
  if (stats.pages_used != 0) return std::to_string(stats.pages_used) + " pages are not back";
  return shell_->core().check_invariants();
}

}  // namespace althing::tests
