// JSON that is written here: members of one object in the order they are added, on one line. Text is escaped, and a number that JSON does not have
// becomes null, so nothing from outside can end or forge a member.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace althing::monitoring {

// Quotes, backslashes and control characters escaped, without the quotes around it. Bytes that are no UTF-8 are passed on: texts come from our own
// processes.
std::string json_escaped(std::string_view text);
// With the quotes around it.
std::string json_text(std::string_view text);
// Six significant digits; null for what is not finite.
std::string json_number(double number);

class JsonLine {
 public:
  JsonLine& add(std::string_view name, std::string_view text) { return raw(name, json_text(text)); }
  JsonLine& add(std::string_view name, const char* text) { return raw(name, json_text(text)); }
  JsonLine& add(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  JsonLine& add(std::string_view name, double number) { return raw(name, json_number(number)); }
  JsonLine& add(std::string_view name, std::integral auto number) { return raw(name, std::to_string(number)); }
  // `value` is JSON already.
  JsonLine& raw(std::string_view name, std::string_view value) {
    text_ += (text_.size() > 1 ? "," : "") + json_text(name) + ":";
    text_ += value;
    return *this;
  }
  std::string object() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

// [a,b,…] of what `write` makes of each item.
template <class Items, class Write>
std::string json_list(const Items& items, Write write) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? "," : "") + std::string(write(item));
  return text + "]";
}

}  // namespace althing::monitoring
