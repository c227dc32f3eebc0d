// Bytes as the files that say who may come in: allow-lists, key files, API keys, and the header that a secret comes in; and as the file of prices.
// What is read is written and read again the same, what is taken out of a list is out, and no refusal repeats what could be a secret.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "actors/api_keys.hpp"
#include "actors/cost_file.hpp"
#include "protocol/curve/key_file.hpp"
#include "protocol/curve/key_ring.hpp"
#include "tests/fuzz/small_format.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using fuzz::require;

// A file of this process, which holds `text` when this returns.
const std::string& file_with(std::string_view text) {
  static const std::string path = "/tmp/althing-keys-fuzz-" + std::to_string(::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "a file can be written");
  ::close(fd);
  return path;
}

// Names may be shown; a word that cannot be one may be a key.
void check_silence(const std::string& message, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.size() >= curve::key_text_bytes && !curve::is_name(word)) require(message.find(word) == std::string::npos, "a refusal repeats no key");
  }
}

void allow_list(std::string_view text) {
  const auto list = curve::allow_list_of(text);
  if (!list) return check_silence(list.error().message, text);
  std::string written;
  for (const curve::KeyEntry& entry : *list) written += curve::to_line(entry) + "\n";
  const auto again = curve::allow_list_of(written);
  require(again && *again == *list, "a list that was written is read");
  const curve::KeyRing ring(*list, {});
  for (std::size_t i = 0; i < std::min<std::size_t>(list->size(), 3); ++i) {
    const curve::KeyEntry& entry = (*list)[i];
    require(ring.find(entry.key.text) == entry, "a key of the list is found");
    for (const std::string& word : {entry.name, entry.key.text}) {
      const auto less = curve::without_key(text, word);
      require(less.ok(), "a key of the list can be taken out");
      const auto rest = curve::allow_list_of(*less);
      require(rest && rest->size() + 1 == list->size(), "then it is out");
      const auto more = curve::with_key(*less, entry);
      require(more && curve::allow_list_of(*more)->size() == list->size(), "and can come in again");
    }
    require(!curve::with_key(text, entry), "no key is in a list twice");
  }
}

void key_files(std::string_view text) {
  const std::string& path = file_with(text);
  if (const auto secret = curve::read_secret_key(path); secret)
    require(curve::public_key_of(secret->public_key().text).ok(), "a secret key has a public half");
  else
    check_silence(secret.error().message, text);
  if (const auto entry = curve::read_public_key(path); entry) {
    const auto again = curve::entry_of(curve::to_line(*entry));
    require(again && *again == *entry, "an entry that was written is read");
    require(curve::public_key_from(path).ok(), "a file gives its key");
  } else {
    check_silence(entry.error().message, text);
  }
  if (const auto list = curve::read_allow_list(path); list) require(*list == text, "a list is read whole");
  if (const auto key = curve::public_key_of(text); key) require(key->text == text && curve::looks_like_key(text), "a key has one form");
}

void api_keys(std::string_view text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  const std::string_view bearer = actors::bearer_of(text.substr(0, line));
  require(bearer.empty() || (bearer.front() != ' ' && bearer.back() != ' ' && text.find(bearer) != std::string_view::npos), "a secret is cut out");
  const auto keys = actors::ApiKeys::parse(text.substr(std::min(line + 1, text.size())));
  if (!keys) return require(!keys.error().message.empty(), "a refusal says why");
  require(keys->size() > 0 && keys->find("") == nullptr, "nobody comes in without a secret");
  (void)keys->find(bearer);
  const auto read = actors::ApiKeys::read(file_with(text.substr(std::min(line + 1, text.size()))));
  require(read && read->size() == keys->size(), "the file holds what its text does");
}

void prices(std::string_view text) {
  const auto read = actors::parse_prices("fuzz", text);
  if (!read) return require(read.error().message.find('\n') == std::string::npos, "a refusal is one line");
  for (const double price : {read->gpu_hour_usd, read->per_million_prompt_tokens_usd, read->per_million_completion_tokens_usd, read->kv_gib_hour_usd})
    require(price >= 0 && price <= 1e6, "a price is in its range");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*readers[])(std::string_view) = {allow_list, key_files, api_keys, prices};
  readers[data[0] % 4](text);
  return 0;
}
