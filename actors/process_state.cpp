// See the header.
#include "actors/process_state.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>
#include <string>

#include "actors/control_channel.hpp"

namespace althing::actors {
namespace {

constexpr int user_ticks_field = 11, system_ticks_field = 12;  // counted from the state, which is 0

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

std::optional<StatLine> stat_line_of(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 1024> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return std::nullopt;
  return read_stat_line({text.data(), static_cast<std::size_t>(got)});
}

}  // namespace

std::optional<StatLine> read_stat_line(std::string_view text) {
  // The name in parentheses may hold anything, parentheses and spaces too; nothing after it does.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return std::nullopt;
  text.remove_prefix(name_end + 2);
  StatLine line{text[0], 0};
  for (int field = 0; field <= system_ticks_field; ++field) {
    if (field >= user_ticks_field) {
      std::uint64_t ticks = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), ticks).ec != std::errc{}) return std::nullopt;
      line.ticks += ticks;
    }
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    text.remove_prefix(space + 1);
  }
  return line;
}

std::optional<ProcessState> process_state(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task/";
  const std::unique_ptr<DIR, CloseFolder> tasks(::opendir(folder.c_str()));
  if (!tasks) return std::nullopt;
  ProcessState state;
  std::uint64_t ticks = 0;
  int threads = 0, stopped = 0;
  while (const dirent* entry = ::readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    const auto line = stat_line_of(folder + entry->d_name + "/stat");
    if (!line || line->state == 'Z' || line->state == 'X') continue;
    ++threads;
    ticks += line->ticks;
    stopped += line->state == 'T' || line->state == 't' ? 1 : 0;
    state.runnable = state.runnable || line->state == 'R';
    state.on_disk = state.on_disk || line->state == 'D';
  }
  if (threads == 0) return std::nullopt;
  state.stopped = stopped == threads;
  static const auto ticks_a_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  state.cpu_ms = ticks * 1000 / ticks_a_second;
  return state;
}

}  // namespace althing::actors
