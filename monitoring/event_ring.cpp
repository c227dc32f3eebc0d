// See event_ring.hpp. A line is the event's number, a space, and its JSON, which holds no line end.
#include "monitoring/event_ring.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "monitoring/json_line.hpp"

namespace althing::monitoring {
namespace {

constexpr std::array<std::string_view, 6> phase_names = {"detect", "agree", "weights", "join", "recompute", "resume"};

// Milliseconds since 1970 as a number that JSON readers keep exactly.
std::string milliseconds(double unix_seconds) {
  char text[32] = "";
  std::snprintf(text, sizeof text, "%.0f", unix_seconds * 1e3);
  return text;
}

std::string json_of(std::uint64_t number, const ServerEvent& event, double unix_seconds) {
  JsonLine line;
  line.add("number", number).raw("time_ms", milliseconds(unix_seconds)).add("kind", event.kind);
  if (event.rank) line.add("rank", *event.rank);
  if (!event.cause.empty()) line.add("cause", event.cause);
  if (!event.how.empty()) line.add("how", event.how);
  line.add("epoch", event.epoch);
  if (event.next_epoch != 0) line.add("next_epoch", event.next_epoch);
  if (!event.recovered_by.empty()) line.add("recovered_by", event.recovered_by);
  if (event.streams) line.add("streams", *event.streams);
  if (event.phase_seconds.size() == phase_names.size()) {
    JsonLine phases;
    for (std::size_t i = 0; i < phase_names.size(); ++i) phases.add(phase_names[i], event.phase_seconds[i] * 1e3);
    line.raw("phases_ms", phases.object());
  }
  if (event.total_seconds > 0) line.add("total_ms", event.total_seconds * 1e3);
  return line.object();
}

}  // namespace

void EventRing::keep_locked(Kept kept) {
  kept_.push_back(std::move(kept));
  if (kept_.size() > kept_max) kept_.pop_front();
}

std::uint64_t EventRing::add(const ServerEvent& event, double unix_seconds) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = kept_.empty() ? 1 : kept_.back().number + 1;
  keep_locked({number, json_of(number, event, unix_seconds)});
  return number;
}

std::vector<std::string> EventRing::lines_after(std::uint64_t number, std::size_t bytes_max) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> pieces;
  for (const Kept& kept : kept_) {
    if (kept.number <= number) continue;
    const std::string line = std::to_string(kept.number) + " " + kept.json + "\n";
    if (pieces.empty() || pieces.back().size() + line.size() > bytes_max) pieces.emplace_back();
    pieces.back() += line;
  }
  return pieces;
}

void EventRing::take(std::string_view lines) {
  const std::lock_guard lock(mutex_);
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    const std::string_view json = line.substr(static_cast<std::size_t>(rest - line.data()));
    if (error != std::errc{} || !json.starts_with(" {") || !json.ends_with('}')) continue;
    if (!kept_.empty() && number <= kept_.back().number) continue;
    keep_locked({number, std::string(json.substr(1))});
  }
}

std::string EventRing::json_after(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string_view> wanted;
  for (const Kept& kept : kept_)
    if (kept.number > number) wanted.push_back(kept.json);
  JsonLine line;
  line.add("newest", kept_.empty() ? 0 : kept_.back().number).add("oldest", kept_.empty() ? 0 : kept_.front().number);
  return line.raw("events", json_list(wanted, [](std::string_view json) { return json; })).object() + "\n";
}

std::uint64_t EventRing::newest() const {
  const std::lock_guard lock(mutex_);
  return kept_.empty() ? 0 : kept_.back().number;
}

}  // namespace althing::monitoring
