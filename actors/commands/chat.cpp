// See the header. The conversation lives here, on the client's side; the server keeps nothing between turns.
#include "actors/commands/chat.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "actors/commands/stream_printer.hpp"
#include "actors/commands/trace_lines.hpp"
#include "actors/complain.hpp"
#include "actors/exit_codes.hpp"
#include "protocol/client/client.hpp"
#include "protocol/wire/codec.hpp"

namespace althing::actors {
namespace harmony = protocol::harmony;
namespace wire = protocol::wire;
namespace {

volatile sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

Result<std::vector<harmony::Function>> functions_of(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return Error{ErrorCode::not_found, "the tools file " + file + " is a folder", "tools"};
  std::ifstream input(file, std::ios::binary);
  if (!input) return Error{ErrorCode::not_found, "cannot read the tools file " + file, "tools"};
  const std::string text{std::istreambuf_iterator<char>(input), {}};
  // Read as the server would read it, so that what it refuses is refused here with the same words.
  const std::string frame = R"({"type":"submit","request_id":"tools","messages":[{"role":"user","content":"-"}],"tools":)" + text + "}";
  auto decoded = wire::decode_client(frame, wire::Encoding::json, Limits{});
  if (!decoded) return Error{decoded.error().code, "the tools file " + file + ": " + decoded.error().message, "tools"};
  return std::move(std::get<wire::Submit>(*decoded).tools);
}

// One turn: ask, print, wait for the end. The printed messages join the history.
Status turn(protocol::Client& client, wire::Submit& submit, StreamPrinter& printer, TraceFile& trace) {
  std::optional<Error> failure;
  bool over = false, stopped = false;
  auto id = client.submit(submit, [&](const protocol::StreamEvent& event) {
    if (const auto* delta = std::get_if<wire::Delta>(&event)) {
      printer.print(*delta);
      trace.take(*delta);
    }
    if (const auto* done = std::get_if<wire::Done>(&event)) {
      over = true;
      printer.done(*done);
    }
    if (const auto* error = std::get_if<Error>(&event)) {
      over = true;
      failure = *error;
    }
  });
  if (!id) return id.error();
  interrupted = 0;
  while (!over) {
    client.poll(std::chrono::milliseconds(100));
    if (interrupted != 0) {
      client.cancel(*id);
      interrupted = 0;
      stopped = true;
    }
  }
  for (harmony::Message& message : printer.take_messages()) submit.messages.push_back(std::move(message));
  if (failure && stopped && failure->code == ErrorCode::cancelled) printer.end();
  if (failure) return *failure;
  return Ok{};
}

// The function that the last message calls, "" for none.
std::string called_function(const wire::Submit& submit) {
  if (submit.messages.empty()) return "";
  const auto& recipient = submit.messages.back().recipient;
  return submit.messages.back().role == harmony::Role::assistant && recipient && recipient->starts_with("functions.") ? *recipient : "";
}

bool read_line(const char* prompt, std::string& line) {
  if (::isatty(STDIN_FILENO) == 1) {
    std::fputs(prompt, stdout);
    std::fflush(stdout);
  }
  return static_cast<bool>(std::getline(std::cin, line));
}

int converse(protocol::Client& client, wire::Submit& submit, StreamPrinter& printer, TraceFile& trace) {
  const std::vector<harmony::Message> beginning = submit.messages;
  std::fprintf(stderr, "connected to %s; /reset forgets the conversation, /quit or Ctrl-D ends it\n", client.server().model.c_str());
  std::string line;
  while (read_line("> ", line)) {
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/reset") {
      submit.messages = beginning;
      continue;
    }
    submit.messages.push_back(user_message(line));
    Status status = turn(client, submit, printer, trace);
    for (std::string function = called_function(submit); status.ok() && !function.empty(); function = called_function(submit)) {
      if (!read_line("result> ", line)) return interrupted != 0 ? exit_interrupted : exit_ok;
      submit.messages.push_back({harmony::Role::tool, function, "assistant", "commentary", std::nullopt, {harmony::TextContent{line}}});
      status = turn(client, submit, printer, trace);
    }
    if (status || status.error().code == ErrorCode::cancelled) continue;
    printer.fail(status.error());
    if (status.error().code == ErrorCode::unavailable || status.error().code == ErrorCode::core_lost) return exit_code_of(status.error().code);
  }
  if (interrupted == 0) return exit_ok;
  std::fputc('\n', stdout);
  return exit_interrupted;
}

// Without SA_RESTART, so that Ctrl-C also ends a wait for a line.
void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace

harmony::Message user_message(const std::string& text) {
  return {harmony::Role::user, std::nullopt, std::nullopt, std::nullopt, std::nullopt, {harmony::TextContent{text}}};
}

Result<wire::Submit> submit_of(const AskSettings& ask) {
  wire::Submit submit;
  if (ask.reasoning == "low")
    submit.reasoning_effort = harmony::ReasoningEffort::low;
  else if (ask.reasoning == "medium")
    submit.reasoning_effort = harmony::ReasoningEffort::medium;
  else if (ask.reasoning == "high")
    submit.reasoning_effort = harmony::ReasoningEffort::high;
  else
    return Error{ErrorCode::invalid_argument, "unknown reasoning effort '" + ask.reasoning + "'; use low, medium or high", "reasoning"};
  if (!ask.tools_file.empty()) {
    auto functions = functions_of(ask.tools_file);
    if (!functions) return functions.error();
    submit.tools = std::move(*functions);
  }
  if (!ask.instructions.empty())
    submit.messages.push_back(
        {harmony::Role::developer, std::nullopt, std::nullopt, std::nullopt, std::nullopt, {harmony::DeveloperContent{ask.instructions, {}}}});
  submit.sampling = ask.sampling;
  if (!ask.trace_file.empty()) submit.trace_top_m = default_trace_top_m;
  return submit;
}

int run_chat(const ChatSettings& settings) {
  auto colour = colour_choice_of(settings.ask.colour);
  if (!colour) return complain(colour.error());
  auto submit = submit_of(settings.ask);
  if (submit && submit->sampling.n > 1 && !settings.once)
    submit =
        Error{ErrorCode::invalid_argument,
              "a conversation goes on with one answer, not with " + std::to_string(submit->sampling.n) + "; leave --choices out, or ask with --once",
              "choices"};
  if (!submit) return complain(submit.error());
  submit->tenant = settings.tenant;
  submit->priority = settings.priority;
  auto options = client_options_of(settings.server, "althing-chat/" ALTHING_VERSION);
  if (!options) return complain(options.error());
  auto client = protocol::Client::connect(*options);
  if (!client) return complain(client.error());
  StreamPrinter printer(*colour, settings.ask.json, settings.ask.sampling.n);
  watch_interrupts();
  auto trace = TraceFile::create(settings.ask.trace_file);
  if (!trace) return complain(trace.error());
  if (!settings.once) return converse(*client, *submit, printer, *trace);
  submit->messages.push_back(user_message(*settings.once));
  Status status = turn(*client, *submit, printer, *trace);
  if (status) status = trace->close();
  if (status) return exit_ok;
  if (status.error().code == ErrorCode::cancelled) return exit_interrupted;
  printer.fail(status.error());
  const bool server_gone = status.error().code == ErrorCode::unavailable || status.error().code == ErrorCode::core_lost;
  return server_gone ? exit_code_of(status.error().code) : exit_failed;
}

}  // namespace althing::actors
