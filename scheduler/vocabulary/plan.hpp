// What the core tells every rank to do in one step, and what a rank answers. All ranks run the same plan.
//
// A plan is a difference against the rows as they stand after step `base`, or a snapshot (`snapshot` set) that first clears every
// row. Order of application on a rank: clear rows, set rows, append pages, release nothing (page ids are only names; the core owns
// them), set the pages of `scrub` to zero, empty the mirror slots of `forget`, fill the pages of `restore` from the mirror, compute `work`, and hand
// the pages of `mirror` to whoever copies them. No row has pages restored and work in the same step: whether the pages came back is in its result. A
// rank whose last applied step is not `base`, or whose epoch differs, refuses the plan.
//
// Token source: `work.tokens` when the host knows the ids; when it is empty, `count` is 1 and the token is the one this rank drew for the
// row in the row's previous step (it may not have been reported yet: step N+1 is planned while N runs).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing {

// A request takes a row, which belongs to one DP group: that group's ranks hold its KV and compute its attention. Its KV pages come with `pages`.
struct RowSetup {
  RowIndex row;
  RequestId request;
  SamplingParameters sampling;
  DpGroup dp_group{};
  std::uint32_t trace_top_m = 0;  // where its tokens are routed is told, with so many logits of each; 0: it is not
  // Of a row with penalties, else none: all tokens that are known, the prompt's first. Its next draw is for the position behind them. What a row's
  // work computes is no measure: pages may have come back from the mirror.
  std::vector<TokenId> tokens{};
  std::uint32_t prompt_count = 0;  // so many of `tokens` are the prompt's
  bool drafted = false;            // its work may ask for guesses

  friend bool operator==(const RowSetup&, const RowSetup&) = default;
};

// Pages appended to one row's page table of one KV group: table[first + i] = pages[i]. They are of the pool of the row's DP group.
// For a window group, entries before the window are never read again; the core may have given those pages to others. Pages that are `kept` hold their
// keys already, all of them: other rows may have them too, nobody writes them, and a row that begins with such begins behind them.
struct PageGrant {
  RowIndex row;
  std::uint32_t group = 0;
  std::uint32_t first = 0;
  std::vector<PageId> pages;
  bool kept = false;

  friend bool operator==(const PageGrant&, const PageGrant&) = default;
};

// A page that no row has any more, and whose pool it is of.
struct LeftPage {
  DpGroup dp_group;
  PageId page;

  friend bool operator==(const LeftPage&, const LeftPage&) = default;
};

// What a full page holds: a keyed hash over all tokens from position 0 to the page's end, the KV group, and what else the bits depend on. Equal keys
// are equal bits, whoever computed them.
struct PageKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend constexpr auto operator<=>(const PageKey&, const PageKey&) = default;
};

// A full page of KV group `group`, and its copy outside of the KV cache.
struct MirrorPage {
  DpGroup dp_group;
  std::uint32_t group = 0;
  PageId page;
  MirrorSlot slot;
  PageKey key;

  friend bool operator==(const MirrorPage&, const MirrorPage&) = default;
};

// A slot of a DP group's mirror, on every rank of the group.
struct SlotOfGroup {
  DpGroup dp_group;
  MirrorSlot slot;

  friend constexpr auto operator<=>(const SlotOfGroup&, const SlotOfGroup&) = default;
};

// `count` tokens of one row at positions start … start+count-1. At most one RowWork a row and step.
struct RowWork {
  RowIndex row;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::vector<TokenId> tokens;  // count ids, or empty: see "Token source"
  bool sample = false;          // draw the token at position start+count from the last token's logits
  // With `sample`: so many draws, at consecutive positions up to that one, from the logits of as many of the last tokens. More than 1 where tokens
  // were guessed; only the core knows which draws count. What is computed behind those is computed again: the row's next work starts there.
  std::uint32_t draws = 1;
  // Of which tokens (token_mask.hpp); "": of all. The core leaves it empty: it knows when a draw may be made, and whoever sends the plan what it may
  // yield.
  std::string mask{};
  // With `sample`, where a draft model is there: guess at most so many tokens behind the last draw that counts.
  std::uint32_t guesses = 0;

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
  std::vector<LeftPage> scrub;  // nobody's pages that may hold NaN: what was there must not reach their next owner
  std::vector<SlotOfGroup> forget;
  std::vector<MirrorPage> restore;
  std::vector<RowWork> work;       // ascending by row; empty only in a step that scrubs or restores
  std::vector<MirrorPage> mirror;  // full once this step is done; copied some time later, unless the page has been granted again by then

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

// What a draft model thinks that follows the last draw of a row that counts: at most RowWork::guesses.
struct RowGuesses {
  RowIndex row;
  RequestId request;
  std::vector<TokenId> tokens;

  friend bool operator==(const RowGuesses&, const RowGuesses&) = default;
};

struct StepResult {
  StepId step;
  EpochId epoch;
  std::vector<DrawnToken> drawn;          // in the order of the plan's work, and of positions; rows with `sample` only
  std::vector<SlotOfGroup> unrestored{};  // slots of the plan's `restore` that some rank of the group does not have, or not whole; ascending
  std::string counts{};                   // what it did at the experts (expert_counts.hpp); the core never sees it. Empty: no tokens, or not counted
  std::string routing{};                  // where tokens of traced rows went (routing_trace.hpp); likewise
  std::string logprobs{};                 // of draws whose rows asked for them (logprobs.hpp); likewise
  std::vector<RowGuesses> guesses{};      // ascending by row; rows without a guess are left out

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

}  // namespace althing
