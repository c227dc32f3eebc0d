// The mirror's memory keeps its word whoever dies when: a writer is killed at random bytes, slots are torn and spoilt by hand, and another layout
// finds nothing.
#include "gpu/mirror_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

namespace althing::gpu {
namespace {

constexpr std::uint64_t page_bytes = 8192, memory_bytes = 1u << 20;
constexpr PageKey seed{11, 12};

std::shared_ptr<MirrorMemory> adopted(const MirrorMemory& memory, std::uint64_t identity = 1, std::uint64_t page = page_bytes) {
  auto mirror = MirrorMemory::adopt(::dup(memory.descriptor()), identity, page);
  EXPECT_TRUE(mirror.ok()) << mirror.error().message;
  if (mirror) (*mirror)->take();
  return mirror ? *mirror : nullptr;
}

// Every word of the page is a function of the key, so a page of another key, or half of one, is found.
std::vector<std::byte> content(PageKey key) {
  std::vector<std::byte> bytes(page_bytes);
  for (std::uint64_t i = 0; i < page_bytes / 8; ++i) {
    const std::uint64_t word = (key.low * 0x9E3779B97F4A7C15u) ^ (i * 0xBF58476D1CE4E5B9u);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  return bytes;
}

void write(MirrorMemory& memory, MirrorSlot slot, PageKey key) {
  const auto bytes = content(key);
  PageChecksum checksum;
  checksum.add(bytes);
  std::memcpy(memory.begin(slot).data(), bytes.data(), bytes.size());
  memory.commit(slot, key, checksum.value());
}

// Whether the slot's bytes are what it says, by the checksum and by the content.
bool whole(const MirrorMemory& memory, MirrorSlot slot, PageKey key) {
  const auto found = memory.find(slot, key);
  if (!found) return false;
  PageChecksum checksum;
  checksum.add(found->first);
  const auto expected = content(key);
  return checksum.value() == found->second && std::memcmp(expected.data(), found->first.data(), page_bytes) == 0;
}

TEST(MirrorMemory, a_page_is_found_under_its_own_slot_and_key_only) {
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  ASSERT_TRUE(memory.ok());
  const auto mirror = adopted(*memory);
  EXPECT_EQ(mirror->seed(), seed);
  EXPECT_EQ(mirror->slots(), MirrorMemory::slots_in(memory_bytes, page_bytes));
  EXPECT_TRUE(mirror->contents().empty());
  write(*mirror, MirrorSlot{3}, {1, 2});
  EXPECT_TRUE(whole(*mirror, MirrorSlot{3}, {1, 2}));
  EXPECT_FALSE(mirror->find(MirrorSlot{4}, {1, 2}));
  EXPECT_FALSE(mirror->find(MirrorSlot{3}, {1, 3}));
  EXPECT_FALSE(mirror->find(MirrorSlot{mirror->slots()}, {1, 2}));
  EXPECT_EQ(mirror->contents(), (std::vector<std::pair<MirrorSlot, PageKey>>{{MirrorSlot{3}, {1, 2}}}));
  mirror->forget(MirrorSlot{3});
  EXPECT_FALSE(mirror->find(MirrorSlot{3}, {1, 2}));
  EXPECT_TRUE(mirror->contents().empty());
}

TEST(MirrorMemory, every_slot_has_a_place_of_its_own) {
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  const auto mirror = adopted(*memory);
  ASSERT_GT(mirror->slots(), 100u);
  for (std::uint32_t s = 0; s < mirror->slots(); ++s) write(*mirror, MirrorSlot{s}, {7, s});
  for (std::uint32_t s = 0; s < mirror->slots(); ++s) ASSERT_TRUE(whole(*mirror, MirrorSlot{s}, {7, s})) << s;
  EXPECT_EQ(mirror->contents().size(), mirror->slots());
}

TEST(MirrorMemory, the_next_process_finds_what_was_left_and_another_layout_nothing) {
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  write(*adopted(*memory), MirrorSlot{5}, {1, 2});
  EXPECT_TRUE(whole(*adopted(*memory), MirrorSlot{5}, {1, 2}));
  EXPECT_TRUE(adopted(*memory, 2)->contents().empty()) << "another identity";
  EXPECT_TRUE(adopted(*memory, 1)->contents().empty()) << "and what it dropped is dropped";
  write(*adopted(*memory), MirrorSlot{5}, {1, 2});
  EXPECT_TRUE(adopted(*memory, 1, page_bytes / 2)->contents().empty()) << "pages of another size";
}

// A process that starts maps the mirror of a place that another one serves in, in another grid.
TEST(MirrorMemory, who_has_not_taken_it_changes_nothing_and_who_has_lost_it_writes_nothing) {
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  const auto serving = adopted(*memory);
  write(*serving, MirrorSlot{5}, {1, 2});
  const auto starting = MirrorMemory::adopt(::dup(memory->descriptor()), 2, page_bytes / 2);
  ASSERT_TRUE(starting.ok());
  EXPECT_FALSE((*starting)->is_taken());
  EXPECT_TRUE((*starting)->begin(MirrorSlot{5}).empty());
  EXPECT_TRUE(serving->is_taken());
  EXPECT_TRUE(whole(*serving, MirrorSlot{5}, {1, 2})) << "it goes on as if nobody had come";
  write(*serving, MirrorSlot{6}, {1, 3});
  EXPECT_TRUE(whole(*serving, MirrorSlot{6}, {1, 3}));
  ASSERT_FALSE(serving->begin(MirrorSlot{7}).empty());
  // An epoch gives the place to the other one: what was there is dropped, and the page in hand is never called whole.
  (*starting)->take();
  EXPECT_TRUE((*starting)->is_taken());
  EXPECT_FALSE(serving->is_taken());
  EXPECT_TRUE((*starting)->contents().empty());
  serving->commit(MirrorSlot{7}, {1, 4}, 9);
  EXPECT_TRUE(serving->begin(MirrorSlot{8}).empty());
  EXPECT_TRUE((*starting)->contents().empty());
  ASSERT_EQ((*starting)->begin(MirrorSlot{5}).size(), page_bytes / 2);
  (*starting)->commit(MirrorSlot{5}, {1, 2}, 9);
  serving->forget(MirrorSlot{5});
  EXPECT_FALSE(serving->find(MirrorSlot{5}, {1, 2}));
  EXPECT_TRUE((*starting)->find(MirrorSlot{5}, {1, 2})) << "nor does it drop what is not its any more";
  // And back, as growth and shrinking follow each other.
  serving->take();
  write(*serving, MirrorSlot{5}, {1, 2});
  EXPECT_TRUE(whole(*serving, MirrorSlot{5}, {1, 2}));
  EXPECT_TRUE((*starting)->begin(MirrorSlot{1}).empty());
}

TEST(MirrorMemory, one_wrong_word_in_the_directory_makes_a_slot_empty) {
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  const auto mirror = adopted(*memory);
  for (std::uint64_t word = 0; word < 4; ++word) {
    write(*mirror, MirrorSlot{2}, {1, 2});
    ASSERT_TRUE(mirror->find(MirrorSlot{2}, {1, 2}));
    std::uint64_t value = 0;
    const auto at = static_cast<off_t>(64 + 2 * 32 + 8 * word);
    ASSERT_EQ(::pread(memory->descriptor(), &value, 8, at), 8);
    value ^= std::uint64_t{1} << (13 * word + 5);
    ASSERT_EQ(::pwrite(memory->descriptor(), &value, 8, at), 8);
    EXPECT_FALSE(mirror->find(MirrorSlot{2}, {1, 2})) << word;
    EXPECT_TRUE(mirror->contents().empty()) << word;
  }
}

TEST(MirrorMemory, the_checksum_sees_any_one_bit) {
  std::mt19937_64 random(5);
  auto bytes = content({1, 9});
  PageChecksum good;
  good.add(bytes);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t bit = random() % (8 * bytes.size());
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    PageChecksum spoilt;
    spoilt.add(bytes);
    ASSERT_NE(spoilt.value(), good.value()) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  PageChecksum pieces;
  for (std::size_t at = 0; at < bytes.size(); at += 2048) pieces.add(std::span(bytes).subspan(at, 2048));
  EXPECT_EQ(pieces.value(), good.value()) << "piece by piece is the same";
}

// The writer overwrites few slots again and again, and dies by SIGKILL: in every other round wherever it is, else in the middle of a page, where it
// waits for its end. The parent waits for what it has seen written, not for time.
TEST(MirrorMemory, a_writer_killed_at_any_byte_leaves_no_slot_that_lies) {
  std::mt19937 random(std::random_device{}());
  constexpr std::uint64_t slots = 3;
  const auto slot_of = [](std::uint64_t i) { return MirrorSlot{static_cast<std::uint32_t>(i % slots)}; };
  for (std::uint64_t round = 0; round < 60; ++round) {
    const auto memory = MirrorMemory::create(memory_bytes, seed);
    const auto mirror = adopted(*memory);
    auto* written = static_cast<std::atomic<std::uint64_t>*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(written, MAP_FAILED);
    const bool in_a_page = round % 2 == 1;
    const std::uint64_t enough = slots + random() % 400, torn = random() % page_bytes;
    const pid_t child = ::fork();
    if (child == 0)
      for (std::uint64_t i = 0;; ++i) {
        if (in_a_page && i == enough) {
          std::memcpy(mirror->begin(slot_of(i)).data(), content({round, i}).data(), torn);
          written->store(i + 1);
          for (;;) ::pause();
        }
        write(*mirror, slot_of(i), {round, i});
        written->store(i + 1);
      }
    ASSERT_GT(child, 0);
    while (written->load() < enough + (in_a_page ? 1 : 0)) ::sched_yield();
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const auto left = adopted(*memory);
    const auto contents = left->contents();
    for (const auto& [slot, key] : contents) {
      ASSERT_TRUE(whole(*left, slot, key)) << "round " << round;
      ASSERT_FALSE(in_a_page && slot == slot_of(enough)) << "torn at byte " << torn;
    }
    // At most the page in hand is lost.
    ASSERT_GE(contents.size(), slots - 1) << "round " << round;
    ::munmap(written, 4096);
  }
}

TEST(MirrorMemory, what_is_no_mirror_is_refused) {
  const auto refusal = [](int descriptor, std::uint64_t page = page_bytes) { return MirrorMemory::adopt(descriptor, 1, page); };
  EXPECT_EQ(refusal(::open("/dev/null", O_RDWR | O_CLOEXEC)).error().code, ErrorCode::corrupt);
  const int unsealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, memory_bytes), 0);
  EXPECT_EQ(refusal(unsealed).error().code, ErrorCode::corrupt);
  const int blank = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(blank, memory_bytes), 0);
  ASSERT_EQ(::fcntl(blank, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_NE(refusal(blank).error().message.find("magic"), std::string::npos);
  const auto memory = MirrorMemory::create(memory_bytes, seed);
  EXPECT_EQ(refusal(::dup(memory->descriptor()), 2u << 20).error().code, ErrorCode::too_large);
  EXPECT_NE(::ftruncate(memory->descriptor(), 0), 0) << "nobody can shrink it";
}

}  // namespace
}  // namespace althing::gpu
