// The bytes of the token log, in one place: header, slots, blocks. A slot is one request; its words lie in a chain of blocks. What counts of a slot
// is decided by one 64-bit word, `commit` (how many words, and their checksum), which is stored after the words are. So a writer that is killed at
// any byte leaves the words of its last commit, and whatever else changed is found out by the checksum and costs that one request. Which blocks are
// free is nowhere written down: whatever no live slot's chain holds is free, so nothing can contradict it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace althing::actors::token_log {

inline constexpr std::uint64_t magic = 0x31474F4C4E544C41;  // "ALTNLOG1"
inline constexpr std::uint32_t version = 7;
inline constexpr std::size_t instance_bytes = 40;

struct Header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t slot_count = 0;
  std::uint32_t block_count = 0;
  std::uint32_t check = 0;                      // over everything above and `instance`
  std::array<char, instance_bytes> instance{};  // what clients are told as server_instance; ends in zeros
  // From the supervisor to the next core; outside of the checksum, because it changes.
  std::uint64_t core_deaths = 0;
  std::uint64_t died_ns = 0;  // when the last one was noticed, on the monotonic clock
};

struct Slot {
  std::uint64_t serial = 0;  // unique in a log and ascending in order of acceptance; 0: free
  std::uint64_t commit = 0;  // words in the chain (low half), their checksum (high half); 0 words: free
  std::uint64_t credit = 0;  // all that the client has granted, the submit's own included
  std::uint32_t first_block = 0;
  std::uint32_t takeovers = 0;  // cores that took this over since it got its last token
};

inline constexpr std::uint32_t block_words = 252;
struct Block {
  std::uint64_t serial = 0;  // of the slot that holds it
  std::uint32_t next = 0;    // the chain's next block, once there are more words
  std::uint32_t unused = 0;
  std::array<std::uint32_t, block_words> words{};
};

static_assert(sizeof(Header) == 80 && sizeof(Slot) == 32 && sizeof(Block) == 1024);

inline constexpr std::uint32_t slot_count_max = 1u << 16;
inline constexpr std::uint32_t block_count_max = 1u << 22;  // 4 GiB, so that a count of words fits 32 bits
inline constexpr std::size_t slots_at = 128;

constexpr std::size_t blocks_at(std::uint32_t slot_count) {
  return (slots_at + sizeof(Slot) * slot_count + sizeof(Block) - 1) / sizeof(Block) * sizeof(Block);
}
constexpr std::size_t bytes_of(std::uint32_t slot_count, std::uint32_t block_count) { return blocks_at(slot_count) + sizeof(Block) * block_count; }

// Words below it are tokens. The others say what happened between two of them.
inline constexpr std::uint32_t word_marks = 0x8000'0000;
inline constexpr std::uint32_t word_cut = 0xFFFF'FFFF;       // a delta was made of all that came before
inline constexpr std::uint32_t word_accepted = 0xFFFF'FFFE;  // the scheduler took the request
inline constexpr std::uint32_t word_closed = 0xFFFF'FFFD;    // no token will come: the length of a record and the record (Finished) follow
inline constexpr std::uint32_t word_ended = 0xFFFF'FFFC;     // the client's Done or Error: the length of a record and the record follow
// The token behind it has logprobs: how many most likely tokens, the token's own as bits, then each of those and its as bits.
inline constexpr std::uint32_t word_logprobs = 0xFFFF'FFFB;
// Tokens, cuts and word_closed behind it are of choice word - word_choice; before the first one, of choice 0.
inline constexpr std::uint32_t word_choice = 0xFFFF'0000;

constexpr bool is_choice(std::uint32_t word, std::uint32_t choices) { return word >= word_choice && word - word_choice < choices; }

// What follows was drawn by ranks of this TP degree: the first such mark of a story, or another degree than before.
inline constexpr std::uint32_t word_tp = 0x8000'0000;
inline constexpr std::uint32_t tp_max = 64;
constexpr bool is_tp(std::uint32_t word) { return word > word_tp && word <= word_tp + tp_max; }

// One step of the checksum. For a given state it is one-to-one in the word and for a given word one-to-one in the state: one wrong word never passes.
constexpr std::uint32_t mix(std::uint32_t state, std::uint32_t word) {
  state = (state ^ word) * 0x9E37'79B1u;
  return state ^ (state >> 15);
}
constexpr std::uint32_t checksum_of(std::uint64_t serial) {
  return mix(mix(0x5EED'C0DEu, static_cast<std::uint32_t>(serial)), static_cast<std::uint32_t>(serial >> 32));
}

constexpr std::uint64_t commit_of(std::uint32_t words, std::uint32_t checksum) { return words | (std::uint64_t{checksum} << 32); }

}  // namespace althing::actors::token_log
