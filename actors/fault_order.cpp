// See the header.
#include "actors/fault_order.hpp"

#include <charconv>
#include <limits>

namespace althing::actors {
namespace {

constexpr std::uint64_t after_max = 1'000'000'000;
constexpr std::uint64_t ms_max = 600'000;

Error refused(const std::string& why) { return Error{ErrorCode::invalid_argument, why, "inject"}; }

template <class Number>
bool read(std::string_view text, std::uint64_t maximum, Number& number) {
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end.ec != std::errc{} || end.ptr != text.data() + text.size() || value > maximum) return false;
  number = static_cast<Number>(value);
  return true;
}

Status read_word(const std::string& word, FaultOrder& order) {
  if (word == "core") return order.core = true, Ok{};
  const std::size_t sign = word.find('=');
  const std::string_view name = std::string_view(word).substr(0, sign);
  const std::string_view value = sign == std::string::npos ? std::string_view{} : std::string_view(word).substr(sign + 1);
  constexpr std::uint64_t number_max = std::numeric_limits<std::uint32_t>::max();
  const bool read_it = name == "rank"         ? read(value, number_max, order.rank)
                       : name == "after"      ? read(value, after_max, order.after)
                       : name == "collective" ? read(value, number_max, order.collective)
                       : name == "ms"         ? read(value, ms_max, order.ms)
                       : name == "steps"      ? read(value, after_max, order.steps)
                                              : false;
  if (!read_it) return refused("'" + word + "' is no part of a fault; use core, rank=R, after=STEPS, collective=N, ms=MS or steps=STEPS");
  return Ok{};
}

}  // namespace

std::string to_text(const FaultOrder& order) {
  std::string text(name_of(order.kind));
  text += order.core ? " core" : " rank=" + std::to_string(order.rank);
  text += " after=" + std::to_string(order.after) + " collective=" + std::to_string(order.collective);
  return text + " ms=" + std::to_string(order.ms) + " steps=" + std::to_string(order.steps);
}

Result<FaultOrder> fault_order_of(const std::vector<std::string>& words) {
  FaultOrder order;
  bool known = false;
  std::string names;
  for (int i = 0; i < fault_kind_count; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    names += (i == 0 ? "" : ", ") + std::string(name_of(kind));
    if (words.empty() || words[0] != name_of(kind)) continue;
    order.kind = kind;
    known = true;
  }
  if (!known) return refused((words.empty() ? "no fault is named" : "there is no fault '" + words[0] + "'") + "; use " + names);
  for (std::size_t i = 1; i < words.size(); ++i)
    if (auto status = read_word(words[i], order); !status) return status.error();
  if (auto status = check(order); !status) return status.error();
  return order;
}

Status check(const FaultOrder& order) {
  const std::string name(name_of(order.kind));
  const bool of_core = order.kind == FaultKind::kill || order.kind == FaultKind::stop || order.kind == FaultKind::drop ||
                       order.kind == FaultKind::delay || order.kind == FaultKind::status;
  if (order.core && !of_core)
    return refused(name + " is something that happens to a rank: name one with --rank; the core knows kill, stop, drop, delay");
  const bool in_collective = order.kind == FaultKind::kill || order.kind == FaultKind::stop || order.kind == FaultKind::hang_collective;
  if (order.collective > 0 && (!in_collective || order.core)) return refused(name + " does not happen in a collective: leave --collective out");
  if (order.kind == FaultKind::slow && order.steps == 0) return refused("slow for 0 steps is no fault; use --steps 1 or more");
  return Ok{};
}

}  // namespace althing::actors
