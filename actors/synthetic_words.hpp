// The script of a synthetic engine in the tokens of a chat format: headers as its model would write them, and words of its vocabulary.
#pragma once

#include "gpu/synthetic_script.hpp"
#include "protocol/harmony/format.hpp"

namespace althing::actors {

// Up to 4096 words of letters, the first of the tokenizer (a BPE learns frequent ones first), below `vocabulary`. Errors: unsupported
// when there is none, or a header's token is not below `vocabulary`.
Result<gpu::SyntheticScript> script_of(const protocol::harmony::Format& format, std::uint32_t vocabulary);

}  // namespace althing::actors
