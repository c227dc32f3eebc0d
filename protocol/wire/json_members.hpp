// Reads members of one JSON object into typed values. A member that is missing or null gives the default; one of the wrong kind leaves an Error that
// names its path, and the first Error is the one that is kept.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::wire {

class JsonMembers {
 public:
  // `path` is put before member names in errors: "" or e.g. "sampling.". REQUIRES: object and error outlive this.
  JsonMembers(const nlohmann::ordered_json& object, std::string path, std::optional<Error>& error);

  const nlohmann::ordered_json* find(const char* key) const;  // null when absent
  std::string path_of(const char* key) const { return path_ + key; }
  std::string text(const char* key) const;
  std::optional<std::string> optional_text(const char* key) const;
  bool boolean(const char* key) const;
  std::optional<float> real(const char* key) const;
  std::optional<std::uint32_t> optional_u32(const char* key) const;
  std::optional<std::uint64_t> optional_u64(const char* key) const;
  std::uint32_t u32(const char* key, std::uint32_t otherwise = 0) const { return optional_u32(key).value_or(otherwise); }
  std::int32_t i32(const char* key) const;
  std::uint64_t u64(const char* key) const { return optional_u64(key).value_or(0); }
  // Null when absent, or (with an error) when it is something else.
  const nlohmann::ordered_json* array(const char* key) const;
  const nlohmann::ordered_json* object(const char* key) const;
  void complain(ErrorCode code, std::string message, const char* key) const;

 private:
  void wrong_kind(const char* key, const char* expected) const;

  const nlohmann::ordered_json& object_;
  std::string path_;
  std::optional<Error>& error_;
};

}  // namespace althing::protocol::wire
