// How the tensors of a gpt-oss model are called and shaped, in the Hugging Face layout and in the original one, whoever brings them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/decoder_spec.hpp"
#include "gpu/models/gpt_oss_config.hpp"

namespace althing::gpu {

enum class GptOssLayout : std::uint8_t { hugging_face, original };

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // The tensor of this name, which must have this shape and one of these types; an empty view when there is none, and the source remembers it.
  virtual TensorView take(const std::string& name, const std::vector<std::uint64_t>& shape, std::initializer_list<DType> types) = 0;
};

const std::string& embedding_name(GptOssLayout layout);
const std::string& head_name(GptOssLayout layout);

// Takes every tensor of the model once. Experts are MXFP4 unless the source has their plain tensors.
DecoderSpec assemble_gpt_oss(TensorSource& source, GptOssLayout layout, const GptOssConfig& config);

}  // namespace althing::gpu
