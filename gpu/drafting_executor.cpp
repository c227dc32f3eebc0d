// Steps of the model end in order, on whatever thread; one thread here takes them in that order, lets the draft model catch up, and reports them.
// The draft model runs plans of its own: rows that may be guessed, with their pages renamed into its pool, and the tokens that are known.
#include "gpu/drafting_executor.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "gpu/comm/solo_communicator.hpp"

namespace althing::gpu {
namespace {

constexpr TokenId unread = std::numeric_limits<TokenId>::max();  // a position whose page others have filled
constexpr std::size_t unasked_tokens = 32;                       // a row that is not asked for guesses lets so many tokens come together

// A row as the draft model follows it.
struct DraftRow {
  RequestId request;
  SamplingParameters sampling;
  std::uint32_t page_offset = 0;
  std::vector<std::uint32_t> pages{};  // by group
  std::vector<TokenId> tokens{};       // by position: what was read or guessed, then the last draw
  std::uint32_t computed = 0;          // positions of these in the draft model's pool

  // From here on other tokens than were thought may follow.
  void put(std::uint32_t position, TokenId token) {
    if (position < tokens.size() && tokens[position] == token) return;
    tokens.resize(position, unread);
    tokens.push_back(token);
    computed = std::min(computed, position);
  }
};

class DraftingExecutor final : public Executor {
 public:
  DraftingExecutor(std::unique_ptr<Executor> target, std::unique_ptr<Executor> draft, const ExecutorConfig& config, const KvLayout& layout,
                   std::uint32_t context)
      : target_(std::move(target)), draft_(std::move(draft)), layout_(layout), pages_of_group_(config.kv.page_count), context_(context) {
    worker_ = std::thread([this] { work(); });
  }
  ~DraftingExecutor() override {
    target_.reset();  // all of its steps are here when it is gone
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override {
    target_->submit(plan, std::move(communicator), [this, plan = StepPlan(plan), done = std::move(done)](Result<StepResult> result) mutable {
      {
        const std::lock_guard lock(mutex_);
        steps_.push_back({std::move(plan), std::move(result), std::move(done)});
      }
      wake_.notify_all();
    });
  }
  Status damage(RowIndex row, Damage what) override { return target_->damage(row, what); }
  std::vector<MirroredPage> take_mirror() override { return target_->take_mirror(); }
  PageKey mirror_seed() const override { return target_->mirror_seed(); }
  MirrorCounts mirror_counts() const override { return target_->mirror_counts(); }
  void observe(Observer observer) override {
    // The draft model's work is the rank's progress, too.
    Observer own;
    own.progress = observer.progress;
    draft_->observe(std::move(own));
    target_->observe(std::move(observer));
  }
  ExpertCounts expert_counts() const override { return target_->expert_counts(); }
  bool counts_steps() const override { return target_->counts_steps(); }
  std::vector<ControlCounts> control_counts() const override { return target_->control_counts(); }
  ExecutorMemory memory() const override {
    ExecutorMemory memory = target_->memory();
    const ExecutorMemory draft = draft_->memory();
    memory.weight_bytes += draft.weight_bytes;
    memory.kv_bytes += draft.kv_bytes;
    memory.scratch_bytes += draft.scratch_bytes;
    return memory;
  }

 private:
  struct Step {
    StepPlan plan;
    Result<StepResult> result;
    Done done;
  };
  // A row that is to be guessed on, in the draft model's plans of one step.
  struct Asked {
    RowIndex row;
    std::uint32_t wanted = 0;
    RowGuesses guesses{};
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || !steps_.empty(); });
      if (steps_.empty()) return;
      Step step = std::move(steps_.front());
      steps_.pop_front();
      lock.unlock();
      // Nothing is known of rows behind a step that was not computed; what follows is refused, or begins anew.
      if (step.result)
        follow(step.plan, *step.result);
      else
        lost_ = true;
      step.done(std::move(step.result));
      lock.lock();
    }
  }

  void follow(const StepPlan& plan, StepResult& result) {
    if (plan.snapshot) {
      rows_.clear();
      lost_ = false;
      communicator_ = solo_communicator(plan.epoch);
    }
    if (lost_) return;
    StepPlan reading;
    reading.snapshot = plan.snapshot;
    change_rows(plan, reading);
    std::vector<Asked> asked = read_tokens(plan, result, reading);
    if (!plan.snapshot && reading.cleared.empty() && reading.set.empty() && reading.pages.empty() && reading.work.empty()) return;
    if (!run(reading, asked)) return;
    for (std::uint32_t guess = 1; !asked.empty(); ++guess) {
      StepPlan next;
      for (const Asked& one : asked)
        if (guess < one.wanted && fits(rows_.at(one.row), rows_.at(one.row).computed + 1)) next.work.push_back(one_more(one.row));
      if (next.work.empty() || !run(next, asked)) break;
    }
    for (Asked& one : asked)
      if (!one.guesses.tokens.empty()) result.guesses.push_back(std::move(one.guesses));
  }

  void change_rows(const StepPlan& plan, StepPlan& reading) {
    for (const RowIndex row : plan.cleared)
      if (rows_.erase(row) > 0) reading.cleared.push_back(row);
    for (const RowSetup& setup : plan.set) {
      if (!setup.drafted) continue;
      DraftRow row{setup.request, setup.sampling, setup.dp_group.value * pages_of_group_};
      row.pages.resize(layout_.groups.size());
      rows_.insert_or_assign(setup.row, std::move(row));
      reading.set.push_back({setup.row, setup.request, setup.sampling});
    }
    for (const PageGrant& grant : plan.pages) {
      const auto row = rows_.find(grant.row);
      if (row == rows_.end()) continue;
      PageGrant& own = reading.pages.emplace_back(grant);
      own.kept = false;
      for (PageId& page : own.pages) page.value += row->second.page_offset;
      row->second.pages[grant.group] = grant.first + static_cast<std::uint32_t>(grant.pages.size());
    }
  }

  // What the step's rows have gone on with becomes work of `reading`, where guesses are wanted or enough has come together.
  std::vector<Asked> read_tokens(const StepPlan& plan, const StepResult& result, StepPlan& reading) {
    std::vector<Asked> asked;
    std::size_t drawn = 0;
    for (const RowWork& work : plan.work) {
      const std::span<const DrawnToken> draws = std::span(result.drawn).subspan(drawn, work.sample ? work.draws : 0);
      drawn += draws.size();
      const auto found = rows_.find(work.row);
      if (found == rows_.end()) continue;
      DraftRow& row = found->second;
      if (row.tokens.empty()) row.tokens.assign(work.start, unread), row.computed = work.start;
      read_work(row, work, draws);
      const auto known = static_cast<std::uint32_t>(row.tokens.size());
      const bool guess = work.sample && work.guesses > 0 && std::none_of(draws.begin(), draws.end(), [](const DrawnToken& d) { return d.nonfinite; });
      if (guess) row.computed = std::min(row.computed, known - 1);  // the last draw is read once more where its guess is wanted
      const std::uint32_t end = readable(row, known);
      if (end <= row.computed || (!guess && end - row.computed < unasked_tokens)) continue;
      RowWork& read = reading.work.emplace_back();
      read.row = work.row;
      read.start = row.computed;
      read.count = end - row.computed;
      read.tokens.assign(row.tokens.begin() + row.computed, row.tokens.begin() + end);
      read.sample = guess && end == known;
      if (read.sample) asked.push_back({work.row, work.guesses, {work.row, row.request, {}}});
    }
    return asked;
  }

  // Of guessed tokens those count that were drawn, up to the first that was not, and the draw behind them.
  static void read_work(DraftRow& row, const RowWork& work, std::span<const DrawnToken> draws) {
    std::size_t held = 0;
    while (held + 1 < draws.size() && draws[held].token == work.tokens[work.count - draws.size() + 1 + held]) ++held;
    const auto count = draws.empty() ? work.count : work.count - static_cast<std::uint32_t>(draws.size() - 1 - held);
    // Without tokens the work is of the row's last draw, which is here already.
    for (std::uint32_t i = 0; i < work.tokens.size() && i < count; ++i) row.put(work.start + i, work.tokens[i]);
    if (!draws.empty()) row.put(work.start + count, draws[held].token);
    row.tokens.resize(work.start + count + (draws.empty() ? 0 : 1), unread);
    row.computed = std::min(row.computed, static_cast<std::uint32_t>(row.tokens.size()));
  }

  // Whether positions below `end` lie in pages that the row has.
  bool fits(const DraftRow& row, std::uint32_t end) const { return readable(row, end) == end; }
  std::uint32_t readable(const DraftRow& row, std::uint32_t end) const {
    end = std::min(end, context_);
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) end = std::min(end, row.pages[g] * layout_.groups[g].tokens_per_page);
    return end;
  }
  // The last guess is read, and the next one drawn.
  RowWork one_more(RowIndex row) {
    RowWork work;
    work.row = row;
    work.start = rows_.at(row).computed;
    work.count = 1;
    work.sample = true;
    return work;
  }

  // Runs a plan of the draft model; its draws are guesses. False where the draft model is lost.
  bool run(StepPlan& plan, std::vector<Asked>& asked) {
    plan.epoch = communicator_->epoch();
    plan.base = step_;
    plan.step = step_ = StepId{step_.value + 1};
    const Result<StepResult> result = draft_->run(plan, *communicator_);
    if (!result) {
      lost_ = true;
      return false;
    }
    for (const RowWork& work : plan.work) rows_.at(work.row).computed = work.start + work.count;
    for (const DrawnToken& drawn : result->drawn) {
      const auto one = std::find_if(asked.begin(), asked.end(), [&](const Asked& a) { return a.row == drawn.row; });
      DraftRow& row = rows_.at(drawn.row);
      if (drawn.nonfinite) {
        one->wanted = 0;
        continue;
      }
      one->guesses.tokens.push_back(drawn.token);
      row.tokens.push_back(drawn.token);
    }
    return true;
  }

  std::unique_ptr<Executor> target_;
  std::unique_ptr<Executor> draft_;
  KvLayout layout_;
  std::uint32_t pages_of_group_;
  std::uint32_t context_;

  // The worker's.
  std::map<RowIndex, DraftRow> rows_;
  std::unique_ptr<Communicator> communicator_;
  StepId step_;
  bool lost_ = true;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Step> steps_;
  bool ending_ = false;
  std::thread worker_;
};

}  // namespace

Result<KvLayout> draft_layout(const DecoderSpec& draft, const KvLayout& kv, std::uint32_t dp_groups, const KvFormat& format) {
  KvLayout layout;
  layout.page_count = kv.page_count * dp_groups;
  const std::uint64_t layer_bytes = std::uint64_t{draft.kv_heads} * draft.head_dim * 2 * format.element_bytes;  // of one token
  for (const KvGroup& group : kv.groups) layout.groups.push_back({group.window, group.tokens_per_page, {}});
  for (std::uint32_t layer = 0; layer < draft.layers.size(); ++layer) {
    const std::uint32_t window = draft.layers[layer].attention.window;
    const auto same = std::find_if(layout.groups.begin(), layout.groups.end(), [&](const KvGroup& group) { return group.window == window; });
    if (same == layout.groups.end())
      return Error{ErrorCode::unsupported,
                   "layer " + std::to_string(layer) + " of the draft model sees " +
                       (window == 0 ? "everything" : std::to_string(window) + " tokens") +
                       ", and no layer of the model does, so there are no pages for it; use another draft model",
                   "draft-model"};
    same->layers.push_back(layer);
  }
  for (const KvGroup& group : layout.groups)
    layout.page_bytes = std::max<std::uint64_t>(layout.page_bytes, group.layers.size() * layer_bytes * group.tokens_per_page);
  return layout;
}

Limits draft_limits(const DecoderSpec& draft, const Limits& limits) {
  Limits own = limits;
  own.context_tokens_max = std::min(limits.context_tokens_max, draft.context_tokens_max);
  own.step_tokens_max += static_cast<std::uint32_t>(unasked_tokens) * limits.rows_max;
  return own;
}

Result<std::unique_ptr<Executor>> drafting_executor(std::unique_ptr<Executor> target, const DecoderSpec& spec, const ExecutorConfig& config) {
  const DecoderSpec& own = config.draft->model->spec;
  if (own.vocabulary != spec.vocabulary)
    return Error{ErrorCode::invalid_argument,
                 "the draft model has a vocabulary of " + std::to_string(own.vocabulary) + " tokens, the model one of " +
                     std::to_string(spec.vocabulary) + "; it must speak the same tokens",
                 "draft-model"};
  const std::uint32_t groups = config.placement.dp;
  auto layout = draft_layout(own, config.kv, groups, kv_format(config.device));
  if (!layout) return layout.error();
  ExecutorConfig draft;
  draft.placement = config.draft->placement;
  draft.kv = *layout;
  draft.limits = draft_limits(own, config.limits);
  draft.threads = config.threads;
  draft.device = config.device;
  draft.dense = config.dense;
  draft.gpu = config.gpu;
  draft.count_steps = false;
  auto executor = Executor::create(config.draft->model, draft);
  if (!executor) return Error{executor.error().code, "the draft model: " + executor.error().message, executor.error().field};
  return std::unique_ptr<Executor>(
      std::make_unique<DraftingExecutor>(std::move(target), std::move(*executor), config, *layout, draft.limits.context_tokens_max));
}

}  // namespace althing::gpu
