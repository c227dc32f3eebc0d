// What a model weighs, and what one token makes a step read of it, by part: a pure function of the model's description. Parameters and bytes are
// different counts of different things, and so are all, active and read: nothing here mixes two of them into one figure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "gpu/decoder_spec.hpp"
#include "gpu/executor.hpp"

namespace althing::gpu {

// What one part holds, and what one token of a batch of one uses of it.
struct PartAccount {
  std::uint64_t parameters = 0;         // all
  std::uint64_t active_parameters = 0;  // that one token is multiplied with or normed by; looking up an embedding is neither
  std::uint64_t stored_bytes = 0;       // in the checkpoint's formats
  std::uint64_t read_bytes = 0;         // for one token, in the formats in which weights are kept while serving
  std::uint64_t bf16_bytes = 0;         // what all parameters would be in bf16

  PartAccount& operator+=(const PartAccount& other);
  friend bool operator==(const PartAccount&, const PartAccount&) = default;
};

enum class ModelPart : std::uint8_t { embedding, attention, router, experts, norms, head };
inline constexpr std::array<std::string_view, 6> model_part_names = {"embedding", "attention", "router", "experts", "norms", "head"};

// How a step keeps what it reads.
struct ReadFormat {
  DenseFormat dense = DenseFormat::bf16;  // of attention's and the head's matrices: as stored, or rounded to E4M3 in tiles (a GPU's choice)
  std::uint32_t kv_element_bytes = 2;     // a key's or value's element
  std::uint32_t context_tokens = 0;       // positions before the token: their keys and values are read, up to a layer's window
};

struct ModelAccount {
  std::array<PartAccount, model_part_names.size()> parts;  // by ModelPart. A head that is the embedding once more counts as the head
  bool tied_head = false;
  std::uint32_t layers = 0, experts = 0, experts_per_token = 0;  // experts_per_token: the most of any layer
  std::uint64_t kv_read_bytes = 0;                               // for one token at the context: activations, so no parameters
  std::uint64_t kv_bytes_per_token = 0;                          // that one token adds, in all layers together

  const PartAccount& of(ModelPart part) const { return parts[static_cast<std::size_t>(part)]; }
  PartAccount total() const;  // of weights: without the KV cache
  std::uint64_t read_bytes() const { return total().read_bytes + kv_read_bytes; }
};

// REQUIRES: the spec is one that a loader made: tensors have the shapes that decoder_spec.hpp says.
ModelAccount account_of(const DecoderSpec& spec, const ReadFormat& format);

}  // namespace althing::gpu
