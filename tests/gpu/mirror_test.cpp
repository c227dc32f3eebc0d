// Pages of real ranks through the mirror and back: the same bits, or a typed answer and nothing computed from them. A page that gets another owner is
// never copied for the first one.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "gpu/cpu/mirror_copier.hpp"
#include "gpu/row_table.hpp"
#include "tests/gpu/engine.hpp"
#include "tests/gpu/small_model.hpp"

namespace althing::gpu {
namespace {

using tests::decode_work;
using tests::Engine;
using tests::EngineOptions;
using tests::prompt_work;
using tests::SmallModel;

constexpr std::uint32_t prompt_tokens = 100;

std::vector<TokenId> prompt() {
  std::mt19937 random(4);
  std::vector<TokenId> tokens(prompt_tokens);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 101);
  return tokens;
}

// A conversation whose row is taken away after the prompt, with all its full pages copied.
class Mirrored {
 public:
  explicit Mirrored(std::uint32_t ranks) {
    EngineOptions options;
    options.ranks = ranks;
    options.mirror_pages = 64;
    engine_ = std::move(*Engine::create(SmallModel::make(), options));
    StepPlan plan = engine_->next_plan();
    engine_->admit(plan, 0, 1, {}, prompt_tokens + 20);
    plan.work = {prompt_work(0, 0, tokens_, true)};
    const auto& groups = engine_->layout().groups;
    restored_ = prompt_tokens;
    for (const KvGroup& group : groups) restored_ = std::min(restored_, prompt_tokens / group.tokens_per_page * group.tokens_per_page);
    for (std::uint32_t g = 0; g < groups.size(); ++g)
      for (std::uint32_t i = 0; (i + 1) * groups[g].tokens_per_page <= restored_; ++i) {
        const auto n = static_cast<std::uint32_t>(plan.mirror.size());
        plan.mirror.push_back({DpGroup{}, g, engine_->page(0, g, i), MirrorSlot{n}, {5, n}});
        index_.push_back(i);
      }
    copies_ = plan.mirror;
    first_ = run(plan).drawn.at(0).token;
    for (int i = 0; i < 6; ++i) expected_.push_back(decode(0, prompt_tokens + static_cast<std::uint32_t>(i)));
  }

  Engine& engine() { return *engine_; }
  const std::vector<MirrorPage>& copies() const { return copies_; }
  std::uint32_t restored() const { return restored_; }

  StepResult run(const StepPlan& plan) {
    auto result = engine_->run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result ? *result : StepResult{};
  }
  TokenId decode(std::uint32_t row, std::uint32_t position) {
    StepPlan plan = engine_->next_plan();
    plan.work = {decode_work(row, position)};
    return run(plan).drawn.at(0).token;
  }
  // Row 0 is cleared, row 3 takes the copies.
  StepPlan restore_plan() {
    StepPlan plan = engine_->next_plan();
    engine_->clear(plan, 0);
    engine_->admit(plan, 3, 2, {}, prompt_tokens + 20);
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      MirrorPage page = copies_[i];
      page.page = engine_->page(3, page.group, index_[i]);
      plan.restore.push_back(page);
    }
    return plan;
  }
  void expect_the_same_tokens() {
    StepPlan plan = engine_->next_plan();
    plan.work = {prompt_work(3, restored_, std::span(tokens_).subspan(restored_), true)};
    EXPECT_EQ(run(plan).drawn.at(0).token, first_);
    for (std::uint32_t i = 0; i < expected_.size(); ++i) EXPECT_EQ(decode(3, prompt_tokens + i), expected_[i]) << i;
  }

 private:
  std::vector<TokenId> tokens_ = prompt();
  std::unique_ptr<Engine> engine_;
  std::vector<MirrorPage> copies_;
  std::vector<std::uint32_t> index_;
  std::uint32_t restored_ = 0;
  TokenId first_ = 0;
  std::vector<TokenId> expected_;
};

TEST(Mirror, pages_come_back_and_the_stream_goes_on) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    Mirrored m(ranks);
    ASSERT_GT(m.copies().size(), 6u);
    EXPECT_TRUE(m.run(m.restore_plan()).unrestored.empty());
    m.expect_the_same_tokens();
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_EQ(m.engine().executor(r).mirror_counts(), (MirrorCounts{m.copies().size(), 0, m.copies().size(), 0, 0}));
      EXPECT_EQ(m.engine().executor(r).take_mirror().size(), m.copies().size());
    }
  }
}

// One rank of two has lost a page, or has it damaged: both say so, and neither keeps anything of it.
TEST(Mirror, what_one_rank_lacks_all_ranks_report) {
  for (const bool spoil : {false, true}) {
    Mirrored m(2);
    m.engine().executor(1).take_mirror();  // all copies are made
    const MirrorPage& victim = m.copies()[4];
    MirrorMemory& mirror = m.engine().mirror(1);
    const auto found = mirror.find(victim.slot, victim.key);
    ASSERT_TRUE(found);
    if (spoil)
      const_cast<std::byte&>(found->first[100]) ^= std::byte{4};
    else
      mirror.forget(victim.slot);
    const auto result = m.run(m.restore_plan());
    EXPECT_EQ(result.unrestored, (std::vector<SlotOfGroup>{{DpGroup{}, victim.slot}}));
    EXPECT_EQ(m.engine().executor(1).mirror_counts().corrupt, spoil ? 1u : 0u);
    EXPECT_EQ(m.engine().executor(1).mirror_counts().missing, spoil ? 0u : 1u);
    EXPECT_EQ(m.engine().executor(0).mirror_counts().missing, 0u);
    EXPECT_EQ(m.engine().executor(1).take_mirror().size(), m.copies().size() - 1) << "a page found spoilt is dropped";
  }
}

// The control: what comes back is what the stream goes on from. With two pages exchanged the logits are others.
TEST(Mirror, pages_in_each_others_place_change_the_logits) {
  const auto logits = [](bool exchanged) {
    Mirrored m(1);
    StepPlan plan = m.restore_plan();
    if (exchanged) std::swap(plan.restore[0].page, plan.restore[1].page);
    EXPECT_EQ(plan.restore[0].group, plan.restore[1].group);
    EXPECT_TRUE(m.run(plan).unrestored.empty());
    std::vector<float> values;
    Observer observer;
    observer.logits = [&](std::span<const float> row) { values.assign(row.begin(), row.end()); };
    m.engine().executor(0).observe(observer);
    StepPlan next = m.engine().next_plan();
    const auto tokens = prompt();
    next.work = {prompt_work(3, m.restored(), std::span(tokens).subspan(m.restored()), true)};
    m.run(next);
    m.engine().executor(0).observe({});
    return values;
  };
  const auto right = logits(false);
  ASSERT_FALSE(right.empty());
  EXPECT_EQ(right, logits(false));
  EXPECT_NE(right, logits(true));
}

TEST(Mirror, a_page_with_nan_is_never_copied) {
  Mirrored m(1);
  ASSERT_TRUE(m.engine().executor(0).damage(RowIndex{0}, Damage::kv_page).ok());
  StepPlan plan = m.engine().next_plan();
  const std::uint32_t group = 0;
  const std::uint32_t index = (prompt_tokens + 5) / m.engine().layout().groups[group].tokens_per_page;
  plan.mirror = {{DpGroup{}, group, m.engine().page(0, group, index), MirrorSlot{60}, {6, 6}}};
  m.run(plan);
  const auto pages = m.engine().executor(0).take_mirror();
  EXPECT_EQ(pages.size(), m.copies().size());
  EXPECT_EQ(std::count_if(pages.begin(), pages.end(), [](const MirroredPage& page) { return page.slot == MirrorSlot{60}; }), 0);
  EXPECT_EQ(m.engine().executor(0).mirror_counts().skipped, 1u);
}

TEST(Mirror, forgotten_slots_are_empty_before_anything_is_restored) {
  Mirrored m(1);
  StepPlan plan = m.restore_plan();
  plan.forget = {{DpGroup{}, m.copies()[2].slot}};
  EXPECT_EQ(m.run(plan).unrestored, plan.forget);
}

// --- the copier alone: pages change hands at every moment ---

struct Pages {
  Pages() : cache(std::move(*KvCacheOf())), memory(std::move(*MirrorMemory::create(4u << 20, {1, 1}))) {
    mirror = *MirrorMemory::adopt(::dup(memory.descriptor()), 1, layout().page_bytes);
    mirror->take();
  }
  static KvLayout layout() { return {16, 128 << 10, {KvGroup{0, 64, {0, 1}}}}; }
  static Result<cpu::KvCache> KvCacheOf() { return cpu::KvCache::create(layout(), {2, 64}, 2); }
  // All floats of the page are this value.
  bool holds(MirrorSlot slot, PageKey key, float value) const {
    const auto found = mirror->find(slot, key);
    if (!found) return false;
    const std::size_t used = cache.bytes_of(PageId{0}, 0).size();
    for (std::size_t at = 0; at < used; at += sizeof(float)) {
      float read = 0;
      std::memcpy(&read, found->first.data() + at, sizeof read);
      if (read != value) return false;
    }
    return true;
  }
  cpu::KvCache cache;
  MirrorMemory memory;
  std::shared_ptr<MirrorMemory> mirror;
};

// The owner of a page changes as fast as it can while the copier works: a slot holds what its key's owner wrote, or nothing. ThreadSanitizer sees
// that no byte is read while another owner writes it.
TEST(MirrorCopier, a_page_that_gets_another_owner_is_never_copied_for_the_first) {
  Pages p;
  std::uint64_t skipped = 0;
  {
    cpu::MirrorCopier copier(p.cache, p.mirror);
    for (std::uint32_t turn = 1; turn <= 4000; ++turn) {
      const PageId page{turn % 5};
      copier.withdraw({page});
      p.cache.fill(page, static_cast<float>(turn));
      copier.hand_over({DpGroup{}, 0, page, MirrorSlot{turn % 7}, {turn, turn}});
    }
    copier.settle();
    const auto counts = copier.counts();
    EXPECT_EQ(counts.copied + counts.skipped, 4000u) << "every page was copied or counted as skipped";
    skipped = counts.skipped;
  }
  const auto contents = p.mirror->contents();
  ASSERT_FALSE(contents.empty());
  for (const auto& [slot, key] : contents) EXPECT_TRUE(p.holds(slot, key, static_cast<float>(key.low))) << key.low;
  EXPECT_GT(skipped, 0u) << "no page ever changed hands before it was copied";
}

TEST(MirrorCopier, without_a_change_of_owner_nothing_is_skipped) {
  Pages p;
  cpu::MirrorCopier copier(p.cache, p.mirror);
  for (std::uint32_t page = 0; page < 16; ++page) {
    p.cache.fill(PageId{page}, static_cast<float>(page));
    copier.hand_over({DpGroup{}, 0, PageId{page}, MirrorSlot{page}, {page, page}});
  }
  copier.settle();
  EXPECT_EQ(copier.counts(), (MirrorCounts{16, 0, 0, 0, 0}));
  for (std::uint32_t page = 0; page < 16; ++page) EXPECT_TRUE(p.holds(MirrorSlot{page}, {page, page}, static_cast<float>(page)));
}

TEST(MirrorCopier, a_slot_that_is_forgotten_while_its_copy_waits_stays_empty) {
  Pages p;
  cpu::MirrorCopier copier(p.cache, p.mirror);
  for (std::uint32_t i = 0; i < 200; ++i) {
    p.cache.fill(PageId{1}, 1.0F);
    copier.hand_over({DpGroup{}, 0, PageId{1}, MirrorSlot{2}, {1, i}});
    copier.forget(MirrorSlot{2});
    copier.settle();
    ASSERT_TRUE(p.mirror->contents().empty()) << i;
    copier.withdraw({PageId{1}});
  }
}

TEST(MirrorCopier, a_full_queue_skips_and_never_waits) {
  Pages p;
  cpu::MirrorCopier copier(p.cache, p.mirror);
  for (std::uint32_t i = 0; i < 3000; ++i) copier.hand_over({DpGroup{}, 0, PageId{i % 16}, MirrorSlot{i % 16}, {3, i}});
  copier.settle();
  const auto counts = copier.counts();
  EXPECT_EQ(counts.copied + counts.skipped, 3000u);
  EXPECT_GT(counts.skipped, 0u);
}

TEST(MirrorCopier, a_page_that_does_not_come_back_is_zeros) {
  Pages p;
  cpu::MirrorCopier copier(p.cache, p.mirror);
  p.cache.fill(PageId{1}, 5.0F);
  EXPECT_FALSE(copier.restore({DpGroup{}, 0, PageId{1}, MirrorSlot{2}, {1, 1}}));
  for (const std::byte byte : p.cache.bytes_of(PageId{1}, 0)) ASSERT_EQ(byte, std::byte{0});
}

// --- plans that no rank should run ---

struct MirrorTable {
  MirrorTable() : rows({Pages::layout(), 4, 64, 512, 50, 1, 8}) {
    plan.snapshot = true;
    plan.epoch = EpochId{1};
    plan.step = StepId{1};
    plan.set = {{RowIndex{1}, RequestId{1}, {}}};
    plan.pages = {{RowIndex{1}, 0, 0, {PageId{3}}}};
    plan.restore = {{DpGroup{}, 0, PageId{3}, MirrorSlot{7}, {}}};
  }
  std::string refusal() const {
    const auto result = rows.check(plan);
    return result ? "" : result.error().message;
  }
  RowTable rows;
  StepPlan plan;
};

TEST(RowTableMirror, a_page_is_restored_for_the_row_that_gets_it_and_computes_nothing_yet) {
  EXPECT_EQ(MirrorTable().refusal(), "");
  MirrorTable works;
  works.plan.work = {prompt_work(1, 0, std::vector<TokenId>{1, 2}, false)};
  EXPECT_NE(works.refusal().find("page 3 is to be restored"), std::string::npos) << works.refusal();
  MirrorTable other;
  other.plan.restore[0].page = PageId{4};
  EXPECT_NE(other.refusal().find("page 4 is to be restored"), std::string::npos) << other.refusal();
}

TEST(RowTableMirror, places_that_do_not_exist) {
  const auto refuses = [](auto change, const char* why) {
    MirrorTable t;
    change(t.plan);
    EXPECT_NE(t.refusal().find(why), std::string::npos) << "'" << t.refusal() << "' should hold '" << why << "'";
  };
  refuses([](StepPlan& p) { p.restore[0].slot = MirrorSlot{8}; }, "mirror slot 8 does not exist, there are 8");
  refuses([](StepPlan& p) { p.mirror = {{DpGroup{}, 1, PageId{3}, MirrorSlot{1}, {}}}; }, "group 1 does not exist");
  refuses([](StepPlan& p) { p.mirror = {{DpGroup{}, 0, PageId{16}, MirrorSlot{1}, {}}}; }, "page 16 does not exist");
  refuses([](StepPlan& p) { p.forget = {{DpGroup{1}, MirrorSlot{1}}}; }, "DP group 1 is named, there are 1");
}

TEST(RowTableMirror, a_rank_without_a_mirror_takes_no_orders_for_one) {
  const RowTable rows({Pages::layout(), 4, 64, 512, 50, 1});
  EXPECT_NE(rows.check(MirrorTable().plan).error().message.find("there are 0"), std::string::npos);
}

}  // namespace
}  // namespace althing::gpu
