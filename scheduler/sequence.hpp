// One accepted request: its tokens, how far its KV is planned, and the pages it holds. Everything that a preemption or a lost rank takes
// away is in `planned`, `pending` and `tables`; `tokens` alone is enough to start again, and positions and draws continue where they were.
// Invariant: planned <= length(), and while a draw is in flight planned == length() - 1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/prefix_index.hpp"
#include "scheduler/speculation.hpp"
#include "scheduler/token_chain.hpp"
#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing::scheduler {

// The page table of one group. Entries below `released` slid out of the window and were given back.
struct PageTable {
  std::vector<PageId> pages;
  std::uint32_t released = 0;

  std::uint32_t held() const { return static_cast<std::uint32_t>(pages.size()) - released; }
};

// What the mirror has of one group's pages, as far as this sequence needs it. It outlives a row: it is what a sequence comes back from.
struct MirrorTable {
  static constexpr MirrorSlot unclaimed{0xFFFF'FFFFu};
  std::vector<PageKey> keys;       // of the first full pages, as far as anybody has asked
  std::vector<MirrorSlot> claims;  // by page: the slot that must keep it for us
  std::uint32_t needed = 0;        // pages below slid out of the window long ago: nothing is claimed there
  std::uint32_t offered = 0;       // pages below have been offered to the mirror since the sequence got its row

  bool claimed(std::uint32_t page) const { return page < claims.size() && claims[page] != unclaimed; }
};

// How much of a sequence is in the prefix index of its DP group.
struct PrefixTrail {
  PrefixNode node;           // of its last block there; it may be gone meanwhile
  std::uint32_t blocks = 0;  // entered, or gone on from
  std::uint32_t proven = 0;  // of these: a finite token was drawn behind them
};

struct Tenant;

struct Sequence {
  std::uint64_t number = 0;  // in order of acceptance
  Tenant* tenant = nullptr;
  std::int32_t priority = 0;
  std::int64_t arrival_ms = 0;  // as the queue of its tenant sees it
  std::uint64_t turn = 0;       // in order of the first rows they got: the smaller one gives way last. 0: it has had none
  std::uint32_t charged = 0;    // positions below were charged to its tenant, or cost nothing
  std::uint32_t allotted = 0;   // prompt tokens that the step being planned may compute of it
  RequestId request;
  std::uint32_t prompt_count = 0;
  std::vector<TokenId> tokens;  // the prompt, then every reported token
  SamplingParameters sampling;  // completion_tokens_max is already clipped
  std::uint64_t deadline_ms = 0;
  std::uint32_t trace_top_m = 0;  // RowSetup's
  bool constrained = false;       // Submitted's …
  std::uint32_t draws_ready = 0;  // … and DrawsReady's: completion tokens below may be drawn
  std::uint32_t preemptions = 0;
  PageKey salt;                           // Submitted's
  std::vector<std::uint32_t> boundaries;  // Submitted's, and the prompt's end
  RequestId first_choice;                 // of its request; itself where there is one choice

  bool running = false;  // has a row
  RowIndex row;
  DpGroup dp_group{};                        // while it runs: its pages are of this group's pool
  std::uint32_t planned = 0;                 // positions 0 … planned-1 are computed or in a step in flight
  std::uint32_t pending = 0;                 // draws in flight
  std::uint32_t in_flight = 0;               // steps in flight that compute something for it
  std::array<std::uint32_t, 2> starts = {};  // where they start, oldest first
  std::vector<PageTable> tables;             // one a group
  bool restoring = false;                    // pages are on their way back from the mirror; nothing is computed before they are there

  std::vector<TokenId> guessed;  // by the step in flight; it is the only one
  bool drafted = false;          // those are the draft model's
  bool asked = false;            // a step in flight brings the draft model's guesses
  std::vector<TokenId> drafts;   // its guesses of what follows the last token
  PromptLookup lookup;           // as far as anybody has guessed
  SpeculationPace pace;
  std::uint32_t computed_most = 0;  // positions that were computed once, even if they are lost now
  bool may_restore = false;         // it has lost its pages: what is in the mirror is worth fetching
  TokenChain chain;                 // over the tokens that `mirror` has keys for
  DpGroup mirror_group{};           // whose directory has the claims
  std::vector<MirrorTable> mirror;  // one a group of layers; empty without a mirror

  PrefixTrail trail;                   // while it runs
  std::uint32_t cached_tokens = 0;     // Usage's …
  PrefixMiss miss = PrefixMiss::none;  // … both

  bool started() const { return turn > 0; }  // and cached_tokens and miss are known
  std::uint32_t known() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t completion_count() const { return known() - prompt_count; }
  std::uint32_t length() const { return known() + pending; }
  std::uint32_t left() const { return length() - planned; }
  // Once the last draw is planned there is nothing more to compute: the end is known before its token is.
  bool wants_work() const { return completion_count() + pending < sampling.completion_tokens_max; }
  bool decodes() const { return left() == 1; }
  // What the next draw may yield is known.
  bool may_draw() const { return !constrained || completion_count() + pending < draws_ready; }
  // The first position that a step in flight or a later one computes.
  std::uint32_t oldest_start() const { return in_flight > 0 ? starts[0] : planned; }
  // Tokens whose KV is ever computed: all but the last draw.
  std::uint32_t positions_max() const { return prompt_count + sampling.completion_tokens_max - 1; }
  std::uint32_t held() const {
    std::uint32_t sum = 0;
    for (const PageTable& table : tables) sum += table.held();
    return sum;
  }
};

}  // namespace althing::scheduler
