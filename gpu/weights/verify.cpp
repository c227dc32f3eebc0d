// The scan for NaN and infinity works on eight bytes at a time: a lane whose exponent bits are all ones, and only such a lane, carries into its
// top bit when one unit of exponent is added.
#include "gpu/weights/verify.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "gpu/models/gpt_oss.hpp"
#include "gpu/weights/checkpoint.hpp"
#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/mxfp4.hpp"
#include "gpu/weights/safetensors.hpp"
#include "gpu/weights/shard_index.hpp"

namespace althing::gpu {

namespace {

constexpr std::size_t buffer_bytes = 1u << 20;
constexpr std::uint64_t tokenizer_bytes_max = 256u << 20;
// A trained weight of 2^15 and more would overflow half precision activations; released models stay under 2^4.
constexpr std::uint8_t scale_max = 127 + 15;

struct Count {
  std::uint64_t number = 0;
  std::uint64_t first = 0;  // element
  void add(std::uint64_t element) {
    if (number++ == 0) first = element;
  }
};

struct Lanes {
  std::uint64_t exponent;  // all exponent bits of each lane
  std::uint64_t unit;      // the lowest of them
  std::uint64_t top;       // the sign bit of each lane
};

constexpr Lanes lanes_of(DType type) {
  if (type == DType::f32) return {0x7f80'0000'7f80'0000u, 0x0080'0000'0080'0000u, 0x8000'0000'8000'0000u};
  if (type == DType::bf16) return {0x7f80'7f80'7f80'7f80u, 0x0080'0080'0080'0080u, 0x8000'8000'8000'8000u};
  return {0x7c00'7c00'7c00'7c00u, 0x0400'0400'0400'0400u, 0x8000'8000'8000'8000u};
}

// `first` is the element number of bytes[0].
void count_nonfinite(std::span<const std::byte> bytes, DType type, std::uint64_t first, Count& count) {
  const Lanes lanes = lanes_of(type);
  const std::size_t width = size_of(type);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;  // zeros after the end are finite
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    const std::uint64_t hits = ((word & lanes.exponent) + lanes.unit) & lanes.top;
    if (hits == 0) continue;
    for (std::size_t lane = 0; lane < sizeof word / width; ++lane)
      if ((hits >> (8 * width * (lane + 1) - 1) & 1u) != 0) count.add(first + at / width + lane);
  }
}

bool is_scales(const TensorView& t) { return t.dtype == DType::u8 && (t.name.ends_with("_scales") || t.name.ends_with(".scales")); }
bool is_blocks(const TensorView& t) { return t.dtype == DType::u8 && (t.name.ends_with("_blocks") || t.name.ends_with(".blocks")); }
bool is_float(const TensorView& t) { return t.dtype == DType::f32 || t.dtype == DType::f16 || t.dtype == DType::bf16; }

class Scan {
 public:
  Scan(const Checkpoint& checkpoint, VerifyReport& report, const VerifyProgress& progress)
      : checkpoint_(checkpoint), report_(report), progress_(progress), buffer_(buffer_bytes) {}

  void tensor(const TensorView& t) {
    const std::uint64_t bytes = byte_count(t);
    Count nonfinite, nan_scales, large_scales;
    for (std::uint64_t at = 0; at < bytes; at += buffer_.size()) {
      const auto part = std::span(buffer_).first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), bytes - at)));
      if (auto status = checkpoint_.read(t, at, part); !status) {
        report_.problems.push_back(fmt::format("{} (tensor '{}')", status.error().message, printable(t.name)));
        done_ += bytes - at;
        return;
      }
      if (is_float(t)) count_nonfinite(part, t.dtype, at / size_of(t.dtype), nonfinite);
      if (is_scales(t)) count_scales(part, at, nan_scales, large_scales);
      done_ += part.size();
      if (progress_) progress_(done_, checkpoint_.tensor_bytes());
    }
    note(t, nonfinite, "values are NaN or infinite");
    note(t, nan_scales, "scales are 255, which is NaN");
    note(t, large_scales, fmt::format("scales are above {} (2^{}), too large for a weight", scale_max, scale_max - 127));
  }

 private:
  static void count_scales(std::span<const std::byte> part, std::uint64_t first, Count& nan, Count& large) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto scale = std::to_integer<std::uint8_t>(part[i]);
      if (scale == mxfp4_scale_nan)
        nan.add(first + i);
      else if (scale > scale_max)
        large.add(first + i);
    }
  }

  void note(const TensorView& t, const Count& count, std::string_view what) {
    if (count.number == 0) return;
    TensorView place = t;
    place.data += count.first * size_of(t.dtype);
    report_.problems.push_back(
        fmt::format("{}: {} of {} {}; the first is element {}", checkpoint_.where(place), count.number, element_count(t), what, count.first));
  }

  const Checkpoint& checkpoint_;
  VerifyReport& report_;
  const VerifyProgress& progress_;
  std::vector<std::byte> buffer_;
  std::uint64_t done_ = 0;
};

void check_tokenizer(const std::filesystem::path& directory, VerifyReport& report) {
  const std::filesystem::path path = directory / "tokenizer.json";
  auto text = read_small_file(path, tokenizer_bytes_max);
  if (!text) {
    report.problems.push_back(text.error().message + (text.error().code == ErrorCode::not_found ? "; text in and out needs it" : ""));
    return;
  }
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto failure = parser.parse(*text).get(root); failure != simdjson::SUCCESS)
    report.problems.push_back(fmt::format("{}: is not a JSON object: {}", printable_path(path), simdjson::error_message(failure)));
}

// The total that an index may state is what downloaders compare with.
void check_total(const std::filesystem::path& directory, VerifyReport& report) {
  const std::filesystem::path path = directory / shard_index_name;
  auto text = read_small_file(path, shard_index_bytes_max);
  if (!text) return;  // none; one that cannot be read failed in Checkpoint::open
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  std::uint64_t total = 0;
  if (parser.parse(*text).get(root) != simdjson::SUCCESS || root["metadata"]["total_size"].get(total) != simdjson::SUCCESS) return;
  if (total != report.bytes)
    report.problems.push_back(
        fmt::format("{}: metadata.total_size is {}, the tensors of the shards have {} bytes", printable_path(path), total, report.bytes));
}

}  // namespace

VerifyReport verify_model(const std::filesystem::path& directory, const VerifyProgress& progress) {
  VerifyReport report;
  auto opened = Checkpoint::open(directory);
  if (!opened) {
    report.problems.push_back(opened.error().message);
    return report;
  }
  const Checkpoint& checkpoint = **opened;
  report.files = checkpoint.file_count();
  report.tensors = checkpoint.tensors().size();
  report.bytes = checkpoint.tensor_bytes();
  for (const TensorView& t : checkpoint.tensors()) {
    if (is_scales(t)) continue;
    report.parameters += element_count(t) * (is_blocks(t) ? 2 : 1);
  }
  if (auto model = load_gpt_oss(directory); !model) report.problems.push_back(model.error().message);
  check_tokenizer(directory, report);
  check_total(directory, report);
  Scan scan(checkpoint, report, progress);
  for (const TensorView& t : checkpoint.tensors()) scan.tensor(t);
  if (auto status = checkpoint.unchanged(); !status) report.problems.push_back(status.error().message);
  return report;
}

}  // namespace althing::gpu
