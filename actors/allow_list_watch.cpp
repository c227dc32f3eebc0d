// See the header.
#include "actors/allow_list_watch.hpp"

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "actors/door_keys.hpp"
#include "actors/logging.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::milliseconds look_interval{250};

// Other contents have another of these. All zeros: no file.
using Stamp = std::array<std::uint64_t, 6>;

Stamp stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  return {number(info.st_ino),          number(info.st_size),        number(info.st_mtim.tv_sec),
          number(info.st_mtim.tv_nsec), number(info.st_ctim.tv_sec), number(info.st_ctim.tv_nsec)};
}

}  // namespace

AllowListWatch::AllowListWatch(std::string path, std::shared_ptr<protocol::curve::KeyRing> ring, std::function<void(bool)> on_read)
    : path_(std::move(path)), ring_(std::move(ring)), on_read_(std::move(on_read)), thread_([this] { watch(); }) {}

AllowListWatch::~AllowListWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void AllowListWatch::reload() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  wake_.notify_one();
}

// A file that somebody is writing into may be whole lines and still not be all: it is read when it has looked the same twice. What the ring has was
// read a moment before this thread began, so the first look counts as a change too.
void AllowListWatch::watch() {
  Stamp taken{}, seen{};
  bool read_before = false;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const bool asked = std::exchange(asked_, false);
    lock.unlock();
    const Stamp now = stamp_of(path_);
    if (asked || ((!read_before || now != taken) && now == seen)) {
      read();
      taken = now;
      read_before = true;
    }
    seen = now;
    lock.lock();
    wake_.wait_for(lock, look_interval, [this] { return ends_ || asked_; });
  }
}

void AllowListWatch::read() {
  auto list = read_allow_list(path_);
  if (on_read_) on_read_(list.ok());
  if (!list) return log(LogLevel::error, "allow_list_kept", {{"reason", list.error().message}});
  const auto change = ring_->replace(*list);
  log(LogLevel::info, "allow_list_read", {{"keys", change.keys}, {"added", change.added}, {"revoked", change.revoked}});
}

}  // namespace althing::actors
