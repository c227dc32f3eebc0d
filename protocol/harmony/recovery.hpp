// Generated token ids to messages, whatever ids come in whatever order. Well-formed output gives what the exact parser gives, but for its known
// misreadings; everything else is mended, and counted by kind. What holds for every sequence of ids:
//   - every byte of a message's content, and of header words that mean nothing, is in exactly one event; control ids are in none, and ordinary text
//     that spells one passes as it is
//   - a header reads: role, `to=`, channel, content type, in the places where the format has them; a tool call comes from such a header only
//   - <|start|> begins a message wherever it stands
// Reports of what models emit: reference of the format in docs/harmony.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/harmony/message.hpp"
#include "protocol/tokenizer/detokenizer.hpp"

namespace althing::protocol::harmony {

enum class Repair : std::uint8_t {
  stray_stop,         // a stop token between messages
  missing_start,      // a message without <|start|>
  missing_end,        // a message begins inside another
  doubled_start,      // <|start|><|start|>
  doubled_role,       // assistantassistant
  doubled_channel,    // two channels in a header: the last known one counts
  doubled_recipient,  // two recipients: the first counts
  unknown_channel,    // a name that Harmony does not know
  missing_message,    // a header without <|message|>, or text without any header
  unread_words,       // header words that mean nothing: they became text
  stray_control,      // a control token that means nothing where it stands
  unknown_token,      // an id that no token has
};
inline constexpr std::size_t repair_kinds = 12;
std::string_view name_of(Repair repair);

struct RecoveredStart {
  Role role = Role::assistant;
  std::string name;                              // of a tool, else ""
  std::string channel, recipient, content_type;  // "" when absent
};
struct RecoveredText {
  std::string text;  // valid UTF-8, not empty
};
struct RecoveredEnd {};
// Start, texts, end; start, texts, end; …
using RecoveredEvent = std::variant<RecoveredStart, RecoveredText, RecoveredEnd>;

class RecoveringParser {
 public:
  // The prompt ended in <|start|>assistant.
  explicit RecoveringParser(Format format);

  void push(TokenId token, std::vector<RecoveredEvent>& out);
  // No more tokens will come: ends an open message.
  void finish(std::vector<RecoveredEvent>& out);

  // By Repair, since creation.
  const std::array<std::uint32_t, repair_kinds>& repairs() const { return repairs_; }

 private:
  enum class State : std::uint8_t { between, header, content };
  // Words of a header, and what stood before them.
  struct Part {
    TokenId control = 0;  // format_.channel, format_.constrain, or 0
    std::string text;
  };
  struct Header {
    std::optional<Role> role;
    std::vector<Part> parts;
    std::uint32_t tokens = 0;  // ordinary ones but for roles
  };
  struct Reading {
    RecoveredStart start;
    std::string rest;  // words that mean nothing; where <|message|> is missing, the message
    bool has_recipient = false;
  };

  void begin_header(std::optional<Role> role);
  void push_header(TokenId token, std::vector<RecoveredEvent>& out);
  void push_content(TokenId token, std::vector<RecoveredEvent>& out);
  bool take_role(TokenId token);
  bool is_free_text() const;
  // The header's end: by <|message|>, or without one. The message stays open.
  void open(bool by_message, std::vector<RecoveredEvent>& out);
  // The same where the message ends at once; a header in which nothing stands leaves nothing.
  void open_and_close(std::vector<RecoveredEvent>& out);
  void close(std::vector<RecoveredEvent>& out);
  bool is_empty() const;
  Reading read(bool by_message);
  void read_channel(std::string_view text, bool by_message, Reading& reading);
  void read_words(std::string_view text, bool by_message, bool after_channel, Reading& reading);
  void set_recipient(std::string_view recipient, Reading& reading);
  void note(Repair repair) { ++repairs_[static_cast<std::size_t>(repair)]; }
  static void add_text(std::string text, std::vector<RecoveredEvent>& out);

  Format format_;
  Detokenizer detokenizer_;
  State state_ = State::header;
  Header header_;
  std::array<std::uint32_t, repair_kinds> repairs_{};
};

}  // namespace althing::protocol::harmony
