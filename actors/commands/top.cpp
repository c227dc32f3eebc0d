// See top.hpp. On a terminal it takes the whole screen and gives it back as it was, however it ends; elsewhere it prints one screen after another.
#include "actors/commands/top.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "actors/commands/stream_printer.hpp"
#include "actors/commands/top_screen.hpp"
#include "actors/complain.hpp"
#include "actors/http_get.hpp"

namespace althing::actors {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds interval{1000};
constexpr std::chrono::milliseconds patience{2000};
constexpr std::size_t depth_max = 8;
constexpr std::size_t events_kept_max = 200;

volatile sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }
void on_resize(int) {}  // it only has to end the wait

void watch_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_resize;
  ::sigaction(SIGWINCH, &action, nullptr);
}

// What a page says; null where the server does not have the page.
Result<Json> read_page(const monitoring::LoopbackAddress& address, const std::string& path) {
  auto answer = http_get(address, path, patience);
  if (!answer) return answer.error();
  if (answer->status == 404) return Json();
  auto json = protocol::wire::parse_json(answer->body, depth_max);
  if (!json || !json->is_object())
    return Error{ErrorCode::corrupt,
                 "http://" + address.text() + path + " answers " + std::to_string(answer->status) + " and no JSON; is an Althing server there?",
                 "address"};
  return json;
}

// Members of another type than ours count as absent.
std::string text_of(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
std::uint64_t number_of(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_number_integer() ? found->get<std::uint64_t>() : 0;
}

// Events that are new join those of the reading. A server that began again begins its numbers again.
Status read_events(const monitoring::LoopbackAddress& address, TopReading& reading) {
  const std::uint64_t there = number_of(reading.live, "newest_event");
  std::uint64_t here = reading.events.empty() ? 0 : number_of(reading.events.back(), "number");
  if (there < here) {
    reading.events = Json::array();
    here = 0;
  }
  if (there == here) return Ok{};
  auto page = read_page(address, "/events.json?after=" + std::to_string(here));
  if (!page) return page.error();
  if (page->is_object() && page->contains("events") && (*page)["events"].is_array())
    for (const Json& event : (*page)["events"])
      if (event.is_object()) reading.events.push_back(event);
  while (reading.events.size() > events_kept_max) reading.events.erase(reading.events.begin());
  return Ok{};
}

Status read_all(const monitoring::LoopbackAddress& address, TopReading& reading) {
  auto live = read_page(address, "/live.json");
  if (!live) return live.error();
  if (live->is_null())
    return Error{ErrorCode::corrupt, "http://" + address.text() + " has no /live.json; is an Althing server of this version there?", "address"};
  if (text_of(reading.live, "instance") != text_of(*live, "instance")) reading.events = Json::array();
  reading.live = std::move(*live);
  auto experts = read_page(address, "/experts.json");
  if (!experts) return experts.error();
  reading.experts = std::move(*experts);
  return read_events(address, reading);
}

// The terminal as a screen of ours: no echo, keys at once, the text that was there back at the end.
class Terminal {
 public:
  Terminal() {
    keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keys_) {
      termios now = before_;
      now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    std::fputs("\033[?1049h\033[?25l", stdout);
  }
  ~Terminal() {
    std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  TopLook look(bool colour) const {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24, colour};
    return {size.ws_col, size.ws_row, colour};
  }
  // Whole lines over what was there: nothing flickers.
  void draw(const std::string& screen) const {
    std::string text = "\033[H";
    for (const char c : screen.ends_with('\n') ? screen.substr(0, screen.size() - 1) : screen)
      text += c == '\n' ? std::string("\033[K\r\n") : std::string(1, c);
    std::fputs((text + "\033[K\033[J").c_str(), stdout);
    std::fflush(stdout);
  }
  // False when the user wants to go. Returns early when the window has changed.
  bool wait(Clock::time_point until) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd item{keys_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(left > 0 ? left : 0)) <= 0) return interrupted == 0;
    char key = 0;
    return ::read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q' && interrupted == 0;
  }

 private:
  termios before_{};
  bool keys_ = false;
};

void wait_plainly(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  ::poll(nullptr, 0, static_cast<int>(left > 0 ? left : 0));
}

std::string json_line_of(const TopReading& reading) {
  Json line;
  line["live"] = reading.live;
  line["experts"] = reading.experts;
  line["events"] = reading.events;
  // Text of ours is UTF-8; what else came is shown as what it is not.
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// After the first reading: trouble is shown, and asking goes on.
void read_again(const monitoring::LoopbackAddress& address, TopReading& reading) {
  const Status status = read_all(address, reading);
  reading.trouble = status ? "" : status.error().message;
}

int run_screen(const monitoring::LoopbackAddress& address, TopReading& reading, bool colour) {
  const Terminal terminal;
  for (auto next = Clock::now() + interval;; next += interval) {
    do {
      terminal.draw(top_screen(reading, terminal.look(colour)));
      if (!terminal.wait(next)) return interrupted != 0 ? exit_interrupted : exit_ok;
    } while (Clock::now() < next);
    read_again(address, reading);
    next = std::max(next, Clock::now());
  }
}

int run_lines(const TopSettings& settings, const monitoring::LoopbackAddress& address, TopReading& reading, bool colour) {
  for (auto next = Clock::now() + interval;; next += interval) {
    const std::string text = settings.json ? json_line_of(reading) : top_screen(reading, {100, 0, colour}) + (settings.once ? "" : "\n");
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return exit_ok;  // whoever read has gone
    if (settings.once) return exit_ok;
    wait_plainly(next);
    if (interrupted != 0) return exit_interrupted;
    if (const Status status = read_all(address, reading); !status) return complain(status.error());
  }
}

}  // namespace

int run_top(const TopSettings& settings) {
  auto colour = colour_choice_of(settings.colour);
  if (!colour) return complain(colour.error());
  auto address = monitoring::parse_loopback_address(settings.address);
  if (!address) return complain(address.error());
  watch_signals();
  TopReading reading;
  reading.events = Json::array();
  if (const Status status = read_all(*address, reading); !status) return complain(status.error());
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool coloured = *colour == ColourChoice::always || (*colour == ColourChoice::automatic && terminal);
  if (terminal && !settings.once && !settings.json) return run_screen(*address, reading, coloured);
  return run_lines(settings, *address, reading, coloured);
}

}  // namespace althing::actors
