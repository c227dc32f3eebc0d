// See the header.
#include "actors/cost_file.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "gpu/weights/mapped_file.hpp"

namespace althing::actors {
namespace {

constexpr std::uint64_t file_bytes_max = 1u << 16;
constexpr double price_max = 1e6;

struct Key {
  std::string_view name;
  double Prices::*value;
};
constexpr std::array<Key, 4> keys = {{{"gpu_hour_usd", &Prices::gpu_hour_usd},
                                      {"per_million_prompt_tokens_usd", &Prices::per_million_prompt_tokens_usd},
                                      {"per_million_completion_tokens_usd", &Prices::per_million_completion_tokens_usd},
                                      {"kv_gib_hour_usd", &Prices::kv_gib_hour_usd}}};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// What a complaint shows of the file: short, and nothing that a terminal would obey.
std::string shown(std::string_view text) {
  std::string word(text.substr(0, 40));
  for (char& c : word)
    if (c < 0x20 || c > 0x7e) c = '?';
  return word;
}

}  // namespace

Result<Prices> parse_prices(std::string_view name, std::string_view text) {
  Prices prices;
  std::array<std::size_t, keys.size()> seen{};
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    std::string_view rest = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    rest = trimmed(rest.substr(0, rest.find('#')));
    if (rest.empty()) continue;
    const auto wrong = [&](const std::string& why) {
      return Error{ErrorCode::invalid_argument, "cost file " + std::string(name) + ", line " + std::to_string(line) + ": " + why, "cost-file"};
    };
    const std::size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return wrong("'" + shown(rest) + "' is no price; write lines such as gpu_hour_usd = 3.0");
    const std::string_view key = trimmed(rest.substr(0, equals)), value = trimmed(rest.substr(equals + 1));
    std::size_t which = 0;
    while (which < keys.size() && keys[which].name != key) ++which;
    if (which == keys.size()) {
      std::string known;
      for (const Key& each : keys) known += (known.empty() ? "" : ", ") + std::string(each.name);
      return wrong("there is no price '" + shown(key) + "'; there are " + known);
    }
    if (seen[which] != 0) return wrong(std::string(key) + " is given already in line " + std::to_string(seen[which]));
    seen[which] = line;
    double number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    // Written so that NaN is refused.
    if (error != std::errc{} || stop != value.data() + value.size() || !(number >= 0 && number <= price_max))
      return wrong(std::string(key) + " is '" + shown(value) + "'; use a number of dollars from 0 to 1000000, such as 3.0");
    prices.*keys[which].value = number;
  }
  return prices;
}

Result<Prices> read_prices(const std::string& path) {
  if (path.empty()) return Prices{};
  auto text = gpu::read_small_file(path, file_bytes_max);
  if (!text) return Error{text.error().code, "the cost file cannot be read: " + text.error().message + " (--cost-file)", "cost-file"};
  return parse_prices(path, *text);
}

double price_of(const scheduler::UsageTally& tally, const Prices& prices) {
  constexpr double hour_ns = 3600e9, gib_hour = 3600.0 * (1u << 30), million = 1e6;
  return static_cast<double>(tally.device_ns) / hour_ns * prices.gpu_hour_usd + tally.kv_byte_seconds / gib_hour * prices.kv_gib_hour_usd +
         tally.prompt_tokens / million * prices.per_million_prompt_tokens_usd +
         static_cast<double>(tally.completion_tokens) / million * prices.per_million_completion_tokens_usd;
}

}  // namespace althing::actors
