// Every field is copied out of the log before it is looked at: its writer may be alive in a test, and a value that changes between check and use
// would be as good as unchecked.
#include "actors/token_log_reader.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace althing::actors::token_log {
namespace {

constexpr std::size_t bytes_min = std::size_t{64} << 10;
constexpr std::uint32_t blocks_per_slot = 16;
constexpr std::uint32_t slot_count_min = 16;

template <class T>
T copy_at(std::span<const std::byte> log, std::size_t at) {
  T value;
  std::memcpy(&value, log.data() + at, sizeof value);
  return value;
}

std::uint32_t check_of(const Header& header) {
  std::uint32_t check = 0;
  for (const std::uint64_t word : {header.magic, std::uint64_t{header.version}, std::uint64_t{header.slot_count}, std::uint64_t{header.block_count}})
    check = mix(mix(check, static_cast<std::uint32_t>(word)), static_cast<std::uint32_t>(word >> 32));
  for (const char c : header.instance) check = mix(check, static_cast<unsigned char>(c));
  return check;
}

// The words of a slot's chain, once every link and the checksum are right.
std::optional<std::vector<std::uint32_t>> words_of(std::span<const std::byte> log, const Counts& counts, const Slot& slot, std::vector<bool>& claimed,
                                                   Read& out) {
  const auto count = static_cast<std::uint32_t>(slot.commit);
  if (count > std::uint64_t{counts.blocks} * block_words) return std::nullopt;
  std::vector<std::uint32_t> words;
  std::uint32_t checksum = checksum_of(slot.serial);
  std::uint32_t next = slot.first_block;
  while (words.size() < count) {
    if (next >= counts.blocks || claimed[next]) return std::nullopt;
    const Block block = copy_at<Block>(log, blocks_at(counts.slots) + sizeof(Block) * next);
    if (block.serial != slot.serial) return std::nullopt;
    claimed[next] = true;
    out.blocks.push_back(next);
    const std::size_t taken = std::min<std::size_t>(block_words, count - words.size());
    for (std::size_t i = 0; i < taken; ++i) checksum = mix(checksum, block.words[i]);
    words.insert(words.end(), block.words.begin(), block.words.begin() + static_cast<std::ptrdiff_t>(taken));
    next = block.next;
  }
  if (checksum != static_cast<std::uint32_t>(slot.commit >> 32)) return std::nullopt;
  out.words = count;
  out.checksum = checksum;
  return words;
}

// What stands behind word_logprobs; `at` moves on.
std::optional<TokenLogprobs> logprobs_at(std::span<const std::uint32_t> words, std::size_t& at) {
  if (words.size() - at < 2 || words[at] > logprobs_top_max || words.size() - at - 2 < std::size_t{2} * words[at]) return std::nullopt;
  const std::uint32_t count = words[at++];
  TokenLogprobs told{0, std::bit_cast<float>(words[at++]), {}};
  for (std::uint32_t i = 0; i < count; ++i, at += 2) told.top.push_back({words[at], std::bit_cast<float>(words[at + 1])});
  return told;
}

// Splits words into a submit and a story; false when they are not that.
bool tell(std::span<const std::uint32_t> words, Read& out) {
  std::size_t at = 0;
  const auto record = [&]() -> std::optional<std::span<const std::uint32_t>> {
    if (at >= words.size() || words.size() - at - 1 < words[at]) return std::nullopt;
    const auto found = words.subspan(at + 1, words[at]);
    at += 1 + found.size();
    return found;
  };
  const auto first = record();
  auto submit = first ? submit_from_words(*first) : std::nullopt;
  if (!submit) return false;
  out.submit = std::move(*submit);
  out.submit_words = static_cast<std::uint32_t>(at);
  out.closed.resize(out.submit.choices);
  std::optional<TokenLogprobs> told;  // of the token that must follow
  while (at < words.size()) {
    const std::uint32_t word = words[at++];
    if (out.ended || (word < word_marks && told.has_value() != out.submit.sampling.logprobs) || (word >= word_marks && told)) return false;
    if (word == word_logprobs) {
      told = logprobs_at(words, at);
      if (!told) return false;
      continue;
    }
    if (told) {
      told->token = word;
      out.logprobs.push_back(*std::exchange(told, std::nullopt));
    }
    std::optional<LoggedEnd>& closed = out.closed[out.choice];
    if (word < word_marks || word == word_cut) {
      if (word != word_cut && closed) return false;
      out.story.push_back(word);
    } else if (is_choice(word, out.submit.choices)) {
      out.choice = word - word_choice;
      out.story.push_back(word);
    } else if (is_tp(word)) {
      out.story.push_back(word);  // of the choices that follow, whichever has closed
    } else if (word == word_accepted) {
      out.accepted = true;
    } else if (word == word_closed || word == word_ended) {
      const auto found = record();
      auto end = found ? end_from_words(*found) : std::nullopt;
      if (!end || (word == word_closed && closed)) return false;
      if (word == word_closed) out.story.push_back(word);
      (word == word_closed ? closed : out.ended) = std::move(end);
    } else {
      return false;
    }
  }
  return !told;
}

}  // namespace

Result<Counts> counts_of(std::size_t bytes) {
  Counts counts;
  counts.slots = static_cast<std::uint32_t>(std::clamp<std::size_t>(bytes / sizeof(Block) / blocks_per_slot, slot_count_min, slot_count_max));
  const std::size_t blocks = bytes < bytes_min ? 0 : (bytes - blocks_at(counts.slots)) / sizeof(Block);
  if (blocks == 0 || blocks > block_count_max)
    return Error{ErrorCode::invalid_argument,
                 "a token log of " + std::to_string(bytes) + " bytes cannot be; use " + std::to_string(bytes_min) + " bytes to 4 GiB",
                 "token-log-mib"};
  counts.blocks = static_cast<std::uint32_t>(blocks);
  return counts;
}

Header header_for(const Counts& counts, const std::string& instance) {
  Header header;
  header.magic = magic;
  header.version = version;
  header.slot_count = counts.slots;
  header.block_count = counts.blocks;
  std::copy_n(instance.begin(), std::min(instance.size(), instance_bytes - 1), header.instance.begin());
  header.check = check_of(header);
  return header;
}

std::optional<std::string> instance_of(std::span<const std::byte> log) {
  const auto counts = counts_of(log.size());
  if (!counts) return std::nullopt;
  const auto header = copy_at<Header>(log, 0);
  if (header.magic != magic || header.version != version || header.check != check_of(header)) return std::nullopt;
  if (header.slot_count != counts->slots || header.block_count != counts->blocks || header.instance.back() != '\0') return std::nullopt;
  return std::string(header.instance.data());
}

Contents read(std::span<const std::byte> log) {
  const Counts counts = *counts_of(log.size());
  Contents contents;
  std::vector<bool> claimed(counts.blocks, false);
  for (std::uint32_t index = 0; index < counts.slots; ++index) {
    const auto slot = copy_at<Slot>(log, slots_at + sizeof(Slot) * index);
    if (slot.serial == 0 || static_cast<std::uint32_t>(slot.commit) == 0) continue;
    Read request;
    request.slot = index;
    request.serial = slot.serial;
    request.credit = slot.credit;
    request.takeovers = slot.takeovers;
    const auto words = words_of(log, counts, slot, claimed, request);
    if (words && tell(*words, request))
      contents.requests.push_back(std::move(request));
    else
      contents.damaged.push_back(index);
  }
  std::sort(contents.requests.begin(), contents.requests.end(), [](const Read& a, const Read& b) { return a.serial < b.serial; });
  return contents;
}

}  // namespace althing::actors::token_log
