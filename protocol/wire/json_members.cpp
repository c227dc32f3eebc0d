// Readers of single JSON members. Conversions are exact or refused: no number is rounded, cut or wrapped on its way into a field.
// 64-bit numbers may come as strings of digits, because half of the world's JSON writers cannot write them as numbers.
// A reader never stops the caller: it leaves an error and returns the default.
#include "protocol/wire/json_members.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace althing::protocol::wire {

using nlohmann::ordered_json;

JsonMembers::JsonMembers(const ordered_json& object, std::string path, std::optional<Error>& error)
    : object_(object), path_(std::move(path)), error_(error) {}

const ordered_json* JsonMembers::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonMembers::complain(ErrorCode code, std::string message, const char* key) const {
  if (!error_) error_ = Error{code, std::move(message), path_of(key)};
}

void JsonMembers::wrong_kind(const char* key, const char* expected) const {
  const ordered_json* value = find(key);
  std::string got = value == nullptr ? "nothing" : value->type_name();
  if (value != nullptr && value->is_number()) got += " " + value->dump();
  complain(ErrorCode::invalid_argument, path_of(key) + " must be " + expected + ", not " + got, key);
}

std::optional<std::string> JsonMembers::optional_text(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get_ref<const std::string&>();
  wrong_kind(key, "a string");
  return std::nullopt;
}

std::string JsonMembers::text(const char* key) const { return optional_text(key).value_or(std::string()); }

bool JsonMembers::boolean(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  wrong_kind(key, "true or false");
  return false;
}

std::optional<float> JsonMembers::real(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max())) return static_cast<float>(number);
  }
  wrong_kind(key, "a number that fits 32-bit floating point");
  return std::nullopt;
}

std::optional<std::uint64_t> JsonMembers::optional_u64(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_number_integer() && value->get<std::int64_t>() >= 0) return static_cast<std::uint64_t>(value->get<std::int64_t>());
  if (value->is_string()) {
    const std::string& digits = value->get_ref<const std::string&>();
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (failure == std::errc() && end == digits.data() + digits.size()) return number;
  }
  wrong_kind(key, "a whole number from 0 to 2^64 - 1 (or the same as a string of digits)");
  return std::nullopt;
}

std::optional<std::uint32_t> JsonMembers::optional_u32(const char* key) const {
  const auto number = optional_u64(key);
  if (!number) return std::nullopt;
  if (*number <= std::numeric_limits<std::uint32_t>::max()) return static_cast<std::uint32_t>(*number);
  wrong_kind(key, "a whole number from 0 to 2^32 - 1");
  return std::nullopt;
}

std::int32_t JsonMembers::i32(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) return 0;
  using Range = std::numeric_limits<std::int32_t>;
  const bool small = !value->is_number_unsigned() || value->get<std::uint64_t>() <= static_cast<std::uint64_t>(Range::max());
  if (value->is_number_integer() && small && value->get<std::int64_t>() >= Range::min()) return static_cast<std::int32_t>(value->get<std::int64_t>());
  wrong_kind(key, "a whole number from -2^31 to 2^31 - 1");
  return 0;
}

const ordered_json* JsonMembers::array(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr || value->is_array()) return value;
  wrong_kind(key, "an array");
  return nullptr;
}

const ordered_json* JsonMembers::object(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr || value->is_object()) return value;
  wrong_kind(key, "an object");
  return nullptr;
}

}  // namespace althing::protocol::wire
