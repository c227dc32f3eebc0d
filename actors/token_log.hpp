// The token log: what a core must know of its open requests after it has died. The supervisor owns the memory (a memfd, never a file), each core in
// turn maps it. A stream writes what its client is about to hear before the client hears it; the next core reads it back, and goes on. Its capacity
// is fixed. An open request has room for its worst case promised from the start, so a stream never fails in its middle: when there is no room,
// finished streams are forgotten first (they stay resumable while this core lives), and then a new request is refused as busy. Invariant: a block is
// free, or in the chain of exactly one slot; free blocks hold zeros.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "actors/control_channel.hpp"
#include "actors/token_log_layout.hpp"
#include "actors/token_log_reader.hpp"

namespace althing::actors {

class TokenLog;

// The log of one stream, held by whoever speaks for the stream; the end of it forgets the request. One that was never opened takes everything and
// keeps nothing. Not thread-safe; different streams are independent.
class StreamLog {
 public:
  StreamLog() = default;
  StreamLog(StreamLog&& other) noexcept;
  StreamLog& operator=(StreamLog&& other) noexcept;
  ~StreamLog() { forget(); }

  void accepted();
  // tokens(), cut() and closed() are about this choice from now on; about choice 0 until then. REQUIRES: it is one of the submit's.
  void choose(std::uint32_t choice);
  // `logprobs`: one a token where the submit asks for them, else none. The `last` ones of a choice count with its closed() and not without: so a
  // choice that its text ended is never found open.
  void tokens(std::span<const TokenId> tokens, std::span<const TokenLogprobs> logprobs = {}, bool last = false);
  void cut();
  // Tokens that follow were drawn under this TP degree. At most twice a stream.
  void drawn_under(std::uint32_t tp);
  void closed(const LoggedEnd& end);
  void ended(const LoggedEnd& end);
  void credit(std::uint64_t granted);
  // Gives the memory back.
  void forget();

  bool open() const { return log_ != nullptr; }

 private:
  friend class TokenLog;
  void put(std::uint32_t word);
  void put_logprobs(const TokenLogprobs& told);
  void put_record(std::uint32_t mark, const LoggedEnd& end);
  void commit();

  std::shared_ptr<TokenLog> log_;
  token_log::Slot* slot_ = nullptr;
  token_log::Block* block_ = nullptr;  // where the next word goes, unless it is full
  std::uint32_t index_ = 0;
  std::uint64_t serial_ = 0;
  std::uint32_t words_ = 0;
  std::uint32_t checksum_ = 0;
  std::uint32_t choice_ = 0;
  bool stalled_ = false;  // taken over, and no token since
  bool ended_ = false;
};

// A request that another core left behind.
struct LoggedStream {
  token_log::Read read;
  StreamLog log;  // behind what was read
};

class TokenLog : public std::enable_shared_from_this<TokenLog> {
 public:
  // After so many cores died over a request in a row without a token of it, it is given up: it may be what they died of.
  static constexpr std::uint32_t takeovers_max = 5;

  // New and empty. `bytes` is virtual: pages are taken when they are first written. Errors: invalid_argument, io.
  static Result<Descriptor> create(std::size_t bytes, const std::string& instance);
  // Told to the next core: how many died so far, and when the last one did on the monotonic clock.
  static void note_core_death(int log, std::uint64_t core_deaths, std::uint64_t died_ns);

  struct TakenOver {
    std::shared_ptr<TokenLog> log;
    std::string instance;               // the old one, unless the log had to be made anew
    std::vector<LoggedStream> streams;  // in order of acceptance
    std::uint32_t damaged = 0;          // slots that did not add up
    std::uint32_t given_up = 0;         // see takeovers_max
    std::uint64_t core_deaths = 0;
    std::uint64_t died_ns = 0;
  };
  // Maps the log and takes over what is in it. Requests that were not accepted yet are dropped: their clients submit them again. `fresh_instance` is
  // for a log that must be made anew because its header is damaged. Errors: io.
  static Result<TakenOver> take_over(const Descriptor& log, const std::string& fresh_instance);

  // `completion_tokens_max` tokens of each choice can be logged without fail. Errors: busy, and too_large for what would not fit an empty log.
  Result<StreamLog> open(const LoggedSubmit& submit, std::uint32_t completion_tokens_max);

  ~TokenLog();
  TokenLog(const TokenLog&) = delete;
  TokenLog& operator=(const TokenLog&) = delete;

  std::size_t blocks_free() const;
  std::span<const std::byte> bytes() const { return memory_; }

 private:
  friend class StreamLog;
  struct Chain {
    std::uint64_t serial = 0;  // 0: the slot is free
    std::vector<std::uint32_t> blocks;
    std::uint32_t promised = 0;  // blocks that it may still take
    bool ended = false;
  };

  explicit TokenLog(std::span<std::byte> memory);
  token_log::Header& header();
  token_log::Slot& slot(std::uint32_t index);
  token_log::Block& block(std::uint32_t index);
  StreamLog adopt(const token_log::Read& read);
  void punch_free_blocks(int log);
  void add_block(StreamLog& stream);
  void settle(const StreamLog& stream);
  void release(std::uint32_t slot, std::uint64_t serial);
  void release_locked(std::uint32_t slot);
  std::size_t unpromised() const { return free_.size() - promised_; }

  std::span<std::byte> memory_;
  token_log::Counts counts_;
  mutable std::mutex mutex_;   // guards everything below
  std::vector<Chain> chains_;  // by slot
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> free_slots_;
  std::size_t promised_ = 0;
  std::deque<std::pair<std::uint32_t, std::uint64_t>> ended_;  // slot and serial, oldest first; some may be gone already
  std::uint64_t next_serial_ = 1;
};

}  // namespace althing::actors
