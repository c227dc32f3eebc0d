// The mirror of a model rank: copies that are made some time after they were ordered, or never, or that are spoilt in between. It stands for all
// ranks of a DP group at once: a copy that one of them lacks is one that it lacks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/vocabulary/events.hpp"
#include "scheduler/vocabulary/kv_layout.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::tests {

// A page's bytes, as stamps.
struct KvPage {
  struct Stamp {
    std::uint64_t kv = 0;  // a hash of all tokens up to this position; 0: nothing was written yet
    std::uint32_t position = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  std::optional<std::uint32_t> group;  // pages are bytes: another group's keys overwrite these
  std::vector<Stamp> stamps;
  friend bool operator==(const KvPage&, const KvPage&) = default;
};

class MirrorModel {
 public:
  explicit MirrorModel(const KvLayout& kv) : kv_(kv) {}

  // A copy is ordered of a page as it stands now. Empty, or why that is wrong.
  std::string order(const MirrorPage& page, const KvPage& content) {
    const std::string what = "page " + std::to_string(page.page.value) + " is mirrored ";
    if (page.group >= kv_.groups.size() || content.group != page.group) return what + "as another group's";
    for (std::size_t i = 0; i < content.stamps.size(); ++i) {
      const KvPage::Stamp& stamp = content.stamps[i];
      if (stamp.kv == 0 || stamp.position % kv_.groups[page.group].tokens_per_page != i) return what + "and is not full";
      if (i > 0 && stamp.position != content.stamps[i - 1].position + 1) return what + "and holds two sequences";
    }
    const auto [known, fresh] = by_key_.emplace(page.key, content);
    if (!fresh && !(known->second == content)) return what + "under the key of another";
    waiting_.push_back(page);
    ++ordered_;
    return {};
  }
  // Somebody else gets the page.
  void withdraw(PageId page, DpGroup group) {
    withdrawn_ += std::erase_if(waiting_, [&](const MirrorPage& copy) { return copy.page == page && copy.dp_group == group; });
  }
  // `content_of` gives the page as it is now, or null when it holds NaN.
  template <class ContentOf>
  bool copy_one(ContentOf content_of) {
    if (waiting_.empty()) return false;
    const MirrorPage page = waiting_.front();
    waiting_.pop_front();
    if (const KvPage* content = content_of(page)) copies_[place_of(page)] = {page.key, *content, false};
    return true;
  }
  void drop_one() {
    if (!waiting_.empty()) waiting_.pop_back();
  }
  void drop_all() { waiting_.clear(); }
  void forget(SlotOfGroup place) {
    copies_.erase(place);
    std::erase_if(waiting_, [&](const MirrorPage& copy) { return place_of(copy) == place; });
  }
  // None: it is not here, or its checksum is wrong.
  std::optional<KvPage> fetch(const MirrorPage& page) {
    const auto found = copies_.find(place_of(page));
    if (found == copies_.end() || found->second.key != page.key || found->second.spoilt) return std::nullopt;
    ++fetched_;
    return found->second.content;
  }
  // Loses or spoils some copy.
  void damage(std::uint64_t which, bool lose) {
    if (copies_.empty()) return;
    const auto found = std::next(copies_.begin(), static_cast<std::ptrdiff_t>(which % copies_.size()));
    ++damaged_;
    if (lose)
      copies_.erase(found);
    else
      found->second.spoilt = true;
  }
  // What the ranks report when a membership begins. Copies that still wait are given up.
  std::vector<MirroredPage> contents() {
    drop_all();
    std::vector<MirroredPage> pages;
    for (const auto& [place, copy] : copies_) pages.push_back({place.dp_group, place.slot, copy.key});
    return pages;
  }

  std::uint64_t ordered() const { return ordered_; }
  std::uint64_t fetched() const { return fetched_; }
  std::uint64_t withdrawn() const { return withdrawn_; }
  std::uint64_t damaged() const { return damaged_; }

 private:
  struct Copy {
    PageKey key;
    KvPage content;
    bool spoilt = false;
  };
  static SlotOfGroup place_of(const MirrorPage& page) { return {page.dp_group, page.slot}; }

  KvLayout kv_;
  std::deque<MirrorPage> waiting_;
  std::map<SlotOfGroup, Copy> copies_;
  std::map<PageKey, KvPage> by_key_;  // what each key has meant since the beginning
  std::uint64_t ordered_ = 0, fetched_ = 0, withdrawn_ = 0, damaged_ = 0;
};

}  // namespace althing::tests
