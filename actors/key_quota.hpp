// What one API key may still use: two buckets that fill by the minute, one of requests and one of tokens. A request's tokens are known only when it
// has ended, so the second may go below empty, and then nothing is begun before it is filled again. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace althing::actors {

class KeyQuota {
 public:
  struct Rates {
    std::uint32_t requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
    friend bool operator==(const Rates&, const Rates&) = default;
  };

  // Full at first. `now`, here and below: seconds of any clock that does not go back.
  KeyQuota(Rates rates, double now) : rates_(rates), requests_(rates.requests_per_minute), tokens_(rates.tokens_per_minute), filled_(now) {}
  const Rates& rates() const { return rates_; }

  // Takes a request; 0, or the whole seconds after which it may be tried again.
  std::uint32_t take(double now) {
    fill(now);
    double wait = 0;
    if (rates_.requests_per_minute > 0 && requests_ < 1) wait = (1 - requests_) * 60 / rates_.requests_per_minute;
    if (rates_.tokens_per_minute > 0 && tokens_ < 1) wait = std::max(wait, (1 - tokens_) * 60 / rates_.tokens_per_minute);
    if (wait > 0) return static_cast<std::uint32_t>(std::max(1.0, std::ceil(wait)));
    requests_ -= 1;
    return 0;
  }
  void used(std::uint64_t tokens, double now) {
    fill(now);
    tokens_ -= static_cast<double>(tokens);
  }

 private:
  void fill(double now) {
    const double minutes = std::max(0.0, now - filled_) / 60;
    filled_ = std::max(filled_, now);
    requests_ = std::min<double>(rates_.requests_per_minute, requests_ + minutes * rates_.requests_per_minute);
    tokens_ = std::min<double>(rates_.tokens_per_minute, tokens_ + minutes * rates_.tokens_per_minute);
  }

  Rates rates_;
  double requests_, tokens_, filled_;
};

}  // namespace althing::actors
