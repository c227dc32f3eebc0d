// Recent rates and latencies out of counters that only grow. Somebody adds a sample once a second; a rate is a difference over the last few seconds,
// a quantile is read from the differences of a histogram's buckets over the last minute. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace althing::monitoring {

// Counts up to each bound, and of everything last, since the process started.
struct BucketCounts {
  std::vector<double> bounds;
  std::vector<std::uint64_t> cumulative;  // one more than bounds
};

// Counters as they stand.
struct Traffic {
  std::uint64_t prompt_tokens = 0;  // of accepted requests
  std::uint64_t generated_tokens = 0;
  std::uint64_t requests_ended = 0;
  BucketCounts first_token{}, inter_token{};  // seconds
};

// The value that a share `q` of the counted ones is not over, linear inside a bucket; the largest bound for what is over it. Nothing when nothing was
// counted. REQUIRES: counts ascend, one more than bounds; 0 <= q <= 1.
std::optional<double> quantile(const std::vector<double>& bounds, const std::vector<std::uint64_t>& cumulative, double q);

struct Latency {
  std::uint64_t count = 0;
  std::optional<double> p50, p95, p99;
  double bound = 0;  // the largest: a quantile that is not less is over it
};

class TrafficWindow {
 public:
  static constexpr double rate_seconds = 5;
  static constexpr double latency_seconds = 60;

  // REQUIRES: `now` (seconds) does not go back.
  void add(double now, Traffic traffic);

  // Per second, over the last `rate_seconds`, or over what there is.
  double prompt_rate() const;
  double generated_rate() const;
  Latency first_token() const;
  Latency inter_token() const;
  const Traffic& newest() const { return samples_.back().traffic; }  // REQUIRES: add() was called

 private:
  struct Sample {
    double time = 0;
    Traffic traffic;
  };
  double rate(std::uint64_t Traffic::*counter) const;
  Latency latency(BucketCounts Traffic::*buckets) const;

  std::deque<Sample> samples_;  // ascending; the oldest is the last that is not younger than the longer window
};

}  // namespace althing::monitoring
