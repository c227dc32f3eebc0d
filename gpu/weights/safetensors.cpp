// Offsets in messages are bytes of the file, not of the data section, so that they can be looked up with a hex viewer.
#include "gpu/weights/safetensors.hpp"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "gpu/weights/message.hpp"

namespace althing::gpu {

namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t length_bytes = 8;

// An entry of the header, offsets relative to the data section.
struct Entry {
  TensorView view;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::string_view file;
  std::span<const std::byte> bytes;
  std::uint64_t data_begin = 0;  // in the file
  std::uint64_t data_bytes() const { return bytes.size() - data_begin; }
};

Error bad(const Header& h, std::string_view tensor, std::uint64_t byte, const std::string& what, ErrorCode code = ErrorCode::corrupt) {
  return Error{code, fmt::format("{}: tensor '{}', byte {}: {}", h.file, printable(tensor), byte, what), printable(tensor)};
}

// Where the header speaks of the tensor: the first byte of its quoted name, or of the header when the name is written with escapes.
std::uint64_t entry_byte(const Header& h, std::string_view tensor) {
  const std::string_view text(reinterpret_cast<const char*>(h.bytes.data()) + length_bytes, h.data_begin - length_bytes);
  const std::size_t at = text.find(fmt::format("\"{}\"", tensor));
  return length_bytes + (at == std::string_view::npos ? 0 : at);
}

// The header's entry of `tensor` is wrong, whatever its data.
Error bad_entry(const Header& h, std::string_view tensor, const std::string& what, ErrorCode code = ErrorCode::corrupt) {
  return bad(h, tensor, entry_byte(h, tensor), what, code);
}

Error bad_header(std::string_view file, std::uint64_t byte, const std::string& what) {
  return Error{ErrorCode::corrupt, fmt::format("{}: header, byte {}: {}", file, byte, what), std::string(file)};
}

Result<DType> dtype_of(const Header& h, std::string_view tensor, std::string_view text) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::u8, DType::i64})
    if (name_of(type) == text) return type;
  constexpr std::array<std::string_view, 15> others = {"BOOL", "I8", "U16",     "I16",     "U32",     "I32",     "U64",    "F64",
                                                       "C64",  "F4", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2"};
  const bool known = std::find(others.begin(), others.end(), text) != others.end();
  return bad_entry(h, tensor,
                   known ? fmt::format("dtype {} is not supported; F32, F16, BF16, U8 and I64 are", text)
                         : fmt::format("dtype '{}' is not one of the format's", printable(text)),
                   known ? ErrorCode::unsupported : ErrorCode::corrupt);
}

Status read_shape(const Header& h, TensorView& view, const dom::element& value) {
  dom::array dimensions;
  if (value.get(dimensions) != simdjson::SUCCESS) return bad_entry(h, view.name, "shape is not a list");
  for (const dom::element dimension : dimensions) {
    if (view.shape.size() == tensor_rank_max) return bad_entry(h, view.name, fmt::format("shape has more than {} dimensions", tensor_rank_max));
    std::uint64_t size = 0;
    if (dimension.get(size) != simdjson::SUCCESS) return bad_entry(h, view.name, "shape holds something other than whole numbers from 0");
    view.shape.push_back(size);
  }
  return Ok{};
}

Status read_offsets(const Header& h, Entry& entry, const dom::element& value) {
  dom::array offsets;
  if (value.get(offsets) != simdjson::SUCCESS || offsets.size() != 2)
    return bad_entry(h, entry.view.name, "data_offsets is not a list of two numbers");
  if (offsets.at(0).get(entry.begin) != simdjson::SUCCESS || offsets.at(1).get(entry.end) != simdjson::SUCCESS)
    return bad_entry(h, entry.view.name, "data_offsets holds something other than whole numbers from 0");
  return Ok{};
}

// The three keys of an entry, each exactly once and nothing else.
Result<Entry> read_entry(const Header& h, std::string_view name, const dom::element& value) {
  Entry entry;
  entry.view.name = name;
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return bad_entry(h, name, "its header entry is not an object");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const auto [key, field] : object) {
    bool& seen = key == "dtype" ? has_dtype : key == "shape" ? has_shape : has_offsets;
    if (&seen == &has_offsets && key != "data_offsets")
      return bad_entry(h, name, fmt::format("unknown key '{}' in its header entry", printable(key)));
    if (seen) return bad_entry(h, name, fmt::format("key '{}' twice in its header entry", printable(key)));
    seen = true;
    Status status = Ok{};
    if (key == "dtype") {
      std::string_view text;
      if (field.get(text) != simdjson::SUCCESS) return bad_entry(h, name, "dtype is not a string");
      auto type = dtype_of(h, name, text);
      if (!type) return type.error();
      entry.view.dtype = *type;
    } else if (key == "shape") {
      status = read_shape(h, entry.view, field);
    } else {
      status = read_offsets(h, entry, field);
    }
    if (!status) return status.error();
  }
  for (const auto& [seen, key] : {std::pair{has_dtype, "dtype"}, {has_shape, "shape"}, {has_offsets, "data_offsets"}})
    if (!seen) return bad_entry(h, name, fmt::format("its header entry has no '{}'", key));
  return entry;
}

// Shape, dtype and offsets must tell the same size, inside the file.
Status check_extent(const Header& h, const Entry& entry) {
  const std::string& name = entry.view.name;
  std::uint64_t expected = size_of(entry.view.dtype);
  bool zero = false;
  for (const std::uint64_t dimension : entry.view.shape) {
    if (dimension == 0) zero = true;
    // Zero dimensions are left out of the product so that [0, 2^63, 2^63] is refused like [2^63, 2^63, 0].
    else if (__builtin_mul_overflow(expected, dimension, &expected))
      return bad_entry(h, name, fmt::format("shape {} has more bytes than 64 bits can count", shape_text(entry.view.shape)));
  }
  if (zero) expected = 0;
  if (entry.begin > entry.end) return bad_entry(h, name, fmt::format("data_offsets [{}, {}] end before they begin", entry.begin, entry.end));
  if (entry.end > h.data_bytes())
    return bad(h, name, h.bytes.size(),
               fmt::format("its data_offsets [{}, {}] need {} bytes of tensor data, the file holds {}; it is cut short or its header lies",
                           entry.begin, entry.end, entry.end, h.data_bytes()));
  if (entry.end - entry.begin != expected)
    return bad(h, name, h.data_begin + entry.begin,
               fmt::format("shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}", shape_text(entry.view.shape), name_of(entry.view.dtype),
                           expected, entry.begin, entry.end, entry.end - entry.begin));
  return Ok{};
}

// Each tensor begins where the one before it ended, and the last ends with the file.
Status check_coverage(const Header& h, std::vector<Entry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::uint64_t covered = 0;
  const Entry* before = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin < covered)
      return bad(h, entry.view.name, h.data_begin + entry.begin,
                 fmt::format("overlaps tensor '{}', which ends at byte {}", printable(before->view.name), h.data_begin + covered));
    if (entry.begin > covered)
      return bad(h, entry.view.name, h.data_begin + covered, fmt::format("{} bytes before it belong to no tensor", entry.begin - covered));
    covered = entry.end;
    before = &entry;
  }
  if (covered != h.data_bytes())
    return bad(h, before == nullptr ? "" : before->view.name, h.data_begin + covered,
               fmt::format("{} bytes after the last tensor belong to no tensor", h.data_bytes() - covered));
  return Ok{};
}

Status check_duplicates(const Header& h, const std::vector<Entry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.view.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return bad_entry(h, *twice, "is in the header twice");
  return Ok{};
}

Status check_metadata(const Header& h, const dom::element& value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return bad_header(h.file, length_bytes, "__metadata__ is not an object");
  for (const auto [key, field] : object)
    if (!field.is_string()) return bad_header(h.file, length_bytes, fmt::format("__metadata__ key '{}' is not a string", printable(key)));
  return Ok{};
}

Result<Header> read_length(std::string_view file, std::span<const std::byte> bytes) {
  if (bytes.size() < length_bytes)
    return bad_header(file, bytes.size(),
                      fmt::format("the file has {} bytes, fewer than the {} of the header length; it is cut short", bytes.size(), length_bytes));
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  if (length > safetensors_header_bytes_max)
    return bad_header(
        file, 0,
        fmt::format("its length is given as {} bytes, over the limit of {}; this is not a safetensors file", length, safetensors_header_bytes_max));
  if (length > bytes.size() - length_bytes)
    return bad_header(file, bytes.size(),
                      fmt::format("it needs {} bytes, the file has {} after the length; it is cut short", length, bytes.size() - length_bytes));
  if (length < 2 || bytes[length_bytes] != std::byte{'{'}) return bad_header(file, length_bytes, "it does not start with '{'");
  return Header{file, bytes, length_bytes + length};
}

}  // namespace

Result<std::vector<TensorView>> parse_safetensors(std::string_view file, std::span<const std::byte> bytes) {
  const auto length = read_length(file, bytes);
  if (!length) return length.error();
  const Header& h = *length;

  dom::parser parser;
  dom::object root;
  const auto* text = reinterpret_cast<const std::uint8_t*>(bytes.data() + length_bytes);
  if (const auto failure = parser.parse(text, h.data_begin - length_bytes).get(root); failure != simdjson::SUCCESS)
    return bad_header(file, length_bytes,
                      fmt::format("bytes {} to {} are not a JSON object: {}", length_bytes, h.data_begin - 1, simdjson::error_message(failure)));

  std::vector<Entry> entries;
  bool has_metadata = false;
  for (const auto [key, value] : root) {
    if (key == "__metadata__") {
      if (has_metadata) return bad_header(file, length_bytes, "__metadata__ is there twice");
      has_metadata = true;
      if (auto status = check_metadata(h, value); !status) return status.error();
      continue;
    }
    if (key.empty()) return bad_header(file, length_bytes, "a tensor has an empty name");
    auto entry = read_entry(h, key, value);
    if (!entry) return entry.error();
    if (auto status = check_extent(h, *entry); !status) return status.error();
    entries.push_back(std::move(*entry));
  }
  if (auto status = check_duplicates(h, entries); !status) return status.error();
  if (auto status = check_coverage(h, entries); !status) return status.error();

  std::vector<TensorView> views;
  views.reserve(entries.size());
  for (Entry& entry : entries) {
    // A zero-size tensor at the very end points at the last byte, so that every address is inside its file and tells which file it is.
    entry.view.data = bytes.data() + std::min<std::uint64_t>(h.data_begin + entry.begin, bytes.size() - 1);
    views.push_back(std::move(entry.view));
  }
  return views;
}

std::string shape_text(std::span<const std::uint64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::uint64_t element_count(const TensorView& tensor) {
  std::uint64_t count = 1;
  for (const std::uint64_t dimension : tensor.shape) count *= dimension;
  return count;
}

}  // namespace althing::gpu
