// simdjson's DOM finds the first of equal keys; the constructor makes sure there is only one.
#include "gpu/models/config_reader.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/weights/message.hpp"

namespace althing::gpu {

namespace dom = simdjson::dom;

namespace {

std::string shown(const dom::element& value) { return printable(simdjson::minify(value)); }

}  // namespace

ConfigReader::ConfigReader(std::string_view file, std::string path, dom::object object, std::optional<Error>& error)
    : file_(file), path_(std::move(path)), object_(object), error_(&error) {
  std::vector<std::string_view> keys;
  for (const auto [key, value] : object_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) fail(ErrorCode::corrupt, *twice, "is there twice");
}

std::optional<dom::element> ConfigReader::find(std::string_view key) const {
  dom::element value;
  if (object_.at_key(key).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

bool ConfigReader::names(std::string_view key) const { return find(key).has_value(); }

bool ConfigReader::has(std::string_view key) const {
  const auto value = find(key);
  return value && !value->is_null();
}

void ConfigReader::fail(ErrorCode code, std::string_view key, const std::string& what) {
  if (error_->has_value()) return;
  const std::string name = path_ + printable(key);
  *error_ = Error{code, fmt::format("{}: {} {}", file_, name, what), name};
}

std::uint32_t ConfigReader::whole(std::string_view key, std::uint32_t min, std::uint32_t max, std::optional<std::uint32_t> fallback) {
  if (!has(key)) {
    if (!fallback) fail(ErrorCode::corrupt, key, fmt::format("is missing; it is a whole number from {} to {}", min, max));
    return fallback.value_or(min);
  }
  const dom::element value = *find(key);
  std::uint64_t number = 0;
  if (value.get(number) != simdjson::SUCCESS || number < min || number > max) {
    fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be a whole number from {} to {}", shown(value), min, max));
    return min;
  }
  return static_cast<std::uint32_t>(number);
}

std::uint32_t ConfigReader::whole_either(std::string_view key, std::string_view other, std::uint32_t min, std::uint32_t max) {
  if (!has(other)) return whole(key, min, max);
  const std::uint32_t second = whole(other, min, max);
  if (!has(key)) return second;
  const std::uint32_t first = whole(key, min, max);
  if (first != second) fail(ErrorCode::corrupt, key, fmt::format("is {} and {} is {}; they are two names for one number", first, other, second));
  return first;
}

double ConfigReader::real(std::string_view key, double min, double max, std::optional<double> fallback) {
  if (!has(key)) {
    if (!fallback) fail(ErrorCode::corrupt, key, fmt::format("is missing; it is a number from {} to {}", min, max));
    return fallback.value_or(min);
  }
  const dom::element value = *find(key);
  double number = 0.0;
  // The comparison is written so that NaN fails it.
  if (value.get(number) != simdjson::SUCCESS || !(number >= min && number <= max)) {
    fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be a number from {} to {}", shown(value), min, max));
    return min;
  }
  return number;
}

bool ConfigReader::flag(std::string_view key, bool fallback) {
  bool value = fallback;
  if (has(key) && find(key)->get(value) != simdjson::SUCCESS)
    fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be true or false", shown(*find(key))));
  return value;
}

std::string_view ConfigReader::text(std::string_view key, std::string_view fallback) {
  std::string_view value = fallback;
  if (has(key) && find(key)->get(value) != simdjson::SUCCESS)
    fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be a string", shown(*find(key))));
  return value;
}

bool ConfigReader::is_list(std::string_view key) const {
  const auto value = find(key);
  return value && value->is_array();
}

std::optional<dom::array> ConfigReader::list(std::string_view key) {
  if (!has(key)) return std::nullopt;
  dom::array values;
  if (find(key)->get(values) == simdjson::SUCCESS) return values;
  fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be a list", shown(*find(key))));
  return std::nullopt;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) {
  if (!has(key)) return std::nullopt;
  dom::object value;
  if (find(key)->get(value) == simdjson::SUCCESS) return ConfigReader(file_, path_ + std::string(key) + ".", value, *error_);
  fail(ErrorCode::corrupt, key, fmt::format("is {}; it must be an object", shown(*find(key))));
  return std::nullopt;
}

}  // namespace althing::gpu
