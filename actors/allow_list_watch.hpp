// Looks whether the allow-list has changed, and gives the key ring the new one. A list that is wrong, or gone, changes nothing: the one before goes
// on to count, and an error is logged once. A thread of its own, because a file may be on a disk that makes one wait.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "protocol/curve/key_ring.hpp"

namespace althing::actors {

class AllowListWatch {
 public:
  // `on_read` hears whether a list that had changed was taken; may be null.
  AllowListWatch(std::string path, std::shared_ptr<protocol::curve::KeyRing> ring, std::function<void(bool taken)> on_read);
  ~AllowListWatch();
  AllowListWatch(const AllowListWatch&) = delete;
  AllowListWatch& operator=(const AllowListWatch&) = delete;

  // Reads it now, changed or not. Thread-safe.
  void reload();

 private:
  void watch();
  void read();

  std::string path_;
  std::shared_ptr<protocol::curve::KeyRing> ring_;
  std::function<void(bool)> on_read_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool ends_ = false;
  bool asked_ = false;
  std::thread thread_;
};

}  // namespace althing::actors
