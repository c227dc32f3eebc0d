// From plan to launches: check the plan against the rows, commit it, write the step's block into pinned memory, enqueue. A thread of its own waits
// for the device and reports, so that the next step is on its way before this one's tokens are read. Steps of decodes alone run as captured graphs.
#include "gpu/cuda/cuda_executor.hpp"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "gpu/cuda/decoder.hpp"
#include "gpu/cuda/observation.hpp"
#include "gpu/cuda/weight_loader.hpp"
#include "gpu/ops/lower.hpp"
#include "gpu/row_table.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::size_t slots = 4;              // steps whose host memory is in use: two in flight, and a margin for what is being reported
constexpr std::uint32_t count_interval = 16;  // steps between two looks at the experts' counts
constexpr std::uint32_t tile_tokens_min = 9;  // fewer tokens of a row than this are cheaper one by one

Error invalid(const std::string& message, const char* field) { return {ErrorCode::invalid_argument, message, field}; }

// Host memory of one step, and the event after which it is free.
struct Slot {
  PinnedBuffer<std::byte> block;
  PinnedBuffer<DrawnRow> drawn;
  cudaEvent_t done = nullptr;
};

struct ShapeOrder {
  bool operator()(const StepShape& a, const StepShape& b) const {
    return std::tie(a.tokens, a.filters, a.far) < std::tie(b.tokens, b.filters, b.far);
  }
};
// What steps take turns in: the decoder's two blocks, and the graphs that read them.
struct Turn {
  cudaEvent_t sent = nullptr;      // the step's block is on the device
  cudaEvent_t computed = nullptr;  // its last kernel has ended
  std::map<StepShape, cudaGraphExec_t, ShapeOrder> graphs;
};

struct Finished {
  Executor::Done done;
  StepResult result;  // `drawn` names rows and requests; tokens come from the slot
  std::optional<Error> error;
  std::size_t slot = 0;
};

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(std::shared_ptr<const Model> model, const ExecutorConfig& config, const Program& program)
      : model_(std::move(model)),
        config_(config),
        context_(std::min(config.limits.context_tokens_max, program.context_tokens_max)),
        rows_({config.kv, config.limits.rows_max, config.limits.step_tokens_max, context_, program.vocabulary}),
        counts_{program.layers, program.experts, std::vector<std::uint64_t>(std::size_t{program.layers} * program.experts)} {}

  Status open(const Program& program) {
    if (auto s = check(cudaSetDevice(static_cast<int>(config_.gpu)), "choosing the GPU"); !s) return s;
    int processors = 0;
    if (auto s = check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, static_cast<int>(config_.gpu)), "asking the GPU"); !s)
      return s;
    for (cudaStream_t* stream : {&stream_, &sending_, &receiving_, &totals_stream_})
      if (auto s = check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream"); !s) return s;
    for (Turn& turn : turns_)
      for (cudaEvent_t* event : {&turn.sent, &turn.computed})
        if (auto s = check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event"); !s) return s;
    LoadOptions options;
    options.dense = config_.dense == DenseFormat::fp8 ? WeightFormat::fp8 : WeightFormat::bf16;
    options.dummy_seed = model_->dummy_seed;
    auto loaded = load_weights(program, options);
    if (!loaded) return loaded.error();
    weights_ = std::move(*loaded);
    auto decoder = Decoder::create(
        weights_.model, config_.kv,
        {config_.limits.step_tokens_max, config_.limits.rows_max, context_, static_cast<std::uint32_t>(processors), config_.whole_steps});
    if (!decoder) return decoder.error();
    decoder_ = std::move(*decoder);
    for (Slot& slot : slots_) {
      auto block = allocate_pinned<std::byte>(decoder_->block_bytes(), "steps");
      auto drawn = allocate_pinned<DrawnRow>(config_.limits.rows_max, "steps");
      if (!block) return block.error();
      if (!drawn) return drawn.error();
      slot.block = std::move(*block);
      slot.drawn = std::move(*drawn);
      if (auto s = check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "making an event"); !s) return s;
    }
    auto totals = allocate_pinned<unsigned long long>(counts_.tokens.size(), "experts' counts");
    if (!totals) return totals.error();
    totals_ = std::move(*totals);
    reporter_ = std::thread([this] { report(); });
    return Ok{};
  }

  ~CudaExecutor() override {
    if (reporter_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        ending_ = true;
      }
      wake_.notify_all();
      reporter_.join();
    }
    for (const Turn& turn : turns_) {
      for (const auto& [shape, graph] : turn.graphs) cudaGraphExecDestroy(graph);
      if (turn.sent != nullptr) cudaEventDestroy(turn.sent);
      if (turn.computed != nullptr) cudaEventDestroy(turn.computed);
    }
    for (const Slot& slot : slots_)
      if (slot.done != nullptr) cudaEventDestroy(slot.done);
    for (const cudaStream_t stream : {stream_, sending_, receiving_, totals_stream_})
      if (stream != nullptr) cudaStreamDestroy(stream);
  }

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override {
    Finished step{std::move(done), {plan.step, plan.epoch, {}}, {}, 0};
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return used_slots_ < slots; });
      ++used_slots_;
      step.slot = next_slot_;
      next_slot_ = (next_slot_ + 1) % slots;
    }
    if (auto s = start(plan, *communicator, step); !s) step.error = s.error();
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(step));
    }
    wake_.notify_all();
  }

  // REQUIRES: no step is in flight.
  void observe(Observer observer) override { observer_ = std::move(observer); }
  ExpertCounts expert_counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  ExecutorMemory memory() const override {
    std::size_t free = 0, installed = 0;
    cudaSetDevice(static_cast<int>(config_.gpu));
    cudaMemGetInfo(&free, &installed);
    return {weights_.memory.bytes(), decoder_->kv_bytes(), decoder_->scratch_bytes(), installed, free};
  }

 private:
  Status start(const StepPlan& plan, const Communicator& communicator, Finished& step) {
    if (failed_) return *failed_;
    if (communicator.world() != 1)
      return invalid("the communicator has " + std::to_string(communicator.world()) + " ranks, this executor runs alone", "communicator");
    if (communicator.epoch() != plan.epoch)
      return invalid(
          "the plan is of epoch " + std::to_string(plan.epoch.value) + ", the communicator of epoch " + std::to_string(communicator.epoch().value),
          "epoch");
    auto staged = rows_.check(plan);
    if (!staged) return staged.error();
    std::size_t updates = 0;
    for (const PageGrant& grant : plan.pages) updates += grant.pages.size();
    if (updates > decoder_->updates_max())
      return invalid("it grants " + std::to_string(updates) + " pages, a step takes at most " + std::to_string(decoder_->updates_max()), "pages");
    rows_.commit(plan, std::move(*staged));
    const StepShape shape = shape_of(plan);
    const std::size_t bytes = write_block(plan, shape, slots_[step.slot].block.get(), step.result);
    if (auto s = launch(shape, bytes, slots_[step.slot], plan.scrub); !s) {
      // The device's state is unknown from here on; the process must end (and its streams live on with another).
      failed_ = s.error();
      return s;
    }
    for (const RowWork& work : plan.work) {
      RowState& row = rows_.at(work.row);
      row.started = true;
      row.length = work.start + work.count;
      row.drawn = work.sample;
      row.drawn_position = row.length;
    }
    return Ok{};
  }

  // A step in which every row decodes one token fills a bucket; others are as large as they are, which may be nothing.
  StepShape shape_of(const StepPlan& plan) const {
    StepShape shape;
    bool decodes_alone = !plan.work.empty();
    for (const RowWork& work : plan.work) {
      decodes_alone = decodes_alone && work.count == 1 && work.sample;
      shape.tokens += work.count;
      if (work.count < tile_tokens_min) {
        shape.decodes += work.count;
      } else {
        shape.tiles += ceil_div(work.count, decoder_->prefill_tile_tokens());
      }
      if (!work.sample) continue;
      ++shape.sampled;
      const SamplingParameters& s = rows_.at(work.row).sampling;
      shape.filters = shape.filters || (s.temperature > 0 && (s.top_p < 1 || s.top_k != 0 || s.min_p > 0));
    }
    const std::uint32_t bucket = decode_bucket(shape.tokens);
    if (decodes_alone && bucket != 0 && bucket <= config_.limits.rows_max && !observer_watches(observer_))
      shape.tokens = shape.decodes = shape.sampled = bucket;
    shape.far = shape.tokens == 1 && decoder_->far(plan.work[0].start);
    return shape;
  }

  std::int32_t slot_of(RowIndex row, std::size_t group, std::uint32_t position) const {
    const std::uint32_t size = config_.kv.groups[group].tokens_per_page;
    return static_cast<std::int32_t>(rows_.at(row).pages[group][position / size].value * size + position % size);
  }

  // Returns the bytes to send.
  std::size_t write_block(const StepPlan& plan, const StepShape& shape, std::byte* block, StepResult& result) const {
    const StepOffsets o = step_offsets(shape);
    const auto at = [&]<class T>(std::size_t offset, T*) { return reinterpret_cast<T*>(block + offset); };
    constexpr std::int32_t* i32 = nullptr;
    std::int32_t *rows = at(o.rows, i32), *positions = at(o.positions, i32), *ids = at(o.ids, i32), *decodes = at(o.decodes, i32),
                 *sampled = at(o.sampled, i32);
    auto* tiles = at(o.tiles, static_cast<PrefillTile*>(nullptr));
    auto* samplers = at(o.samplers, static_cast<SamplerRow*>(nullptr));
    std::int32_t* const places = at(o.slots, i32);
    std::uint32_t token = 0;
    for (const RowWork& work : plan.work) {
      const std::uint32_t first = token;
      for (std::uint32_t i = 0; i < work.count; ++i, ++token) {
        rows[token] = static_cast<std::int32_t>(work.row.value);
        positions[token] = static_cast<std::int32_t>(work.start + i);
        ids[token] = work.tokens.empty() ? -1 : static_cast<std::int32_t>(work.tokens[i]);
        for (std::size_t g = 0; g < config_.kv.groups.size(); ++g) places[g * shape.tokens + token] = slot_of(work.row, g, work.start + i);
        if (work.count < tile_tokens_min) *decodes++ = static_cast<std::int32_t>(token);
      }
      const std::uint32_t tile = decoder_->prefill_tile_tokens();
      for (std::uint32_t i = 0; work.count >= tile_tokens_min && i < work.count; i += tile)
        *tiles++ = {static_cast<std::int32_t>(first + i), static_cast<std::int32_t>(std::min(tile, work.count - i))};
      if (!work.sample) continue;
      const RowState& row = rows_.at(work.row);
      *sampled++ = static_cast<std::int32_t>(token - 1);
      SamplerRow& draw = *samplers++ = SamplerRow{};
      draw.row = static_cast<std::int32_t>(work.row.value);
      draw.position = work.start + work.count;
      draw.seed = row.sampling.seed;
      draw.choice = row.sampling.choice;
      draw.temperature = row.sampling.temperature;
      draw.top_p = row.sampling.top_p;
      draw.top_k = row.sampling.top_k;
      draw.min_p = row.sampling.min_p;
      result.drawn.push_back({work.row, row.request, 0, false});
    }
    for (; token < shape.tokens; ++token) {
      rows[token] = -1;
      positions[token] = ids[token] = 0;
      for (std::size_t g = 0; g < config_.kv.groups.size(); ++g) places[g * shape.tokens + token] = -1;
      *decodes++ = -1;
      *sampled++ = static_cast<std::int32_t>(token);
      *samplers++ = SamplerRow{};
    }
    std::uint32_t count = 0;
    auto* updates = at(o.updates, static_cast<TableUpdate*>(nullptr));
    for (const PageGrant& grant : plan.pages)
      for (std::uint32_t i = 0; i < grant.pages.size(); ++i)
        updates[count++] = {decoder_->table_entry(grant.group, grant.row.value, grant.first + i), static_cast<std::int32_t>(grant.pages[i].value)};
    std::memcpy(block + o.update_count, &count, sizeof count);
    return o.updates + count * sizeof(TableUpdate);
  }

  Status launch(const StepShape& shape, std::size_t bytes, Slot& slot, const std::vector<LeftPage>& scrub) {
    // Copies run beside the step before: to the block that it does not read, after the last step that did; and draws go back while the next step
    // runs.
    turn_ ^= 1;
    Turn& turn = turns_[turn_];
    if (auto s = check(cudaStreamWaitEvent(sending_, turn.computed), "sending a step"); !s) return s;
    if (auto s = check(cudaMemcpyAsync(decoder_->block(turn_), slot.block.get(), bytes, cudaMemcpyHostToDevice, sending_), "sending a step"); !s)
      return s;
    if (auto s = check(cudaEventRecord(turn.sent, sending_), "sending a step"); !s) return s;
    if (auto s = check(cudaStreamWaitEvent(stream_, turn.sent), "sending a step"); !s) return s;
    // Behind the steps that may still touch these pages, and before the first that has them again: all on one stream.
    for (const LeftPage& left : scrub)
      if (left.dp_group == config_.placement.dp_group)
        if (auto s = check(cudaMemsetAsync(decoder_->kv_page(left.page), 0, decoder_->kv_page_bytes(), stream_), "scrubbing a page"); !s) return s;
    if (observer_watches(observer_)) {
      const DecoderWatch watch =
          make_watch(observer_, stream_, {shape.tokens, weights_.model.hidden, weights_.model.experts, weights_.model.vocabulary});
      if (auto s = decoder_->enqueue(shape, turn_, stream_, &watch); !s) return s;
    } else if (shape.all_sampled() && decode_bucket(shape.tokens) == shape.tokens) {
      auto graph = graph_of(shape);
      if (!graph) return graph.error();
      if (auto s = check(cudaGraphLaunch(*graph, stream_), "launching a step"); !s) return s;
    } else if (auto s = decoder_->enqueue(shape, turn_, stream_); !s) {
      return s;
    }
    if (auto s = check(cudaEventRecord(turn.computed, stream_), "ending a step"); !s) return s;
    if (auto s = check(cudaStreamWaitEvent(receiving_, turn.computed), "reading draws"); !s) return s;
    if (shape.sampled != 0)
      if (auto s =
              check(cudaMemcpyAsync(slot.drawn.get(), decoder_->drawn(turn_), shape.sampled * sizeof(DrawnRow), cudaMemcpyDeviceToHost, receiving_),
                    "reading draws");
          !s)
        return s;
    return check(cudaEventRecord(slot.done, receiving_), "ending a step");
  }

  Result<cudaGraphExec_t> graph_of(const StepShape& shape) {
    auto& graphs = turns_[turn_].graphs;
    if (const auto known = graphs.find(shape); known != graphs.end()) return known->second;
    if (auto s = check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a step"); !s) return s.error();
    const Status enqueued = decoder_->enqueue(shape, turn_, stream_);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (!enqueued) return enqueued.error();
    if (auto s = check(ended, "capturing a step"); !s) return s.error();
    cudaGraphExec_t ready = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    if (auto s = check(made, "making a graph of a step"); !s) return s.error();
    graphs.emplace(shape, ready);
    return ready;
  }

  // The reporter's life: steps in the order of submission.
  void report() {
    cudaSetDevice(static_cast<int>(config_.gpu));
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Finished step = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      finish(step);
      lock.lock();
      --used_slots_;
      wake_.notify_all();
    }
  }

  void finish(Finished& step) {
    const Slot& slot = slots_[step.slot];
    if (!step.error) {
      if (auto s = check(cudaEventSynchronize(slot.done), "running a step"); !s) step.error = s.error();
    }
    if (auto s = decoder_->status(); !s && !step.error) step.error = s.error();
    if (observer_.progress) observer_.progress();
    if (step.error) {
      step.done(*step.error);
      return;
    }
    for (std::size_t i = 0; i < step.result.drawn.size(); ++i) {
      step.result.drawn[i].token = static_cast<TokenId>(slot.drawn.get()[i].token);
      step.result.drawn[i].nonfinite = slot.drawn.get()[i].nonfinite != 0;
    }
    if (++steps_since_counts_ >= count_interval || alone()) read_counts();
    step.done(std::move(step.result));
  }

  bool alone() const {
    const std::lock_guard lock(mutex_);
    return used_slots_ == 1;
  }
  // Beside the steps, so that no step waits for it: every few steps, and when nothing is left to run, so that counts are exact at rest.
  void read_counts() {
    steps_since_counts_ = 0;
    if (cudaMemcpyAsync(totals_.get(), decoder_->expert_totals(), totals_.bytes(), cudaMemcpyDeviceToHost, totals_stream_) != cudaSuccess) return;
    if (cudaStreamSynchronize(totals_stream_) != cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    counts_.tokens.assign(totals_.get(), totals_.get() + totals_.size());
  }

  std::shared_ptr<const Model> model_;  // owns what was loaded, until it is loaded
  ExecutorConfig config_;
  std::uint32_t context_;
  RowTable rows_;
  LoadedModel weights_;
  std::unique_ptr<Decoder> decoder_;
  Observer observer_;
  cudaStream_t stream_ = nullptr, sending_ = nullptr, receiving_ = nullptr, totals_stream_ = nullptr;
  Turn turns_[2];
  std::uint32_t turn_ = 0;
  PinnedBuffer<unsigned long long> totals_;
  std::uint32_t steps_since_counts_ = 0;  // of the reporter
  std::optional<Error> failed_;
  Slot slots_[slots];

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Finished> queue_;
  std::size_t used_slots_ = 0, next_slot_ = 0;
  bool ending_ = false;
  ExpertCounts counts_;
  std::thread reporter_;
};

}  // namespace

Result<std::unique_ptr<Executor>> create_executor(std::shared_ptr<const Model> model, const ExecutorConfig& config) {
  if (config.placement.world != 1)
    return Error{ErrorCode::unsupported,
                 "the CUDA backend runs one rank so far, and " + std::to_string(config.placement.world) + " are asked for; use --ranks 1", "ranks"};
  if (config.limits.rows_max == 0 || config.limits.step_tokens_max == 0) return invalid("rows_max and step_tokens_max must not be 0", "limits");
  auto program = lower(model->spec, config.placement);
  if (!program) return program.error();
  auto executor = std::make_unique<CudaExecutor>(std::move(model), config, *program);
  if (auto s = executor->open(*program); !s) return s.error();
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace althing::gpu::cuda
