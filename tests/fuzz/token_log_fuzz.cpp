// Any words as the chain of a token log's slot, with a checksum that is right, and any bytes over a log: what the reader makes of them is a request
// that is written and read the same again, or nothing. The sound checksum lets every word get past the first door.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "actors/token_log_reader.hpp"

namespace {

using namespace althing::actors;
using namespace althing::actors::token_log;

constexpr std::size_t log_bytes = std::size_t{64} << 10;

// A log with one slot whose chain holds these words, as many as fit.
std::vector<std::byte> log_of(const std::vector<std::uint32_t>& words) {
  std::vector<std::byte> log(log_bytes);
  const Counts counts = *counts_of(log_bytes);
  const Header header = header_for(counts, "fuzz");
  std::memcpy(log.data(), &header, sizeof header);
  Slot slot{7, 0, 0, 0, 0};
  std::uint32_t checksum = checksum_of(slot.serial);
  const std::size_t count = std::min<std::size_t>(words.size(), std::size_t{counts.blocks} * block_words);
  for (std::uint32_t b = 0; b * block_words < count; ++b) {
    Block block;
    block.serial = slot.serial;
    block.next = b + 1;
    for (std::size_t i = 0; i < block_words && b * block_words + i < count; ++i) {
      block.words[i] = words[b * block_words + i];
      checksum = mix(checksum, block.words[i]);
    }
    std::memcpy(log.data() + blocks_at(counts.slots) + sizeof block * b, &block, sizeof block);
  }
  slot.commit = commit_of(static_cast<std::uint32_t>(count), checksum);
  std::memcpy(log.data() + slots_at, &slot, sizeof slot);
  return log;
}

void judge(const std::vector<std::byte>& log) {
  if (!instance_of(log)) return;
  for (const Read& read : token_log::read(log).requests) {
    const auto submit = submit_from_words(to_words(read.submit));
    // Compared as words: a float that is no number does not equal itself.
    if (!submit || to_words(*submit) != to_words(read.submit)) std::abort();
    std::vector<std::optional<LoggedEnd>> ends = read.closed;
    ends.push_back(read.ended);
    for (const auto& end : ends)
      if (end && !end_from_words(to_words(*end))) std::abort();
    if (read.closed.size() != read.submit.choices) std::abort();
    // As a frontend reads it: a mark of a choice that is not there would reach beyond its choices.
    std::vector<bool> over(read.submit.choices);
    std::uint32_t choice = 0;
    const auto tokens = std::count_if(read.story.begin(), read.story.end(), [](std::uint32_t word) { return word < word_marks; });
    if (read.logprobs.size() != (read.submit.sampling.logprobs ? static_cast<std::size_t>(tokens) : 0)) std::abort();
    for (const std::uint32_t word : read.story) {
      if (word >= word_marks && word != word_cut && word != word_closed && !is_tp(word) && !is_choice(word, read.submit.choices)) std::abort();
      if (is_choice(word, read.submit.choices)) choice = word - word_choice;
      if (word < word_marks && over[choice]) std::abort();
      if (word == word_closed) over[choice] = true;
    }
    for (choice = 0; choice < read.submit.choices; ++choice)
      if (over[choice] != read.closed[choice].has_value()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint32_t> words((size - 1) / 4);
  if (!words.empty()) std::memcpy(words.data(), data + 1, words.size() * 4);
  // Some inputs get a whole submit in front, so that their words are a story, of one choice or of several.
  if (data[0] % 2 == 1) {
    LoggedSubmit submit;
    submit.choices = 1 + (data[0] >> 1) % 4;
    submit.request_id = "r";
    std::vector<std::uint32_t> whole = to_words(submit);
    whole.insert(whole.begin(), static_cast<std::uint32_t>(whole.size()));
    words.insert(words.begin(), whole.begin(), whole.end());
  }
  std::vector<std::byte> log = log_of(words);
  judge(log);
  // The same bytes as changes to the log: a place and a value each.
  for (std::size_t i = 1; i + 3 <= size; i += 3) log[(data[i] | (std::size_t{data[i + 1]} << 8)) % log.size()] = std::byte{data[i + 2]};
  judge(log);
  return 0;
}
