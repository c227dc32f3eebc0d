// Every failure that crosses a boundary: a class (what to do about it), a sentence for the user, and where it was.
// Result<T> carries a value or an Error; functions that can fail for reasons outside the program return one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace althing {

enum class ErrorCode : std::uint8_t {
  invalid_argument,  // the caller's input is wrong; `field` names it
  not_found,         // a file, model or request that does not exist
  corrupt,           // bytes that contradict themselves (a checkpoint, a frame)
  unsupported,       // well-formed, but not something this build can do
  too_large,         // over a limit; the message holds both numbers
  busy,              // a queue is full; try again later
  draining,          // the server is stopping
  cancelled,         // the client asked
  deadline,          // the request's own deadline passed
  slow_reader,       // the client did not read its stream
  rank_lost,         // a rank died
  core_lost,         // the serving process died and the request with it
  unavailable,       // not ready (starting, recovering)
  version,           // the two sides do not speak the same protocol version
  nonfinite,         // NaN or infinity in this request's logits
  io,                // the operating system said no
  internal,          // a bug of ours
  denied,            // the caller's key, or its lack of one, does not allow it
};
inline constexpr int error_code_count = static_cast<int>(ErrorCode::denied) + 1;

constexpr std::string_view name_of(ErrorCode code) {
  constexpr std::string_view names[error_code_count] = {"invalid_argument", "not_found", "corrupt",   "unsupported", "too_large", "busy",
                                                        "draining",         "cancelled", "deadline",  "slow_reader", "rank_lost", "core_lost",
                                                        "unavailable",      "version",   "nonfinite", "io",          "internal",  "denied"};
  return names[static_cast<int>(code)];
}

struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;               // one sentence or two: what was wrong, where, what to do
  std::string field;                 // the field, tensor or flag it is about; may be empty
  std::uint32_t retry_after_ms = 0;  // `busy`: when there may be room, as the last ends suggest; 0: not known

  friend bool operator==(const Error&, const Error&) = default;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// A result without a value: `return Ok{};` or `return Error{…};`.
struct Ok {};
using Status = Result<Ok>;

}  // namespace althing
