// See the header. What is written by hand here is what no table knows: signals, files and exit codes.
#include "actors/commands/manual.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/complain.hpp"
#include "actors/exit_codes.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace althing::actors {
namespace {

// Text between macros: a line must not begin as a macro does, a hyphen is one that can be searched for and copied, and whatever is not ASCII goes by
// its number, since troff reads bytes.
std::string escaped(std::string_view text) {
  std::string roff;
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) roff = "\\&";
  for (std::size_t at = 0; at < text.size();) {
    const auto [kind, length, character] = protocol::utf8_step(text, at);
    if (character >= 0x80)
      roff += fmt::format("\\[u{:04X}]", static_cast<std::uint32_t>(character));
    else if (character == '-')
      roff += "\\-";
    else if (character == '\\')
      roff += "\\e";
    else
      roff += character == '\n' ? ' ' : text[at];
    at += length;
  }
  return roff;
}

std::string bold(std::string_view text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// A sentence of its own, as descriptions in tables are not.
std::string sentence(std::string text) {
  if (!text.empty() && text.back() != '.' && text.back() != '?') text += '.';
  return text;
}

std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

// "-n, --choices 1..16" with fonts.
std::string heading_of(const CLI::Option& option, bool positional) {
  std::string names;
  if (positional) {
    names = italic(option.get_name(true, false));
  } else {
    for (const std::string& name : option.get_snames()) names += (names.empty() ? "" : ", ") + bold("-" + name);
    for (const std::string& name : option.get_lnames()) names += (names.empty() ? "" : ", ") + bold("--" + name);
  }
  if (!positional && option.get_type_size() != 0 && !option.get_type_name().empty()) names += " " + italic(option.get_type_name());
  return names;
}

std::string entry_of(const CLI::Option& option, bool positional) {
  std::string text = ".TP\n" + heading_of(option, positional) + "\n" + escaped(sentence(option.get_description())) + "\n";
  if (const std::string& value = option.get_default_str(); !value.empty() && option.get_type_size() != 0)
    text += "Default: " + escaped(value) + ".\n";
  if (option.get_required()) text += "Must be given.\n";
  if (!option.get_envname().empty()) text += "Environment: " + bold(option.get_envname()) + ".\n";
  return text;
}

std::string options_of(const CLI::App& app) {
  std::string text;
  for (const bool positional : {true, false})
    for (const CLI::Option* option : shown_options(app))
      if (positional ? option->get_positional() : option->nonpositional()) text += entry_of(*option, positional);
  return text;
}

std::string synopsis_of(const CLI::App& app, const std::string& words) {
  std::string text = bold(words) + " [" + italic("OPTIONS") + "]";
  for (const CLI::Option* option : shown_options(app)) {
    if (!option->get_positional()) continue;
    const std::string name = italic(option->get_name(true, false));
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (!commands_of(app).empty()) text += " " + italic("COMMAND");
  return text;
}

// What no table of options says, of commands that run as services.
struct Remarks {
  std::string_view command, text;
};
constexpr Remarks remarks[] = {
    {"serve", R"(.PP
What a flag does not say comes from the environment, what the environment does not say from the file given with
.BR \-\-config ,
lines such as
.BR "model = \(dq/srv/models/gpt\-oss\-20b\(dq" .
A service manager that gives
.B NOTIFY_SOCKET
is told when the server is ready, and when it stops
.RB ( sd_notify (3)).
.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
Drain: new requests are refused, those that run get
.BR \-\-drain\-seconds ,
then the server ends with 0. A second one ends it within two seconds.
.TP
.B SIGHUP
With keys: read their list again. Without: end.
)"},
    {"gateway", R"(.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
Nothing new is begun, what is open gets
.BR \-\-drain\-seconds .
A second one ends it at once.
.TP
.B SIGHUP
Read the file of API keys again.
)"},
};

constexpr std::pair<int, std::string_view> exit_meanings[] = {
    {exit_ok, "It worked."},
    {exit_failed, "The request or check itself failed."},
    {exit_usage, "A wrong flag or argument."},
    {exit_not_found, "A file, model or server that is not there."},
    {exit_corrupt, "A checkpoint, file or frame that contradicts itself."},
    {exit_unsupported, "This machine or build cannot do it."},
    {exit_resources, "Memory, descriptors, a port in use."},
    {exit_rank_lost, "Processes keep dying."},
    {exit_internal, "A bug of Althing's."},
    {exit_interrupted, "Interrupted (Ctrl\\-C)."},
};

std::string exit_status() {
  std::string text = ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_meanings) text += ".TP\n" + bold(std::to_string(code)) + "\n" + std::string(meaning) + "\n";
  return text;
}

// Of a command that has commands of its own: each with its options.
std::string commands_with_options(const CLI::App& app, const std::string& words) {
  std::string text;
  for (const CLI::App* command : commands_of(app)) {
    const std::string whole = words + " " + command->get_name();
    text += ".SS " + synopsis_of(*command, whole) + "\n" + escaped(sentence(command->get_description())) + "\n" + options_of(*command);
  }
  return text;
}

std::string list_of_commands(const CLI::App& program, const std::string& name) {
  std::string text;
  for (const CLI::App* command : commands_of(program))
    text += ".TP\n.BR " + escaped(name + "-" + command->get_name()) + " (1)\n" + escaped(sentence(command->get_description())) + "\n";
  return text;
}

std::string page_of(const CLI::App& app, const CLI::App* program) {
  const std::string words = program == nullptr ? "althing" : "althing " + app.get_name();
  const std::string name = program == nullptr ? words : "althing-" + app.get_name();
  std::string description = app.get_description();
  while (!description.empty() && description.back() == '.') description.pop_back();
  std::string page = ".\\\" Written by `althing manual` from the tables of its command line; change those.\n";
  page += ".TH " + escaped(upper(name)) + " 1 \"\" \"althing " ALTHING_VERSION "\" \"Althing\"\n.nh\n.ad l\n";
  page += ".SH NAME\n" + escaped(name) + " \\- " + escaped(description) + "\n.SH SYNOPSIS\n" + synopsis_of(app, words) + "\n";
  if (!app.get_help_ptr() || shown_options(app).empty()) return page;
  page += ".SH OPTIONS\n" + options_of(app);
  if (!commands_of(app).empty()) page += ".SH COMMANDS\n" + (program == nullptr ? list_of_commands(app, name) : commands_with_options(app, words));
  for (const Remarks& of : remarks)
    if (program != nullptr && app.get_name() == of.command) page += of.text;
  page += exit_status() + ".SH SEE ALSO\n";
  return page + (program == nullptr ? "The documentation that came with it: docs/install.md is where to begin.\n" : ".BR althing (1)\n");
}

Status write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return Error{ErrorCode::io, "cannot write " + path + ": " + std::strerror(errno) + "; give a folder that is there", "folder"};
  return Ok{};
}

}  // namespace

Result<std::string> manual_page(const CLI::App& program, const std::string& command) {
  if (command.empty()) return page_of(program, nullptr);
  for (const CLI::App* found : commands_of(program))
    if (found->get_name() == command) return page_of(*found, &program);
  return Error{ErrorCode::not_found, "there is no command '" + command + "'; see althing --help", "command"};
}

int run_manual(const CLI::App& program, const ManualSettings& settings) {
  if (settings.folder.empty()) {
    const auto page = manual_page(program, settings.command);
    if (!page) return complain(page.error());
    std::fputs(page->c_str(), stdout);
    return exit_ok;
  }
  if (auto status = write(settings.folder + "/althing.1", page_of(program, nullptr)); !status) return complain(status.error());
  for (const CLI::App* command : commands_of(program))
    if (auto status = write(settings.folder + "/althing-" + command->get_name() + ".1", page_of(*command, &program)); !status)
      return complain(status.error());
  return exit_ok;
}

}  // namespace althing::actors
