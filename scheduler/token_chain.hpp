// The hash over a sequence's tokens that names its full KV pages: SipHash-2-4 with 128 bits of output, one word a token, so that a key costs nothing
// but the tokens since the last one. Keyed, because tokens come from outside: whoever could make two prefixes with one key would be given the
// other's KV. Invariant: key(group) depends on the seed, the identity, the tokens added so far, their number and the group, and on nothing else.
#pragma once

#include <bit>
#include <cstdint>

#include "scheduler/vocabulary/ids.hpp"
#include "scheduler/vocabulary/plan.hpp"

namespace althing::scheduler {

class TokenChain {
 public:
  TokenChain() = default;
  TokenChain(PageKey seed, std::uint64_t identity)
      : v0_(seed.low ^ 0x736F6D6570736575u),
        v1_(seed.high ^ 0x646F72616E646F6Du ^ 0xEEu),
        v2_(seed.low ^ 0x6C7967656E657261u),
        v3_(seed.high ^ 0x7465646279746573u) {
    compress(identity);
  }

  void add(TokenId token) {
    ++tokens_;
    compress(token);
  }
  std::uint32_t tokens() const { return tokens_; }

  // Of all tokens so far, as the end of a page of `group`.
  PageKey key(std::uint32_t group) const {
    TokenChain last = *this;
    last.compress((std::uint64_t{group} << 32) | tokens_ | (std::uint64_t{1} << 63));
    last.v2_ ^= 0xEEu;
    last.rounds(4);
    PageKey key;
    key.low = last.v0_ ^ last.v1_ ^ last.v2_ ^ last.v3_;
    last.v1_ ^= 0xDDu;
    last.rounds(4);
    key.high = last.v0_ ^ last.v1_ ^ last.v2_ ^ last.v3_;
    return key;
  }

 private:
  void compress(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  void rounds(int count) {
    while (count-- > 0) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_;
      v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_ = 0, v1_ = 0, v2_ = 0, v3_ = 0;
  std::uint32_t tokens_ = 0;
};

}  // namespace althing::scheduler
