// See the header. The one place besides settings.cpp that includes CLI11, which is slow to compile.
#include "actors/command_line.hpp"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "actors/commands/chat.hpp"
#include "actors/commands/generate.hpp"
#include "actors/commands/inspect.hpp"
#include "actors/complain.hpp"
#include "actors/core_process.hpp"
#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"
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
  app.add_option("--temperature", ask.sampling.temperature, "0 is greedy (default)");
  app.add_option("--top-p", ask.sampling.top_p, "keep the most likely tokens up to this probability");
  app.add_option("--top-k", ask.sampling.top_k, "keep this many most likely tokens; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--min-p", ask.sampling.min_p, "keep tokens at least this likely relative to the best");
  app.add_option("--seed", ask.sampling.seed, "the same seed gives the same text")->check(CLI::NonNegativeNumber);
  app.add_option("--max-tokens", ask.sampling.completion_tokens_max, "most completion tokens")->check(CLI::NonNegativeNumber);
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

int generate(GenerateSettings& settings) {
  if (auto status = check(settings.engine); !status) return complain(status.error());
  start_logging(*log_level_of(settings.engine.log.level), settings.engine.log.json, "generate");
  return run_generate(settings);
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"Althing serves Mixture-of-Experts language models."};
  app.set_version_flag("--version", "althing " ALTHING_VERSION);
  app.require_subcommand(1);

  ServeSettings serve_settings;
  bool print_config = false;
  CLI::App* serve_command = app.add_subcommand("serve", "serve a model to clients over ZeroMQ");
  add_serve_options(*serve_command, serve_settings);
  serve_command->add_flag("--print-config", print_config, "print the settings as TOML and exit")->configurable(false);

  ChatSettings chat_settings;
  CLI::App* chat_command = app.add_subcommand("chat", "talk to a running server");
  chat_command->add_option("--endpoint", chat_settings.endpoint, "the server")->capture_default_str()->envname("ALTHING_ENDPOINT");
  chat_command->add_option("--once,question", chat_settings.once, "ask this and exit");
  add_ask_options(*chat_command, chat_settings.ask);

  GenerateSettings generate_settings;
  generate_settings.engine.log.level = "warning";
  CLI::App* generate_command = app.add_subcommand("generate", "answer one prompt without a server");
  generate_command->add_option("model", generate_settings.engine.model, "model folder")->required();
  generate_command->add_option("prompt", generate_settings.prompt, "the question, or with --raw the text to continue")->required();
  generate_command->add_flag("--raw", generate_settings.raw, "no chat format: continue the prompt (control tokens by name)");
  add_engine_options(*generate_command, generate_settings.engine);
  add_ask_options(*generate_command, generate_settings.ask);
  add_log_options(*generate_command, generate_settings.engine.log);

  std::string verify_directory;
  bool verify_json = false, doctor_json = false;
  CLI::App* verify_command = app.add_subcommand("verify", "check a model folder: files, tensors, shapes, bytes");
  verify_command->add_option("model", verify_directory, "model folder")->required();
  verify_command->add_flag("--json", verify_json, "one JSON object");
  CLI::App* doctor_command = app.add_subcommand("doctor", "check this machine");
  doctor_command->add_flag("--json", doctor_json, "JSON lines");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes above 100 say which kind of mistake it was; for scripts all of them are one class.
    return app.exit(error) == 0 ? exit_ok : exit_usage;
  }
  if (serve_command->parsed() && !serve_settings.config.empty())
    if (auto status = apply_settings_file(*serve_command, serve_settings.config); !status) return complain(status.error());
  if (serve_command->parsed() && print_config) {
    std::fputs(serve_command->config_to_str(true, true).c_str(), stdout);
    return exit_ok;
  }
  if (serve_command->parsed()) return serve(serve_settings, std::vector<std::string>(argv, argv + argc));
  if (chat_command->parsed()) return run_chat(chat_settings);
  if (generate_command->parsed()) return generate(generate_settings);
  if (verify_command->parsed()) return run_verify(verify_directory, verify_json);
  return run_doctor(doctor_json);
}

}  // namespace althing::actors
