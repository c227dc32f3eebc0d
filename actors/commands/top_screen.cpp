// See top_screen.hpp. A line is built from pieces with a colour each, so that its width is known without counting escape sequences.
#include "actors/commands/top_screen.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <utility>

namespace althing::actors {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *plain = "", *bold = "\033[1m", *dim = "\033[2m", *red = "\033[31m", *green = "\033[32m", *yellow = "\033[33m",
                     *cyan = "\033[36m";
constexpr double hot_at = 2;  // times the mean
constexpr std::size_t events_min = 3;

// Printable ASCII as it is; what else a name may hold becomes a question mark.
std::string clean(std::string text) {
  for (char& c : text)
    if (c < 0x20 || c > 0x7E) c = '?';
  return text;
}

std::string format(const char* form, double value) {
  char text[48] = "";
  std::snprintf(text, sizeof text, form, value);
  return text;
}

const Json& member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}
std::string text_in(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? clean(value.get<std::string>()) : "-";
}
double number_in(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_number() ? value.get<double>() : 0;
}
std::string whole_in(const Json& object, const char* name) {
  return member(object, name).is_number() ? format("%.0f", number_in(object, name)) : "-";
}

std::string span_text(double ms) {
  if (ms < 1000) return format("%.0f ms", ms);
  return ms < 120e3 ? format("%.1f s", ms / 1e3) : format("%.0f min", ms / 60e3);
}

const char* colour_of(const std::string& state) {
  if (state == "ready" || state == "serving") return green;
  return state == "starting" || state == "joining" || state == "silent" || state == "recovering" || state == "draining" ? yellow : red;
}

// Characters that a terminal shows; our own text has no wide ones.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

class Screen {
 public:
  explicit Screen(const TopLook& look) : look_(look) {}

  Screen& add(std::string_view text, const char* colour = plain, std::size_t width = 0) {
    std::string piece;
    std::size_t room = look_.columns > used_ ? look_.columns - used_ : 0;
    for (const char c : text) {
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 && room-- == 0) break;
      piece += c;
    }
    std::size_t shown = width_of(piece);
    while (shown < width && used_ + shown < look_.columns) {
      piece += ' ';
      ++shown;
    }
    used_ += shown;
    line_ += look_.colour && *colour != '\0' ? colour + piece + "\033[0m" : piece;
    return *this;
  }
  void end() {
    if (look_.rows == 0 || count_ < look_.rows) text_ += line_ + "\n";
    ++count_;
    line_.clear();
    used_ = 0;
  }
  // Lines that are left; many when the terminal does not say.
  std::size_t left() const { return look_.rows == 0 ? 1000 : look_.rows > count_ ? look_.rows - count_ : 0; }
  std::uint32_t columns() const { return look_.columns; }
  const std::string& text() const { return text_; }

 private:
  TopLook look_;
  std::string text_, line_;
  std::size_t used_ = 0, count_ = 0;
};

std::string latency_text(const Json& figures) {
  std::string text;
  for (const char* name : {"p50", "p95", "p99"}) {
    const double ms = number_in(figures, name);
    const bool over = ms >= number_in(figures, "bound");
    const std::string shown = !member(figures, name).is_number() ? "-" : std::string(over ? ">=" : "") + format(ms < 10 ? "%.1f" : "%.0f", ms);
    text += std::string(text.empty() ? "" : " ") + name + " " + shown;
  }
  return text + " ms";
}

void show_head(Screen& screen, const TopReading& reading) {
  const Json& live = reading.live;
  const std::string state = text_in(live, "state");
  screen.add("Althing  ", bold).add(text_in(live, "model")).add("  ").add(state, colour_of(state));
  screen.add("  epoch " + whole_in(live, "epoch") + "  up " + span_text(number_in(live, "uptime_seconds") * 1e3), dim).end();
  if (!reading.trouble.empty()) screen.add(clean(reading.trouble), red).end();
  screen.add("out ", dim).add(format("%.1f tok/s", number_in(live, "tokens_out_per_second")), bold);
  screen.add("  in ", dim).add(format("%.1f tok/s", number_in(live, "tokens_in_per_second")));
  screen.add("  running ", dim).add(whole_in(live, "running")).add("  waiting ", dim).add(whole_in(live, "waiting"));
  screen.add("  ended ", dim).add(whole_in(live, "requests_ended")).end();
  screen.add("first token ", dim).add(latency_text(member(live, "first_token_ms")));
  screen.add("  between tokens ", dim).add(latency_text(member(live, "inter_token_ms"))).end();
}

void show_ranks(Screen& screen, const Json& live) {
  const Json& ranks = member(live, "ranks");
  screen.end();
  screen.add("RANK", dim, 6).add("STATE", dim, 10).add("EPOCH", dim, 7).add("EXPERTS", dim, 20).add("KV PAGES", dim, 24).add("PROGRESS", dim).end();
  for (const Json& rank : ranks.is_array() ? ranks : Json::array()) {
    const std::string state = text_in(rank, "state");
    const double used = number_in(rank, "kv_pages_used"), total = number_in(rank, "kv_pages");
    const auto filled = static_cast<std::size_t>(total > 0 ? std::clamp(used / total, 0.0, 1.0) * 8 + 0.5 : 0);
    std::string bar;
    for (std::size_t i = 0; i < 8; ++i) bar += i < filled ? "█" : "░";
    screen.add(whole_in(rank, "rank"), bold, 6).add(state, colour_of(state), 10).add(whole_in(rank, "epoch"), plain, 7);
    screen.add(whole_in(rank, "experts") + ": " + text_in(rank, "expert_ids"), plain, 20);
    screen.add(bar + " " + format("%.0f", used) + "/" + format("%.0f", total), plain, 24);
    screen.add(member(rank, "progress_age_ms").is_number() ? span_text(number_in(rank, "progress_age_ms")) : "-").end();
  }
  screen.add("spares " + whole_in(live, "spares") + "  quarantined " + whole_in(live, "quarantined"), dim);
  if (member(live, "degraded") == Json(true)) screen.add("  fewer ranks serve than were asked for", yellow);
  screen.end();
}

// "L2 E5 31 %", at most a few.
std::string named(const Json& list, bool with_share) {
  std::string text;
  std::size_t count = 0;
  for (const Json& item : list.is_array() ? list : Json::array()) {
    if (!item.is_array() || item.size() < 2 || !item[0].is_number() || !item[1].is_number()) continue;
    if (++count > 3) continue;
    text += (text.empty() ? "L" : ", L") + format("%.0f", item[0].get<double>()) + " E" + format("%.0f", item[1].get<double>());
    if (with_share && item.size() > 2 && item[2].is_number()) text += " " + format("%.0f %%", item[2].get<double>() * 100);
  }
  if (count > 3) text += " and " + std::to_string(count - 3) + " more";
  return text.empty() ? "none" : text;
}

std::vector<double> numbers_of(const Json& list) {
  std::vector<double> numbers;
  for (const Json& item : list.is_array() ? list : Json::array()) numbers.push_back(item.is_number() ? item.get<double>() : 0);
  return numbers;
}

void show_experts(Screen& screen, const Json& experts) {
  screen.end();
  if (!experts.is_object()) return screen.add("EXPERTS  this server does not count them", dim).end();
  screen.add("EXPERTS ", dim).add(whole_in(experts, "layers") + " layers x " + whole_in(experts, "experts") + "  ");
  screen.add("hot ", dim).add(named(member(experts, "hot"), true), yellow).add("  dead ", dim).add(named(member(experts, "dead"), false)).end();
  const Json& window = member(experts, "window");
  const std::vector<double> imbalance = numbers_of(member(experts, "imbalance"));
  const std::size_t layers = window.is_array() ? window.size() : 0;
  const std::size_t room = screen.left() > events_min + 3 ? screen.left() - events_min - 3 : 1;
  const std::size_t shown = layers > room ? room - 1 : layers;
  for (std::size_t layer = 0; layer < shown; ++layer) {
    const double ratio = layer < imbalance.size() ? imbalance[layer] : 0;
    screen.add("L" + std::to_string(layer), dim, 5);
    screen.add(shades_of(numbers_of(window[layer]), screen.columns() > 14 ? screen.columns() - 14 : 1), cyan);
    screen.add("  ").add(ratio > 0 ? format("%.2f", ratio) : "-", ratio > hot_at ? yellow : plain).end();
  }
  if (shown < layers) screen.add(std::to_string(layers - shown) + " more layers do not fit this window", dim).end();
}

std::string event_text(const Json& event) {
  std::string text = text_in(event, "kind");
  if (member(event, "rank").is_number()) text += " rank " + whole_in(event, "rank");
  for (const char* name : {"cause", "recovered_by", "how"})
    if (member(event, name).is_string()) text += "  " + std::string(name == std::string_view("recovered_by") ? "by " : "") + text_in(event, name);
  if (member(event, "total_ms").is_number()) text += "  " + span_text(number_in(event, "total_ms"));
  return text;
}

void show_events(Screen& screen, const Json& events) {
  screen.end();
  screen.add("EVENTS", dim).end();
  if (!events.is_array() || events.empty()) return screen.add("none since this server started").end();
  const std::size_t shown = std::min<std::size_t>({events.size(), screen.left(), 20});
  for (std::size_t i = 0; i < shown; ++i) {
    const Json& event = events[events.size() - 1 - i];
    const auto when = static_cast<std::time_t>(number_in(event, "time_ms") / 1e3);
    std::tm local{};
    char clock[16] = "";
    if (::localtime_r(&when, &local) != nullptr) std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
    const std::string kind = text_in(event, "kind");
    const bool good = kind == "recovered" || kind == "core_recovered" || kind == "whole_again" || kind == "released";
    screen.add(clock, dim, 10).add(event_text(event), good ? green : red).end();
  }
}

}  // namespace

std::string shades_of(const std::vector<double>& tokens, std::uint32_t columns) {
  constexpr const char* levels[] = {"░", "▒", "▓", "█"};
  if (tokens.empty() || columns == 0) return "";
  const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(tokens.size());
  const std::size_t together = (tokens.size() + columns - 1) / columns;             // experts a character
  const std::size_t wide = std::clamp<std::size_t>(columns / tokens.size(), 1, 4);  // characters an expert
  std::string text;
  for (std::size_t at = 0; at < tokens.size(); at += together) {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    const double most = *std::max_element(from, from + static_cast<std::ptrdiff_t>(std::min(together, tokens.size() - at)));
    const double ratio = mean > 0 ? most / mean : 0;
    const std::size_t level = ratio < 0.5 ? 0 : ratio < 1 ? 1 : ratio < hot_at ? 2 : 3;
    for (std::size_t i = 0; i < wide; ++i) text += most > 0 ? levels[level] : "·";
  }
  return text;
}

std::string top_screen(const TopReading& reading, const TopLook& look) {
  Screen screen(look);
  show_head(screen, reading);
  show_ranks(screen, reading.live);
  show_experts(screen, reading.experts);
  show_events(screen, reading.events);
  return screen.text();
}

}  // namespace althing::actors
