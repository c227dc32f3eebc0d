// Open addressing over one arena: a look-up costs one hash and, nearly always, one comparison of bytes.
#include "protocol/tokenizer/token_table.hpp"

#include <fmt/format.h>

#include <functional>
#include <limits>

namespace althing::protocol {
namespace {

std::uint64_t hash_of(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }

}  // namespace

Status TokenTable::append(TokenId id, std::string_view bytes, bool special) {
  if (id > token_id_max) return Error{ErrorCode::too_large, fmt::format("token id {} is over the limit of {}", id, token_id_max), ""};
  if (bytes.empty()) return Error{ErrorCode::corrupt, fmt::format("token {} is empty", id), ""};
  if (bytes.size() > token_bytes_max)
    return Error{ErrorCode::too_large, fmt::format("token {} has {} bytes, over the limit of {}", id, bytes.size(), token_bytes_max), ""};
  if (!bytes_of(id).empty()) return Error{ErrorCode::corrupt, fmt::format("id {} is given to two tokens", id), ""};
  if (bytes_.size() + bytes.size() > std::numeric_limits<std::uint32_t>::max())
    return Error{ErrorCode::too_large, "the tokens have more than 4 GiB together", ""};
  if (id >= entries_.size()) entries_.resize(id + 1);
  entries_[id] = {static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(bytes.size()), special};
  bytes_.append(bytes);
  return Ok{};
}

Status TokenTable::add(TokenId id, std::string_view bytes) {
  if (const auto other = find(bytes)) return Error{ErrorCode::corrupt, fmt::format("tokens {} and {} have the same bytes", *other, id), ""};
  if (auto appended = append(id, bytes, false); !appended) return appended;
  ++ordinary_count_;
  if (ordinary_count_ * 2 > slots_.size()) {
    grow();
  } else {
    insert(id, bytes);
  }
  return Ok{};
}

Status TokenTable::add_special(TokenId id, std::string_view name) { return append(id, name, true); }

std::optional<TokenId> TokenTable::find(std::string_view bytes) const {
  if (slots_.empty()) return std::nullopt;
  const std::uint64_t hash = hash_of(bytes);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot slot = slots_[i];
    if (slot.id_plus_1 == 0) return std::nullopt;
    if (slot.tag == tag && bytes_of(slot.id_plus_1 - 1) == bytes) return slot.id_plus_1 - 1;
  }
}

std::string_view TokenTable::bytes_of(TokenId id) const {
  if (id >= entries_.size()) return {};
  return std::string_view(bytes_).substr(entries_[id].offset, entries_[id].length);
}

// REQUIRES: a free slot, and no ordinary token with these bytes among the slots.
void TokenTable::insert(TokenId id, std::string_view bytes) {
  const std::uint64_t hash = hash_of(bytes);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].id_plus_1 != 0) i = (i + 1) & mask;
  slots_[i] = {static_cast<std::uint32_t>(hash >> 32), id + 1};
}

void TokenTable::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, Slot{});
  for (TokenId id = 0; id < size(); ++id)
    if (entries_[id].length > 0 && !entries_[id].special) insert(id, bytes_of(id));
}

}  // namespace althing::protocol
