// Bytes as the settings file, and as the other texts that people and processes of ours set things with. What is taken is in its range and can be
// checked; texts that have a written form are the same when they are written and read again; a refusal names the setting and says why.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "actors/epoch_layout.hpp"
#include "actors/expert_control_text.hpp"
#include "actors/fault_order.hpp"
#include "actors/http_address.hpp"
#include "actors/settings.hpp"
#include "monitoring/loopback_address.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::actors;
using fuzz::require;

const std::string& file_with(std::string_view text) {
  static const std::string path = "/tmp/althing-settings-fuzz-" + std::to_string(::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "a file can be written");
  ::close(fd);
  return path;
}

void check_refusal(const Error& error) { require(!error.message.empty() && !error.field.empty(), "a refusal says what and why"); }

void settings_file(std::string_view text) {
  CLI::App app;
  ServeSettings settings;
  add_serve_options(app, settings);
  const auto applied = apply_settings_file(app, file_with(text));
  if (!applied) return check_refusal(applied.error());
  if (const auto grid = grid_of(settings); !grid) check_refusal(grid.error());
  if (const auto control = expert_control_of(settings); !control) check_refusal(control.error());
  // Keys would be read, from wherever the text says that they are.
  settings.curve_key.clear(), settings.curve_allow.clear(), settings.cost_file.clear();
  if (const auto checked = check(settings); !checked) check_refusal(checked.error());
}

void words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  const auto order = fault_order_of(all);
  if (!order) return check_refusal(order.error());
  std::istringstream written(to_text(*order));
  all.clear();
  for (std::string word; written >> word;) all.push_back(word);
  const auto again = fault_order_of(all);
  require(again && *again == *order, "an order that was written is read");
}

void grids(std::string_view text) {
  if (const auto grid = grid_of_text(text); grid)
    require(to_text(*grid_of_text(to_text(*grid))) == to_text(*grid), "a grid that was written is read");
  if (const auto place = place_of_text(text); place) require(place_of_text(to_text(*place)).ok(), "a place that was written is read");
}

void addresses(std::string_view text) {
  const std::string address(text);
  for (const bool has_keys : {false, true}) {
    const auto http = http_address(address, has_keys, "http");
    if (http) require(has_keys || http->loopback, "without keys only this machine");
    if (!http) check_refusal(http.error());
  }
  (void)monitoring::parse_loopback_address(address).ok();
  gpu::ExpertControl control;
  (void)set_dynamic_k(control, address).ok();
  (void)overflow_policy_of(address, "x").ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*readers[])(std::string_view) = {settings_file, words, grids, addresses};
  readers[data[0] % 4](text);
  return 0;
}
