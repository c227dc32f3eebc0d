// See the header.
#include "protocol/curve/allow_list.hpp"

#include <algorithm>
#include <set>

namespace althing::protocol::curve {
namespace {

Error invalid(const std::string& why) { return {ErrorCode::invalid_argument, why, "key"}; }

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

// Calls `take(number, line)` for every line that is neither empty nor a comment, until it returns an error.
template <class Take>
Status each_line(std::string_view text, Take take) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(' ') == std::string_view::npos || line.starts_with('#')) continue;
    if (auto status = take(number, line); !status) return status;
  }
  return Ok{};
}

}  // namespace

bool is_name(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= name_bytes_max && std::all_of(text.begin(), text.end(), plain);
}

Result<KeyEntry> entry_of(std::string_view line) {
  const auto words = words_of(line);
  if (words.size() < 3 || words.size() > 4) return invalid("write ROLE NAME KEY, and a tenant behind them where there is one");
  KeyEntry entry;
  const auto role = role_of(words[0]);
  if (!role) return invalid("the first word is no role; use client, gateway or admin");
  entry.role = *role;
  if (!is_name(words[1])) return invalid("the second word is no name; use 1 to 64 of A-Z a-z 0-9 . _ -");
  entry.name = words[1];
  auto key = public_key_of(words[2]);
  if (!key) return key.error();
  entry.key = std::move(*key);
  if (words.size() == 3) return entry;
  if (!is_name(words[3])) return invalid("the fourth word is no tenant; use 1 to 64 of A-Z a-z 0-9 . _ -");
  entry.tenant = words[3];
  return entry;
}

std::string to_line(const KeyEntry& entry) {
  return std::string(name_of(entry.role)) + " " + entry.name + " " + entry.key.text + (entry.tenant.empty() ? "" : " " + entry.tenant);
}

Result<AllowList> allow_list_of(std::string_view text) {
  if (text.size() > allow_list_bytes_max)
    return Error{ErrorCode::too_large,
                 "the list is " + std::to_string(text.size()) + " bytes, and " + std::to_string(allow_list_bytes_max) + " is the limit", "key"};
  AllowList list;
  std::set<std::string> keys, names;
  auto status = each_line(text, [&](std::size_t number, std::string_view line) -> Status {
    const auto wrong = [&](const std::string& why) -> Status { return invalid("line " + std::to_string(number) + ": " + why); };
    auto entry = entry_of(line);
    if (!entry) return wrong(entry.error().message);
    if (entry->role == Role::server) return wrong("a server's key is not for clients; allow another");
    if (!keys.insert(entry->key.text).second) return wrong("this key is in the list twice; remove one of the two lines");
    if (!names.insert(entry->name).second) return wrong("the name " + entry->name + " is in the list twice; each key needs a name of its own");
    if (list.size() == allow_list_keys_max) return wrong("more than " + std::to_string(allow_list_keys_max) + " keys, which is the limit");
    list.push_back(std::move(*entry));
    return Ok{};
  });
  if (!status) return status.error();
  return list;
}

Result<std::string> with_key(std::string_view text, const KeyEntry& entry) {
  std::string more(text);
  if (!more.empty() && !more.ends_with('\n')) more += '\n';
  more += to_line(entry) + "\n";
  if (auto list = allow_list_of(more); !list) return list.error();
  return more;
}

Result<std::string> without_key(std::string_view text, std::string_view name_or_key) {
  if (auto list = allow_list_of(text); !list) return list.error();
  std::string_view found;
  const auto status = each_line(text, [&](std::size_t, std::string_view line) -> Status {
    const auto words = words_of(line);
    if (words[1] == name_or_key || words[2] == name_or_key) found = line;
    return Ok{};
  });
  if (!status) return status.error();
  if (found.empty()) return Error{ErrorCode::not_found, "the list has no such name or key; `althing keys list` shows those that it has", "key"};
  const auto begin = static_cast<std::size_t>(found.data() - text.data());
  std::string less(text.substr(0, begin));
  less += text.substr(std::min(begin + found.size() + 1, text.size()));
  return less;
}

}  // namespace althing::protocol::curve
