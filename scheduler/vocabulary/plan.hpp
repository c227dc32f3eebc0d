// What the core tells every rank to do in one step, and what a rank answers. All ranks run the same plan.
//
// A plan is a difference against the rows as they stand after step `base`, or a snapshot (`snapshot` set) that first clears every
// row. Order of application on a rank: clear rows, set rows, append pages, release nothing (page ids are only names; the core owns
// them), then compute `work`. A rank whose last applied step is not `base`, or whose epoch differs, refuses the plan.
//
// Token source: `work.tokens` when the host knows the ids; when it is empty, `count` is 1 and the token is the one this rank drew for the
// row in the row's previous step (it may not have been reported yet: step N+1 is planned while N runs).
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing {

// A request takes a row. Its KV pages come with `pages`.
struct RowSetup {
  RowIndex row;
  RequestId request;
  SamplingParameters sampling;

  friend bool operator==(const RowSetup&, const RowSetup&) = default;
};

// Pages appended to one row's page table of one KV group: table[first + i] = pages[i].
// For a window group, entries before the window are never read again; the core may have given those pages to others.
struct PageGrant {
  RowIndex row;
  std::uint32_t group = 0;
  std::uint32_t first = 0;
  std::vector<PageId> pages;

  friend bool operator==(const PageGrant&, const PageGrant&) = default;
};

// `count` tokens of one row at positions start … start+count-1. At most one RowWork a row and step.
struct RowWork {
  RowIndex row;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::vector<TokenId> tokens;  // count ids, or empty: see "Token source"
  bool sample = false;          // draw the token at position start+count from the last token's logits

  friend bool operator==(const RowWork&, const RowWork&) = default;
};

struct StepPlan {
  StepId step;
  EpochId epoch;
  bool snapshot = false;
  StepId base;                    // meaningless in a snapshot
  std::vector<RowIndex> cleared;  // rows whose request ended or was preempted
  std::vector<RowSetup> set;
  std::vector<PageGrant> pages;
  std::vector<RowWork> work;  // ascending by row

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// One drawn token. `nonfinite` says that the logits held NaN or infinity: `token` is void and the request must fail.
struct DrawnToken {
  RowIndex row;
  RequestId request;
  TokenId token = 0;
  bool nonfinite = false;

  friend bool operator==(const DrawnToken&, const DrawnToken&) = default;
};

struct StepResult {
  StepId step;
  EpochId epoch;
  std::vector<DrawnToken> drawn;  // in the order of the plan's work, rows with `sample` only

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

}  // namespace althing
