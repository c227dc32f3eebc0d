// One accepted request: its tokens, how far its KV is planned, and the pages it holds. Everything that a preemption or a lost rank takes
// away is in `planned`, `pending` and `tables`; `tokens` alone is enough to start again, and positions and draws continue where they were.
// Invariant: planned <= length(), and while a draw is in flight planned == length() - 1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/sampling.hpp"

namespace althing::scheduler {

// The page table of one group. Entries below `released` slid out of the window and were given back.
struct PageTable {
  std::vector<PageId> pages;
  std::uint32_t released = 0;

  std::uint32_t held() const { return static_cast<std::uint32_t>(pages.size()) - released; }
};

struct Sequence {
  std::uint64_t number = 0;  // in order of acceptance; the smaller one is served first
  RequestId request;
  std::uint32_t prompt_count = 0;
  std::vector<TokenId> tokens;  // the prompt, then every reported token
  SamplingParameters sampling;  // completion_tokens_max is already clipped
  std::uint64_t deadline_ms = 0;
  std::uint32_t preemptions = 0;

  bool running = false;  // has a row
  RowIndex row;
  std::uint32_t planned = 0;                 // positions 0 … planned-1 are computed or in a step in flight
  std::uint32_t pending = 0;                 // draws in flight
  std::uint32_t in_flight = 0;               // steps in flight that compute something for it
  std::array<std::uint32_t, 2> starts = {};  // where they start, oldest first
  std::vector<PageTable> tables;             // one a group

  std::uint32_t known() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t completion_count() const { return known() - prompt_count; }
  std::uint32_t length() const { return known() + pending; }
  std::uint32_t left() const { return length() - planned; }
  // Once the last draw is planned there is nothing more to compute: the end is known before its token is.
  bool wants_work() const { return completion_count() + pending < sampling.completion_tokens_max; }
  bool decodes() const { return left() == 1; }
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
