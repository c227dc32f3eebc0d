// What every test program ends with: the line `N passed, N failed, N skipped`, and the exit code that follows from it.
#pragma once

#include <cstdio>
#include <string>

namespace althing::tests {

class Verdict {
 public:
  void pass() { ++passed_; }
  void fail(const std::string& name, const std::string& why) {
    ++failed_;
    std::printf("FAILED %s: %s\n", name.c_str(), why.c_str());
  }
  void skip(const std::string& name, const std::string& why) {
    ++skipped_;
    std::printf("skipped %s: %s\n", name.c_str(), why.c_str());
  }
  // Prints the last line. A run in which nothing passed or failed has tested nothing and is a failure.
  int close() const {
    std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    std::fflush(stdout);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  int passed_ = 0, failed_ = 0, skipped_ = 0;
};

}  // namespace althing::tests
