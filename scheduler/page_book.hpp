// The pages of one DP group and who has them: a page is free, owned by so many, cached (owned by nobody and in the prefix index, so that somebody may
// go on from it), or in quarantine. Cached pages make room when nothing is free, the cheapest first: windows' pages that no likely position needs,
// then those that were left longest ago, and of these the deepest, because only what lies behind a page depends on it. Invariant: available() pages
// can be taken one after another, whatever is cached; a page with owners is given to nobody else.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/page_pool.hpp"
#include "scheduler/prefix_index.hpp"

namespace althing::scheduler {

class PageBook {
 public:
  // Without sharing nothing is ever cached.
  PageBook(const KvLayout& layout, std::uint32_t tokens_most, bool share);

  std::uint32_t total() const { return pool_.total(); }
  std::uint32_t cached() const { return static_cast<std::uint32_t>(idle_.size()); }
  std::uint32_t used() const { return pool_.used() - cached(); }  // owned or in quarantine
  std::uint32_t available() const { return pool_.free_count() + cached(); }
  std::uint64_t changes() const { return changes_; }  // of owners, so far
  std::uint64_t evicted() const { return evicted_; }  // cached pages that made room, so far
  bool taken(PageId page) const { return pool_.taken(page); }
  bool shares() const { return share_ && index_.usable(); }
  const PrefixIndex& index() const { return index_; }
  std::uint32_t owners(PageId page) const { return pages_[page.value].owners; }
  bool tainted(PageId page) const { return pages_[page.value].tainted; }

  // A page of one's own. REQUIRES: available() > 0.
  PageId take();
  // One more owner. REQUIRES: the page is in the index.
  void share(PageId page);
  // One owner less. True when that was the last one of a tainted page: it is in quarantine then, until scrubbed(). `now`: of what follows, larger
  // numbers are later. REQUIRES: it has an owner.
  [[nodiscard]] bool release(PageId page, std::uint64_t now);
  // It may hold NaN: nobody goes on from it, nor from what lies behind it. REQUIRES: it has an owner.
  void taint(PageId page);
  void scrubbed(PageId page);

  // What a sequence has computed, a block behind `parent`: pages by place, some of windows missing. Whoever computed the same before keeps its
  // pages there, unless they are not known to be finite, or windows' pages are gone and nobody owns the rest. Returns the block's node.
  PrefixNode enter(PrefixNode parent, std::span<const TokenId> tokens, const std::vector<PageId>& pages, std::uint64_t prover, bool tail);
  PrefixNode root(const PageKey& salt) { return index_.make_root(salt); }
  // The prover has drawn a finite token behind it.
  void prove(PrefixNode node) { index_.set_prover(node, std::nullopt); }
  void set_tail(PrefixNode node);
  // Somebody who went on from here is leaving: its cached pages are worth as much as those that he leaves.
  void touch(PrefixNode node, std::uint64_t now);
  void remove(PrefixNode node) { remove_all(node, false); }
  void clear();

  // Empty, or what is wrong. `owners`: of each page, as counted by whoever knows; `quarantine`: likewise.
  std::string check(const std::vector<std::uint32_t>& owners, const std::vector<bool>& quarantine) const;

 private:
  struct Page {
    std::uint32_t owners = 0;
    bool tainted = false;
    std::uint64_t left = 0;  // when it was left by its last owner
  };
  // The first makes room first.
  using Rank = std::tuple<bool, std::uint64_t, std::uint32_t, PageId>;  // worth keeping, left, places towards the front, page

  Rank rank(PageId page) const;
  void leave_index(PageId page);  // it is in no node any more: free, if nobody owns it
  void evict();
  void remove_all(PrefixNode top, bool evicted);
  bool may_replace(const PrefixIndex::Node& node, const std::vector<PageId>& pages, std::uint64_t prover) const;

  bool share_ = false;
  PagePool pool_;
  PrefixIndex index_;
  std::vector<Page> pages_;
  std::set<Rank> idle_;
  std::uint64_t evicted_ = 0, changes_ = 0;
};

}  // namespace althing::scheduler
