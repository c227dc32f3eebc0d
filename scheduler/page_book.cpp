// Every change of owners, of the index and of what is cached is made here, so that the three cannot part. A page's rank among the cached ones follows
// from what the index says of it: whoever changes that takes it out of the order first.
#include "scheduler/page_book.hpp"

#include <limits>

namespace althing::scheduler {

PageBook::PageBook(const KvLayout& layout, std::uint32_t tokens_most, bool share)
    : share_(share), pool_(layout.page_count), index_(layout, tokens_most), pages_(layout.page_count) {}

PageBook::Rank PageBook::rank(PageId page) const {
  const PrefixIndex::Place place = index_.place_of(page);
  const PrefixIndex::Node& node = *index_.find(place.node);
  const PrefixIndex::Shape& shape = index_.shape();
  const bool worth = node.tail || !shape.windowed[place.place] || !shape.full_attention;
  return {worth, pages_[page.value].left, std::numeric_limits<std::uint32_t>::max() - node.depth, page};
}

PageId PageBook::take() {
  if (pool_.free_count() == 0) evict();
  const PageId page = pool_.take();
  pages_[page.value].owners = 1;
  ++changes_;
  return page;
}

void PageBook::share(PageId page) {
  if (pages_[page.value].owners == 0) idle_.erase(rank(page));
  ++pages_[page.value].owners;
  ++changes_;
}

bool PageBook::release(PageId page, std::uint64_t now) {
  Page& left = pages_[page.value];
  ++changes_;
  if (--left.owners > 0) return false;
  if (left.tainted) return true;
  if (index_.place_of(page).node == PrefixNode{}) {
    pool_.release(page);
    return false;
  }
  left.left = now;
  idle_.insert(rank(page));
  return false;
}

void PageBook::taint(PageId page) {
  pages_[page.value].tainted = true;
  if (const PrefixNode node = index_.place_of(page).node; node != PrefixNode{}) remove(node);
}

void PageBook::scrubbed(PageId page) {
  pages_[page.value].tainted = false;
  pool_.release(page);
}

void PageBook::leave_index(PageId page) {
  if (pages_[page.value].owners == 0) pool_.release(page);
}

// A page of full attention takes with it whatever lies behind it, which nobody could reach any more.
void PageBook::evict() {
  const PageId page = std::get<PageId>(*idle_.begin());
  const PrefixIndex::Place place = index_.place_of(page);
  const std::uint32_t before = pool_.free_count();
  if (index_.shape().windowed[place.place] && index_.shape().full_attention) {
    idle_.erase(idle_.begin());
    index_.drop_page(page);
    leave_index(page);
  } else {
    remove_all(place.node, true);
  }
  evicted_ += pool_.free_count() - before;
}

// The order of what is cached follows from the nodes, so it is taken apart before them.
void PageBook::remove_all(PrefixNode top, bool evicted) {
  std::vector<PrefixNode> all{top};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const PrefixIndex::Node& node = *index_.find(all[i]);
    for (const auto& [tokens, child] : node.children) all.push_back(child);
    for (const PageId page : node.pages)
      if (page != page_missing && pages_[page.value].owners == 0) idle_.erase(rank(page));
  }
  for (const PageId page : index_.remove(top, evicted)) leave_index(page);
}

bool PageBook::may_replace(const PrefixIndex::Node& node, const std::vector<PageId>& pages, std::uint64_t prover) const {
  if (node.prover) return *node.prover != prover;
  bool lacks = false;
  for (std::size_t place = 0; place < pages.size(); ++place) {
    if (node.pages[place] == page_missing)
      lacks = lacks || pages[place] != page_missing;
    else if (pages[place] == page_missing || node.pages[place] == pages[place] || pages_[node.pages[place].value].owners > 0)
      return false;
  }
  return lacks;
}

PrefixNode PageBook::enter(PrefixNode parent, std::span<const TokenId> tokens, const std::vector<PageId>& pages, std::uint64_t prover, bool tail) {
  PrefixNode node = index_.child(parent, tokens);
  const bool fresh = node == PrefixNode{};
  if (fresh) node = index_.add(parent, tokens);
  if (tail) set_tail(node);
  if (!fresh && !may_replace(*index_.find(node), pages, prover)) return node;
  for (std::uint32_t place = 0; place < pages.size(); ++place) {
    const PageId old = index_.find(node)->pages[place];
    if (old == pages[place]) continue;
    if (old != page_missing) {
      if (pages_[old.value].owners == 0) idle_.erase(rank(old));
      index_.drop_page(old);
      leave_index(old);
    }
    if (pages[place] != page_missing) index_.set_page(node, place, pages[place]);
  }
  index_.set_prover(node, prover);
  return node;
}

void PageBook::set_tail(PrefixNode node) {
  const PrefixIndex::Node& held = *index_.find(node);
  if (held.tail) return;
  const auto each_idle = [&](auto change) {
    for (const PageId page : held.pages)
      if (page != page_missing && pages_[page.value].owners == 0) change(page);
  };
  each_idle([&](PageId page) { idle_.erase(rank(page)); });
  index_.set_tail(node);
  each_idle([&](PageId page) { idle_.insert(rank(page)); });
}

void PageBook::touch(PrefixNode node, std::uint64_t now) {
  for (const PageId page : index_.find(node)->pages) {
    if (page == page_missing || pages_[page.value].owners > 0) continue;
    if (std::get<0>(rank(page)) == false) continue;  // of no likely position, whoever passes
    idle_.erase(rank(page));
    pages_[page.value].left = now;
    idle_.insert(rank(page));
  }
}

void PageBook::clear() {
  idle_.clear();
  for (const PageId page : index_.clear()) leave_index(page);
}

std::string PageBook::check(const std::vector<std::uint32_t>& owners, const std::vector<bool>& quarantine) const {
  if (auto broken = index_.check(); !broken.empty()) return broken;
  std::uint32_t used = 0;
  for (std::uint32_t i = 0; i < pages_.size(); ++i) {
    const PageId page{i};
    const std::string what = "page " + std::to_string(i);
    const bool indexed = index_.place_of(page).node != PrefixNode{};
    if (pages_[i].owners != owners[i])
      return what + " has " + std::to_string(owners[i]) + " owners, and is known to have " + std::to_string(pages_[i].owners);
    if (owners[i] > 0 && quarantine[i]) return what + " is owned and in quarantine";
    if (indexed && (pages_[i].tainted || quarantine[i])) return what + " may hold NaN, and is in the prefix index";
    const bool idle = indexed && owners[i] == 0;
    if (idle != (indexed && idle_.contains(rank(page)))) return what + " is cached and owned, or neither";
    if (pool_.taken(page) != (owners[i] > 0 || quarantine[i] || idle)) return what + " is taken and nobody's, or somebody's and free";
    used += idle ? 0 : (pool_.taken(page) ? 1 : 0);
  }
  if (used != this->used()) return "pages in use: expected " + std::to_string(used) + ", found " + std::to_string(this->used());
  return {};
}

}  // namespace althing::scheduler
