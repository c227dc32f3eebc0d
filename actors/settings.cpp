// The flags of `serve`: see the header. Each may also come from ALTHING_<NAME> or from the file given with --config.
#include "actors/settings.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

#include "actors/cost_file.hpp"
#include "actors/device_choice.hpp"
#include "actors/door_keys.hpp"
#include "actors/expert_control_text.hpp"
#include "actors/http_address.hpp"
#include "actors/number_option.hpp"
#include "actors/serving_addresses.hpp"

namespace althing::actors {
namespace {

std::string environment_name(const std::string& flag) {
  std::string name = "ALTHING_";
  for (const char c : flag) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

constexpr std::uint32_t replicas_max = 4096;

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

template <class T>
CLI::Option* option(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  return app.add_option("--" + flag, value, help)
      ->capture_default_str()
      ->envname(environment_name(flag))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

template <class T, class Range>
void number(CLI::App& app, const std::string& flag, T& value, const Range& range, const std::string& help) {
  number_option(app, "--" + flag, value, range, help)->envname(environment_name(flag));
}

template <class T, class Range>
Status in_range(const char* flag, const T& value, const Range& range) {
  if (range.holds(value)) return Ok{};
  return Error{ErrorCode::invalid_argument, std::string("--") + flag + " is '" + std::to_string(value) + "'; use " + range.text(), flag};
}

// The ranges that a caller who fills the struct himself could break; the command line has refused them already.
Status check_numbers(const ServeSettings& s) {
  for (const auto& status :
       {in_range("ranks", s.ranks, ranks_range), in_range("dp", s.dp, ranks_range), in_range("threads", s.threads, threads_range),
        in_range("kv-mib", s.kv_mib, kv_mib_range), in_range("kv-mirror-mib", s.kv_mirror_mib, kv_mib_range),
        in_range("gpu-memory-fraction", s.gpu_memory_fraction, gpu_memory_fraction_range),
        in_range("expert-series-max", s.expert_series_max, positive),
        in_range("expert-capacity-factor", s.expert_capacity_factor, capacity_factor_range),
        in_range("step-timeout-ms", s.step_timeout_ms, step_timeout_ms_range), in_range("spares", s.spares, spares_range),
        in_range("quarantine-seconds", s.quarantine_seconds, quarantine_seconds_range), in_range("tenants-max", s.tenants_max, tenants_max_range),
        in_range("token-log-mib", s.token_log_mib, token_log_mib_range)})
    if (!status) return status;
  return Ok{};
}

Status check_http(const ServeSettings& s) {
  const auto refuse = [](const char* flag, const char* why) {
    return Error{ErrorCode::invalid_argument, std::string("--") + flag + " " + why, flag};
  };
  if (s.http.empty()) {
    if (!s.api_keys.empty()) return refuse("api-keys", "is for the HTTP API, and there is none; add --http 127.0.0.1:8080");
    if (!s.http_metrics.empty()) return refuse("http-metrics", "is for the HTTP API, and there is none; add --http 127.0.0.1:8080");
    return Ok{};
  }
  if (s.in_process) return refuse("http", "is a process of its own, and --in-process has one; leave one of the two out");
  if (auto address = http_address(s.http, !s.api_keys.empty(), "http"); !address) return address.error();
  if (s.http_metrics.empty()) return Ok{};
  if (auto address = monitoring::parse_loopback_address(s.http_metrics); !address)
    return Error{ErrorCode::invalid_argument, address.error().message + " (--http-metrics)", "http-metrics"};
  return Ok{};
}

Status check_curve(const ServeSettings& s) {
  if (!s.curve_key.empty() && s.curve_allow.empty())
    return Error{ErrorCode::invalid_argument,
                 "--curve-key is given, and no list of who may come in; make one with `althing keys allow` and add --curve-allow", "curve-allow"};
  if (s.curve_key.empty() && !s.curve_allow.empty())
    return Error{ErrorCode::invalid_argument,
                 "--curve-allow lists keys, and the server has none; make one with `althing keys new` and add --curve-key", "curve-key"};
  // Children have the key from their parent, and the list may be wrong for a moment while they start again.
  if (s.curve_key.empty() || !s.child.empty()) return Ok{};
  if (auto keys = make_door_keys(s); !keys) return keys.error();
  return Ok{};
}

}  // namespace

void add_log_options(CLI::App& app, LogSettings& settings) {
  option(app, "log-level", settings.level, "debug, info, warning, error or off");
  app.add_flag("--log-json", settings.json, "log as JSON lines")->envname("ALTHING_LOG_JSON");
}

void add_engine_options(CLI::App& app, ServeSettings& s) {
  number(app, "ranks", s.ranks, ranks_range, "ranks that share the model: dp x tp of them");
  number(app, "dp", s.dp, ranks_range, "groups of ranks; a sequence belongs to one, which alone holds its KV cache and computes its attention");
  number(app, "tp", s.tp, ranks_or_default_range, "parts that the attention heads are split into, inside a group; 0: ranks / dp");
  number(app, "ep", s.ep, ranks_or_default_range,
         "parts that the experts are split into; divides the ranks, and ranks / ep of them hold the same part; 0: ranks");
  option(app, "replicas", s.replicas, "experts with a copy on one more rank: how many, from the first, or ids=3,7 (an id twice: two more copies)");
  option(app, "device", s.device,
         "cpu, cuda (a GPU a rank), or auto: cuda where this build and this machine can. synthetic computes nothing and makes answers up: for load "
         "tests of everything around the model");
  number(app, "synthetic-step-us", s.synthetic_step_us, synthetic_step_us_range, "with --device synthetic: how long a step takes, in microseconds");
  number(app, "threads", s.threads, threads_range, "threads of each rank (CPU backend)");
  number(app, "kv-mib", s.kv_mib, kv_mib_range,
         "memory for the KV cache of each rank, in MiB; 0: 256 on CPU ranks, what --gpu-memory-fraction leaves on GPUs");
  number(app, "kv-mirror-mib", s.kv_mirror_mib, kv_mib_range,
         "memory of each CPU rank in which copies of full KV pages survive its death and preemption, in MiB, taken as needed; 0: none");
  option(app, "prefix-sharing", s.prefix_sharing,
         "requests that begin alike compute their beginning once: tenant (those of one tenant), all (of everybody), or off");
  number(app, "speculate", s.limits.speculation_tokens_max, WholeRange{0, 32},
         "most tokens that are guessed behind a sequence's next one, from what it said before, and verified in the same step; changes no token; 0: "
         "none, or 4 with a draft model");
  option(app, "draft-model", s.draft_model,
         "folder of a smaller model of the same vocabulary (or dummy:20b) that guesses, too; the first rank runs it, and no token changes");
  option(app, "dense", s.dense, "attention and head weights on GPUs: bf16 as in the checkpoint, or fp8 (rounded, scales of 128 x 128)");
  number(app, "gpu-memory-fraction", s.gpu_memory_fraction, gpu_memory_fraction_range,
         "how much of each GPU's memory to use, for weights, KV cache and scratch together");
  option(
      app, "capacity-policy", s.capacity_policy,
      "none: tokens get the experts they choose; else an expert takes so many tokens a step, and what is over is rerouted, dropped, or dropped with "
      "experts padded (reroute, drop, pad). What a request is answered then depends on what else is in its steps (CPU ranks)");
  number(app, "capacity-factor", s.capacity_factor, room_factor_range, "how many times its fair share of a step's tokens an expert takes");
  number(app, "capacity-multiple", s.capacity_multiple, capacity_multiple_range, "what an expert takes is rounded up to a multiple of this");
  app.add_flag("--adaptive-capacity", s.adaptive_capacity, "let each layer's capacity factor follow its load, between 1 and 1.5")
      ->envname("ALTHING_ADAPTIVE_CAPACITY");
  number(app, "router-temperature", s.router_temperature, router_temperature_range,
         "divides the router's logits: over 1 evens out the experts' weights");
  option(app, "dynamic-k", s.dynamic_k,
         "off; gap:LOGITS: a token does without experts whose logit is so far below its best; mass:SHARE: its first experts up to this probability");
}

void add_address_options(CLI::App& app, ServeSettings& s) {
  option(app, "bind", s.bind, "where clients connect; loopback only, unless --curve-key is given; port 0 picks a free one");
  option(app, "curve-key", s.curve_key, "the server's secret key file (althing keys new): clients are encrypted, and need keys of their own");
  option(app, "curve-allow", s.curve_allow, "the list of keys that may come in (althing keys allow); read again when it changes, and on SIGHUP");
  option(app, "metrics", s.metrics, "HOST:PORT of the live page, /metrics, /experts.json, /live and /ready; loopback only; empty for none");
}

void add_chat_options(CLI::App& app, ServeSettings& s) {
  option(app, "tokenizer", s.tokenizer, "folder with tokenizer.json or o200k_base.tiktoken, when it is not the model's");
  option(app, "chat-template", s.chat_template,
         "JSON file that says how conversations are written for a model that does not speak Harmony (docs/chat-templates.md)");
  option(app, "reasoning-history", s.reasoning_history,
         "which reasoning of a conversation the model sees again: drop_finished_turns (that of the turn in progress), upstream (openai-harmony's "
         "rule) or keep (all)");
}

void add_serve_options(CLI::App& app, ServeSettings& s) {
  app.add_option("model,--model", s.model, "folder with config.json, *.safetensors and tokenizer.json")->envname(environment_name("model"));
  option(app, "load", s.load, "dummy:20b or dummy:120b: the shapes of gpt-oss with made-up weights, to measure speed on GPUs without a checkpoint");
  add_chat_options(app, s);
  add_engine_options(app, s);
  add_address_options(app, s);
  option(app, "http", s.http, "HOST:PORT of the OpenAI-compatible API; port 0 picks a free one; empty for none; not loopback only with --api-keys");
  option(app, "api-keys", s.api_keys, "file of who may use it, NAME SHA256 a line (0600; see docs/http.md); empty: everybody on this machine");
  option(app, "http-metrics", s.http_metrics, "HOST:PORT of its own metrics; loopback only; empty: at its own /metrics where it is loopback itself");
  number(app, "http-connections", s.http_connections_max, positive, "most HTTP connections at a time");
  number(app, "http-responses", s.http_responses_max, any_count, "most responses of the Responses API that are kept; 0: none");
  number(app, "http-responses-mib", s.http_responses_mib, positive, "most memory for them");
  number(app, "http-keep-alive-ms", s.http_keep_alive_ms, any_count,
         "an HTTP stream without a word for this long, as in a long prefill, sends a comment, so that proxies do not cut it; 0: never");
  app.add_flag("--expert-metrics", s.expert_metrics, "serve /metrics/experts too: a series for each expert of each layer")
      ->envname("ALTHING_EXPERT_METRICS");
  number(app, "expert-series-max", s.expert_series_max, positive, "more series than this are not put on /metrics/experts");
  number(app, "expert-capacity-factor", s.expert_capacity_factor, capacity_factor_range,
         "an expert that takes more than so many times its layer's mean is saturated: what althing_expert_saturation_minutes forecasts");
  number(app, "context", s.limits.context_tokens_max, any_count, "most tokens of prompt and completion together; 0: what the model allows");
  number(app, "rows", s.limits.rows_max, any_count, "most sequences in one step; 0: 64 on CPU ranks, 256 on GPUs");
  number(app, "step-tokens", s.limits.step_tokens_max, any_count, "most tokens in one step; 0: 512 on CPU ranks, 8192 on GPUs");
  number(app, "prefill-chunk", s.limits.prefill_chunk_max, any_count,
         "most prompt tokens of one sequence in one step; 0: 256 on CPU ranks, 4096 on GPUs");
  number(app, "sequences", s.limits.sequences_max, positive, "most requests accepted and not finished");
  number(app, "tenant-sequences", s.limits.tenant_sequences_max, any_count, "of them, most of one tenant; 0: all");
  number(app, "priority-ms", s.limits.priority_ms, WholeRange{0, 3'600'000},
         "how many milliseconds of waiting a step of priority is worth, within a tenant");
  number(app, "traces-max", s.limits.traces_max, any_count,
         "most sequences whose routing is traced at a time, each choice of a request being one; 0: none");
  number(app, "completion", s.limits.completion_tokens_max, positive, "completion tokens of a request that does not say");
  number(app, "client-requests", s.limits.requests_per_session_max, positive, "most requests that one client has open at a time");
  number(app, "gateway-requests", s.limits.gateway_requests_max, any_count,
         "likewise of a client with the role gateway, and of any where --http serves and nobody has keys; 0: as many as --http-connections");
  number(app, "client-silence-ms", s.limits.session_silence_ms_max, positive, "a client that sends nothing for this long is gone");
  number(app, "credit-stall-ms", s.limits.credit_stall_ms_max, positive, "a stream without credit for this long is cancelled");
  number(app, "client-buffer-bytes", s.limits.session_buffer_bytes_max, positive, "unread bytes of one client before it is cancelled");
  number(app, "step-timeout-ms", s.step_timeout_ms, step_timeout_ms_range, "a step that takes longer makes its slow ranks start again");
  number(app, "drain-seconds", s.drain_seconds, any_count, "after SIGTERM, running requests get this long");
  number(app, "spares", s.spares, spares_range, "processes beside the ranks that have the model mapped and take the place of a rank that is lost");
  option(app, "on-rank-loss", s.on_rank_loss,
         "respawn: wait for a lost rank that no spare replaces; shrink: serve on with fewer ranks until it is back");
  number(app, "restarts-max", s.restarts_max, any_count,
         "deaths of one child within a minute; a rank that dies more often is left out for a while, if fewer can serve");
  number(app, "quarantine-seconds", s.quarantine_seconds, quarantine_seconds_range,
         "how long such a rank is left out; twice as long each time that it follows soon");
  number(app, "token-log-mib", s.token_log_mib, token_log_mib_range,
         "memory in which open streams survive the core's death, in MiB, taken as needed; 0: they do not");
  option(app, "journal", s.journal, "write every scheduler event to this file (0600, prompts included)");
  option(app, "usage-log", s.usage_log, "append what each finished request has used to this file (0600), one JSON object a line");
  option(app, "cost-file", s.cost_file, "TOML file of prices, lines such as gpu_hour_usd = 3.0 (the default); see docs/accounting.md");
  number(app, "tenants-max", s.tenants_max, tenants_max_range, "tenants whose totals are kept apart; those that come after them are summed as other");
  option(app, "ready-file", s.ready_file, "write endpoints as JSON to this file once serving");
  app.add_flag("--in-process", s.in_process, "ranks as threads of one process, without a supervisor (for tests)")->envname("ALTHING_IN_PROCESS");
  app.add_flag("--allow-faults", s.allow_faults, "let `althing inject` break things on purpose (tests; never in production)")
      ->envname("ALTHING_ALLOW_FAULTS");
  option(app, "control", s.control, "with --allow-faults: path of the socket that takes faults; empty: the server picks one");
  add_log_options(app, s.log);
  app.add_option("--config", s.config, "settings file: TOML lines of flag-name = value; flags and environment win over it")->configurable(false);
  // Whoever starts services says it so; nobody types it.
  app.add_option("--notify-socket", s.notify_socket)->group("")->configurable(false)->envname("NOTIFY_SOCKET");
  app.add_option("--child", s.child)->group("")->configurable(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--child-rank", s.child_rank)->group("")->configurable(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--child-place", s.child_place)->group("")->configurable(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Status apply_settings_file(CLI::App& app, const std::string& path, const CLI::App* all) {
  const auto setting = [](const CLI::Option* option) { return option != nullptr && option->get_configurable() && !option->get_group().empty(); };
  const auto refuse = [&](ErrorCode code, const std::string& why) -> Status { return Error{code, "settings file " + path + ": " + why, "config"}; };
  // The reader below would take a folder for an empty file, and the server would start without the keys that it holds.
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return refuse(ErrorCode::invalid_argument, "it is a folder; name the file in it");
  try {
    for (const CLI::ConfigItem& item : app.get_config_formatter()->from_file(path)) {
      if (item.name == "++" || item.name == "--") return refuse(ErrorCode::invalid_argument, "it has a [section]; write settings without one");
      CLI::Option* wanted = item.parents.empty() ? app.get_option_no_throw("--" + item.name) : nullptr;
      if (!setting(wanted) && all != nullptr && item.parents.empty() && setting(all->get_option_no_throw("--" + item.name))) continue;
      if (!setting(wanted)) return refuse(ErrorCode::invalid_argument, "there is no setting '" + item.fullname() + "'; see althing serve --help");
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

Result<Grid> grid_of(const ServeSettings& s) {
  const std::uint32_t dp = std::max(s.dp, 1u);
  // A dp that does not divide the ranks is refused by placement, which knows what would fit.
  Grid grid{s.ranks, s.dp, s.tp != 0 ? s.tp : std::max(s.ranks / dp, 1u), s.ep != 0 ? s.ep : s.ranks, {}};
  const auto wrong = [&] {
    return Error{ErrorCode::invalid_argument,
                 "--replicas is '" + s.replicas + "'; give a number of experts up to " + std::to_string(replicas_max) +
                     " (the first ones get a copy each), or ids= and their numbers, as in ids=3,7",
                 "replicas"};
  };
  if (!s.replicas.starts_with("ids=")) {
    const auto count = number_of(s.replicas);
    if (!count || *count > replicas_max) return wrong();
    for (std::uint32_t expert = 0; expert < *count; ++expert) grid.replicas.push_back(ExpertId{expert});
    return grid;
  }
  std::istringstream list(s.replicas.substr(4) + ',');
  for (std::string item; std::getline(list, item, ',');) {
    const auto expert = number_of(item);
    if (!expert || grid.replicas.size() == replicas_max) return wrong();
    grid.replicas.push_back(ExpertId{*expert});
  }
  return grid;
}

Result<protocol::harmony::AnalysisHistory> reasoning_history_of(const ServeSettings& settings) {
  if (const auto history = protocol::harmony::analysis_history_of(settings.reasoning_history)) return *history;
  return Error{ErrorCode::invalid_argument, "--reasoning-history is '" + settings.reasoning_history + "'; use drop_finished_turns, upstream or keep",
               "reasoning-history"};
}

Status check(const ServeSettings& s) {
  if (auto status = check_numbers(s); !status) return status;
  if (s.synthetic_step_us > 0 && s.device != "synthetic")
    return Error{ErrorCode::invalid_argument,
                 "--synthetic-step-us is for an engine that computes nothing, and --device is " + s.device + "; leave one of the two out",
                 "synthetic-step-us"};
  if (s.limits.speculation_tokens_max > 0 && s.device == "synthetic")
    return Error{ErrorCode::invalid_argument, "--speculate is for models, and a synthetic engine has none; leave one of the two out", "speculate"};
  if (!s.draft_model.empty() && s.device == "synthetic")
    return Error{ErrorCode::invalid_argument, "--draft-model guesses for a model, and a synthetic engine has none; leave one of the two out",
                 "draft-model"};
  if (const auto control = expert_control_of(s); control && !control->off() && s.device == "synthetic")
    return Error{ErrorCode::invalid_argument,
                 "--capacity-policy and what else controls experts is for models, and a synthetic engine has none; leave one of the two out",
                 "capacity-policy"};
  if (auto status = check_curve(s); !status) return status;
  if (auto addresses = serving_addresses(s.bind, s.metrics, !s.curve_key.empty()); !addresses) return addresses.error();
  if (auto status = check_http(s); !status) return status;
  if (auto grid = grid_of(s); !grid) return grid.error();
  if (auto level = log_level_of(s.log.level); !level) return level.error();
  if (s.model.empty() && s.load.empty())
    return Error{ErrorCode::invalid_argument, "no model is given; name its folder (or --load dummy:20b for one without weights)", "model"};
  if (!s.load.empty() && !s.load.starts_with(dummy_prefix))
    return Error{ErrorCode::invalid_argument, "--load is '" + s.load + "'; use dummy:20b or dummy:120b, or give a model's folder", "load"};
  if (s.allow_faults && s.in_process)
    return Error{ErrorCode::invalid_argument, "--allow-faults needs processes to break, and --in-process has one; leave one of the two out",
                 "allow-faults"};
  if (!s.control.empty() && !s.allow_faults)
    return Error{ErrorCode::invalid_argument, "--control is the socket that takes faults, and they are not allowed; add --allow-faults", "control"};
  if (s.spares > 0 && s.in_process)
    return Error{ErrorCode::invalid_argument, "--spares are processes, and --in-process has one; leave one of the two out", "spares"};
  if (s.on_rank_loss != "respawn" && s.on_rank_loss != "shrink")
    return Error{ErrorCode::invalid_argument, "--on-rank-loss is '" + s.on_rank_loss + "'; use respawn or shrink", "on-rank-loss"};
  if (auto history = reasoning_history_of(s); !history) return history.error();
  if (!s.ready_file.empty()) {
    const std::filesystem::path folder = std::filesystem::path(s.ready_file).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder))
      return Error{ErrorCode::not_found, "the ready file cannot be written: there is no folder " + folder.string(), "ready-file"};
  }
  // A rank that starts again later must not fail over it.
  if (auto prices = s.child.empty() ? read_prices(s.cost_file) : Prices{}; !prices) return prices.error();
  if (auto control = expert_control_of(s); !control) return control.error();
  if (s.prefix_sharing != "tenant" && s.prefix_sharing != "all" && s.prefix_sharing != "off")
    return Error{ErrorCode::invalid_argument, "--prefix-sharing is '" + s.prefix_sharing + "'; use tenant, all or off", "prefix-sharing"};
  if (s.dense != "bf16" && s.dense != "fp8") return Error{ErrorCode::invalid_argument, "--dense is '" + s.dense + "'; use bf16 or fp8", "dense"};
  // Where limits depend on the device, the larger one; set_up_engine checks again when it is known.
  return check_limits(with_engine_limits(s.limits, gpu::Device::cuda));
}

}  // namespace althing::actors
