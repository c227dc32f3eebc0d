// See the header. The one place besides settings.cpp that includes CLI11, which is slow to compile.
#include "actors/command_line.hpp"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "actors/commands/account.hpp"
#include "actors/commands/chat.hpp"
#include "actors/commands/generate.hpp"
#include "actors/commands/inject.hpp"
#include "actors/commands/inspect.hpp"
#include "actors/commands/moe_sweep.hpp"
#include "actors/commands/top.hpp"
#include "actors/commands/trace.hpp"
#include "actors/complain.hpp"
#include "actors/core_process.hpp"
#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"
#include "actors/number_option.hpp"
#include "actors/rank_process.hpp"
#include "actors/settings.hpp"
#include "actors/supervisor.hpp"

namespace althing::actors {
namespace {

void add_ask_options(CLI::App& app, AskSettings& ask) {
  app.add_option("--reasoning", ask.reasoning, "low, medium or high")->capture_default_str();
  app.add_option("--instructions", ask.instructions, "what the developer message says");
  app.add_option("--tools", ask.tools_file, "JSON file with a list of functions: [{\"name\", \"description\", \"parameters\"}]");
  app.add_option("--colour,--color", ask.colour, "auto, always or never")->capture_default_str();
  app.add_flag("--json", ask.json, "print events as JSON lines");
  // As the server would refuse them, but before there is one, and by the names that they have here.
  number_option(app, "--temperature", ask.sampling.temperature, RealRange{0, 2}, "0 is greedy (default)");
  number_option(app, "--top-p", ask.sampling.top_p, RealRange{0, 1, true}, "keep the most likely tokens up to this probability");
  number_option(app, "--top-k", ask.sampling.top_k, any_count, "keep this many most likely tokens; 0: all");
  number_option(app, "--min-p", ask.sampling.min_p, RealRange{0, 1}, "keep tokens at least this likely relative to the best");
  number_option(app, "--seed", ask.sampling.seed, any_seed, "the same seed gives the same text");
  number_option(app, "--max-tokens", ask.sampling.completion_tokens_max, positive, "most completion tokens");
  number_option(app, "-n,--choices", ask.sampling.n, WholeRange{1, Limits{}.choices_max}, "so many answers to one question");
}

void add_trace_file_option(CLI::App& app, AskSettings& ask) {
  app.add_option("--trace-routing", ask.trace_file, "also write where the router sent each token, layer by layer, to this file, as JSON lines");
}

CLI::App* add_inject_command(CLI::App& parent, InjectSettings& inject) {
  CLI::App& app = *parent.add_subcommand("inject", "break a running server on purpose (it must allow faults)");
  app.add_option("kind", inject.kind, "kill, stop, slow, hang-collective, drop, delay, corrupt-kv, nan, oom; or status, which breaks nothing")
      ->required();
  number_option(app, "--rank", inject.rank, WholeRange{0, ranks_range.max - 1}, "this rank; for drop and delay: the plan on its way to it")
      ->default_str("");
  app.add_flag("--core", inject.order.core, "the core: kill, stop; for drop and delay: the result on its way to it");
  number_option(app, "--after", inject.order.after, any_count, "let so many of its steps go by first");
  number_option(app, "--collective", inject.order.collective, any_count,
                "kill, stop, hang-collective: on entering this collective of the step, 1 …; 0: before the step");
  number_option(app, "--ms", inject.order.ms, any_count, "slow, delay: milliseconds");
  number_option(app, "--steps", inject.order.steps, any_count, "slow: so many steps");
  app.add_option("--ready-file", inject.ready_file, "the server's ready file, which names its control socket");
  app.add_option("--control", inject.control, "the control socket itself");
  return &app;
}

CLI::App* add_top_command(CLI::App& program, TopSettings& top) {
  CLI::App& app = *program.add_subcommand("top", "watch a running server: load, latency, ranks, experts, failures");
  app.add_option("--address", top.address, "HOST:PORT of the server's --metrics")->capture_default_str()->envname("ALTHING_METRICS");
  app.add_flag("--once", top.once, "print once and exit");
  app.add_flag("--json", top.json, "JSON lines: what the server says, and nothing left out");
  app.add_option("--colour,--color", top.colour, "auto, always or never")->capture_default_str();
  return &app;
}

void add_moe_batch_options(CLI::App& app, MoeBatchSettings& batch) {
  app.add_option("model", batch.model, "model folder")->required();
  app.add_option("--prompts", batch.prompts, "text file with one prompt a line; else a few of our own");
  app.add_option("--batches", batch.batches, "rows of a step")->delimiter(',')->capture_default_str()->check(CLI::Range(1, 256));
  number_option(app, "--threads", batch.threads, threads_range, "threads");
  number_option(app, "--seed", batch.seed, any_seed, "of the draws that say how rows go on");
  app.add_flag("--json", batch.json, "JSON lines");
}

CLI::App* add_chat_command(CLI::App& parent, ChatSettings& chat) {
  CLI::App& app = *parent.add_subcommand("chat", "talk to a running server");
  app.add_option("--endpoint", chat.endpoint, "the server")->capture_default_str()->envname("ALTHING_ENDPOINT");
  app.add_option("--once,question", chat.once, "ask this and exit");
  app.add_option("--tenant", chat.tenant, "whose request it is, for the server's accounting; a label, no more");
  add_ask_options(app, chat.ask);
  add_trace_file_option(app, chat.ask);
  return &app;
}

CLI::App* add_generate_command(CLI::App& parent, GenerateSettings& generate) {
  generate.engine.log.level = "warning";
  CLI::App& app = *parent.add_subcommand("generate", "answer one prompt without a server");
  app.add_option("model", generate.engine.model, "model folder")->required();
  app.add_option("prompt", generate.prompt, "the question, or with --raw the text to continue")->required();
  app.add_flag("--raw", generate.raw, "no chat format: continue the prompt (control tokens by name)");
  add_engine_options(app, generate.engine);
  add_ask_options(app, generate.ask);
  add_trace_file_option(app, generate.ask);
  add_log_options(app, generate.engine.log);
  return &app;
}

CLI::App* add_trace_command(CLI::App& parent, TraceSettings& trace) {
  trace.here.engine.log.level = "warning";
  CLI::App& app = *parent.add_subcommand("trace", "show where the router sends each token of one request, layer by layer");
  app.add_option("prompt", trace.here.prompt, "the question, or with --raw the text to continue")->required();
  app.add_option("--endpoint", trace.endpoint, "the server")->capture_default_str()->envname("ALTHING_ENDPOINT");
  app.add_option("--model", trace.here.engine.model, "no server: this model folder, in this process");
  app.add_flag("--raw", trace.here.raw, "with --model: no chat format, continue the prompt (control tokens by name)");
  number_option(app, "--top-m", trace.top_m, WholeRange{1, Limits{}.trace_top_m_max},
                "so many of the router's largest logits of each token and layer");
  app.add_option("--heat-map", trace.heat_map, "draw layer x expert and token x layer into this SVG file");
  add_engine_options(app, trace.here.engine);
  add_ask_options(app, trace.here.ask);
  add_log_options(app, trace.here.engine.log);
  return &app;
}

CLI::App* add_sweep_command(CLI::App& parent, MoeSweepSettings& sweep) {
  CLI::App& app = *parent.add_subcommand("moe-sweep", "measure what limits on experts cost and give, against no limits");
  add_moe_batch_options(app, sweep.batch);
  number_option(app, "--steps", sweep.batch.steps, bench_steps, "decode steps of each setting");
  app.add_option("--policies", sweep.policies, "what becomes of tokens that find an expert full: reroute, drop, pad")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--factors", sweep.factors, "capacity factors")->delimiter(',')->capture_default_str();
  app.add_option("--temperatures", sweep.temperatures, "router temperatures")->delimiter(',')->capture_default_str();
  app.add_option("--dynamic-k", sweep.dynamic_k, "gap:LOGITS or mass:SHARE, without a limit on experts")->delimiter(',');
  number_option(app, "--capacity-multiple", sweep.capacity_multiple, capacity_multiple_range, "capacities are rounded up to a multiple of this");
  return &app;
}

CLI::App* add_load_table_command(CLI::App& parent, MoeBatchSettings& batch) {
  CLI::App& app = *parent.add_subcommand("load-table", "measure how evenly batches load the experts");
  add_moe_batch_options(app, batch);
  number_option(app, "--runs", batch.steps, bench_steps, "steps that are counted");
  return &app;
}

CLI::App* add_doctor_command(CLI::App& parent, ServeSettings& doctor, bool& json) {
  CLI::App& app = *parent.add_subcommand("doctor", "check this machine");
  app.add_flag("--json", json, "JSON lines");
  add_address_options(app, doctor);
  app.add_option("--config", doctor.config, "settings file of a server: look at the addresses that it names");
  return &app;
}

CLI::App* add_account_command(CLI::App& parent, AccountSettings& account) {
  CLI::App& app = *parent.add_subcommand("account", "count a model's parameters and bytes: all, active, stored, read for one token");
  app.add_option("model", account.model, "model folder, dummy:20b or dummy:120b")->required();
  app.add_option("--dense", account.dense, "how attention and head are kept while serving: bf16 (as stored) or fp8")->capture_default_str();
  number_option(app, "--context", account.context, any_count, "tokens before the one that is counted");
  number_option(app, "--bandwidth-gbps", account.bandwidth_gbps, bandwidth_gbps_range, "memory's 10^9 bytes a second, for the floor");
  app.add_flag("--json", account.json, "one JSON object");
  return &app;
}

int serve(const ServeSettings& settings, const std::vector<std::string>& arguments) {
  if (auto status = check(settings); !status) return complain(status.error());
  const std::string process = settings.child.empty()     ? "supervisor"
                              : settings.child == "rank" ? "rank" + std::to_string(settings.child_rank)
                                                         : settings.child;
  start_logging(*log_level_of(settings.log.level), settings.log.json, process);
  if (settings.child == "core") return run_core_process(settings);
  if (settings.child == "rank") return run_rank_process(settings);
  if (settings.in_process) return run_in_process(settings);
  return Supervisor(settings, arguments).run();
}

int trace(TraceSettings& settings) {
  // Settings of the engine mean nothing to a server that runs.
  if (settings.here.engine.model.empty()) return run_trace(settings);
  if (auto status = check(settings.here.engine); !status) return complain(status.error());
  start_logging(*log_level_of(settings.here.engine.log.level), settings.here.engine.log.json, "trace");
  return run_trace(settings);
}

int generate(GenerateSettings& settings) {
  if (auto status = check(settings.engine); !status) return complain(status.error());
  start_logging(*log_level_of(settings.engine.log.level), settings.engine.log.json, "generate");
  return run_generate(settings);
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a write that fails, not our end
  CLI::App app{"Althing serves Mixture-of-Experts language models."};
  app.set_version_flag("--version", "althing " ALTHING_VERSION);
  app.require_subcommand(1);
  app.failure_message(
      [](const CLI::App*, const CLI::Error& error) { return std::string("althing: ") + error.what() + "\nRun with --help for more information.\n"; });

  ServeSettings serve_settings;
  bool print_config = false;
  CLI::App* serve_command = app.add_subcommand("serve", "serve a model to clients over ZeroMQ");
  add_serve_options(*serve_command, serve_settings);
  serve_command->add_flag("--print-config", print_config, "print the settings as TOML and exit")->configurable(false);

  ChatSettings chat_settings;
  CLI::App* chat_command = add_chat_command(app, chat_settings);

  GenerateSettings generate_settings;
  CLI::App* generate_command = add_generate_command(app, generate_settings);

  std::string verify_directory;
  bool verify_json = false, doctor_json = false;
  CLI::App* verify_command = app.add_subcommand("verify", "check a model folder: files, tensors, shapes, bytes");
  verify_command->add_option("model", verify_directory, "model folder")->required();
  verify_command->add_flag("--json", verify_json, "one JSON object");
  ServeSettings doctor_settings;
  CLI::App* doctor_command = add_doctor_command(app, doctor_settings, doctor_json);

  InjectSettings inject_settings;
  CLI::App* inject_command = add_inject_command(app, inject_settings);

  MoeSweepSettings sweep_settings;
  CLI::App* sweep_command = add_sweep_command(app, sweep_settings);
  MoeBatchSettings table_settings{.batches = {1, 8, 32, 128}, .steps = 100};
  CLI::App* table_command = add_load_table_command(app, table_settings);

  AccountSettings account_settings;
  CLI::App* account_command = add_account_command(app, account_settings);
  TraceSettings trace_settings;
  CLI::App* trace_command = add_trace_command(app, trace_settings);
  TopSettings top_settings;
  CLI::App* top_command = add_top_command(app, top_settings);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes above 100 say which kind of mistake it was; for scripts all of them are one class.
    return app.exit(error) == 0 ? exit_ok : exit_usage;
  }
  if (serve_command->parsed() && !serve_settings.config.empty())
    if (auto status = apply_settings_file(*serve_command, serve_settings.config); !status) return complain(status.error());
  if (doctor_command->parsed() && !doctor_settings.config.empty())
    if (auto status = apply_settings_file(*doctor_command, doctor_settings.config, serve_command); !status) return complain(status.error());
  if (serve_command->parsed() && print_config) {
    std::fputs(serve_command->config_to_str(true, true).c_str(), stdout);
    return exit_ok;
  }
  if (serve_command->parsed()) return serve(serve_settings, std::vector<std::string>(argv, argv + argc));
  if (chat_command->parsed()) return run_chat(chat_settings);
  if (generate_command->parsed()) return generate(generate_settings);
  if (trace_command->parsed()) return trace(trace_settings);
  if (inject_command->parsed()) return run_inject(inject_settings);
  if (sweep_command->parsed()) return run_moe_sweep(sweep_settings);
  if (table_command->parsed()) return run_load_table(table_settings);
  if (account_command->parsed()) return run_account(account_settings);
  if (top_command->parsed()) return run_top(top_settings);
  if (verify_command->parsed()) return run_verify(verify_directory, verify_json);
  return run_doctor(doctor_settings.bind, doctor_settings.metrics, doctor_json);
}

}  // namespace althing::actors
