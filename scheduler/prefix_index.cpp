// Ordered maps throughout: what is found, and in which order pages go, must not depend on a hash or an address, or a journal would not replay.
#include "scheduler/prefix_index.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace althing::scheduler {
namespace {

constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

std::uint64_t with_salt(std::uint64_t hash, const PageKey& salt) { return mixed(mixed(hash, salt.high), salt.low); }

void uncount(std::map<std::uint64_t, std::uint32_t>& counts, std::uint64_t key) {
  const auto found = counts.find(key);
  if (found != counts.end() && --found->second == 0) counts.erase(found);
}

}  // namespace

PrefixIndex::PrefixIndex(const KvLayout& layout, std::uint32_t tokens_most) : places_(layout.page_count) {
  std::uint64_t block = 1;
  for (const KvGroup& group : layout.groups) {
    block = std::lcm(block, std::uint64_t{group.tokens_per_page});
    if (block > tokens_most) return;
  }
  shape_.block_tokens = static_cast<std::uint32_t>(block);
  for (const KvGroup& group : layout.groups) {
    shape_.first.push_back(shape_.places);
    shape_.per_block.push_back(shape_.block_tokens / group.tokens_per_page);
    shape_.places += shape_.per_block.back();
    shape_.windowed.resize(shape_.places, group.window != 0);
    shape_.window_most = std::max(shape_.window_most, group.window);
    shape_.full_attention = shape_.full_attention || group.window == 0;
  }
}

PrefixNode PrefixIndex::root(const PageKey& salt) const {
  const auto found = roots_.find(salt);
  return found == roots_.end() ? PrefixNode{} : found->second;
}

PrefixNode PrefixIndex::child(PrefixNode parent, std::span<const TokenId> tokens) const {
  const Node* const node = find(parent);
  if (node == nullptr) return {};
  const auto found = node->children.find(tokens);
  return found == node->children.end() ? PrefixNode{} : found->second;
}

const PrefixIndex::Node* PrefixIndex::find(PrefixNode node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : &found->second;
}

std::uint64_t PrefixIndex::hash_of(PrefixNode parent, std::span<const TokenId> tokens) const {
  const Node* const node = find(parent);
  std::uint64_t hash = node == nullptr ? 0 : node->hash;
  for (const TokenId token : tokens) hash = mixed(hash, std::uint64_t{token} + 1);
  return hash;
}

PrefixMiss PrefixIndex::why_not(PrefixNode parent, const PageKey& salt, std::span<const TokenId> tokens) const {
  const std::uint64_t hash = hash_of(parent, tokens);
  if (evicted_counts_.contains(with_salt(hash, salt))) return PrefixMiss::evicted;
  return contents_.contains(hash) ? PrefixMiss::tenant : PrefixMiss::cold;
}

PrefixNode PrefixIndex::make_root(const PageKey& salt) {
  PrefixNode& root = roots_[salt];
  if (root != PrefixNode{}) return root;
  root = PrefixNode{++made_};
  nodes_[root].salt = salt;
  return root;
}

PrefixNode PrefixIndex::add(PrefixNode parent, std::span<const TokenId> tokens) {
  const PrefixNode added{++made_};
  Node node;
  node.hash = hash_of(parent, tokens);
  Node& above = nodes_.at(parent);
  node.parent = parent;
  node.depth = above.depth + 1;
  node.salt = above.salt;
  node.pages.assign(shape_.places, page_missing);
  node.tokens.assign(tokens.begin(), tokens.end());
  above.children.emplace(node.tokens, added);
  ++contents_[node.hash];
  nodes_.emplace(added, std::move(node));
  return added;
}

PageId PrefixIndex::set_page(PrefixNode node, std::uint32_t place, PageId page) {
  PageId& entry = nodes_.at(node).pages[place];
  if (entry != page_missing) places_[entry.value] = {};
  places_[page.value] = {node, place};
  return std::exchange(entry, page);
}

void PrefixIndex::drop_page(PageId page) {
  const Place place = std::exchange(places_[page.value], Place{});
  if (place.node != PrefixNode{}) nodes_.at(place.node).pages[place.place] = page_missing;
}

void PrefixIndex::note_evicted(const Node& node) {
  const std::uint64_t key = with_salt(node.hash, node.salt);
  evicted_.push_back(key);
  ++evicted_counts_[key];
  if (evicted_.size() <= evicted_most) return;
  uncount(evicted_counts_, evicted_.front());
  evicted_.pop_front();
}

// Its children are gone already.
void PrefixIndex::forget_node(PrefixNode id, const Node& node) {
  if (node.depth == 0) {
    roots_.erase(node.salt);
  } else {
    uncount(contents_, node.hash);
    nodes_.at(node.parent).children.erase(node.tokens);
  }
  nodes_.erase(id);
}

std::vector<PageId> PrefixIndex::remove(PrefixNode top, bool evicted) {
  std::vector<PageId> pages;
  // Each one in front of its children; taken off from behind.
  std::vector<PrefixNode> all{top};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto& [tokens, child] : nodes_.at(all[i]).children) all.push_back(child);
  PrefixNode parent = nodes_.at(top).parent;
  for (std::size_t i = all.size(); i-- > 0;) {
    const Node& node = nodes_.at(all[i]);
    for (const PageId page : node.pages) {
      if (page == page_missing) continue;
      places_[page.value] = {};
      pages.push_back(page);
    }
    if (evicted && node.depth > 0) note_evicted(node);
    forget_node(all[i], node);
  }
  // A salt of which nothing is left is forgotten.
  const Node* const above = find(parent);
  if (above != nullptr && above->depth == 0 && above->children.empty()) forget_node(parent, *above);
  return pages;
}

std::vector<PageId> PrefixIndex::clear() {
  std::vector<PageId> pages;
  for (const auto& [id, node] : nodes_)
    for (const PageId page : node.pages)
      if (page != page_missing) pages.push_back(page);
  for (const PageId page : pages) places_[page.value] = {};
  nodes_.clear();
  roots_.clear();
  contents_.clear();
  evicted_.clear();
  evicted_counts_.clear();
  return pages;
}

std::string PrefixIndex::check() const {
  std::size_t indexed = 0;
  for (const auto& [id, node] : nodes_) {
    const std::string what = "prefix node " + std::to_string(id.value);
    if (node.depth == 0) {
      if (root(node.salt) != id || !node.pages.empty()) return what + " is a root that its salt does not lead to";
      continue;
    }
    if (child(node.parent, node.tokens) != id) return what + " is not where its tokens lead to";
    if (find(node.parent)->depth + 1 != node.depth || find(node.parent)->salt != node.salt) return what + " does not continue its parent";
    if (node.tokens.size() != shape_.block_tokens || node.pages.size() != shape_.places) return what + " is no whole block";
    for (std::uint32_t place = 0; place < node.pages.size(); ++place) {
      const PageId page = node.pages[place];
      if (page == page_missing) {
        if (!shape_.windowed[place]) return what + " lacks a page of full attention";
        continue;
      }
      ++indexed;
      if (places_[page.value].node != id || places_[page.value].place != place) return what + " has a page that is elsewhere";
    }
  }
  for (const Place& place : places_) indexed -= place.node == PrefixNode{} ? 0 : 1;
  return indexed == 0 ? std::string{} : "pages in the prefix index do not add up";
}

}  // namespace althing::scheduler
