// See the header. Parameters are counted from shapes, bytes from the tensors themselves.
#include "gpu/model_account.hpp"

#include <algorithm>

#include "gpu/cuda/packed_matrix.hpp"
#include "gpu/weights/safetensors.hpp"

namespace althing::gpu {
namespace {

constexpr std::uint64_t bf16_size = 2;

std::uint64_t elements(const TensorView& tensor) { return tensor.empty() ? 0 : element_count(tensor); }
std::uint64_t bytes(const TensorView& tensor) { return tensor.empty() ? 0 : byte_count(tensor); }

// All of it is active and read as stored.
PartAccount whole(const TensorView& tensor) {
  const std::uint64_t count = elements(tensor);
  return {count, count, bytes(tensor), bytes(tensor), count * bf16_size};
}

std::uint64_t fp8_bytes(const TensorView& matrix) {
  const auto tiles = [](std::uint64_t size, std::uint64_t tile) { return (size + tile - 1) / tile; };
  return tiles(matrix.shape[0], cuda::row_tile) * tiles(matrix.shape[1], cuda::k_tile) * cuda::tile_bytes(cuda::WeightFormat::fp8);
}

PartAccount dense_matrix(const TensorView& matrix, DenseFormat format) {
  PartAccount part = whole(matrix);
  if (format == DenseFormat::fp8 && !matrix.empty()) part.read_bytes = fp8_bytes(matrix);
  return part;
}

PartAccount linear(const Linear& layer, DenseFormat format) {
  PartAccount part = dense_matrix(layer.weight, format);
  return part += whole(layer.bias);
}

// `chosen` of `experts` are read, whole. MXFP4: a code is a parameter, a scale is none, but has bytes.
PartAccount expert_linear(const ExpertLinear& e, std::uint64_t experts, std::uint64_t chosen) {
  const std::uint64_t each = std::uint64_t{e.out} * e.in + (e.bias.empty() ? 0 : e.out);
  const std::uint64_t stored = bytes(e.blocks) + bytes(e.scales) + bytes(e.plain) + bytes(e.bias);
  return {experts * each, chosen * each, stored, stored / experts * chosen, experts * each * bf16_size};
}

}  // namespace

PartAccount& PartAccount::operator+=(const PartAccount& other) {
  parameters += other.parameters;
  active_parameters += other.active_parameters;
  stored_bytes += other.stored_bytes;
  read_bytes += other.read_bytes;
  bf16_bytes += other.bf16_bytes;
  return *this;
}

PartAccount ModelAccount::total() const {
  PartAccount sum;
  for (const PartAccount& part : parts) sum += part;
  return sum;
}

ModelAccount account_of(const DecoderSpec& spec, const ReadFormat& format) {
  ModelAccount account;
  const auto part = [&](ModelPart which) -> PartAccount& { return account.parts[static_cast<std::size_t>(which)]; };
  account.layers = static_cast<std::uint32_t>(spec.layers.size());
  account.experts = spec.experts;
  account.tied_head = !spec.head.empty() && spec.head.data == spec.embedding.data;
  part(ModelPart::head) = dense_matrix(spec.head, format.dense);
  PartAccount& embedding = part(ModelPart::embedding);
  if (!account.tied_head) embedding = whole(spec.embedding);
  embedding.active_parameters = 0;
  embedding.read_bytes = spec.vocabulary == 0 ? 0 : bytes(spec.embedding) / spec.vocabulary;  // one row
  part(ModelPart::norms) += whole(spec.norm);
  const std::uint64_t kv_layer_bytes = std::uint64_t{2} * spec.kv_heads * spec.head_dim * format.kv_element_bytes;  // of one token
  for (const DecoderLayer& layer : spec.layers) {
    const Attention& a = layer.attention;
    for (const Linear* matrix : {&a.q, &a.k, &a.v, &a.out}) part(ModelPart::attention) += linear(*matrix, format.dense);
    part(ModelPart::attention) += whole(a.sinks);
    part(ModelPart::norms) += whole(a.norm);
    part(ModelPart::norms) += whole(layer.moe.norm);
    part(ModelPart::router) += linear(layer.moe.router.linear, DenseFormat::bf16);
    const std::uint32_t chosen = layer.moe.router.experts_per_token;
    account.experts_per_token = std::max(account.experts_per_token, chosen);
    part(ModelPart::experts) += expert_linear(layer.moe.gate_up, spec.experts, chosen);
    part(ModelPart::experts) += expert_linear(layer.moe.down, spec.experts, chosen);
    // A window holds the token itself, whose keys and values are not read from the cache.
    const std::uint32_t seen = a.window == 0 ? format.context_tokens : std::min(format.context_tokens, a.window - 1);
    account.kv_read_bytes += seen * kv_layer_bytes;
    account.kv_bytes_per_token += kv_layer_bytes;
  }
  return account;
}

}  // namespace althing::gpu
