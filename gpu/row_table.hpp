// What a rank remembers between steps: which request holds which row, its sampling, its page tables and its last draw. A plan is checked whole
// against these before anything changes, so a refused plan leaves no trace. Page tables are names only; memory belongs to the backend. Rows of all DP
// groups are here, on every rank alike: ranks must refuse the same plans, and all of them draw.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gpu/seen_tokens.hpp"
#include "scheduler/vocabulary/errors.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/limits.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::gpu {

inline constexpr PageId no_page{0xffff'ffffu};

struct RowState {
  bool occupied = false;
  RequestId request;
  SamplingParameters sampling;
  DpGroup dp_group{};
  std::uint32_t trace_top_m = 0;           // RowSetup's
  std::vector<std::vector<PageId>> pages;  // by group; no_page where a window group never had one
  bool started = false;                    // has computed tokens on this rank
  std::uint32_t length = 0;                // positions below it are in the KV cache
  bool drawn = false;
  std::uint32_t drawn_position = 0;
  TokenId drawn_token = 0;
  std::shared_ptr<SeenTokens> seen;  // null where nothing is penalized; changed by draws only, which copies of the row that are staged do not make
  std::uint32_t next_draw = 0;       // of a row with penalties: the position that the next draw must be for

  // The row's work of a step is computed, or on its way.
  void advance(const RowWork& work) {
    started = true;
    length = work.start + work.count;
    drawn = work.sample;
    drawn_position = length;
    if (work.sample) next_draw = length + 1;
  }
};

class RowTable {
 public:
  struct Bounds {
    KvLayout kv;
    std::uint32_t rows_max = 0;
    std::uint32_t step_tokens_max = 0;
    std::uint32_t context_tokens_max = 0;
    std::uint32_t vocabulary = 0;
    std::uint32_t dp_groups = 1;
    std::uint32_t mirror_slots = 0;
  };
  // Rows as they will be, for the rows that the plan touches.
  struct Staged {
    bool snapshot = false;
    std::map<std::uint32_t, RowState> rows;
  };

  explicit RowTable(Bounds bounds);

  // invalid_argument names what does not fit: epoch, base, row, page, position, count or token.
  Result<Staged> check(const StepPlan& plan) const;
  void commit(const StepPlan& plan, Staged&& staged);
  // The step was not computed to its end: rows are unknown until a snapshot.
  void lose();

  RowState& at(RowIndex row) { return rows_[row.value]; }
  const RowState& at(RowIndex row) const { return rows_[row.value]; }

 private:
  Status check_base(const StepPlan& plan) const;
  Status stage_rows(const StepPlan& plan, Staged& staged) const;
  Status stage_seen(const RowSetup& setup, RowState& row) const;
  Status stage_pages(const StepPlan& plan, Staged& staged) const;
  Status check_kept(const StepPlan& plan) const;
  Status check_scrub(const StepPlan& plan) const;
  Status check_mirror(const StepPlan& plan, const Staged& staged) const;
  Status check_slot(const SlotOfGroup& place) const;
  Status check_mirror_page(const char* field, const MirrorPage& page) const;
  Status check_work(const StepPlan& plan, const Staged& staged) const;
  Status check_item(const RowWork& work, const RowState& row) const;
  Status check_written_pages(const StepPlan& plan, const Staged& staged) const;
  const RowState& staged_row(const Staged& staged, RowIndex row) const;

  Bounds bounds_;
  std::vector<RowState> rows_;
  const RowState vacant_;
  bool known_ = false;  // rows stand as after step_ of epoch_
  StepId step_;
  EpochId epoch_;
};

}  // namespace althing::gpu
