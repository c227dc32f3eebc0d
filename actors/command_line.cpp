// See the header. The one place besides settings.cpp that includes CLI11, which is slow to compile.
#include "actors/command_line.hpp"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/commands/account.hpp"
#include "actors/commands/chat.hpp"
#include "actors/commands/generate.hpp"
#include "actors/commands/inject.hpp"
#include "actors/commands/inspect.hpp"
#include "actors/commands/keys.hpp"
#include "actors/commands/manual.hpp"
#include "actors/commands/moe_sweep.hpp"
#include "actors/commands/replay.hpp"
#include "actors/commands/top.hpp"
#include "actors/commands/trace.hpp"
#include "actors/complain.hpp"
#include "actors/core_process.hpp"
#include "actors/exit_codes.hpp"
#include "actors/http_gateway.hpp"
#include "actors/logging.hpp"
#include "actors/number_option.hpp"
#include "actors/rank_process.hpp"
#include "actors/settings.hpp"
#include "actors/supervisor.hpp"
#include "protocol/curve/key.hpp"

namespace althing::actors {
namespace {

// "ID:NUMBER" of --logit-bias.
TokenBias bias_of(const std::string& word) {
  const std::size_t colon = word.find(':');
  const auto token = number_option_detail::number_in<TokenId>(word.substr(0, colon), any_count);
  const auto bias = number_option_detail::number_in<float>(colon == std::string::npos ? "" : word.substr(colon + 1), logit_bias_range);
  if (!token || !bias) throw CLI::ValidationError("--logit-bias is '" + word + "'; use a token id, a colon and " + logit_bias_range.text());
  return {*token, *bias};
}

// What changes logits, ends an answer early, and is told of each token.
void add_adjustment_options(CLI::App& app, protocol::wire::Sampling& sampling) {
  number_option(app, "--repetition-penalty", sampling.repetition_penalty, repetition_penalty_range,
                "over 1: tokens of prompt and answer become less likely (1: none)");
  number_option(app, "--presence-penalty", sampling.presence_penalty, penalty_range, "over 0: tokens of the answer become less likely");
  number_option(app, "--frequency-penalty", sampling.frequency_penalty, penalty_range, "likewise, the more the oftener they came");
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const std::vector<std::string>& words) {
           for (const std::string& word : words) sampling.logit_bias.push_back(bias_of(word));
         },
         "make this token more or less likely; may be given again")
      ->type_name("ID:-100..100")
      ->allow_extra_args(false);
  app.add_option("--stop", sampling.stop, "end the answer where this text stands; may be given again")->allow_extra_args(false);
  app.add_option_function<std::vector<std::string>>(
         "--stop-token",
         [&sampling](const std::vector<std::string>& words) {
           for (const std::string& word : words) {
             const auto token = number_option_detail::number_in<TokenId>(word, any_count);
             if (!token) throw CLI::ValidationError("--stop-token is '" + word + "'; use a token id");
             sampling.stop_tokens.push_back(*token);
           }
         },
         "end the answer behind this token; may be given again")
      ->type_name("ID")
      ->allow_extra_args(false);
  number_option(app, "--logprobs", sampling.logprobs, WholeRange{0, logprobs_top_max},
                "with --json: how likely each token was, and so many most likely ones");
}

void add_connect_options(CLI::App& app, ConnectSettings& server, const char* endpoint = "--endpoint") {
  app.add_option(endpoint, server.endpoint, "the server")->capture_default_str()->envname("ALTHING_ENDPOINT");
  app.add_option("--server-key", server.server_key, "the server's .pub file, or its public key: where it wants keys")->envname("ALTHING_SERVER_KEY");
  app.add_option("--key", server.key, "your own secret key file (althing keys new)")->envname("ALTHING_KEY");
}

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
  add_adjustment_options(app, ask.sampling);
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
  add_connect_options(app, chat.server);
  app.add_option("--once,question", chat.once, "ask this and exit");
  app.add_option("--tenant", chat.tenant, "whose request it is, for the server's accounting and its fair share; a label, no more");
  app.add_option("--priority", chat.priority, "among the tenant's requests, -4 to 4: the higher goes first")
      ->check(CLI::Range(priority_min, priority_max));
  add_ask_options(app, chat.ask);
  add_trace_file_option(app, chat.ask);
  return &app;
}

CLI::App* add_verify_command(CLI::App& parent, std::string& directory, bool& json) {
  CLI::App& app = *parent.add_subcommand("verify", "check a model folder: files, tensors, shapes, bytes");
  app.add_option("model", directory, "model folder")->required();
  app.add_flag("--json", json, "one JSON object");
  return &app;
}

// `code`: what the subcommand returned that was parsed, and ran.
void add_keys_command(CLI::App& parent, KeysSettings& keys, std::optional<int>& code) {
  CLI::App& app = *parent.add_subcommand("keys", "make keys for servers and clients, and say who may come in");
  app.require_subcommand(1);
  const auto command = [&](const char* name, const char* help, int (*run)(const KeysSettings&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->callback([&keys, &code, run] { code = run(keys); });
    return sub;
  };
  CLI::App* make = command("new", "make a key: NAME.key, which is secret, and NAME.pub", run_keys_new);
  make->add_option("--file,name", keys.file, "NAME, with or without a folder")->required();
  make->add_option("--role", keys.role, "client (default), gateway, admin or server");
  command("show", "print the public key of a .key or .pub file", run_keys_show)->add_option("file", keys.file, "the file")->required();
  command("list", "print the keys of an allow-list, or of the files in a folder", run_keys_list)
      ->add_option("file", keys.file, "list or folder")
      ->required();
  CLI::App* allow = command("allow", "let a key in: puts it into an allow-list", run_keys_allow);
  allow->add_option("key", keys.key, "its .pub file, or the public key itself")->required();
  allow->add_option("--list", keys.list, "the allow-list; made when it is not there")->required();
  allow->add_option("--role", keys.role, "client, gateway or admin; else what the .pub file says");
  allow->add_option("--name", keys.name, "its name in the list; else what the .pub file says");
  allow->add_option("--tenant", keys.tenant, "whose requests its are, for accounting");
  CLI::App* revoke = command("revoke", "let a key in no more: takes it out of an allow-list", run_keys_revoke);
  revoke->add_option("key", keys.key, "its name in the list, its .pub file, or the public key itself")->required();
  revoke->add_option("--list", keys.list, "the allow-list")->required();
}

void add_manual_command(CLI::App& program, std::optional<int>& code) {
  const auto manual = std::make_shared<ManualSettings>();
  CLI::App& app = *program.add_subcommand("manual", "print a manual page as roff, for man(1)");
  app.add_option("command", manual->command, "a command's page; without it, that of the program");
  app.add_option("--folder", manual->folder, "write all pages into this folder instead");
  app.callback([&program, manual, &code] { code = run_manual(program, *manual); });
}

CLI::App* add_generate_command(CLI::App& parent, GenerateSettings& generate) {
  generate.engine.log.level = "warning";
  CLI::App& app = *parent.add_subcommand("generate", "answer one prompt without a server");
  app.add_option("model", generate.engine.model, "model folder")->required();
  app.add_option("prompt", generate.prompt, "the question, or with --raw the text to continue")->required();
  app.add_flag("--raw", generate.raw, "no chat format: continue the prompt (control tokens by name)");
  add_chat_options(app, generate.engine);
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
  add_connect_options(app, trace.server);
  app.add_option("--model", trace.here.engine.model, "no server: this model folder, in this process");
  app.add_flag("--raw", trace.here.raw, "with --model: no chat format, continue the prompt (control tokens by name)");
  number_option(app, "--top-m", trace.top_m, WholeRange{1, Limits{}.trace_top_m_max},
                "so many of the router's largest logits of each token and layer");
  app.add_option("--heat-map", trace.heat_map, "draw layer x expert and token x layer into this SVG file");
  add_chat_options(app, trace.here.engine);
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
  doctor.log.level = "error";
  app.add_option("--model", doctor.model, "model folder: also compute one prompt twice, alone and in company, and compare bits")->configurable(false);
  add_chat_options(app, doctor);
  add_engine_options(app, doctor);
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

void add_replay_command(CLI::App& program, std::optional<int>& code) {
  const auto replay = std::make_shared<ReplaySettings>();
  CLI::App& app = *program.add_subcommand("replay", "live a server's journal once more, and compare what the scheduler decides with what it decided");
  app.add_option("journals", replay->journals, "what --journal wrote: the files of one journal, oldest first")->required();
  number_option(app, "--until", replay->until, any_count, "stop behind this line of the last file; 0: at its end");
  app.add_option("--show", replay->show, "print what the event in this line of the last file led to; may be given again")->allow_extra_args(false);
  app.add_flag("--check", replay->check, "check the scheduler's invariants after every event");
  app.callback([replay, &code] { code = run_replay(*replay); });
}

CLI::App* add_gateway_command(CLI::App& parent, HttpGatewaySettings& gateway) {
  CLI::App& app = *parent.add_subcommand("gateway", "serve the OpenAI-compatible HTTP API in front of a running server");
  app.add_option("model,--model", gateway.engine.model, "the server's model folder, for its tokenizer")->envname("ALTHING_MODEL");
  add_chat_options(app, gateway.engine);
  add_connect_options(app, gateway.server, "--connect");
  app.add_option("--listen", gateway.listen, "HOST:PORT; port 0 picks a free one; not loopback only with --api-keys")->capture_default_str();
  app.add_option("--api-keys", gateway.api_keys,
                 "file of who may use it, NAME SHA256 a line (0600; see docs/http.md); empty: everybody on this machine");
  app.add_option("--metrics", gateway.metrics, "HOST:PORT of its own metrics; loopback only; empty: at its own /metrics where it is loopback itself");
  number_option(app, "--connections", gateway.connections_max, positive, "most connections at a time");
  number_option(app, "--responses", gateway.responses_max, any_count, "most responses of the Responses API that are kept; 0: none");
  number_option(app, "--responses-mib", gateway.responses_mib, positive, "most memory for them");
  number_option(app, "--keep-alive-ms", gateway.keep_alive_ms, any_count,
                "a stream without a word for this long, as in a long prefill, sends a comment, so that proxies do not cut it; 0: never");
  number_option(app, "--drain-seconds", gateway.drain_seconds, any_count, "after SIGTERM, what is open gets this long");
  app.add_option("--ready-file", gateway.ready_file, "write where it listens as JSON to this file");
  add_log_options(app, gateway.engine.log);
  return &app;
}

int gateway(const HttpGatewaySettings& settings) {
  const auto level = log_level_of(settings.engine.log.level);
  if (!level) return complain(level.error());
  start_logging(*level, settings.engine.log.json, "gateway");
  return run_http_gateway(settings);
}

int serve(const ServeSettings& settings, const std::vector<std::string>& arguments) {
  if (auto status = check(settings); !status) return complain(status.error());
  const std::string process = settings.child.empty()     ? "supervisor"
                              : settings.child == "rank" ? "rank" + std::to_string(settings.child_rank)
                                                         : settings.child;
  start_logging(*log_level_of(settings.log.level), settings.log.json, process);
  if (settings.child == "core") return run_core_process(settings);
  if (settings.child == "gateway") return run_http_child(settings);
  if (settings.child == "rank") return run_rank_process(settings);
  if (settings.in_process) return run_in_process(settings);
  return Supervisor(settings, arguments).run();
}

int print_settings(const CLI::App& command, const ServeSettings& settings) {
  // Somebody who wrote the secret itself where its file's name belongs hears so, and it is not printed.
  if (protocol::curve::looks_like_key(settings.curve_key))
    if (auto status = check(settings); !status) return complain(status.error());
  std::fputs(command.config_to_str(true, true).c_str(), stdout);
  return exit_ok;
}

int trace(TraceSettings& settings) {
  // Settings of the engine mean nothing to a server that runs.
  if (settings.here.engine.model.empty()) return run_trace(settings);
  if (auto status = check(settings.here.engine); !status) return complain(status.error());
  start_logging(*log_level_of(settings.here.engine.log.level), settings.here.engine.log.json, "trace");
  return run_trace(settings);
}

int doctor(const ServeSettings& settings, bool json) {
  if (!settings.model.empty()) {
    if (auto status = check(settings); !status) return complain(status.error());
    start_logging(*log_level_of(settings.log.level), settings.log.json, "doctor");
  }
  return run_doctor(settings, json);
}

int generate(GenerateSettings& settings) {
  if (auto status = check(settings.engine); !status) return complain(status.error());
  start_logging(*log_level_of(settings.engine.log.level), settings.engine.log.json, "generate");
  return run_generate(settings);
}

// What a command prints is what it is for: where that did not arrive whole, as on a full disk, the command has failed. A reader that has had enough
// (`| head -1`) is no failure.
int delivered(int code) {
  const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  const bool left = ::poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
  if (whole || left || code != exit_ok) return code;
  return complain(Error{ErrorCode::io, "standard output took only a part of what was printed; is its disk full? Make room and run this again", ""});
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
  CLI::App* verify_command = add_verify_command(app, verify_directory, verify_json);
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
  HttpGatewaySettings gateway_settings;
  CLI::App* gateway_command = add_gateway_command(app, gateway_settings);
  TopSettings top_settings;
  CLI::App* top_command = add_top_command(app, top_settings);
  std::optional<int> code;  // of a command that has run by then
  KeysSettings keys_settings;
  add_keys_command(app, keys_settings, code);
  add_replay_command(app, code);
  add_manual_command(app, code);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes above 100 say which kind of mistake it was; for scripts all of them are one class.
    return app.exit(error) == 0 ? delivered(exit_ok) : exit_usage;
  }
  if (serve_command->parsed() && !serve_settings.config.empty())
    if (auto status = apply_settings_file(*serve_command, serve_settings.config); !status) return complain(status.error());
  if (doctor_command->parsed() && !doctor_settings.config.empty())
    if (auto status = apply_settings_file(*doctor_command, doctor_settings.config, serve_command); !status) return complain(status.error());
  if (serve_command->parsed() && print_config) return delivered(print_settings(*serve_command, serve_settings));
  if (serve_command->parsed()) return serve(serve_settings, std::vector<std::string>(argv, argv + argc));
  if (gateway_command->parsed()) return gateway(gateway_settings);
  if (chat_command->parsed()) return delivered(run_chat(chat_settings));
  if (generate_command->parsed()) return delivered(generate(generate_settings));
  if (trace_command->parsed()) return delivered(trace(trace_settings));
  if (inject_command->parsed()) return run_inject(inject_settings);
  if (sweep_command->parsed()) return delivered(run_moe_sweep(sweep_settings));
  if (table_command->parsed()) return delivered(run_load_table(table_settings));
  if (account_command->parsed()) return delivered(run_account(account_settings));
  if (top_command->parsed()) return delivered(run_top(top_settings));
  if (code) return delivered(*code);
  if (verify_command->parsed()) return delivered(run_verify(verify_directory, verify_json));
  return delivered(doctor(doctor_settings, doctor_json));
}

}  // namespace althing::actors
