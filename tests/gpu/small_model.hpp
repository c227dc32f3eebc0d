// A decoder with random weights in its own memory, for tests that need a model and no file. Sizes are ragged on purpose: a vocabulary that no
// rank count divides, a width that is not a multiple of the segment, windowed and full layers of unequal number.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/models/gpt_oss.hpp"

namespace althing::tests {

struct SmallModelOptions {
  bool mxfp4 = true;
  bool transposed = false;  // plain experts as (experts, in, out)
  std::uint32_t seed = 1;
};

class SmallModel {
 public:
  static std::shared_ptr<gpu::Model> make(const SmallModelOptions& options = {}) {
    auto owner = std::make_shared<SmallModel>();
    owner->build(options);
    return {owner, &owner->model_};
  }

  gpu::TensorView tensor(const std::string& name, const std::vector<std::uint64_t>& shape, float scale, float center = 0.0F) {
    std::size_t count = 1;
    for (const auto size : shape) count *= size;
    std::normal_distribution<float> normal(center, scale);
    std::vector<std::uint16_t> values(count);
    for (auto& value : values) value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random_)) >> 16);
    return keep(name, gpu::DType::bf16, shape, values.data(), count * 2);
  }
  gpu::TensorView bytes(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t low, std::uint32_t high) {
    std::size_t count = 1;
    for (const auto size : shape) count *= size;
    std::uniform_int_distribution<std::uint32_t> any(low, high);
    std::vector<std::uint8_t> values(count);
    for (auto& value : values) value = static_cast<std::uint8_t>(any(random_));
    return keep(name, gpu::DType::u8, shape, values.data(), count);
  }

 private:
  // One byte off alignment, as tensors in a mapped file may be.
  gpu::TensorView keep(const std::string& name, gpu::DType type, const std::vector<std::uint64_t>& shape, const void* data, std::size_t size) {
    auto& store = store_.emplace_back(size + 1);
    std::memcpy(store.data() + 1, data, size);
    return {type, shape, store.data() + 1, name};
  }

  void build(const SmallModelOptions& o) {
    random_.seed(o.seed);
    gpu::DecoderSpec& s = model_.spec;
    s.hidden = 160;
    s.query_heads = 8;
    s.kv_heads = 2;
    s.head_dim = 16;
    s.experts = 6;
    s.intermediate = 64;
    s.vocabulary = 101;
    s.context_tokens_max = 512;
    for (int j = 0; j < 8; ++j) s.rotary.inverse_frequencies.push_back(std::pow(1000.0F, -static_cast<float>(j) / 8.0F));
    s.rotary.attention_factor = 1.1F;
    s.embedding = tensor("embedding", {s.vocabulary, s.hidden}, 1.0F);
    s.head = tensor("head", {s.vocabulary, s.hidden}, 0.2F);
    s.norm = tensor("norm", {s.hidden}, 0.2F, 1.0F);
    for (std::uint32_t layer = 0; layer < 3; ++layer) s.layers.push_back(make_layer(s, layer, o));
    model_.stop_tokens = {s.vocabulary - 1};
  }

  gpu::DecoderLayer make_layer(const gpu::DecoderSpec& s, std::uint32_t layer, const SmallModelOptions& o) {
    const std::string at = "layer" + std::to_string(layer) + ".";
    const auto linear = [&](const std::string& name, std::uint32_t out, std::uint32_t in) {
      return gpu::Linear{tensor(at + name, {out, in}, 1.2F / std::sqrt(static_cast<float>(in))), tensor(at + name + ".bias", {out}, 0.1F)};
    };
    gpu::DecoderLayer l;
    l.attention.norm = tensor(at + "norm", {s.hidden}, 0.2F, 1.0F);
    l.attention.q = linear("q", s.query_heads * s.head_dim, s.hidden);
    l.attention.k = linear("k", s.kv_heads * s.head_dim, s.hidden);
    l.attention.v = linear("v", s.kv_heads * s.head_dim, s.hidden);
    l.attention.out = linear("out", s.hidden, s.query_heads * s.head_dim);
    l.attention.sinks = tensor(at + "sinks", {s.query_heads}, 1.0F);
    l.attention.window = layer % 2 == 0 ? 20 : 0;
    l.moe.norm = tensor(at + "moe_norm", {s.hidden}, 0.2F, 1.0F);
    l.moe.router = {linear("router", s.experts, s.hidden), 2};
    l.moe.gate_up = expert_linear(at + "gate_up", s.experts, 2 * s.intermediate, s.hidden, o);
    l.moe.down = expert_linear(at + "down", s.experts, s.hidden, s.intermediate, o);
    return l;
  }

  gpu::ExpertLinear expert_linear(const std::string& name, std::uint32_t experts, std::uint32_t out, std::uint32_t in, const SmallModelOptions& o) {
    gpu::ExpertLinear l;
    l.out = out;
    l.in = in;
    l.bias = tensor(name + ".bias", {experts, out}, 0.1F);
    l.transposed = o.transposed;
    if (o.mxfp4) {
      l.blocks = bytes(name + "_blocks", {experts, out, in / 32, 16}, 0, 255);
      l.scales = bytes(name + "_scales", {experts, out, in / 32}, 120, 123);
    } else if (o.transposed) {
      l.plain = tensor(name, {experts, in, out}, 0.1F);
    } else {
      l.plain = tensor(name, {experts, out, in}, 0.1F);
    }
    return l;
  }

  gpu::Model model_;
  std::deque<std::vector<std::byte>> store_;
  std::mt19937 random_;
};

// Random ids of its vocabulary; the same for equal seeds.
inline std::vector<TokenId> small_prompt(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 101);
  return tokens;
}

}  // namespace althing::tests
