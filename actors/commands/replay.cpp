// See the header.
#include "actors/commands/replay.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "actors/complain.hpp"
#include "scheduler/replay.hpp"

namespace althing::actors {
namespace {

constexpr std::size_t shown_bytes_max = 400;  // of an event's line

unsigned long long n(std::uint64_t value) { return value; }

// The event whose effects are not compared yet, or have just been.
struct Place {
  std::uint64_t line = 0;
  std::string text;
};

class Run {
 public:
  explicit Run(const ReplaySettings& settings) : settings_(settings) {}

  int all() {
    for (std::size_t i = 0; i < settings_.journals.size(); ++i)
      if (const auto code = file(settings_.journals[i], i + 1 == settings_.journals.size())) return *code;
    replay_.end();
    return close();
  }

 private:
  // None: it went to its end.
  std::optional<int> file(const std::string& path, bool last) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream)
      return complain(Error{ErrorCode::not_found, "there is no journal " + path + " to read; a server writes one with --journal FILE", "journal"});
    path_ = path;
    last_ = last;
    number_ = 0;
    replay_.begin_file();
    for (std::string line; std::getline(stream, line);) {
      ++number_;
      // The server died while it wrote, or writes still.
      if (stream.eof()) {
        std::printf("line %llu is cut short and left out: the server ended, or has not ended, while it was written\n", n(number_));
        break;
      }
      if (const auto code = take(line)) return code;
      if (last && settings_.until == number_) break;
    }
    if (replay_.core() == nullptr)
      return complain(Error{ErrorCode::corrupt, path + " is no journal: it has no two whole lines, its header and its configuration", "journal"});
    return std::nullopt;
  }

  std::optional<int> take(const std::string& line) {
    const std::uint64_t before = replay_.events();
    if (auto status = replay_.line(line); !status) {
      Error error = status.error();
      error.message = path_ + ", line " + std::to_string(number_) + ": " + error.message;
      return complain(error);
    }
    if (replay_.difference()) return differs();
    if (replay_.events() == before) return std::nullopt;
    place_ = {number_, line.substr(0, shown_bytes_max) + (line.size() > shown_bytes_max ? " …" : "")};
    show();
    if (!settings_.check) return std::nullopt;
    const std::string broken = replay_.core()->check_invariants();
    if (broken.empty()) return std::nullopt;
    std::printf("%s, line %llu: %s\n    broken behind it: %s\n", path_.c_str(), n(number_), place_.text.c_str(), broken.c_str());
    return exit_failed;
  }

  void show() const {
    if (!last_ || std::find(settings_.show.begin(), settings_.show.end(), place_.line) == settings_.show.end()) return;
    std::printf("line %llu: %s\n", n(place_.line), place_.text.c_str());
    print_effects();
  }

  void print_effects() const {
    for (const Effect& effect : replay_.effects()) std::printf("    %s\n", scheduler::to_text(effect).c_str());
    if (replay_.effects().empty()) std::printf("    nothing\n");
  }

  int differs() const {
    const auto& [recorded, replayed] = *replay_.difference();
    std::printf("%s, line %llu: this event led to other effects then\n    %s\nthen: %llu, digest %016llx; now: %llu, digest %016llx:\n",
                path_.c_str(), n(place_.line), place_.text.c_str(), n(recorded.count), n(recorded.hash), n(replayed.count), n(replayed.hash));
    print_effects();
    std::printf("%llu events before it were the same; look at what leads here with --until and --show\n", n(replay_.compared() - 1));
    return exit_failed;
  }

  int close() const {
    if (const std::string broken = replay_.core()->check_invariants(); !broken.empty()) {
      std::printf("broken at the end: %s\n", broken.c_str());
      return exit_failed;
    }
    const scheduler::CoreStats stats = replay_.core()->stats();
    std::printf("%llu events replayed, the effects of %llu compared: all the same\n", n(replay_.events()), n(replay_.compared()));
    std::printf("now %s%s: %u running, %u waiting, %u steps in flight, %u of %u pages used, %u cached; %llu steps done, %llu preemptions\n",
                stats.ready ? "ready" : "without ranks", stats.draining ? ", draining" : "", stats.running, stats.waiting, stats.steps_in_flight,
                stats.pages_used, stats.pages_total, stats.pages_cached, n(stats.steps_done), n(stats.preemptions));
    return exit_ok;
  }

  const ReplaySettings& settings_;
  scheduler::Replay replay_;
  std::string path_;
  bool last_ = false;
  std::uint64_t number_ = 0;  // of the line in hand
  Place place_;
};

}  // namespace

int run_replay(const ReplaySettings& settings) { return Run(settings).all(); }

}  // namespace althing::actors
