// One rank's engine: keeps rows, page tables and the KV shard, and runs StepPlans one after another. Steps are submitted, and end in the same order:
// a backend may still compute one when the next is handed over.
// Bits depend only on (tokens, weights, build, layout, device): not on chunking, batch neighbours, page placement or preemption.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/comm/communicator.hpp"
#include "gpu/decoder_spec.hpp"
#include "gpu/expert_control.hpp"
#include "gpu/mirror_memory.hpp"
#include "gpu/models/gpt_oss.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/placement.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::gpu {

// `synthetic` computes nothing (synthetic_executor.hpp).
enum class Device : std::uint8_t { cpu, cuda, synthetic };

constexpr std::string_view name_of(Device device) { return device == Device::cuda ? "cuda" : device == Device::cpu ? "cpu" : "synthetic"; }

// How a backend stores keys and values.
struct KvFormat {
  std::uint32_t element_bytes = 4;
  bool tokens_power_of_two = false;  // tokens a page, 16 or more: a power of two, else a multiple of 8
};

constexpr KvFormat kv_format(Device device) { return device == Device::cuda ? KvFormat{2, true} : KvFormat{4, false}; }

// The layout for `bytes_per_rank` of KV memory. Full and windowed layers share the pool. too_large with both numbers when not even
// `context_tokens_min` tokens fit. The page count is the same on every rank because the largest shard decides.
Result<KvLayout> kv_layout(const DecoderSpec& spec, std::span<const RankPlacement> placements, const KvFormat& format, std::uint64_t bytes_per_rank,
                           std::uint32_t context_tokens_min);

// How a GPU keeps the weights of attention and head: as in the checkpoint, or as E4M3 with power-of-two scales of 128 x 128 blocks.
enum class DenseFormat : std::uint8_t { bf16, fp8 };

class SyntheticScript;  // synthetic_script.hpp

// A smaller model of the same vocabulary, which guesses what the model will draw (drafting_executor.hpp).
struct DraftModel {
  std::shared_ptr<const Model> model;
  RankPlacement placement;  // of a world of one
};

struct ExecutorConfig {
  RankPlacement placement;
  KvLayout kv;
  Limits limits;
  std::uint32_t threads = 1;  // CPU backend
  Device device = Device::cpu;
  DenseFormat dense = DenseFormat::bf16;   // CUDA backend
  std::uint32_t gpu = 0;                   // CUDA backend: which one, as the runtime counts those that this process sees
  bool whole_steps = false;                // CUDA backend: a decode step of one token runs as one kernel where it can. No result depends on it
  bool screen_head = true;                 // CUDA backend: draws read half of the head's bytes where they can. No result depends on it
  ExpertControl control{};                 // CPU backend; the same on every rank
  std::shared_ptr<MirrorMemory> mirror{};  // CPU backend: where full pages are copied to; null: nowhere
  bool count_steps = true;                 // StepResult::counts, for all ranks; one rank of a world is enough
  std::shared_ptr<const SyntheticScript> script{};  // synthetic engine: what it says …
  std::chrono::microseconds synthetic_step{0};      // … and how long a step takes
  std::shared_ptr<const DraftModel> draft{};        // CPU and CUDA backends: guesses where plans ask; one rank of a world is enough
};

// What others may watch. `progress` is for liveness; the rest is for tests and traces, and a backend may leave it out where it says so.
struct Observer {
  // Something was computed: at least once a layer on CPU ranks, at least once a step on GPUs. Called by any thread of the executor; must be cheap.
  std::function<void()> progress;
  // (tokens, hidden): the input of each layer, and after the last layer the output of the final norm (layer == layers.size()).
  std::function<void(std::uint32_t layer, std::span<const float>)> hidden;
  // (tokens, experts)
  std::function<void(std::uint32_t layer, std::span<const float>)> router_logits;
  // (tokens, vocabulary): when set, logits are computed for every token, not for sampled ones only, so set it on
  // every rank or on none (ranks must bring equal lengths to the gather). Every rank sees the gathered row.
  std::function<void(std::span<const float>)> logits;
};

// Cumulative since creation: tokens[layer * experts + expert] that this rank computed for an expert it holds (0 for others).
struct ExpertCounts {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::vector<std::uint64_t> tokens;
};

struct ExecutorMemory {
  std::uint64_t weight_bytes = 0;  // CPU: mapped, shared with the page cache; GPU: on the device
  std::uint64_t kv_bytes = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t device_bytes = 0;       // GPU only: installed …
  std::uint64_t device_free_bytes = 0;  // … and free once everything above was taken
};

// Cumulative since creation, of this rank's pages.
struct MirrorCounts {
  std::uint64_t copied = 0;
  std::uint64_t skipped = 0;   // not copied: the page had got another owner, held NaN, or too many were waiting
  std::uint64_t restored = 0;  // fetched back
  std::uint64_t missing = 0;   // wanted back and not there
  std::uint64_t corrupt = 0;   // wanted back, and the checksum was wrong

  friend bool operator==(const MirrorCounts&, const MirrorCounts&) = default;
};

// What Executor::damage turns into NaN: the KV page that a row wrote last, or what the row's next step begins with.
enum class Damage : std::uint8_t { kv_page, activations };

class Executor {
 public:
  // How a step ended. Errors: unavailable (the communicator was aborted or timed out: the epoch is over), invalid_argument (a plan that does not
  // fit: wrong base, epoch, row, page or count; nothing was computed). After these the executor stays usable: the next snapshot starts afresh.
  // Any other code (internal, too_large) says that the device is lost to this process, which should end and be started again.
  using Done = std::function<void(Result<StepResult>)>;

  // REQUIRES: config.placement comes from scheduler::place for this model.
  // Errors: unsupported (config.device is not in this build or on this machine, cannot run this model, or has no mirror or
  // expert control); invalid_argument (config.control); too_large (memory).
  static Result<std::unique_ptr<Executor>> create(std::shared_ptr<const Model> model, const ExecutorConfig& config);
  // Steps in flight end first: every `done` has been called when this returns. REQUIRES: not called from within a `done`.
  virtual ~Executor() = default;

  // Hands over one plan and returns once it is on its way; the CPU backend computes it before it returns. `done` is called exactly once, in the
  // order of submission, before or after this returns, maybe by a thread of the executor: it must be short and must not throw, wait or submit.
  // The communicator is not used after `done` has begun. A plan may take its tokens from draws of a step that is not done yet. A refused plan leaves
  // no trace, so plans on top of it are refused too; after a step that ended as unavailable everything is refused until a snapshot.
  // REQUIRES: one thread submits; of an epoch, at most Limits::steps_in_flight_max steps are not done. When an older epoch's still are (their
  // communicator is aborted, so they end soon), submit may wait for them.
  virtual void submit(const StepPlan& plan, std::shared_ptr<Communicator> communicator, Done done) = 0;

  // Submits and waits. REQUIRES: no step is in flight.
  Result<StepResult> run(const StepPlan& plan, Communicator& communicator);

  // Breaks a row on purpose, so that tests can see what happens then; the shard of this rank only. Errors: unsupported (this backend cannot),
  // invalid_argument (the row has nothing of that kind). REQUIRES: no step is in flight, and the thread that submits calls it.
  virtual Status damage(RowIndex row, Damage what);

  // An epoch gives this rank its place, and the mirror of that place with it: before this, other processes may be using the mirror for another grid.
  // Returns what it holds now, ascending, once copies that are under way are made. REQUIRES: no step is in flight; called before the epoch's first.
  virtual std::vector<MirroredPage> take_mirror() { return {}; }
  // The secret of its keys.
  virtual PageKey mirror_seed() const { return {}; }
  // Any thread.
  virtual MirrorCounts mirror_counts() const { return {}; }

  // REQUIRES: no step is in flight.
  virtual void observe(Observer observer) = 0;
  // Any thread, at any time; a step in flight may be in it in part.
  virtual ExpertCounts expert_counts() const = 0;
  // Whether results carry counts (of the rank that is told to make them). Where they do not, expert_counts() of every rank must be asked for now and
  // then, and what a rank counted between the last time and its death is lost.
  virtual bool counts_steps() const { return false; }
  // By layer, of all ranks' tokens (every rank decides alike); all zero while control is off. Any thread.
  virtual std::vector<ControlCounts> control_counts() const { return {}; }
  virtual ExecutorMemory memory() const = 0;
};

}  // namespace althing::gpu
