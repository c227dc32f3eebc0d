// Three counts of a model stand side by side, for people as a table and for programs as one JSON object.
#include "actors/commands/account.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "actors/complain.hpp"
#include "actors/settings.hpp"
#include "gpu/model_account.hpp"
#include "gpu/models/gpt_oss.hpp"
#include "gpu/models/gpt_oss_dummy.hpp"
#include "monitoring/json_line.hpp"

namespace althing::actors {
namespace {

constexpr const char* not_here = "not applicable at inference";

struct Subject {
  AccountSettings settings;
  gpu::ModelAccount account;
  double floor_ms = 0;
};

Result<Subject> count(const AccountSettings& settings) {
  if (settings.dense != "bf16" && settings.dense != "fp8")
    return Error{ErrorCode::invalid_argument, "--dense is '" + settings.dense + "'; use bf16 or fp8", "dense"};
  const std::string& name = settings.model;
  auto model = name.starts_with(dummy_prefix) ? gpu::dummy_model(name.substr(dummy_prefix.size())) : gpu::load_gpt_oss(name);
  if (!model) return model.error();
  const gpu::DecoderSpec& spec = (*model)->spec;
  if (settings.context >= spec.context_tokens_max)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--context is {}, and the model's context of {} tokens leaves at most {} before a token", settings.context,
                             spec.context_tokens_max, spec.context_tokens_max - 1),
                 "context"};
  gpu::ReadFormat format;
  format.dense = settings.dense == "fp8" ? gpu::DenseFormat::fp8 : gpu::DenseFormat::bf16;
  format.context_tokens = settings.context;
  Subject subject{settings, gpu::account_of(spec, format)};
  subject.floor_ms = static_cast<double>(subject.account.read_bytes()) / (settings.bandwidth_gbps * 1e9) * 1e3;
  return subject;
}

std::string json_of(const gpu::PartAccount& part) {
  return monitoring::JsonLine()
      .add("parameters", part.parameters)
      .add("active_parameters", part.active_parameters)
      .add("stored_bytes", part.stored_bytes)
      .add("read_bytes", part.read_bytes)
      .add("bf16_bytes", part.bf16_bytes)
      .object();
}

void print_json(const Subject& subject) {
  const gpu::ModelAccount& account = subject.account;
  monitoring::JsonLine parts, line;
  for (std::size_t i = 0; i < account.parts.size(); ++i) parts.raw(gpu::model_part_names[i], json_of(account.parts[i]));
  line.add("model", subject.settings.model).add("layers", account.layers).add("experts", account.experts);
  line.add("experts_per_token", account.experts_per_token).add("tied_head", account.tied_head).add("dense", subject.settings.dense);
  line.raw("weights", json_of(account.total())).raw("parts", parts.object()).add("context_tokens", subject.settings.context);
  line.add("kv_read_bytes", account.kv_read_bytes).add("kv_bytes_per_token", account.kv_bytes_per_token).add("read_bytes", account.read_bytes());
  line.add("gradients", not_here);
  line.raw("roofline", monitoring::JsonLine()
                           .add("read_bytes", account.read_bytes())
                           .add("assumed_bandwidth_gbps", subject.settings.bandwidth_gbps)
                           .raw("floor_ms", fmt::format("{:.6f}", subject.floor_ms))
                           .object());
  std::printf("%s\n", line.object().c_str());
}

void print_row(std::string_view name, const gpu::PartAccount& part) {
  fmt::print("{:<10} {:>15} {:>15} {:>15} {:>15} {:>15}\n", name, part.parameters, part.active_parameters, part.stored_bytes, part.read_bytes,
             part.bf16_bytes);
}

void print_table(const Subject& subject) {
  const gpu::ModelAccount& account = subject.account;
  const AccountSettings& settings = subject.settings;
  fmt::print("{}: {} layers, {} experts a layer, {} of them a token{}\n\n", settings.model, account.layers, account.experts,
             account.experts_per_token, account.tied_head ? ", the head is the embedding" : "");
  fmt::print("{:<10} {:>31} {:>47}\n", "", "parameters", "bytes");
  fmt::print("{:<10} {:>15} {:>15} {:>15} {:>15} {:>15}\n", "part", "all", "active", "stored", "read", "all in bf16");
  for (std::size_t i = 0; i < account.parts.size(); ++i) print_row(gpu::model_part_names[i], account.parts[i]);
  print_row("weights", account.total());
  fmt::print("{:<10} {:>15} {:>15} {:>15} {:>15} {:>15}\n", "KV cache", "-", "-", "-", account.kv_read_bytes, "-");
  fmt::print("{:<10} {}\n\n", "gradients", not_here);
  fmt::print("active and read: for one token in a batch of one, {} tokens of context before it; each token adds {} bytes of bf16 keys and values.\n",
             settings.context, account.kv_bytes_per_token);
  fmt::print("stored: the checkpoint's formats; read: attention and head in {}, the rest as stored. A lookup in the embedding reads one row.\n",
             settings.dense);
  fmt::print("floor: {} bytes read / {:g} GB/s (an assumption; --bandwidth-gbps) = {:.3f} ms a token. A bound by memory alone, not a forecast.\n",
             account.read_bytes(), settings.bandwidth_gbps, subject.floor_ms);
}

}  // namespace

int run_account(const AccountSettings& settings) {
  auto subject = count(settings);
  if (!subject) return complain(subject.error());
  if (settings.json)
    print_json(*subject);
  else
    print_table(*subject);
  return exit_ok;
}

}  // namespace althing::actors
