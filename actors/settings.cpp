// The flags of `serve`: see the header. Each may also come from ALTHING_<NAME> or from the file given with --config.
#include "actors/settings.hpp"

#include "actors/device_choice.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>

namespace althing::actors {
namespace {

std::string environment_name(const std::string& flag) {
  std::string name = "ALTHING_";
  for (const char c : flag) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

template <class T>
CLI::Option* option(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  return app.add_option("--" + flag, value, help)
      ->capture_default_str()
      ->envname(environment_name(flag))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace

void add_log_options(CLI::App& app, LogSettings& settings) {
  option(app, "log-level", settings.level, "debug, info, warning, error or off");
  app.add_flag("--log-json", settings.json, "log as JSON lines")->envname("ALTHING_LOG_JSON");
}

void add_engine_options(CLI::App& app, ServeSettings& s) {
  option(app, "ranks", s.ranks, "ranks that share the model: attention heads and experts are split over them");
  option(app, "device", s.device, "cpu, cuda (a GPU a rank), or auto: cuda where this build and this machine can");
  option(app, "threads", s.threads, "threads of each rank (CPU backend)");
  option(app, "kv-mib", s.kv_mib, "memory for the KV cache of each rank, in MiB; 0: 256 on CPU ranks, what --gpu-memory-fraction leaves on GPUs");
  option(app, "dense", s.dense, "attention and head weights on GPUs: bf16 as in the checkpoint, or fp8 (rounded, scales of 128 x 128)");
  option(app, "gpu-memory-fraction", s.gpu_memory_fraction, "how much of each GPU's memory to use, for weights, KV cache and scratch together");
}

void add_serve_options(CLI::App& app, ServeSettings& s) {
  app.add_option("model,--model", s.model, "folder with config.json, *.safetensors and tokenizer.json")->configurable(false);
  option(app, "load", s.load, "dummy:20b or dummy:120b: the shapes of gpt-oss with made-up weights, to measure speed on GPUs without a checkpoint");
  option(app, "tokenizer", s.tokenizer, "folder with tokenizer.json or o200k_base.tiktoken, when it is not the model's");
  add_engine_options(app, s);
  option(app, "bind", s.bind, "where clients connect; loopback only; port 0 picks a free one");
  option(app, "metrics", s.metrics, "HOST:PORT of /metrics, /live and /ready; loopback only; empty for none");
  option(app, "context", s.limits.context_tokens_max, "most tokens of prompt and completion together; 0: what the model allows");
  option(app, "rows", s.limits.rows_max, "most sequences in one step; 0: 64 on CPU ranks, 256 on GPUs");
  option(app, "step-tokens", s.limits.step_tokens_max, "most tokens in one step; 0: 512 on CPU ranks, 8192 on GPUs");
  option(app, "prefill-chunk", s.limits.prefill_chunk_max, "most prompt tokens of one sequence in one step; 0: 256 on CPU ranks, 4096 on GPUs");
  option(app, "sequences", s.limits.sequences_max, "most requests accepted and not finished");
  option(app, "completion", s.limits.completion_tokens_max, "completion tokens of a request that does not say");
  option(app, "client-silence-ms", s.limits.session_silence_ms_max, "a client that sends nothing for this long is gone");
  option(app, "credit-stall-ms", s.limits.credit_stall_ms_max, "a stream without credit for this long is cancelled");
  option(app, "client-buffer-bytes", s.limits.session_buffer_bytes_max, "unread bytes of one client before it is cancelled");
  option(app, "step-timeout-ms", s.step_timeout_ms, "a step that takes longer makes its slow ranks start again");
  option(app, "drain-seconds", s.drain_seconds, "after SIGTERM, running requests get this long");
  option(app, "restarts-max", s.restarts_max, "child deaths within a minute before the server gives up");
  option(app, "journal", s.journal, "write every scheduler event to this file (0600, prompts included)");
  option(app, "ready-file", s.ready_file, "write endpoints as JSON to this file once serving");
  app.add_flag("--in-process", s.in_process, "ranks as threads of one process, without a supervisor (for tests)")->envname("ALTHING_IN_PROCESS");
  add_log_options(app, s.log);
  app.add_option("--config", s.config, "settings file: TOML lines of flag-name = value; flags and environment win over it")->configurable(false);
  app.add_option("--child", s.child)->group("")->configurable(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--child-rank", s.child_rank)->group("")->configurable(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Status apply_settings_file(CLI::App& app, const std::string& path) {
  const auto refuse = [&](ErrorCode code, const std::string& why) -> Status { return Error{code, "settings file " + path + ": " + why, "config"}; };
  try {
    for (const CLI::ConfigItem& item : app.get_config_formatter()->from_file(path)) {
      if (item.name == "++" || item.name == "--") return refuse(ErrorCode::invalid_argument, "it has a [section]; write settings without one");
      CLI::Option* wanted = item.parents.empty() ? app.get_option_no_throw("--" + item.name) : nullptr;
      if (wanted == nullptr || !wanted->get_configurable() || wanted->get_group().empty())
        return refuse(ErrorCode::invalid_argument, "there is no setting '" + item.fullname() + "'; see althing serve --help");
      if (wanted->count() > 0) continue;
      wanted->add_result(item.inputs);
      wanted->run_callback();
    }
  } catch (const CLI::FileError& error) {
    return refuse(ErrorCode::not_found, std::string("it cannot be read (") + error.what() + ")");
  } catch (const CLI::Error& error) {
    return refuse(ErrorCode::invalid_argument, error.what());
  }
  return Ok{};
}

Status check(const ServeSettings& s) {
  if (auto level = log_level_of(s.log.level); !level) return level.error();
  if (s.threads == 0 || s.threads > 256)
    return Error{ErrorCode::invalid_argument, "--threads is " + std::to_string(s.threads) + "; use 1 to 256", "threads"};
  if (s.model.empty() && s.load.empty())
    return Error{ErrorCode::invalid_argument, "no model is given; name its folder (or --load dummy:20b for one without weights)", "model"};
  if (!s.load.empty() && !s.load.starts_with(dummy_prefix))
    return Error{ErrorCode::invalid_argument, "--load is '" + s.load + "'; use dummy:20b or dummy:120b, or give a model's folder", "load"};
  if (s.kv_mib > (1u << 24))
    return Error{ErrorCode::invalid_argument, "--kv-mib is " + std::to_string(s.kv_mib) + "; use at most 16777216, or 0 for the default", "kv-mib"};
  if (!(s.gpu_memory_fraction > 0.0 && s.gpu_memory_fraction <= 1.0))
    return Error{ErrorCode::invalid_argument, "--gpu-memory-fraction is " + std::to_string(s.gpu_memory_fraction) + "; use a number over 0, up to 1",
                 "gpu-memory-fraction"};
  if (s.step_timeout_ms < 100)
    return Error{ErrorCode::invalid_argument, "--step-timeout-ms is " + std::to_string(s.step_timeout_ms) + "; use at least 100", "step-timeout-ms"};
  if (!s.ready_file.empty()) {
    const std::filesystem::path folder = std::filesystem::path(s.ready_file).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder))
      return Error{ErrorCode::not_found, "the ready file cannot be written: there is no folder " + folder.string(), "ready-file"};
  }
  if (s.dense != "bf16" && s.dense != "fp8") return Error{ErrorCode::invalid_argument, "--dense is '" + s.dense + "'; use bf16 or fp8", "dense"};
  // Where limits depend on the device, the larger one; set_up_engine checks again when it is known.
  return check_limits(with_engine_limits(s.limits, gpu::Device::cuda));
}

}  // namespace althing::actors
