// Writing: see the header. The order of stores is what a reader may rely on: words, then commit; on release commit, then everything else.
#include "actors/token_log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace althing::actors {
namespace {

using token_log::Block;
using token_log::block_words;
using token_log::Header;
using token_log::Slot;

Error system_error(const std::string& what) { return Error{ErrorCode::io, "the token log: " + what + " failed: " + std::strerror(errno), ""}; }

void store(std::uint64_t& target, std::uint64_t value) { std::atomic_ref<std::uint64_t>(target).store(value, std::memory_order_release); }

// Accepted and the stream's end; two TP degrees; for each choice two words a token (each may be a delta of its own) and its logprobs, its end, and
// its last delta's cut. Choices may take turns word by word, and then each of these needs a mark before it.
std::uint64_t words_at_most(std::uint64_t submit_words, std::uint64_t completion_tokens_max, const LoggedSubmit& submit) {
  const std::uint64_t choices = submit.choices, marks = choices > 1 ? 2 * completion_tokens_max + 2 : 0;
  const std::uint64_t a_token = 2 + (submit.sampling.logprobs ? 3 + 2 * submit.sampling.top_logprobs : 0);
  return submit_words + 1 + 2 + 2 * std::uint64_t{submit.traced_cuts_max} +
         choices * (a_token * completion_tokens_max + end_words_max + 2 + 1 + marks) + end_words_max + 2;
}
std::uint64_t blocks_for(std::uint64_t words) { return (words + block_words - 1) / block_words; }

}  // namespace

Result<Descriptor> TokenLog::create(std::size_t bytes, const std::string& instance) {
  const auto counts = token_log::counts_of(bytes);
  if (!counts) return counts.error();
  Descriptor log(::memfd_create("althing-token-log", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!log || ::ftruncate(log.get(), static_cast<off_t>(bytes)) != 0) return system_error("making its memory");
  // Nobody may shorten it below somebody's mapping.
  if (::fcntl(log.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) return system_error("sealing its size");
  const Header header = token_log::header_for(*counts, instance);
  if (::pwrite(log.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return system_error("writing its header");
  return log;
}

void TokenLog::note_core_death(int log, std::uint64_t core_deaths, std::uint64_t died_ns) {
  const std::uint64_t words[2] = {core_deaths, died_ns};
  static_assert(offsetof(Header, died_ns) == offsetof(Header, core_deaths) + sizeof core_deaths);
  [[maybe_unused]] const ssize_t written = ::pwrite(log, words, sizeof words, offsetof(Header, core_deaths));
}

Result<TokenLog::TakenOver> TokenLog::take_over(const Descriptor& log, const std::string& fresh_instance) {
  struct stat status {};
  if (::fstat(log.get(), &status) != 0) return system_error("looking at it");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const auto counts = token_log::counts_of(bytes);
  if (!counts) return counts.error();
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, log.get(), 0);
  if (address == MAP_FAILED) return system_error("mapping it");
  // Prompts and answers have no business in a core dump.
  ::madvise(address, bytes, MADV_DONTDUMP);
  TakenOver taken;
  taken.log.reset(new TokenLog({static_cast<std::byte*>(address), bytes}));
  TokenLog& self = *taken.log;
  taken.core_deaths = self.header().core_deaths;
  taken.died_ns = self.header().died_ns;

  token_log::Contents contents;
  if (auto instance = token_log::instance_of(self.memory_)) {
    taken.instance = std::move(*instance);
    contents = token_log::read(self.memory_);
    taken.damaged = static_cast<std::uint32_t>(contents.damaged.size());
  } else {
    taken.instance = fresh_instance;
    taken.damaged = self.counts_.slots;
    std::memset(self.memory_.data(), 0, token_log::blocks_at(self.counts_.slots));
    Header header = token_log::header_for(self.counts_, fresh_instance);
    header.core_deaths = taken.core_deaths;
    header.died_ns = taken.died_ns;
    self.header() = header;
  }
  std::vector<bool> kept(self.counts_.slots, false);
  std::vector<bool> used(self.counts_.blocks, false);
  for (token_log::Read& read : contents.requests) {
    self.next_serial_ = std::max(self.next_serial_, read.serial + 1);
    if (!read.ended && read.takeovers >= takeovers_max) ++taken.given_up;
    if (!read.accepted || (!read.ended && read.takeovers >= takeovers_max)) continue;
    kept[read.slot] = true;
    for (const std::uint32_t index : read.blocks) used[index] = true;
    taken.streams.push_back({std::move(read), {}});
  }
  for (std::uint32_t i = self.counts_.slots; i-- > 0;) {
    if (kept[i]) continue;
    if (self.slot(i).serial != 0 || self.slot(i).commit != 0) self.slot(i) = Slot{};
    self.free_slots_.push_back(i);
  }
  for (std::uint32_t i = self.counts_.blocks; i-- > 0;)
    if (!used[i]) self.free_.push_back(i);
  if (taken.core_deaths > 0 || taken.damaged > 0) self.punch_free_blocks(log.get());
  for (LoggedStream& stream : taken.streams) stream.log = self.adopt(stream.read);
  return taken;
}

TokenLog::TokenLog(std::span<std::byte> memory) : memory_(memory), counts_(*token_log::counts_of(memory.size())), chains_(counts_.slots) {}

TokenLog::~TokenLog() { ::munmap(memory_.data(), memory_.size()); }

Header& TokenLog::header() { return *reinterpret_cast<Header*>(memory_.data()); }
Slot& TokenLog::slot(std::uint32_t index) { return reinterpret_cast<Slot*>(memory_.data() + token_log::slots_at)[index]; }
Block& TokenLog::block(std::uint32_t index) { return reinterpret_cast<Block*>(memory_.data() + token_log::blocks_at(counts_.slots))[index]; }

// What the dead core left in blocks that nobody holds is given back to the machine, whole runs at a time; holes read as zeros.
void TokenLog::punch_free_blocks(int log) {
  const auto base = static_cast<off_t>(token_log::blocks_at(counts_.slots));
  for (std::size_t end = free_.size(); end > 0;) {
    // free_ descends, so a run ascends from its end.
    std::size_t begin = end - 1;
    while (begin > 0 && free_[begin - 1] == free_[begin] + 1) --begin;
    const auto first = base + static_cast<off_t>(sizeof(Block)) * static_cast<off_t>(free_[end - 1]);
    ::fallocate(log, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, static_cast<off_t>(sizeof(Block) * (end - begin)));
    end = begin;
  }
}

StreamLog TokenLog::adopt(const token_log::Read& read) {
  Slot& slot = this->slot(read.slot);
  ++slot.takeovers;
  Chain& chain = chains_[read.slot];
  chain = {read.serial, read.blocks, 0, read.ended.has_value()};
  StreamLog stream;
  stream.log_ = shared_from_this();
  stream.slot_ = &slot;
  stream.block_ = &block(read.blocks.back());
  stream.index_ = read.slot;
  stream.serial_ = read.serial;
  stream.words_ = read.words;
  stream.checksum_ = read.checksum;
  stream.choice_ = read.choice;
  stream.stalled_ = true;
  stream.ended_ = chain.ended;
  if (chain.ended) {
    ended_.emplace_back(read.slot, read.serial);
    return stream;
  }
  // The promise was kept in the old core's head; it is the same again. (The log may have other free blocks than then, never fewer.)
  const std::uint64_t all = blocks_for(words_at_most(read.submit_words, read.submit.sampling.completion_tokens_max, read.submit));
  const std::uint64_t left = all > read.blocks.size() ? all - read.blocks.size() : 0;
  chain.promised = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, unpromised()));
  promised_ += chain.promised;
  return stream;
}

Result<StreamLog> TokenLog::open(const LoggedSubmit& submit, std::uint32_t completion_tokens_max) {
  LoggedSubmit bounded = submit;
  bounded.sampling.completion_tokens_max = std::min(bounded.sampling.completion_tokens_max, completion_tokens_max);
  const std::vector<std::uint32_t> words = to_words(bounded);
  const std::uint64_t need = blocks_for(words_at_most(words.size() + 1, completion_tokens_max, submit));
  StreamLog stream;
  {
    const std::lock_guard lock(mutex_);
    if (need > counts_.blocks)
      return Error{ErrorCode::too_large,
                   "prompt and " + std::to_string(submit.choices) + " completion(s) need " + std::to_string(need) +
                       " KiB of the token log, which has " + std::to_string(counts_.blocks) +
                       "; ask for fewer completion tokens or choices, or raise --token-log-mib",
                   "completion_tokens_max"};
    while ((unpromised() < need || free_slots_.empty()) && !ended_.empty()) {
      const auto [index, serial] = ended_.front();
      ended_.pop_front();
      if (chains_[index].serial == serial) release_locked(index);
    }
    if (unpromised() < need || free_slots_.empty())
      return Error{ErrorCode::busy,
                   "the token log is full: " + std::to_string(need) + " KiB are needed and " + std::to_string(unpromised()) +
                       " are free; try again later, or raise --token-log-mib",
                   ""};
    stream.index_ = free_slots_.back();
    free_slots_.pop_back();
    stream.serial_ = next_serial_++;
    chains_[stream.index_] = {stream.serial_, {}, static_cast<std::uint32_t>(need), false};
    promised_ += need;
  }
  stream.log_ = shared_from_this();
  stream.slot_ = &slot(stream.index_);
  stream.checksum_ = token_log::checksum_of(stream.serial_);
  stream.slot_->credit = submit.credit;
  stream.slot_->takeovers = 0;
  store(stream.slot_->serial, stream.serial_);
  stream.put(static_cast<std::uint32_t>(words.size()));
  for (const std::uint32_t word : words) stream.put(word);
  stream.commit();
  return stream;
}

void TokenLog::add_block(StreamLog& stream) {
  const std::lock_guard lock(mutex_);
  Chain& chain = chains_[stream.index_];
  if (chain.promised == 0) return;
  --chain.promised;
  --promised_;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  chain.blocks.push_back(index);
  Block& fresh = block(index);
  fresh.serial = stream.serial_;
  if (stream.block_ == nullptr)
    stream.slot_->first_block = index;
  else
    stream.block_->next = index;
  stream.block_ = &fresh;
}

// It will write no more: what it did not need is for others, and it may be forgotten when they need more.
void TokenLog::settle(const StreamLog& stream) {
  const std::lock_guard lock(mutex_);
  Chain& chain = chains_[stream.index_];
  promised_ -= std::exchange(chain.promised, 0);
  chain.ended = true;
  ended_.emplace_back(stream.index_, stream.serial_);
}

void TokenLog::release(std::uint32_t slot, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  if (chains_[slot].serial == serial) release_locked(slot);
  while (!ended_.empty() && chains_[ended_.front().first].serial != ended_.front().second) ended_.pop_front();
}

void TokenLog::release_locked(std::uint32_t index) {
  store(slot(index).commit, 0);
  slot(index) = Slot{};
  Chain chain = std::exchange(chains_[index], {});
  promised_ -= chain.promised;
  for (const std::uint32_t b : chain.blocks) {
    block(b) = Block{};
    free_.push_back(b);
  }
  free_slots_.push_back(index);
}

std::size_t TokenLog::blocks_free() const {
  const std::lock_guard lock(mutex_);
  return unpromised();
}

StreamLog::StreamLog(StreamLog&& other) noexcept { *this = std::move(other); }

StreamLog& StreamLog::operator=(StreamLog&& other) noexcept {
  if (this == &other) return *this;
  forget();
  log_ = std::exchange(other.log_, nullptr);
  slot_ = other.slot_;
  block_ = other.block_;
  index_ = other.index_;
  serial_ = other.serial_;
  words_ = other.words_;
  checksum_ = other.checksum_;
  choice_ = other.choice_;
  stalled_ = other.stalled_;
  ended_ = other.ended_;
  return *this;
}

void StreamLog::forget() {
  if (log_) std::exchange(log_, nullptr)->release(index_, serial_);
}

void StreamLog::put(std::uint32_t word) {
  const std::uint32_t at = words_ % block_words;
  if (at == 0) {
    token_log::Block* const full = block_;
    log_->add_block(*this);
    // More was written than promised. A log with a hole would be worse than none: the stream goes on, and would not survive this core.
    if (block_ == full) return forget();
  }
  block_->words[at] = word;
  checksum_ = token_log::mix(checksum_, word);
  ++words_;
}

void StreamLog::commit() {
  if (log_) store(slot_->commit, token_log::commit_of(words_, checksum_));
}

void StreamLog::accepted() {
  if (!log_ || ended_) return;
  put(token_log::word_accepted);
  commit();
}

// The mark counts with what follows it, and costs nothing when choices do not take turns.
void StreamLog::choose(std::uint32_t choice) {
  if (!log_ || choice == choice_) return;
  choice_ = choice;
  put(token_log::word_choice + choice);
}

void StreamLog::put_logprobs(const TokenLogprobs& told) {
  if (log_) put(token_log::word_logprobs);
  if (log_) put(static_cast<std::uint32_t>(told.top.size()));
  if (log_) put(std::bit_cast<std::uint32_t>(told.logprob));
  for (const TokenLogprob& likely : told.top) {
    if (log_) put(likely.token);
    if (log_) put(std::bit_cast<std::uint32_t>(likely.logprob));
  }
}

void StreamLog::tokens(std::span<const TokenId> tokens, std::span<const TokenLogprobs> logprobs, bool last) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= token_log::word_marks) forget();  // no vocabulary has it, and it would read as something else
    if (i < logprobs.size()) put_logprobs(logprobs[i]);
    if (log_) put(tokens[i]);
  }
  if (!last) commit();
  if (std::exchange(stalled_, false) && log_) slot_->takeovers = 0;
}

void StreamLog::cut() {
  if (!log_) return;
  put(token_log::word_cut);
  commit();
}

void StreamLog::drawn_under(std::uint32_t tp) {
  if (!log_ || ended_ || tp == 0 || tp > token_log::tp_max) return;
  put(token_log::word_tp + tp);
  commit();
}

void StreamLog::put_record(std::uint32_t mark, const LoggedEnd& end) {
  const std::vector<std::uint32_t> words = to_words(end);
  if (log_) put(mark);
  if (log_) put(static_cast<std::uint32_t>(words.size()));
  for (const std::uint32_t word : words)
    if (log_) put(word);
  commit();
}

void StreamLog::closed(const LoggedEnd& end) {
  if (log_ && !ended_) put_record(token_log::word_closed, end);
}

void StreamLog::ended(const LoggedEnd& end) {
  if (!log_ || ended_) return;
  put_record(token_log::word_ended, end);
  ended_ = true;
  if (log_) log_->settle(*this);
}

void StreamLog::credit(std::uint64_t granted) {
  if (log_ && !ended_) store(slot_->credit, granted);
}

}  // namespace althing::actors
