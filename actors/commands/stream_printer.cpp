// See the header. Output is flushed with every delta: the reader watches it come.
#include "actors/commands/stream_printer.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "protocol/wire/codec.hpp"

namespace althing::actors {
namespace harmony = protocol::harmony;
namespace wire = protocol::wire;
namespace {

std::string shown(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += "\xE2\x90";
      out += static_cast<char>(c == 0x7F ? 0xA1 : 0x80 + c);
    } else if (c == 0xC2 && next >= 0x80 && next < 0xA0) {
      out += "\xEF\xBF\xBD";
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::optional<std::string> present(const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); }

}  // namespace

void print_text(const std::string& text) {
  const std::string said = ::isatty(STDOUT_FILENO) == 1 ? shown(text) : text;
  std::fwrite(said.data(), 1, said.size(), stdout);
}

Result<ColourChoice> colour_choice_of(const std::string& name) {
  if (name == "auto") return ColourChoice::automatic;
  if (name == "always") return ColourChoice::always;
  if (name == "never") return ColourChoice::never;
  return Error{ErrorCode::invalid_argument, "unknown colour choice '" + name + "'; use auto, always or never", "colour"};
}

StreamPrinter::StreamPrinter(ColourChoice colour, bool json, std::uint32_t choices)
    : colour_(!json && (colour == ColourChoice::always || (colour == ColourChoice::automatic && ::isatty(STDOUT_FILENO) == 1))),
      json_(json),
      choices_(choices) {}

void StreamPrinter::paint(const char* code) {
  if (colour_) std::fputs(code, stdout);
}

void StreamPrinter::print(const wire::Delta& delta) {
  if (json_) {
    std::fputs((wire::encode(wire::ServerMessage(delta), wire::Encoding::json) + "\n").c_str(), stdout);
  }
  if (delta.choice > 0 && !json_) {
    waiting_.push_back(delta);
  } else if (delta.choice == 0) {
    if (choices_ > 1 && !json_ && !std::exchange(titled_, true)) std::puts("[choice 0]");
    print_events(delta);
  }
  std::fflush(stdout);
}

void StreamPrinter::print_events(const wire::Delta& delta) {
  for (const wire::DeltaEvent& event : delta.events) {
    if (const auto* started = std::get_if<wire::MessageStarted>(&event)) start(*started);
    if (const auto* piece = std::get_if<wire::Text>(&event)) text(*piece);
    if (std::holds_alternative<wire::MessageEnded>(event)) end();
  }
}

// What is printed here is nobody's history.
void StreamPrinter::print_rest(const wire::Done& done) {
  auto history = std::exchange(messages_, {});
  for (std::uint32_t choice = 1; choice < done.choices.size(); ++choice) {
    std::printf("[choice %u]\n", choice);
    for (const wire::Delta& delta : waiting_)
      if (delta.choice == choice) print_events(delta);
    end();
    print_reason(done.choices[choice].reason, done.choices[choice].completion_tokens);
  }
  messages_ = std::move(history);
  waiting_.clear();
  titled_ = false;
}

void StreamPrinter::print_reason(FinishReason reason, std::uint32_t completion_tokens) {
  std::fflush(stdout);
  if (reason == FinishReason::length) std::fprintf(stderr, "[stopped after %u tokens]\n", completion_tokens);
  if (reason == FinishReason::error) std::fprintf(stderr, "[failed after %u tokens]\n", completion_tokens);
}

void StreamPrinter::start(const wire::MessageStarted& started) {
  messages_.push_back(
      {started.role, std::nullopt, present(started.recipient), present(started.channel), present(started.content_type), {harmony::TextContent{}}});
  if (json_) return;
  end();
  if (!started.recipient.empty()) {
    paint("\033[33m");
    print_text("[call " + started.recipient + "] ");
    at_line_start_ = false;
  } else if (started.channel == "analysis") {
    paint("\033[2m");
    if (!colour_) std::fputs("[analysis] ", stdout);
    at_line_start_ = colour_;
  } else if (started.channel == "commentary") {
    paint("\033[36m");
  }
}

void StreamPrinter::text(const wire::Text& piece) {
  if (!messages_.empty()) std::get<harmony::TextContent>(messages_.back().content[0]).text += piece.text;
  if (json_) return;
  print_text(piece.text);
  at_line_start_ = !piece.text.empty() && piece.text.back() == '\n';
}

void StreamPrinter::end() {
  if (json_) return;
  paint("\033[0m");
  if (!at_line_start_) std::fputc('\n', stdout);
  at_line_start_ = true;
  std::fflush(stdout);
}

void StreamPrinter::done(const wire::Done& done) {
  end();
  if (json_) {
    std::fputs((wire::encode(wire::ServerMessage(done), wire::Encoding::json) + "\n").c_str(), stdout);
    std::fflush(stdout);
    return;
  }
  const bool several = !done.choices.empty();
  print_reason(several ? done.choices[0].reason : done.reason, several ? done.choices[0].completion_tokens : done.usage.completion_tokens);
  if (several) print_rest(done);
  if (done.layout_changed) std::fputs("[the server lost or regained ranks on the way; asked again, it may answer otherwise]\n", stderr);
}

void StreamPrinter::fail(const Error& error) {
  end();
  if (json_) std::fputs((wire::encode(wire::ServerMessage(wire::ErrorReply{"", 0, error}), wire::Encoding::json) + "\n").c_str(), stdout);
  std::fflush(stdout);
  std::fprintf(stderr, "althing: %s (%s)\n", error.message.c_str(), std::string(name_of(error.code)).c_str());
}

std::vector<harmony::Message> StreamPrinter::take_messages() { return std::exchange(messages_, {}); }

}  // namespace althing::actors
