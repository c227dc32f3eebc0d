// Prefixes that requests share: how far one need not be computed, and which pages are left for others. Pages enter the index when the step that
// filled them is done, and are gone on from once their sequence has drawn a finite token behind them, so nobody catches another's NaN. A hit ends
// where a block ends: the page behind it is always one's own, so a page is never written while another has it, and nothing is ever copied. Invariant:
// a block that nobody may go on from yet belongs to a sequence that runs.
#include <algorithm>
#include <utility>

#include "scheduler/core_state.hpp"

namespace althing::scheduler {
namespace {

// Behind the window of a likely position so many blocks are kept too: a text that is edited close to its end is asked for again from a little before.
constexpr std::uint32_t tail_blocks_more = 2;

std::span<const TokenId> block_of(const Sequence& sequence, std::uint32_t index, std::uint32_t block_tokens) {
  return std::span<const TokenId>(sequence.tokens).subspan(std::size_t{index} * block_tokens, block_tokens);
}

// Whether computing a likely position needs the windows of the block that ends at `end`.
bool in_tail(std::uint32_t end, std::uint32_t position, const PrefixIndex::Shape& shape) {
  return end <= position && position - end < shape.window_most + tail_blocks_more * shape.block_tokens;
}

}  // namespace

// One token at least is left to compute.
PrefixHit Core::State::prefix_hit(const Sequence& sequence, DpGroup group) const {
  PrefixHit hit;
  const PageBook& book = books[group.value];
  if (!book.shares()) return hit;
  const PrefixIndex& index = book.index();
  const PrefixIndex::Shape& shape = index.shape();
  const std::uint32_t most = (sequence.known() - 1) / shape.block_tokens;
  hit.miss = sequence.trace_top_m > 0 ? PrefixMiss::traced : most == 0 ? PrefixMiss::short_prompt : PrefixMiss::none;
  if (hit.miss != PrefixMiss::none) return hit;
  std::vector<PrefixNode> ids;
  std::vector<const PrefixIndex::Node*> path;
  PrefixNode node = index.root(sequence.salt);
  while (path.size() < most) {
    const auto tokens = block_of(sequence, static_cast<std::uint32_t>(path.size()), shape.block_tokens);
    const PrefixNode child = index.child(node, tokens);
    const PrefixIndex::Node* const found = index.find(child);
    if (found == nullptr) hit.miss = index.why_not(node, sequence.salt, tokens);
    if (found != nullptr && found->prover) hit.miss = PrefixMiss::cold;
    if (hit.miss != PrefixMiss::none) break;
    node = child;
    ids.push_back(child);
    path.push_back(found);
  }
  const std::uint32_t whole = whole_windows(path, shape);
  if (whole < path.size()) hit.miss = PrefixMiss::boundary;
  if (whole == 0) return hit;
  hit.position = whole * shape.block_tokens;
  hit.node = ids[whole - 1];
  for (std::uint32_t g = 0; g < shape.per_block.size(); ++g)
    for (std::uint32_t page = first_page_read(config.kv.groups[g], hit.position); page < whole * shape.per_block[g]; ++page) {
      const PageId id = path[page / shape.per_block[g]]->pages[shape.first[g] + page % shape.per_block[g]];
      ++(book.owners(id) == 0 ? hit.idle_pages : hit.owned_pages);
    }
  // Windows of one token may need no page at all; then nothing says to a rank how far it is.
  if (hit.idle_pages + hit.owned_pages == 0) return {0, {}, 0, 0, PrefixMiss::boundary};
  return hit;
}

// The most blocks of the path behind which every window is whole.
std::uint32_t Core::State::whole_windows(const std::vector<const PrefixIndex::Node*>& path, const PrefixIndex::Shape& shape) const {
  std::vector<std::uint32_t> unbroken(shape.per_block.size(), 0);  // pages up to here, by group
  std::uint32_t whole = 0;
  for (std::uint32_t block = 0; block < path.size(); ++block) {
    bool all = true;
    for (std::uint32_t g = 0; g < shape.per_block.size(); ++g) {
      for (std::uint32_t i = 0; i < shape.per_block[g]; ++i)
        unbroken[g] = path[block]->pages[shape.first[g] + i] == page_missing ? 0 : unbroken[g] + 1;
      const std::uint32_t end = (block + 1) * shape.per_block[g];
      const std::uint32_t first = first_page_read(config.kv.groups[g], (block + 1) * shape.block_tokens);
      all = all && unbroken[g] + first >= end;
    }
    if (all) whole = block + 1;
  }
  return whole;
}

// The choices of a request have one prompt. While the first of them computes it, the others would compute the same beside it.
bool Core::State::waits_for_choice(const Sequence& sequence) const {
  if (!config.share_prefixes || sequence.request == sequence.first_choice || sequence.started() || sequence.trace_top_m > 0) return false;
  const auto first = sequences.find(sequence.first_choice);
  if (first == sequences.end()) return false;
  const Sequence& leader = *first->second;
  const PageBook& book = books[leader.dp_group.value];
  const bool computes = leader.running && leader.completion_count() == 0 && leader.miss != PrefixMiss::none;
  return computes && book.shares() && sequence.known() > book.index().shape().block_tokens;
}

// REQUIRES: the sequence has just got its row, hit == prefix_hit(sequence, its group), and the group has the pages.
void Core::State::go_on_from(Sequence& sequence, const PrefixHit& hit, StepPlan& plan) {
  PageBook& book = book_of(sequence);
  const PrefixIndex::Shape& shape = book.index().shape();
  std::vector<const PrefixIndex::Node*> path(hit.position / shape.block_tokens);
  PrefixNode id = hit.node;
  for (std::size_t i = path.size(); i-- > 0; id = path[i]->parent) path[i] = book.index().find(id);
  for (std::uint32_t g = 0; g < sequence.tables.size(); ++g) {
    const std::uint32_t first = first_page_read(config.kv.groups[g], hit.position);
    PageTable& table = sequence.tables[g];
    table.pages.assign(first, PageId{});
    table.released = first;
    PageGrant grant{sequence.row, g, first, {}, true};
    for (std::uint32_t page = first; page < path.size() * shape.per_block[g]; ++page) {
      table.pages.push_back(path[page / shape.per_block[g]]->pages[shape.first[g] + page % shape.per_block[g]]);
      book.share(table.pages.back());
      grant.pages.push_back(table.pages.back());
    }
    if (!grant.pages.empty()) plan.pages.push_back(std::move(grant));
  }
  sequence.planned = hit.position;
  sequence.charged = std::max(sequence.charged, hit.position);
  sequence.computed_most = std::max(sequence.computed_most, hit.position);  // by whomever; if it is lost, computing it is doing so again
  sequence.trail = {hit.node, static_cast<std::uint32_t>(path.size()), 0};
}

// What is told is how it began: a request that is preempted later has had its prompt all the same.
void Core::State::note_start(Sequence& sequence, const PrefixHit& hit) {
  if (sequence.started()) return;
  sequence.turn = ++turns;
  sequence.cached_tokens = std::min(hit.position, sequence.prompt_count);
  sequence.miss = hit.miss;
  totals.prefix_hit_tokens += sequence.cached_tokens;
  totals.prefix_miss_tokens += sequence.prompt_count - sequence.cached_tokens;
  ++totals.prefix_misses[static_cast<std::size_t>(hit.miss)];
}

// Positions below `end` are computed, and their tokens known.
void Core::State::enter_blocks(Sequence& sequence, std::uint32_t end) {
  PageBook& book = book_of(sequence);
  if (!book.shares()) return;
  // Whoever failed with NaN took its blocks with it, and those behind them.
  if (sequence.trail.blocks > 0 && book.index().find(sequence.trail.node) == nullptr) sequence.trail = {};
  const std::uint32_t blocks = end / book.index().shape().block_tokens;
  while (sequence.trail.blocks < blocks && enter_block(sequence, book)) {
  }
}

bool Core::State::enter_block(Sequence& sequence, PageBook& book) {
  const PrefixIndex::Shape& shape = book.index().shape();
  const std::uint32_t block = sequence.trail.blocks;
  std::vector<PageId> pages(shape.places, page_missing);
  for (std::uint32_t g = 0; g < sequence.tables.size(); ++g)
    for (std::uint32_t i = 0; i < shape.per_block[g]; ++i) {
      const std::uint32_t page = block * shape.per_block[g] + i;
      if (page < sequence.tables[g].released) continue;
      const PageId id = sequence.tables[g].pages[page];
      if (book.tainted(id)) return false;
      pages[shape.first[g] + i] = id;
    }
  const std::uint32_t end = (block + 1) * shape.block_tokens;
  const auto next = std::lower_bound(sequence.boundaries.begin(), sequence.boundaries.end(), end);
  const bool tail = next != sequence.boundaries.end() && in_tail(end, *next / shape.block_tokens * shape.block_tokens, shape);
  const PrefixNode parent = block == 0 ? book.root(sequence.salt) : sequence.trail.node;
  sequence.trail.node = book.enter(parent, block_of(sequence, block, shape.block_tokens), pages, sequence.number, tail);
  ++sequence.trail.blocks;
  return true;
}

// NaN anywhere in front would have reached the logits of this draw.
void Core::State::prove_blocks(Sequence& sequence) {
  PageBook& book = book_of(sequence);
  PrefixTrail& trail = sequence.trail;
  PrefixNode id = trail.node;
  for (std::uint32_t depth = trail.blocks; depth > trail.proven; --depth) {
    const PrefixIndex::Node* const node = book.index().find(id);
    if (node == nullptr) return;
    if (node->prover == sequence.number) book.prove(id);
    id = node->parent;
  }
  trail.proven = trail.blocks;
}

// Before its pages are given back. What it has not proven goes; of the rest, its end is where somebody is likely to go on.
void Core::State::leave_trail(Sequence& sequence) {
  const PrefixTrail trail = std::exchange(sequence.trail, {});
  PageBook& book = book_of(sequence);
  if (trail.blocks == 0 || book.index().find(trail.node) == nullptr) return;
  const PrefixIndex::Shape& shape = book.index().shape();
  PrefixNode unproven;
  PrefixNode id = trail.node;
  std::uint32_t last = trail.blocks;
  for (std::uint32_t depth = trail.blocks; depth > 0; --depth) {
    const PrefixIndex::Node& node = *book.index().find(id);
    if (node.prover == sequence.number) {
      unproven = id;
      last = depth - 1;
    }
    id = node.parent;
  }
  // The path above, before what is behind it goes.
  id = unproven == PrefixNode{} ? trail.node : book.index().find(unproven)->parent;
  for (std::uint32_t depth = last; depth > 0; --depth) {
    if (in_tail(depth * shape.block_tokens, last * shape.block_tokens, shape)) book.set_tail(id);
    book.touch(id, event_count);
    id = book.index().find(id)->parent;
  }
  if (unproven != PrefixNode{}) book.remove(unproven);
}

}  // namespace althing::scheduler
