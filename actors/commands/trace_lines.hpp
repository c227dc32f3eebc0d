// A trace as it comes in deltas, turned into what people and tools read: JSON lines, one a token and layer (docs/routing-trace.md), heat maps, and
// how long each phase took. Pure: the same deltas give the same text.
#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "protocol/wire/messages.hpp"

namespace althing::actors {

inline constexpr std::uint32_t default_trace_top_m = 4;  // what a command asks for that was not told

class TraceLines {
 public:
  // The lines of what the delta tells, each with its end.
  std::string take(const protocol::wire::Delta& delta);

  std::uint64_t lines() const { return lines_; }
  // P50 and P95 of each phase over the layers of all steps, as a table for people.
  std::string timings() const;
  // An SVG file with two maps: layer x expert (pairs computed), and token x layer of choice 0 (weight of the first expert, at the position's newest
  // computation).
  std::string heat_maps(const std::string& title) const;

 private:
  void note(const protocol::wire::Delta& delta, const StepRouting& part);

  std::uint64_t lines_ = 0;
  std::uint32_t layers_ = 0, experts_ = 0;                                  // experts: one more than the largest seen
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> pairs_;  // by layer and expert
  std::map<std::uint32_t, std::vector<float>> first_weights_;               // by position, by layer
  // By epoch and step, since another core begins with step 1 again; by layer.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::array<std::uint64_t, routing_phase_count>>> nanoseconds_;
};

// The lines of one answer, or of a conversation, beside what is printed of it: a file, or nothing.
class TraceFile {
 public:
  // "": nothing is written. Errors: io.
  static Result<TraceFile> create(const std::string& path);

  void take(const protocol::wire::Delta& delta);
  // Errors: io, when not all could be written.
  Status close();

 private:
  std::string path_;
  std::ofstream out_;
  TraceLines lines_;
};

// The smallest value that at least `percent` of all are not above. REQUIRES: values is not empty, 0 < percent <= 100.
std::uint64_t percentile(std::vector<std::uint64_t> values, std::uint32_t percent);

}  // namespace althing::actors
