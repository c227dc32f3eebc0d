// Line after line: see the header.
#include "scheduler/replay.hpp"

#include <algorithm>
#include <utility>

#include "scheduler/journal.hpp"

namespace althing::scheduler {
namespace {

// A damaged number must not ask for all memory of the machine. No server is near these.
constexpr std::uint64_t pages_bound = 1u << 24, rows_bound = 1u << 16;

Status check_size(std::uint32_t dp_groups, std::uint32_t page_count, std::uint32_t mirror_slots) {
  const std::uint64_t most = std::uint64_t{dp_groups} * std::max(page_count, mirror_slots);
  if (most <= pages_bound) return Ok{};
  return Error{
      ErrorCode::corrupt,
      "journal line: it has pools or mirrors of " + std::to_string(most) + " pages, and no server has more than " + std::to_string(pages_bound),
      "page_count"};
}

}  // namespace

Status Replay::line(std::string_view text) {
  switch (expected_) {
    case Expected::header:
      if (auto status = check_journal_header(text); !status) return status;
      expected_ = Expected::config;
      return Ok{};
    case Expected::config:
      return take_config(text);
    case Expected::first_event:
      expected_ = Expected::event;
      if (auto status = take_part(text); !status || is_continued_line(text)) return status;
      break;
    case Expected::event:
      break;
  }
  return is_effects_line(text) ? take_effects(text) : take_event(text);
}

Status Replay::take_config(std::string_view text) {
  const auto config = from_config_line(text);
  if (!config) return config.error();
  if (auto status = check_size(config->dp_groups, config->kv.page_count, config->mirror_slots); !status) return status;
  if (config->limits.rows_max > rows_bound)
    return Error{
        ErrorCode::corrupt,
        "journal line: rows_max is " + std::to_string(config->limits.rows_max) + ", and no server has more than " + std::to_string(rows_bound),
        "rows_max"};
  expected_ = Expected::first_event;
  ++parts_;
  if (core_ != nullptr) {
    if (text == config_) return Ok{};
    return Error{ErrorCode::invalid_argument,
                 "this file is of a core with another configuration than the one before it, so it does not go on from there; replay it by itself",
                 "journal"};
  }
  auto core = Core::create(*config);
  if (!core) return core.error();
  core_ = std::move(*core);
  config_ = text;
  return Ok{};
}

// Whether the file is the one that is due.
Status Replay::take_part(std::string_view text) {
  if (!is_continued_line(text)) {
    if (parts_ == 1) return Ok{};
    return Error{ErrorCode::invalid_argument,
                 "this file is the beginning of a journal, so it does not go on from the file before it; replay it by itself", "journal"};
  }
  const auto part = from_continued_line(text);
  if (!part) return part.error();
  if (*part == parts_) return Ok{};
  return Error{ErrorCode::unsupported,
               "this file is part " + std::to_string(*part) + " of its journal and part " + std::to_string(parts_) +
                   " is due; give all parts from the first one on, in order: the part before FILE is FILE.1, and earlier ones are not kept",
               "journal"};
}

Status Replay::take_event(std::string_view text) {
  auto event = from_line(text);
  if (!event) return event.error();
  if (const auto* ready = std::get_if<RanksReady>(&*event); ready != nullptr && ready->shape)
    if (auto status = check_size(ready->shape->dp_groups, ready->shape->layout.page_count, ready->shape->mirror_slots); !status) return status;
  // Nothing was written down behind the event before this one: it had no effects.
  if (std::exchange(undecided_, false)) compare(digest_of({}));
  if (difference_) return Ok{};
  const auto effects = core_->on(*event);
  effects_.assign(effects.begin(), effects.end());
  ++events_;
  undecided_ = true;
  return Ok{};
}

Status Replay::take_effects(std::string_view text) {
  const auto recorded = from_effects_line(text);
  if (!recorded) return recorded.error();
  if (!std::exchange(undecided_, false))
    return Error{ErrorCode::corrupt, "journal line: effects stand here, and no event in front of them led to any", "effects"};
  compare(*recorded);
  return Ok{};
}

void Replay::compare(const EffectsDigest& recorded) {
  ++compared_;
  const EffectsDigest replayed = digest_of(effects_);
  if (!difference_ && replayed != recorded) difference_ = Difference{recorded, replayed};
}

}  // namespace althing::scheduler
