// See the header.
#include "actors/commands/trace_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "actors/commands/heat_map.hpp"
#include "monitoring/json_line.hpp"

namespace althing::actors {
namespace {

using monitoring::json_list;
using monitoring::JsonLine;

constexpr std::uint32_t columns_max = 1024;  // of a map of tokens: more are no picture any more

// The shortest text that gives the same float.
std::string number(float value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

std::string json_of(const RoutedExpert& pair) {
  JsonLine line;
  line.add("expert", pair.expert).add("chosen", pair.chosen).raw("weight", number(pair.weight)).add("fate", name_of(pair.fate));
  if (is_computed(pair.fate)) line.add("rank", pair.rank).add("slot", pair.slot).add("copy", pair.copy);
  return line.object();
}

std::string json_of(const std::array<std::uint64_t, routing_phase_count>& nanoseconds) {
  JsonLine line;
  for (std::size_t phase = 0; phase < routing_phase_count; ++phase) line.add(name_of(static_cast<RoutingPhase>(phase)), nanoseconds[phase]);
  return line.object();
}

template <class Value>
std::vector<Value> slice(const std::vector<Value>& values, std::size_t cell, std::size_t width) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(cell * width);
  return {first, first + static_cast<std::ptrdiff_t>(width)};
}

Error cannot_write(const std::string& path) {
  return {ErrorCode::io, "cannot write the trace to " + path + "; name a file in a folder that is there and may be written", "trace-routing"};
}

}  // namespace

Result<TraceFile> TraceFile::create(const std::string& path) {
  TraceFile file;
  if (path.empty()) return file;
  file.path_ = path;
  file.out_.open(path, std::ios::binary | std::ios::trunc);
  if (!file.out_) return cannot_write(path);
  return file;
}

void TraceFile::take(const protocol::wire::Delta& delta) {
  if (!path_.empty()) out_ << lines_.take(delta);
}

Status TraceFile::close() {
  if (path_.empty()) return Ok{};
  out_.close();
  if (!out_) return cannot_write(path_);
  return Ok{};
}

std::uint64_t percentile(std::vector<std::uint64_t> values, std::uint32_t percent) {
  const std::size_t rank = (values.size() * percent + 99) / 100;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string TraceLines::take(const protocol::wire::Delta& delta) {
  std::string text;
  for (const StepRouting& part : delta.routing) {
    note(delta, part);
    for (std::uint32_t t = 0; t < part.tokens.size(); ++t)
      for (std::uint32_t layer = 0; layer < part.layers; ++layer, ++lines_) {
        const std::size_t cell = std::size_t{t} * part.layers + layer;
        JsonLine line;
        line.add("request", std::string_view(delta.request_id))
            .add("choice", delta.choice)
            .add("step", part.step.value)
            .add("epoch", part.epoch.value);
        line.add("position", part.start + t).add("token", part.tokens[t]).add("recomputed", t < part.recomputed).add("layer", layer);
        line.raw("logits", json_list(slice(part.logits, cell, part.top_m),
                                     [](const RouterLogit& l) { return "[" + std::to_string(l.expert) + "," + number(l.logit) + "]"; }));
        line.raw("experts", json_list(slice(part.experts, cell, part.experts_per_token), [](const RoutedExpert& pair) { return json_of(pair); }));
        line.raw("step_nanoseconds", json_of(part.nanoseconds[layer]));
        text += line.object() + "\n";
      }
  }
  return text;
}

void TraceLines::note(const protocol::wire::Delta& delta, const StepRouting& part) {
  layers_ = std::max(layers_, part.layers);
  // Pieces of a step bring the same times.
  nanoseconds_[{part.epoch.value, part.step.value}] = part.nanoseconds;
  for (const RouterLogit& logit : part.logits) experts_ = std::max(experts_, logit.expert + 1);
  for (std::size_t i = 0; i < part.experts.size(); ++i) {
    const std::size_t cell = i / part.experts_per_token;
    const RoutedExpert& pair = part.experts[i];
    experts_ = std::max(experts_, pair.expert + 1u);
    if (is_computed(pair.fate)) ++pairs_[{static_cast<std::uint32_t>(cell % part.layers), pair.expert}];
    if (delta.choice != 0 || i % part.experts_per_token != 0) continue;
    auto& weights = first_weights_[part.start + static_cast<std::uint32_t>(cell / part.layers)];
    weights.resize(part.layers, std::numeric_limits<float>::quiet_NaN());
    weights[cell % part.layers] = pair.weight;
  }
}

std::string TraceLines::timings() const {
  std::string text = fmt::format("{:<9}{:>12}{:>12}   of a layer, over {} steps\n", "phase", "P50 us", "P95 us", nanoseconds_.size());
  for (std::size_t phase = 0; phase <= routing_phase_count; ++phase) {
    const bool all = phase == routing_phase_count;
    std::vector<std::uint64_t> values;
    for (const auto& [step, layers] : nanoseconds_)
      for (const auto& layer : layers) {
        std::uint64_t sum = 0;
        for (const std::uint64_t nanoseconds : layer) sum += nanoseconds;
        values.push_back(all ? sum : layer[phase]);
      }
    if (values.empty()) return "nothing was timed\n";
    text += fmt::format("{:<9}{:>12.1f}{:>12.1f}\n", all ? "together" : name_of(static_cast<RoutingPhase>(phase)),
                        static_cast<double>(percentile(values, 50)) / 1000, static_cast<double>(percentile(values, 95)) / 1000);
  }
  return text;
}

std::string TraceLines::heat_maps(const std::string& title) const {
  HeatMap experts{"What each expert computed", "expert", "layer", 0, experts_, layers_, {}, "tokens"};
  experts.values.assign(std::size_t{layers_} * experts_, 0.0);
  for (const auto& [at, count] : pairs_) experts.values[std::size_t{at.first} * experts_ + at.second] = static_cast<double>(count);
  HeatMap tokens{"How much of each token its first expert decided", "token", "layer", 0, 0, layers_, {}, "gate weight"};
  if (!first_weights_.empty()) {
    tokens.first_column = first_weights_.begin()->first;
    tokens.columns = std::min(columns_max, first_weights_.rbegin()->first - tokens.first_column + 1);
    tokens.values.assign(std::size_t{layers_} * tokens.columns, std::numeric_limits<double>::quiet_NaN());
    for (const auto& [position, weights] : first_weights_)
      for (std::uint32_t layer = 0; layer < weights.size() && position - tokens.first_column < tokens.columns; ++layer)
        tokens.values[std::size_t{layer} * tokens.columns + position - tokens.first_column] = weights[layer];
    if (first_weights_.rbegin()->first - tokens.first_column >= columns_max) tokens.title += fmt::format(" (the first {} positions)", columns_max);
  }
  return to_svg(title, {experts, tokens});
}

}  // namespace althing::actors
