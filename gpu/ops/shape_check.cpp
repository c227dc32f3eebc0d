// See the header. `Check` keeps the first failure, so that each op reads as a list of expectations.
#include "gpu/ops/shape_check.hpp"

#include <optional>
#include <string>

#include "gpu/ops/fixed_point.hpp"

namespace althing::gpu {
namespace {

class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  Check& matrix(const char* role, const Matrix& m, std::uint64_t out, std::uint64_t in) {
    if (m.empty()) return fail(role, "is missing");
    if (m.out != out || m.in != in) return fail(role, "is " + pair(m.out, m.in) + " and must be " + pair(out, in));
    if (m.format == MatrixFormat::mxfp4 && (m.scales == nullptr || m.in % mxfp4_group != 0))
      return fail(role, "is MXFP4 with " + std::to_string(m.in) + " inputs; a multiple of 32 and scales are needed");
    return *this;
  }
  Check& vector(const char* role, const Vector& v, std::uint64_t size) {
    if (v.empty()) return fail(role, "is missing");
    return optional_vector(role, v, size);
  }
  Check& optional_vector(const char* role, const Vector& v, std::uint64_t size) {
    if (v.empty()) return *this;
    if (v.dtype != DType::f32 && v.dtype != DType::bf16) return fail(role, "has type " + std::string(name_of(v.dtype)) + "; F32 or BF16 is needed");
    if (v.size != size) return fail(role, "has " + std::to_string(v.size) + " elements and must have " + std::to_string(size));
    return *this;
  }
  Check& that(bool holds, const char* role, const std::string& why) { return holds ? *this : fail(role, why); }

  Status result() const {
    if (error_) return *error_;
    return Ok{};
  }

 private:
  static std::string pair(std::uint64_t a, std::uint64_t b) { return "(" + std::to_string(a) + ", " + std::to_string(b) + ")"; }
  Check& fail(const char* role, const std::string& why) {
    if (!error_) error_ = Error{ErrorCode::corrupt, std::string(op_) + ": " + role + " " + why, role};
    return *this;
  }

  const char* op_;
  std::optional<Error> error_;
};

}  // namespace

Status check(const EmbedOp& op, const Sizes& s) { return Check("embed").matrix("embedding", op.table, s.vocabulary, s.hidden).result(); }

Status check(const NormOp& op, const Sizes& s) {
  return Check("norm").vector("norm weight", op.weight, s.hidden).that(op.epsilon > 0, "epsilon", "must be over 0").result();
}

Status check(const QkvOp& op, const Sizes& s) {
  const std::uint64_t q = std::uint64_t{s.query_heads} * s.head_dim;
  const std::uint64_t kv = std::uint64_t{s.kv_heads} * s.head_dim;
  return Check("qkv")
      .that(op.head_dim == s.head_dim, "head_dim", "is " + std::to_string(op.head_dim) + " and must be " + std::to_string(s.head_dim))
      .matrix("q weight", op.q, q, s.hidden)
      .matrix("k weight", op.k, kv, s.hidden)
      .matrix("v weight", op.v, kv, s.hidden)
      .optional_vector("q bias", op.q_bias, q)
      .optional_vector("k bias", op.k_bias, kv)
      .optional_vector("v bias", op.v_bias, kv)
      .result();
}

Status check(const AttentionOp& op, const Sizes& s) {
  return Check("attention")
      .that(op.query_heads == s.query_heads && op.kv_heads == s.kv_heads && op.head_dim == s.head_dim, "heads", "differ from the rank's")
      .that(op.kv_heads != 0 && op.query_heads % op.kv_heads == 0, "query heads",
            "number " + std::to_string(op.query_heads) + " and must be a multiple of the " + std::to_string(op.kv_heads) + " KV heads")
      .that(op.head_dim != 0 && op.head_dim % 2 == 0, "head_dim", "is " + std::to_string(op.head_dim) + "; rotation needs an even number")
      .optional_vector("sinks", op.sinks, s.query_heads)
      .result();
}

Status check(const AttnOutOp& op, const Sizes& s) {
  return Check("attn_out").matrix("output weight", op.out, s.hidden, std::uint64_t{s.query_heads} * s.head_dim).result();
}

Status check(const ReduceAddNormOp& op, const Sizes& s) {
  if (auto status = Check("reduce_add_norm").optional_vector("bias", op.bias, s.hidden).result(); !status) return status;
  return check(op.norm, s);
}

Status check(const RouteOp& op, const Sizes& s) {
  return Check("route")
      .matrix("router weight", op.weight, s.experts, s.hidden)
      .optional_vector("router bias", op.bias, s.experts)
      .that(op.experts_per_token >= 1 && op.experts_per_token <= s.experts, "experts_per_token",
            "is " + std::to_string(op.experts_per_token) + " of " + std::to_string(s.experts) + " experts")
      .that(op.experts_per_token <= fixed_point_addends_max, "experts_per_token",
            "is " + std::to_string(op.experts_per_token) + "; the exact combine sums at most " + std::to_string(fixed_point_addends_max))
      .result();
}

Status check(const GatherOp& op, const Sizes& s) {
  Check c("gather");
  c.that(op.experts == s.experts, "experts", "number " + std::to_string(op.experts) + " and must number " + std::to_string(s.experts));
  for (std::size_t slot = 0; slot < op.held.size(); ++slot) {
    const HeldExpert& held = op.held[slot];
    c.that(held.expert.value < s.experts, "held expert",
           std::to_string(held.expert.value) + " does not exist, there are " + std::to_string(s.experts));
    c.that(slot == 0 || op.held[slot - 1].expert < held.expert, "held experts", "must be ascending");
    c.that(held.copy < held.copies, "held expert",
           std::to_string(held.expert.value) + " is copy " + std::to_string(held.copy) + " of " + std::to_string(held.copies));
  }
  return c.result();
}

Status check(const ExpertsOp& op, const Sizes& s) {
  Check c("experts");
  c.that(op.swiglu_limit > 0, "swiglu_limit", "must be over 0");
  const bool same = op.down.size() == op.gate_up.size() && op.gate_up_bias.size() == op.gate_up.size() && op.down_bias.size() == op.gate_up.size();
  c.that(same, "experts", "must have as many down matrices and biases as gate_up matrices");
  for (std::size_t slot = 0; same && slot < op.gate_up.size(); ++slot) {
    c.matrix("gate_up weight", op.gate_up[slot], 2 * std::uint64_t{s.intermediate}, s.hidden);
    c.matrix("down weight", op.down[slot], s.hidden, s.intermediate);
    c.optional_vector("gate_up bias", op.gate_up_bias[slot], 2 * std::uint64_t{s.intermediate});
    c.optional_vector("down bias", op.down_bias[slot], s.hidden);
  }
  return c.result();
}

Status check(const CombineOp&, const Sizes& s) { return Check("combine").that(s.hidden != 0, "hidden", "must not be 0").result(); }

Status check(const LogitsOp& op, const Sizes& s) {
  return Check("logits")
      .matrix("head", op.head, op.head.out, s.hidden)
      .that(op.head.out <= s.vocabulary && op.vocabulary == s.vocabulary, "head",
            "has " + std::to_string(op.head.out) + " rows of a vocabulary of " + std::to_string(s.vocabulary))
      .result();
}

Status check(const SampleOp& op, const Sizes& s) {
  return Check("sample")
      .that(op.vocabulary == s.vocabulary && op.vocabulary != 0, "vocabulary",
            "is " + std::to_string(op.vocabulary) + " and must be " + std::to_string(s.vocabulary))
      .result();
}

}  // namespace althing::gpu
