// Whether a model answers one prompt twice with the same bits: alone, and as one of several in other steps. What `althing doctor --model` says of a
// machine and its settings; the document of MoE faults calls the opposite "the same prompt differs", and takes router logits as its sign.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/settings.hpp"
#include "protocol/wire/messages.hpp"

namespace althing::actors {

// What one answer computed: of each position and layer the largest router logits, and the tokens that were drawn.
class AnswerBits {
 public:
  // Of choice 0; other choices are company.
  void take(const protocol::wire::Delta& delta);

  struct Difference {
    std::size_t drawn_alike = 0;  // tokens before the first that differs
    bool draws_differ = false;
    // Over positions that both computed from the same tokens. An expert that only one names counts as the distance to the smallest logit that the
    // other tells.
    std::size_t routed = 0;  // positions and layers
    double router_logits = 0;
    std::uint32_t position = 0, layer = 0;  // where it is largest
    bool same() const { return !draws_differ && router_logits == 0; }
  };
  // REQUIRES: both answered the same prompt.
  Difference against(const AnswerBits& other) const;

 private:
  std::vector<TokenId> drawn_;
  std::uint32_t first_drawn_ = 0;                                                       // position of drawn_[0]; 0: not known
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<RouterLogit>> logits_;  // by position and layer
};

struct TwiceFinding {
  enum class Kind : std::uint8_t { same, differs_slightly, differs };
  Kind kind = Kind::same;
  std::string detail;
};
inline constexpr double router_difference_max = 0.01;  // the document's limit

TwiceFinding judge(const AnswerBits::Difference& difference, const ServeSettings& settings);

// Computes in this process, twice. What goes wrong before that is an error.
Result<TwiceFinding> same_twice(const ServeSettings& settings);

}  // namespace althing::actors
