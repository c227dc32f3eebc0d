// Logging on spdlog: see the header. Escaping is done here, so that a message from outside cannot forge a line.
#include "actors/logging.hpp"
#include "monitoring/json_line.hpp"

#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <climits>
#include <memory>
#include <mutex>

namespace althing::actors {
namespace {

bool json_lines = false;
std::string process_name = "althing";

bool needs_quotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text)
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '=' || c == 0x7F) return true;
  return false;
}

std::string text_line(std::string_view event, std::initializer_list<LogField> fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.name;
    line += '=';
    if (!needs_quotes(field.value)) {
      line += field.value;
      continue;
    }
    line += '"';
    line += monitoring::json_escaped(field.value);
    line += '"';
  }
  return line;
}

// The part of a JSON line after time and level, which spdlog's pattern writes.
std::string json_line(std::string_view event, std::initializer_list<LogField> fields) {
  std::string line = "\"process\":\"";
  line += monitoring::json_escaped(process_name);
  line += "\",\"event\":\"";
  line += monitoring::json_escaped(event);
  line += '"';
  for (const LogField& field : fields) {
    line += ",\"";
    line += monitoring::json_escaped(field.name);
    line += "\":";
    if (field.is_number) {
      line += field.value;
      continue;
    }
    line += '"';
    line += monitoring::json_escaped(field.value);
    line += '"';
  }
  return line;
}

// Writes a line only when that cannot block: a reader of standard error that has stopped reading must not stop the server. poll() promises room for
// PIPE_BUF bytes, so longer lines are cut. What was dropped is counted in the next line that fits.
class PatientSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (line.size() > PIPE_BUF) {
      line.resize(PIPE_BUF);
      line[PIPE_BUF - 1] = '\n';
    }
    if (dropped_ > 0) {
      const std::string note = "(" + std::to_string(dropped_) + " log lines dropped: standard error was not read)\n";
      if (!write(note.data(), note.size())) return void(++dropped_);
      dropped_ = 0;
    }
    if (!write(line.data(), line.size())) ++dropped_;
  }
  void flush_() override {}

 private:
  static bool write(const char* bytes, std::size_t size) {
    pollfd item{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&item, 1, 0) <= 0 || (item.revents & POLLOUT) == 0) return false;
    return ::write(STDERR_FILENO, bytes, size) >= 0;
  }

  std::uint64_t dropped_ = 0;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err,
                                                  spdlog::level::off};
  return levels[static_cast<int>(level)];
}

}  // namespace

void start_logging(LogLevel level, bool json, const std::string& process) {
  json_lines = json;
  process_name = process;
  auto logger = std::make_shared<spdlog::logger>("althing", std::make_shared<PatientSink>());
  logger->set_level(spdlog_level(level));
  logger->set_error_handler([](const std::string&) {});  // a broken stderr must not throw or spam
  if (json)
    logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})", spdlog::pattern_time_type::utc);
  else
    logger->set_pattern("%H:%M:%S.%e %L " + process + ": %v");
  spdlog::set_default_logger(std::move(logger));
}

Result<LogLevel> log_level_of(std::string_view name) {
  constexpr std::string_view names[] = {"debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 5; ++i)
    if (names[i] == name) return static_cast<LogLevel>(i);
  return Error{ErrorCode::invalid_argument, "unknown log level '" + std::string(name) + "'; use debug, info, warning, error or off", "log-level"};
}

void log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  spdlog::logger* logger = spdlog::default_logger_raw();
  if (logger == nullptr || !logger->should_log(spdlog_level(level))) return;
  const std::string line = json_lines ? json_line(event, fields) : text_line(event, fields);
  logger->log(spdlog_level(level), spdlog::string_view_t(line));
}

}  // namespace althing::actors
