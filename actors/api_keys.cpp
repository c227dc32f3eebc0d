// See the header.
#include "actors/api_keys.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "actors/control_channel.hpp"

namespace althing::actors {
namespace {

Error refused(const std::string& path, const std::string& why, ErrorCode code = ErrorCode::invalid_argument) {
  return {code, "the file of API keys " + path + " " + why, "api-keys"};
}

bool is_label(std::string_view text) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits);
}

std::optional<std::array<unsigned char, 32>> hash_of(std::string_view hex) {
  std::array<unsigned char, 32> bytes{};
  if (hex.size() != 2 * bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto [end, error] = std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, bytes[i], 16);
    if (error != std::errc{} || end != hex.data() + 2 * i + 2) return std::nullopt;
  }
  return bytes;
}

std::optional<std::uint32_t> count_of(std::string_view digits) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{} || end != digits.data() + digits.size() || number == 0) return std::nullopt;
  return number;
}

// Why the word cannot be read; "" when it was.
std::string take_setting(const std::string& word, ApiKey& key) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "tenant") {
    if (!is_label(value)) return "tenant is '" + value + "'; use 1 to 64 of A-Z a-z 0-9 . _ -";
    key.tenant = value;
    return "";
  }
  if (name != "requests_per_minute" && name != "tokens_per_minute")
    return "'" + word + "' is not tenant=, requests_per_minute= or tokens_per_minute=";
  const auto count = count_of(value);
  if (!count) return name + " is '" + value + "'; use a whole number from 1, or leave it out for no limit";
  (name == "requests_per_minute" ? key.requests_per_minute : key.tokens_per_minute) = *count;
  return "";
}

std::string take_line(const std::string& line, ApiKey& key) {
  std::istringstream words(line);
  std::string hash;
  words >> key.name >> hash;
  if (!is_label(key.name)) return "the name is '" + key.name + "'; use 1 to 64 of A-Z a-z 0-9 . _ -";
  const auto bytes = hash_of(hash);
  if (!bytes) return "after the name must come the secret's SHA-256, 64 hexadecimal digits (printf %s SECRET | sha256sum)";
  key.sha256 = *bytes;
  key.tenant = key.name;
  std::set<std::string> settings;
  for (std::string word; words >> word;) {
    if (std::string why = take_setting(word, key); !why.empty()) return why;
    const std::string setting = word.substr(0, word.find('='));
    if (!settings.insert(setting).second) return setting + " is set twice; leave one of the two out";
  }
  return "";
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text) {
  ApiKeys keys;
  std::set<std::string> names;
  std::map<std::array<unsigned char, 32>, std::string> secrets;  // whose each is
  std::istringstream lines{std::string(text)};
  std::size_t number = 0;
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::invalid_argument, "line " + std::to_string(number) + " of the API keys cannot be read: " + why, "api-keys"};
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ApiKey key;
    if (const std::string why = take_line(line, key); !why.empty()) return wrong(why);
    if (!names.insert(key.name).second) return wrong("there is a key of the name '" + key.name + "' already");
    // Who takes one of the two out to revoke the secret has not.
    const auto [other, fresh] = secrets.emplace(key.sha256, key.name);
    if (!fresh) return wrong("'" + key.name + "' has the secret of '" + other->second + "'; give each a secret of its own");
    if (keys.keys_.size() == keys_max) return wrong("it is one more than " + std::to_string(keys_max));
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty())
    return Error{ErrorCode::invalid_argument, "the file of API keys holds no key, so nobody could come in; add one", "api-keys"};
  return keys;
}

Result<ApiKeys> ApiKeys::read(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return refused(path, std::string("cannot be read: ") + std::strerror(errno), errno == ENOENT ? ErrorCode::not_found : ErrorCode::io);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return refused(path, "is not a regular file");
  if (info.st_uid != ::geteuid()) return refused(path, "belongs to another user; who can write it can let anybody in");
  if ((info.st_mode & 077) != 0) return refused(path, "can be read or written by others; run chmod 600 on it");
  if (static_cast<std::uint64_t>(info.st_size) > file_bytes_max) return refused(path, "is over " + std::to_string(file_bytes_max) + " bytes");
  std::string text;
  char block[4096];
  ssize_t got = 0;
  while ((got = ::read(file.get(), block, sizeof block)) > 0 && text.size() <= file_bytes_max) text.append(block, static_cast<std::size_t>(got));
  if (got < 0) return refused(path, std::string("cannot be read: ") + std::strerror(errno), ErrorCode::io);
  return parse(text);
}

const ApiKey* ApiKeys::find(std::string_view secret) const {
  std::array<unsigned char, 32> hash{};
  ::SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), hash.data());
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_)
    if (::CRYPTO_memcmp(hash.data(), key.sha256.data(), hash.size()) == 0) found = &key;
  return secret.empty() ? nullptr : found;
}

std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() <= scheme.size()) return "";
  for (std::size_t i = 0; i < scheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != scheme[i]) return "";
  authorization.remove_prefix(scheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  while (authorization.ends_with(' ')) authorization.remove_suffix(1);
  return authorization;
}

}  // namespace althing::actors
