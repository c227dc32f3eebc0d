// The supervisor's dealings with the HTTP gateway: it is started when there is a server to connect to, at the same address each time, and again when
// it dies. It holds nothing that the server needs, so its deaths never end the server: one that dies too often is left alone for a while.
#include <utility>

#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"
#include "actors/ready_file.hpp"
#include "actors/service_manager.hpp"
#include "actors/supervisor.hpp"

namespace althing::actors {
namespace {

constexpr std::chrono::seconds death_window{60};

}  // namespace

Status Supervisor::start_gateway() {
  std::vector<std::string> arguments = arguments_;
  const auto add = [&](const std::string& flag, const std::string& value) { arguments.insert(arguments.end(), {flag, value}); };
  add("--child", "gateway");
  add("--bind", endpoint_);
  if (!http_.empty()) add("--http", http_);
  if (!http_metrics_.empty()) add("--http-metrics", http_metrics_);
  // No certificate, no page, no memory: it needs none of them, and of the server's keys only those of a client.
  std::vector<int> inherited;
  if (gateway_keys_) inherited.push_back(gateway_keys_.get());
  auto child = ChildProcess::start(arguments, inherited);
  if (!child) return child.error();
  gateway_ = std::move(*child);
  gateway_idle_ = false;
  gateway_due_.reset();
  log(LogLevel::info, "gateway_started", {{"pid", static_cast<long>(gateway_->pid())}});
  return Ok{};
}

void Supervisor::on_gateway_message(const ControlMessage& message) {
  const auto& words = message.words;
  if (words[0] == "failed") return on_failed("the HTTP gateway", message);
  if (words[0] == "idle") gateway_idle_ = true;
  if (words[0] != "listening" || words.size() < 3) return;
  http_ = words[1];
  http_metrics_ = words[2] == "-" ? "" : words[2];
  if (draining_) gateway_->control().send("drain");  // what the one before it was told
  announce_once();
}

// People and scripts are told once, when all that was asked for is there.
void Supervisor::announce_once() {
  if (announced_ || !core_ready_ || (!settings_.http.empty() && http_.empty())) return;
  announced_ = true;
  if (auto status = announce(settings_, {endpoint_, metrics_, http_, http_metrics_, faults_ ? faults_->path() : ""}); !status)
    return give_up(exit_code_of(status.error().code), status.error().message);
  tell_manager("READY=1\nSTATUS=serving on " + endpoint_ + (http_.empty() ? "" : " and http://" + http_ + "/v1"));
}

// A server that nobody hears of serves all the same.
void Supervisor::tell_manager(const std::string& text) {
  if (auto status = tell_service_manager(settings_.notify_socket, text); !status)
    log(LogLevel::warning, "notify_failed", {{"reason", status.error().message}});
}

void Supervisor::on_gateway_exit() {
  const std::string how = to_string(gateway_->reap());
  gateway_.reset();
  if (exit_code_) return;
  log(LogLevel::error, "gateway_died", {{"how", how}});
  if (http_.empty()) return give_up(exit_failed, "the HTTP gateway ended before it listened (" + how + ")");
  const auto now = Clock::now();
  gateway_deaths_.push_back(now);
  while (now - gateway_deaths_.front() > death_window) gateway_deaths_.pop_front();
  gateway_due_ = now;
  if (gateway_deaths_.size() <= settings_.restarts_max) return;
  gateway_due_ = now + std::chrono::seconds(settings_.quarantine_seconds);
  log(LogLevel::error, "gateway_left_alone", {{"deaths", gateway_deaths_.size()}, {"seconds", settings_.quarantine_seconds}});
}

void Supervisor::restart_gateway() {
  if (!gateway_due_ || Clock::now() < *gateway_due_ || exit_code_) return;
  if (auto status = start_gateway(); !status) {
    log(LogLevel::error, "gateway_not_started", {{"reason", status.error().message}});
    gateway_due_ = Clock::now() + std::chrono::seconds(settings_.quarantine_seconds);
  }
}

}  // namespace althing::actors
