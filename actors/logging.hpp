// One line an event: a name, then fields. As text for people, or as JSON lines for machines. Request ids are fields like any other.
// Lines go to standard error through spdlog; a closed or blocked stderr never stops the server (lines are dropped then).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };

struct LogField {
  LogField(std::string_view field_name, std::string_view text) : name(field_name), value(text) {}
  LogField(std::string_view field_name, const char* text) : name(field_name), value(text) {}
  LogField(std::string_view field_name, const std::string& text) : name(field_name), value(text) {}
  template <class Number>
  requires std::is_arithmetic_v<Number> LogField(std::string_view field_name, Number number)
      : name(field_name), value(std::to_string(number)), is_number(true) {}

  std::string_view name;
  std::string value;
  bool is_number = false;
};

// Once at the start of a process, before other threads exist. `process` appears in every line (supervisor, core, rank 3).
void start_logging(LogLevel level, bool json, const std::string& process);
Result<LogLevel> log_level_of(std::string_view name);

void log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace althing::actors
