// From plan to launches: check the plan against the rows, commit it, write the step's block into pinned memory, enqueue. A thread of its own waits
// for the device and reports, so that the next step is on its way before this one's tokens are read. Steps of decodes alone run as captured graphs.
#include "gpu/cuda/cuda_executor.hpp"

#include <algorithm>
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
#include "gpu/cuda/sampler_lists.hpp"
#include "gpu/cuda/step_slot.hpp"
#include "gpu/cuda/step_trace.hpp"
#include "gpu/cuda/weight_loader.hpp"
#include "gpu/ops/lower.hpp"
#include "gpu/row_table.hpp"
#include "scheduler/vocabulary/expert_counts.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::size_t slots = 4;              // steps whose host memory is in use: two in flight, and a margin for what is being reported
constexpr std::uint32_t tile_tokens_min = 9;  // fewer tokens of a row than this are cheaper one by one

Error invalid(const std::string& message, const char* field) { return {ErrorCode::invalid_argument, message, field}; }

struct ShapeOrder {
  bool operator()(const StepShape& a, const StepShape& b) const {
    return std::tie(a.tokens, a.filters, a.far, a.adjustments) < std::tie(b.tokens, b.filters, b.far, b.adjustments);
  }
};
// What steps take turns in: the decoder's two blocks, and the graphs that read them.
struct Turn {
  cudaEvent_t sent = nullptr;      // the step's block is on the device
  cudaEvent_t computed = nullptr;  // its last kernel has ended
  cudaEvent_t received = nullptr;  // what it drew and counted has left the device
  std::map<StepShape, cudaGraphExec_t, ShapeOrder> graphs;
};

// What a step sends besides what its shape says.
struct Sent {
  std::size_t block_bytes = 0, list_bytes = 0;
  bool logprobs = false;  // come back
};
// A draw that the host knows of.
struct Reported {
  EpochId epoch;
  RowIndex row;
  RequestId request;
  TokenId token = 0;
};
// Of one draw: how many most likely tokens are told of besides the drawn one. None: nothing is.
using Asked = std::optional<std::uint32_t>;

struct Finished {
  Executor::Done done;
  StepResult result;  // `drawn` names rows and requests; tokens come from the slot
  std::optional<Error> error;
  std::size_t slot = 0;
  std::uint32_t tokens = 0;
  std::vector<Asked> asked{};  // by draw
};

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(std::shared_ptr<const Model> model, const ExecutorConfig& config, const Program& program)
      : model_(std::move(model)),
        config_(config),
        context_(std::min(config.limits.context_tokens_max, program.context_tokens_max)),
        rows_({config.kv, config.limits.rows_max, config.limits.step_tokens_max, context_, program.vocabulary}),
        homes_(program.experts),
        last_drawn_(config.limits.rows_max),
        counts_{program.layers, program.experts, std::vector<std::uint64_t>(std::size_t{program.layers} * program.experts)} {
    for (std::size_t slot = 0; slot < config.placement.experts.size(); ++slot)
      homes_[config.placement.experts[slot].expert.value].push_back({0, static_cast<std::uint16_t>(slot)});
  }

  Status open(const Program& program) {
    if (auto s = check(cudaSetDevice(static_cast<int>(config_.gpu)), "choosing the GPU"); !s) return s;
    int processors = 0;
    if (auto s = check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, static_cast<int>(config_.gpu)), "asking the GPU"); !s)
      return s;
    for (cudaStream_t* stream : {&stream_, &sending_, &receiving_})
      if (auto s = check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream"); !s) return s;
    for (Turn& turn : turns_)
      for (cudaEvent_t* event : {&turn.sent, &turn.computed, &turn.received})
        if (auto s = check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event"); !s) return s;
    LoadOptions options;
    options.dense = config_.dense == DenseFormat::fp8 ? WeightFormat::fp8 : WeightFormat::bf16;
    options.screen_head = config_.screen_head;
    options.dummy_seed = model_->dummy_seed;
    auto loaded = load_weights(program, options);
    if (!loaded) return loaded.error();
    weights_ = std::move(*loaded);
    for (const DeviceLayer& layer : weights_.model.layers)
      can_count_steps_ = can_count_steps_ && layer.experts_per_token == weights_.model.experts_per_token;
    auto decoder = Decoder::create(weights_.model, config_.kv,
                                   {config_.limits.step_tokens_max, config_.limits.rows_max, context_, static_cast<std::uint32_t>(processors),
                                    config_.whole_steps, config_.count_steps, config_.limits.logit_bias_max});
    if (!decoder) return decoder.error();
    decoder_ = std::move(*decoder);
    for (StepSlot& slot : slots_)
      if (auto status = slot.open(*decoder_, config_.limits.rows_max); !status) return status;
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
      if (turn.received != nullptr) cudaEventDestroy(turn.received);
    }
    for (const cudaStream_t stream : {stream_, sending_, receiving_})
      if (stream != nullptr) cudaStreamDestroy(stream);
  }

  void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) override {
    Finished step{std::move(done), {plan.step, plan.epoch, {}}, {}, 0, 0, {}};
    for (const RowWork& work : plan.work) step.tokens += work.count;
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
  bool counts_steps() const override { return can_count_steps_; }
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
    learn_draws();
    auto staged = rows_.check(plan);
    if (!staged) return staged.error();
    std::size_t updates = 0;
    for (const PageGrant& grant : plan.pages) updates += grant.pages.size();
    if (updates > decoder_->updates_max())
      return invalid("it grants " + std::to_string(updates) + " pages, a step takes at most " + std::to_string(decoder_->updates_max()), "pages");
    rows_.commit(plan, std::move(*staged));
    rows_epoch_ = plan.epoch;
    const StepShape shape = shape_of(plan);
    turn_ ^= 1;
    const TallyLayout sizes = decoder_->tally_layout();
    Status sent = slots_[step.slot].trace.begin(traced_rows(plan), {sizes.layers, sizes.experts, sizes.experts_per_token});
    if (sent) sent = send_step(plan, shape, step);
    if (!sent) {
      // The device's state is unknown from here on; the process must end (and its streams live on with another).
      failed_ = sent.error();
      return sent;
    }
    for (const RowWork& work : plan.work) rows_.at(work.row).advance(work);
    return Ok{};
  }

  // None where counts are not told either: the two tell the same.
  std::vector<StepTrace::Row> traced_rows(const StepPlan& plan) const {
    std::vector<StepTrace::Row> traced;
    std::uint32_t first = 0;
    for (const RowWork& work : plan.work) {
      const RowState& row = rows_.at(work.row);
      if (row.trace_top_m > 0 && config_.count_steps && can_count_steps_)
        traced.push_back({work.row, {row.request, first, work.start, row.trace_top_m, work.tokens}});
      first += work.count;
    }
    return traced;
  }

  // Penalties of the next step are of all tokens that were drawn. The newest may not have come yet: it is on the device then
  // (SamplerRow::draw_pending).
  void learn_draws() {
    std::vector<Reported> reported;
    {
      const std::lock_guard lock(mutex_);
      reported.swap(reported_);
    }
    for (const Reported& draw : reported)
      if (RowState& row = rows_.at(draw.row); draw.epoch == rows_epoch_ && row.seen && row.request == draw.request) row.seen->add_output(draw.token);
  }

  Status send_step(const StepPlan& plan, const StepShape& shape, Finished& step) {
    StepSlot& slot = slots_[step.slot];
    std::size_t list_bytes_needed = 0;
    for (const RowWork& work : plan.work)
      if (work.sample) list_bytes_needed += work.draws * list_bytes(rows_.at(work.row), work, weights_.model.vocabulary);
    if (auto s = slot.make_room(list_bytes_needed); !s) return s;
    SamplerLists lists(slot.lists.get(), decoder_->lists(turn_));
    Sent sent;
    sent.block_bytes = write_block(plan, shape, slot.block.get(), lists, step);
    sent.list_bytes = lists.bytes();
    sent.logprobs = std::any_of(step.asked.begin(), step.asked.end(), [](const Asked& asked) { return asked.has_value(); });
    return launch(shape, sent, slot, plan.scrub);
  }

  // A step in which every row decodes one token fills a bucket; others are as large as they are, which may be nothing.
  StepShape shape_of(const StepPlan& plan) const {
    StepShape shape;
    bool decodes_alone = !plan.work.empty();
    for (const RowWork& work : plan.work) {
      decodes_alone = decodes_alone && work.count < tile_tokens_min && work.sample && work.draws == work.count;
      shape.tokens += work.count;
      if (work.count < tile_tokens_min) {
        shape.decodes += work.count;
      } else {
        shape.tiles += ceil_div(work.count, decoder_->prefill_tile_tokens());
      }
      if (!work.sample) continue;
      shape.sampled += work.draws;
      const SamplingParameters& s = rows_.at(work.row).sampling;
      shape.filters = shape.filters || s.logprobs || (s.temperature > 0 && (s.top_p < 1 || s.top_k != 0 || s.min_p > 0));
      shape.adjustments = shape.adjustments || s.penalizes() || !s.logit_bias.empty();
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
  std::size_t write_block(const StepPlan& plan, const StepShape& shape, std::byte* block, SamplerLists& lists, Finished& step) const {
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
      for (std::uint32_t back = work.draws; back-- > 0;) {
        *sampled++ = static_cast<std::int32_t>(token - 1 - back);
        SamplerRow& draw = *samplers++ = sampler_of(row, work, back);
        lists.put(row, work, weights_.model.vocabulary, draw);
        step.result.drawn.push_back({work.row, row.request, 0, false});
        step.asked.push_back(row.sampling.logprobs ? Asked(row.sampling.top_logprobs) : std::nullopt);
      }
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

  Status launch(const StepShape& shape, const Sent& sent, StepSlot& slot, const std::vector<LeftPage>& scrub) {
    // Copies run beside the step before: to the block that it does not read, after the last step that did; and draws go back while the next step
    // runs.
    Turn& turn = turns_[turn_];
    if (auto s = check(cudaStreamWaitEvent(sending_, turn.computed), "sending a step"); !s) return s;
    if (auto s =
            check(cudaMemcpyAsync(decoder_->block(turn_), slot.block.get(), sent.block_bytes, cudaMemcpyHostToDevice, sending_), "sending a step");
        !s)
      return s;
    if (sent.list_bytes != 0)
      if (auto s =
              check(cudaMemcpyAsync(decoder_->lists(turn_), slot.lists.get(), sent.list_bytes, cudaMemcpyHostToDevice, sending_), "sending a step");
          !s)
        return s;
    if (auto s = check(cudaEventRecord(turn.sent, sending_), "sending a step"); !s) return s;
    if (auto s = check(cudaStreamWaitEvent(stream_, turn.sent), "sending a step"); !s) return s;
    if (auto s = check(cudaStreamWaitEvent(stream_, turn.received), "sending a step"); !s) return s;
    // Behind the steps that may still touch these pages, and before the first that has them again: all on one stream.
    for (const LeftPage& left : scrub)
      if (left.dp_group == config_.placement.dp_group)
        if (auto s = check(cudaMemsetAsync(decoder_->kv_page(left.page), 0, decoder_->kv_page_bytes(), stream_), "scrubbing a page"); !s) return s;
    if (observer_watches(observer_) || slot.trace.active()) {
      DecoderWatch watch = make_watch(observer_, stream_, {shape.tokens, weights_.model.hidden, weights_.model.experts, weights_.model.vocabulary});
      if (slot.trace.active()) slot.trace.join(watch, stream_);
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
    if (sent.logprobs)
      if (auto s = slot.fetch_logprobs(*decoder_, turn_, shape.sampled, receiving_); !s) return s;
    if (config_.count_steps && shape.tokens != 0)
      if (auto s = check(cudaMemcpyAsync(slot.tallies.get(), decoder_->tallies(turn_), slot.tallies.bytes(), cudaMemcpyDeviceToHost, receiving_),
                         "reading counts");
          !s)
        return s;
    if (auto s = check(cudaEventRecord(turn.received, receiving_), "ending a step"); !s) return s;
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
    StepSlot& slot = slots_[step.slot];
    if (!step.error) {
      if (auto s = check(cudaEventSynchronize(slot.done), "running a step"); !s) step.error = s.error();
    }
    if (auto s = decoder_->status(); !s && !step.error) step.error = s.error();
    if (observer_.progress) observer_.progress();
    if (step.error) return step.done(*step.error);
    if (slot.trace.active()) step.result.routing = slot.trace.take(last_drawn_, homes_);
    for (std::size_t i = 0; i < step.result.drawn.size(); ++i) {
      step.result.drawn[i].token = static_cast<TokenId>(slot.drawn.get()[i].token);
      step.result.drawn[i].nonfinite = slot.drawn.get()[i].nonfinite != 0;
      last_drawn_[step.result.drawn[i].row.value] = step.result.drawn[i].token;
      if (!step.result.drawn[i].nonfinite && step.asked[i])
        append_logprobs(step.result.logprobs, {step.result.drawn[i].request, slot.logprobs_of(i, step.result.drawn[i].token, *step.asked[i])});
    }
    {
      // Known to whoever submits before anybody can plan on top of it.
      const std::lock_guard lock(mutex_);
      for (const DrawnToken& drawn : step.result.drawn) reported_.push_back({step.result.epoch, drawn.row, drawn.request, drawn.token});
    }
    if (config_.count_steps && step.tokens != 0) {
      auto bytes = count(slot.tallies.get(), step.tokens);
      if (can_count_steps_) step.result.counts = std::move(bytes);
    }
    step.done(std::move(step.result));
  }

  // The step's counts as bytes, added to those of all steps.
  std::string count(const unsigned long long* tallies, std::uint32_t tokens) {
    const TallyLayout layout = decoder_->tally_layout();
    std::string bytes = begin_step_counts(layout.layers, layout.experts, layout.experts_per_token, tokens);
    const std::lock_guard lock(mutex_);
    for (std::uint32_t l = 0; l < layout.layers; ++l) {
      LayerCounts layer;
      const auto* const router = layout.router(tallies, l);
      layer.router = {router[0], router[1], router[2], router[3]};
      layer.gate_weights.assign(layout.places(tallies, l), layout.places(tallies, l) + layout.experts_per_token);
      for (std::uint32_t e = 0; e < layout.experts; ++e) {
        const std::uint64_t taken = layout.tokens(tallies, l)[e];
        if (taken == 0) continue;
        counts_.tokens[std::size_t{l} * layout.experts + e] += taken;
        layer.experts.push_back({static_cast<std::uint16_t>(e), 0, static_cast<std::uint32_t>(taken), layout.gate_weights(tallies, l)[e]});
      }
      append_layer(bytes, layer);
    }
    return bytes;
  }

  std::shared_ptr<const Model> model_;  // owns what was loaded, until it is loaded
  ExecutorConfig config_;
  std::uint32_t context_;
  RowTable rows_;
  LoadedModel weights_;
  std::unique_ptr<Decoder> decoder_;
  Observer observer_;
  cudaStream_t stream_ = nullptr, sending_ = nullptr, receiving_ = nullptr;
  Turn turns_[2];
  std::uint32_t turn_ = 0;
  bool can_count_steps_ = true;  // every layer chooses as many experts
  std::optional<Error> failed_;
  std::vector<std::vector<ExpertHome>> homes_;
  std::vector<TokenId> last_drawn_;  // by row; the reporter's
  EpochId rows_epoch_;               // of the plan that rows stand after
  StepSlot slots_[slots];

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Finished> queue_;
  std::vector<Reported> reported_;  // draws since a plan was last checked
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
