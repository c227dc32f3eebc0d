// Reads one JSON object key by key for a model config. Every number comes with its range; the first thing wrong is kept, naming file, key,
// value and range, and later reads return harmless values, so a parser reads straight down and asks once at the end.
// Duplicate keys are refused: readers that take the first and readers that take the last would disagree about the model.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::gpu {

class ConfigReader {
 public:
  // `path` is put before keys in messages ("rope_scaling." for a nested object). `error` is shared by the readers of one file and outlives them.
  ConfigReader(std::string_view file, std::string path, simdjson::dom::object object, std::optional<Error>& error);

  // Present and not null.
  bool has(std::string_view key) const;
  // Present, even if null.
  bool names(std::string_view key) const;

  // A whole number in [min, max]; an absent key is an error, or `fallback` when there is one.
  std::uint32_t whole(std::string_view key, std::uint32_t min, std::uint32_t max, std::optional<std::uint32_t> fallback = std::nullopt);
  // Of two names for one number: whichever is there; both must agree.
  std::uint32_t whole_either(std::string_view key, std::string_view other, std::uint32_t min, std::uint32_t max);
  // A finite number in [min, max].
  double real(std::string_view key, double min, double max, std::optional<double> fallback = std::nullopt);
  bool flag(std::string_view key, bool fallback);
  std::string_view text(std::string_view key, std::string_view fallback);
  bool is_list(std::string_view key) const;
  std::optional<simdjson::dom::array> list(std::string_view key);
  std::optional<ConfigReader> object(std::string_view key);

  void fail(ErrorCode code, std::string_view key, const std::string& what);
  bool ok() const { return !error_->has_value(); }

 private:
  std::optional<simdjson::dom::element> find(std::string_view key) const;

  std::string_view file_;
  std::string path_;
  simdjson::dom::object object_;
  std::optional<Error>* error_;
};

}  // namespace althing::gpu
