// Reader threads take jobs from one list; each has a stream and two slots of pinned and device staging memory, so that reading, copying and packing
// overlap.
#include "gpu/cuda/weight_loader.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/dummy_weights.hpp"
#include "gpu/cuda/model_layout.hpp"
#include "gpu/cuda/pack.hpp"

namespace althing::gpu::cuda {
namespace {

constexpr std::uint64_t piece_bytes = std::uint64_t{8} << 20;  // what a job reads at once, when rows can be cut
constexpr std::uint32_t piece_rows = 128;                      // cuts are at multiples: of tiles, heads and blocks of fp8

std::uint64_t element_bytes(const Matrix& m) { return m.format == MatrixFormat::bf16 ? 2 : 4; }
std::uint64_t row_bytes(const Matrix& m) { return m.format == MatrixFormat::mxfp4 ? m.row_stride * 17 : m.row_stride * element_bytes(m); }

// A job in pieces that fit a slot. Experts stored (in, out) have no rows that lie together and stay whole.
void cut(const PackJob& job, std::vector<PackJob>& pieces) {
  const Matrix& m = job.source;
  const std::uint64_t all = row_bytes(m) * m.out;
  if (m.column_stride != 1 || all <= piece_bytes) {
    pieces.push_back(job);
    return;
  }
  const std::uint32_t rows = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, piece_bytes / row_bytes(m) / piece_rows)) * piece_rows;
  for (std::uint32_t row = 0; row < m.out; row += rows) {
    PackJob piece = job;
    piece.source.out = std::min(rows, m.out - row);
    piece.first_row = job.first_row + row;
    if (m.format == MatrixFormat::mxfp4) {
      piece.source.data += std::uint64_t{row} * m.row_stride * 16;
      piece.source.scales += std::uint64_t{row} * m.row_stride;
    } else {
      piece.source.data += row * row_bytes(m);
    }
    pieces.push_back(piece);
  }
}

// Bytes of a piece in the checkpoint: data, then scales.
std::pair<std::uint64_t, std::uint64_t> sizes(const Matrix& m) {
  if (m.format == MatrixFormat::mxfp4) return {m.out * m.row_stride * 16, m.out * m.row_stride};
  if (m.column_stride != 1) return {std::uint64_t{m.in} * m.column_stride * element_bytes(m), 0};
  return {m.out * row_bytes(m), 0};
}
std::uint64_t slot_bytes(const Matrix& m) { return (sizes(m).first + 255) / 256 * 256 + sizes(m).second; }

struct Event {
  cudaEvent_t event = nullptr;
  ~Event() {
    if (event != nullptr) cudaEventDestroy(event);
  }
};

class Reader {
 public:
  Status open(std::uint64_t bytes, PackReport* report) {
    report_ = report;
    if (auto s = check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); !s) return s;
    for (Slot& slot : slots_) {
      auto pinned = allocate_pinned<std::byte>(bytes, "reading weights");
      if (!pinned) return pinned.error();
      auto staging = allocate_device<std::byte>(bytes, "reading weights");
      if (!staging) return staging.error();
      slot.pinned = std::move(*pinned);
      slot.staging = std::move(*staging);
      if (auto s = check(cudaEventCreateWithFlags(&slot.free.event, cudaEventDisableTiming), "making an event"); !s) return s;
    }
    return Ok{};
  }
  ~Reader() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status pack(const PackJob& job) {
    auto slot = next_slot();
    if (!slot) return slot.error();
    const auto [data, scales] = sizes(job.source);
    const std::uint64_t scales_at = (data + 255) / 256 * 256;
    std::memcpy((*slot)->pinned.get(), job.source.data, data);
    if (scales != 0) std::memcpy((*slot)->pinned.get() + scales_at, job.source.scales, scales);
    std::byte* const staging = (*slot)->staging.get();
    if (auto s = check(cudaMemcpyAsync(staging, (*slot)->pinned.get(), scales_at + scales, cudaMemcpyHostToDevice, stream_), "copying weights"); !s)
      return s;
    PackArgs args;
    args.source = job.source;
    args.source.data = staging;
    args.source.scales = scales == 0 ? nullptr : staging + scales_at;
    args.target = job.target;
    args.data = job.data;
    args.first_row = job.first_row;
    args.order = job.order;
    args.order_block = job.order_block;
    args.report = report_;
    if (auto s = check(pack_weights(args, stream_), "packing weights"); !s) return s;
    return check(cudaEventRecord((*slot)->free.event, stream_), "packing weights");
  }

  // bf16 values from bf16 or f32 ones.
  Status copy(const std::byte* source, MatrixFormat format, std::uint64_t count, std::byte* target) {
    auto slot = next_slot();
    if (!slot) return slot.error();
    std::byte* const pinned = (*slot)->pinned.get();
    if (format == MatrixFormat::bf16) {
      std::memcpy(pinned, source, count * 2);
    } else {
      for (std::uint64_t i = 0; i < count; ++i) {
        float value;
        std::memcpy(&value, source + i * 4, 4);
        const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
        std::memcpy(pinned + i * 2, &rounded, 2);
      }
    }
    if (auto s = check(cudaMemcpyAsync(target, pinned, count * 2, cudaMemcpyHostToDevice, stream_), "copying weights"); !s) return s;
    return check(cudaEventRecord((*slot)->free.event, stream_), "copying weights");
  }

  Status finish() { return check(cudaStreamSynchronize(stream_), "loading weights"); }

 private:
  struct Slot {
    PinnedBuffer<std::byte> pinned;
    DeviceBuffer<std::byte> staging;
    Event free;
  };
  Result<Slot*> next_slot() {
    turn_ ^= 1;
    if (auto s = check(cudaEventSynchronize(slots_[turn_].free.event), "loading weights"); !s) return s.error();
    return &slots_[turn_];
  }

  cudaStream_t stream_ = nullptr;
  Slot slots_[2];
  int turn_ = 0;
  PackReport* report_ = nullptr;
};

class Load {
 public:
  Load(const ModelLayout& layout, const LoadOptions& options) : layout_(layout), options_(options) {
    for (const PackJob& job : layout.packs) cut(job, pieces_);
    slot_bytes_ = piece_bytes;
    for (const PackJob& piece : pieces_) slot_bytes_ = std::max(slot_bytes_, slot_bytes(piece.source));
    embedding_pieces_ = ceil_pieces(layout.embedding.out);
  }

  Status run() {
    auto report = allocate_device<PackReport>(1, "the load report");
    if (!report) return report.error();
    report_ = report->get();
    int device = 0;
    if (auto s = check(cudaGetDevice(&device), "asking for the device"); !s) return s;
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < std::max(1u, options_.readers); ++i)
      threads.emplace_back([this, device] {
        if (auto s = read(device); !s) fail(s.error());
      });
    for (auto& thread : threads) thread.join();
    if (error_) return *error_;
    PackReport found;
    if (auto s = check(cudaMemcpy(&found, report_, sizeof found, cudaMemcpyDeviceToHost), "reading the load report"); !s) return s;
    if (found.large_scale != 0)
      return Error{ErrorCode::unsupported,
                   std::to_string(found.large_scale) + " MXFP4 groups have a scale above 2^1, which the CUDA backend's bf16 operands do not hold",
                   "mxfp4"};
    if (found.unfit != 0)
      return Error{ErrorCode::unsupported, std::to_string(found.unfit) + " blocks of attention or head weights do not fit FP8; load them as bf16",
                   "dense"};
    return Ok{};
  }

 private:
  std::uint64_t rows_of_piece() const { return std::max<std::uint64_t>(1, piece_bytes / (layout_.embedding.in * element_bytes(layout_.embedding))); }
  std::size_t ceil_pieces(std::uint64_t rows) const { return static_cast<std::size_t>((rows + rows_of_piece() - 1) / rows_of_piece()); }

  Status read(int device) {
    if (auto s = check(cudaSetDevice(device), "choosing the device"); !s) return s;
    Reader reader;
    if (auto s = reader.open(slot_bytes_, report_); !s) return s;
    while (!failed_) {
      const std::size_t job = next_++;
      if (job >= pieces_.size() + embedding_pieces_) break;
      Status done = job < pieces_.size() ? reader.pack(pieces_[job]) : copy_embedding(reader, job - pieces_.size());
      if (!done) return done;
    }
    return reader.finish();
  }
  Status copy_embedding(Reader& reader, std::size_t piece) {
    const Matrix& m = layout_.embedding;
    const std::uint64_t first = piece * rows_of_piece(), rows = std::min<std::uint64_t>(rows_of_piece(), m.out - first);
    auto* target = reinterpret_cast<std::byte*>(const_cast<__nv_bfloat16*>(layout_.model.embedding));
    return reader.copy(m.data + first * row_bytes(m), m.format, rows * m.in, target + first * m.in * 2);
  }
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    if (!error_) error_ = error;
  }

  const ModelLayout& layout_;
  const LoadOptions& options_;
  std::vector<PackJob> pieces_;
  std::size_t embedding_pieces_ = 0;
  std::uint64_t slot_bytes_ = 0;
  PackReport* report_ = nullptr;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Error> error_;
};

Status make_dummy(const ModelLayout& layout, std::uint64_t seed) {
  const DeviceModel& m = layout.model;
  std::uint64_t number = seed << 32;
  const auto fill = [&](const PackedMatrix& matrix) { return check(fill_dummy_matrix(matrix, ++number << 20, nullptr), "making weights"); };
  for (const DeviceLayer& l : m.layers)
    for (const PackedMatrix* matrix : {&l.qkv, &l.out, &l.router, &l.gate_up, &l.down})
      if (auto s = fill(*matrix); !s) return s;
  if (auto s = fill(m.head); !s) return s;
  return check(fill_dummy_bf16(const_cast<__nv_bfloat16*>(m.embedding), std::uint64_t{m.vocabulary} * m.hidden, ++number << 20, nullptr),
               "making weights");
}

Status upload_vectors(const ModelLayout& layout, bool dummy) {
  std::vector<float> values;
  for (const VectorJob& job : layout.vectors) {
    values.resize(job.source.size);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = dummy ? (job.is_norm ? 1.0F : 0.0F) : job.source.at(i);
    if (auto s = upload(job.target, values.data(), values.size() * sizeof(float), "copying biases and norms"); !s) return s;
  }
  return upload(const_cast<float*>(layout.model.inverse_frequencies), layout.inverse_frequencies.data(),
                layout.inverse_frequencies.size() * sizeof(float), "copying the rotary table");
}

}  // namespace

Result<LoadedModel> load_weights(const Program& program, const LoadOptions& options) {
  const LayoutOptions layout_options{options.dense, options.screen_head};
  const auto counted = lay_out(program, layout_options, nullptr);
  if (!counted) return counted.error();
  auto memory = allocate_device<std::byte>(counted->bytes, "weights");
  if (!memory) return memory.error();
  const auto layout = lay_out(program, layout_options, memory->get());
  if (!layout) return layout.error();
  if (auto s = upload_vectors(*layout, options.dummy_seed.has_value()); !s) return s.error();
  if (options.dummy_seed) {
    if (auto s = make_dummy(*layout, *options.dummy_seed); !s) return s.error();
  } else if (auto s = Load(*layout, options).run(); !s) {
    return s.error();
  }
  if (layout->model.screen.codes != nullptr)
    if (auto s = check(make_head_screen(layout->model.head, layout->model.screen, nullptr), "loading weights"); !s) return s.error();
  if (auto s = check(cudaDeviceSynchronize(), "loading weights"); !s) return s.error();
  return LoadedModel{layout->model, std::move(*memory)};
}

}  // namespace althing::gpu::cuda
