// A stream as a person reads it: reasoning dim, commentary and tool calls in colour, the answer plain. Of several choices the first is printed as it
// comes, the others one after the other at the end. Or, for machines, each event as a JSON line.
#pragma once

#include <string>
#include <vector>

#include "protocol/wire/messages.hpp"

namespace althing::actors {

enum class ColourChoice : std::uint8_t { automatic, always, never };
// auto, always or never; automatic follows whether standard output is a terminal.
Result<ColourChoice> colour_choice_of(const std::string& name);

// Prints what a model wrote. A terminal obeys control characters (titles, the clipboard, lines that were printed before), and a model may have been
// talked into writing some: there they are shown by their signs, those of C1, which have none, as U+FFFD. A file or a pipe gets the text as it is.
void print_text(const std::string& text);

class StreamPrinter {
 public:
  StreamPrinter(ColourChoice colour, bool json, std::uint32_t choices = 1);

  void print(const protocol::wire::Delta& delta);
  // Ends the stream; says so when it was cut by a limit.
  void done(const protocol::wire::Done& done);
  // Ends the line and takes the colour back.
  void end();
  // As end(), then what happened, on standard error.
  void fail(const Error& error);

  // The messages of choice 0 printed since the last take, as history for the next turn.
  std::vector<protocol::harmony::Message> take_messages();

 private:
  void print_events(const protocol::wire::Delta& delta);
  void print_rest(const protocol::wire::Done& done);
  void print_reason(FinishReason reason, std::uint32_t completion_tokens);
  void start(const protocol::wire::MessageStarted& started);
  void text(const protocol::wire::Text& text);
  void paint(const char* code);

  bool colour_ = false;
  bool json_ = false;
  bool at_line_start_ = true;
  std::uint32_t choices_ = 1;
  bool titled_ = false;                         // choice 0 has its heading
  std::vector<protocol::wire::Delta> waiting_;  // of the choices after the first
  std::vector<protocol::harmony::Message> messages_;
};

}  // namespace althing::actors
