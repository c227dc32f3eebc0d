// A header is kept as parts: words before any control token, and words after each <|channel|> and <|constrain|>. It is read when <|message|> ends it,
// or when it becomes clear that none will.
#include "protocol/harmony/recovery.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::harmony {
namespace {

constexpr std::string_view known_channels[] = {"analysis", "commentary", "final"};
constexpr std::string_view known_types[] = {"json", "code", "text"};
constexpr std::string_view recipient_prefix = "to=", function_prefix = "functions.";
// More words than any header has: they are a message that forgot to say so, and a client waits for them.
constexpr std::uint32_t header_tokens_max = 64;

constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r'; }
constexpr bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; }

std::string_view without_space_before(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}
// The first word; `text` goes on behind it.
std::string_view take_word(std::string_view& text) {
  text = without_space_before(text);
  std::size_t end = 0;
  while (end < text.size() && !is_space(text[end])) ++end;
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}
bool is_one_of(std::string_view word, std::span<const std::string_view> words) { return std::find(words.begin(), words.end(), word) != words.end(); }

// Words that follow each other keep a space between them; where text has been cut into words, which one does not matter.
void append_words(std::string& to, std::string_view words) {
  if (words.empty()) return;
  if (!to.empty() && !is_space(to.back()) && !is_space(words.front())) to += ' ';
  to += words;
}

}  // namespace

std::string_view name_of(Repair repair) {
  constexpr std::string_view names[repair_kinds] = {"stray_stop",      "missing_start",   "missing_end",       "doubled_start",
                                                    "doubled_role",    "doubled_channel", "doubled_recipient", "unknown_channel",
                                                    "missing_message", "unread_words",    "stray_control",     "unknown_token"};
  return names[static_cast<std::size_t>(repair)];
}

RecoveringParser::RecoveringParser(Format format) : format_(std::move(format)), detokenizer_(format_.tokenizer) { header_.role = Role::assistant; }

void RecoveringParser::push(TokenId token, std::vector<RecoveredEvent>& out) {
  if (state_ == State::content) return push_content(token, out);
  if (state_ == State::header) return push_header(token, out);
  if (token == format_.start) return begin_header(std::nullopt);
  if (token == format_.endoftext) return;
  if (format_.is_message_stop(token)) return note(Repair::stray_stop);
  begin_header(Role::assistant);
  push_header(token, out);
  if (state_ != State::between) note(Repair::missing_start);
}

void RecoveringParser::finish(std::vector<RecoveredEvent>& out) {
  if (state_ == State::content) {
    close(out);
  } else if (state_ == State::header) {
    open_and_close(out);
  }
}

void RecoveringParser::begin_header(std::optional<Role> role) {
  header_ = {};
  header_.role = role;
  state_ = State::header;
}

bool RecoveringParser::is_empty() const {
  return std::all_of(header_.parts.begin(), header_.parts.end(),
                     [](const Part& part) { return part.control == 0 && without_space_before(part.text).empty(); });
}

// A role is a token of its own at the header's begin.
bool RecoveringParser::take_role(TokenId token) {
  if (!header_.parts.empty()) return false;
  const auto bytes = format_.tokenizer->bytes_of(token);
  const auto role = bytes ? role_of(*bytes) : std::nullopt;
  if (!role || (header_.role && *role != *header_.role)) return false;
  if (header_.role) note(Repair::doubled_role);
  header_.role = role;
  return true;
}

// Whether what stands in the header cannot be one: it begins with words, and an assistant's header could only begin with a recipient.
bool RecoveringParser::is_free_text() const {
  if (!header_.parts.empty()) {
    // A character that is not there as a whole would be torn apart.
    const std::string& last = header_.parts.back().text;
    const std::size_t valid = valid_utf8_prefix(last);
    if (valid < last.size() && utf8_step(last, valid).kind == Utf8Kind::incomplete) return false;
  }
  if (header_.tokens > header_tokens_max) return true;
  if (!header_.role || header_.parts.size() != 1 || header_.parts[0].control != 0) return false;
  const std::string_view text = without_space_before(header_.parts[0].text);
  const auto could_be = [&](std::string_view prefix) { return text.starts_with(prefix) || prefix.starts_with(text); };
  return !could_be(recipient_prefix) && !could_be(function_prefix);
}

void RecoveringParser::push_header(TokenId token, std::vector<RecoveredEvent>& out) {
  if (token == format_.message) return open(true, out);
  if (token == format_.start) {
    note(is_empty() ? Repair::doubled_start : Repair::missing_end);
    open_and_close(out);
    return begin_header(std::nullopt);
  }
  if (format_.is_message_stop(token) || token == format_.endoftext) return open_and_close(out);
  if (token == format_.channel || token == format_.constrain) {
    header_.parts.push_back({token, ""});
    return;
  }
  if (format_.tokenizer->is_special(token)) return note(Repair::stray_control);
  if (take_role(token)) return;
  const auto bytes = format_.tokenizer->bytes_of(token);
  if (!bytes) note(Repair::unknown_token);
  if (header_.parts.empty()) header_.parts.push_back({});
  header_.parts.back().text += bytes ? *bytes : replacement_character;
  ++header_.tokens;
  if (is_free_text()) open(false, out);
}

void RecoveringParser::push_content(TokenId token, std::vector<RecoveredEvent>& out) {
  if (format_.is_message_stop(token) || token == format_.endoftext) return close(out);
  if (token == format_.start || token == format_.channel) {
    note(Repair::missing_end);
    close(out);
    begin_header(token == format_.start ? std::nullopt : std::optional(Role::assistant));
    if (token == format_.channel) push_header(token, out);
    return;
  }
  if (format_.tokenizer->is_special(token)) return note(Repair::stray_control);
  if (!format_.tokenizer->bytes_of(token)) note(Repair::unknown_token);
  add_text(detokenizer_.push(token), out);
}

void RecoveringParser::close(std::vector<RecoveredEvent>& out) {
  add_text(detokenizer_.finish(), out);
  out.emplace_back(RecoveredEnd{});
  state_ = State::between;
}

void RecoveringParser::open_and_close(std::vector<RecoveredEvent>& out) {
  if (is_empty()) {
    state_ = State::between;
    return;
  }
  open(false, out);
  if (state_ == State::content) close(out);
}

void RecoveringParser::open(bool by_message, std::vector<RecoveredEvent>& out) {
  if (!by_message) note(Repair::missing_message);
  Reading reading = read(by_message);
  RecoveredStart& start = reading.start;
  if (!by_message && start.channel.empty() && !reading.has_recipient) {
    // What looked like a type says nothing alone.
    if (start.content_type.starts_with(constrain_marker)) start.content_type.erase(0, constrain_marker.size());
    append_words(reading.rest, std::exchange(start.content_type, {}));
  }
  if (!by_message && reading.rest.empty() && start.channel.empty() && !reading.has_recipient) {
    state_ = State::between;  // a header that says nothing
    return;
  }
  std::string replaced;
  std::string rest(valid_utf8(reading.rest, replaced));
  if (by_message && !rest.empty()) note(Repair::unread_words);
  if (by_message && reading.has_recipient && !rest.empty()) {
    // They must not get into a tool's arguments.
    out.emplace_back(RecoveredStart{});
    add_text(std::exchange(rest, {}), out);
    out.emplace_back(RecoveredEnd{});
  }
  out.emplace_back(std::move(reading.start));
  add_text(std::move(rest), out);
  state_ = State::content;
}

RecoveringParser::Reading RecoveringParser::read(bool by_message) {
  Reading reading;
  const bool has_channel = std::any_of(header_.parts.begin(), header_.parts.end(), [&](const Part& p) { return p.control == format_.channel; });
  reading.start.role = header_.role.value_or(Role::assistant);
  for (const Part& part : header_.parts) {
    std::string_view text = part.text;
    if (part.control == format_.channel) {
      read_channel(text, by_message, reading);
    } else if (part.control == format_.constrain) {
      text = without_space_before(text);
      const auto type = static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_name) - text.begin());
      if (type > 0 && reading.start.content_type.empty()) {
        reading.start.content_type = std::string(constrain_marker) + std::string(text.substr(0, type));
        text.remove_prefix(type);
      }
      read_words(text, by_message, true, reading);
    } else if (!by_message && !has_channel) {
      append_words(reading.rest, text);  // no header at all
    } else {
      // A tool's message names the tool where others have a role.
      std::string_view after = text;
      const std::string_view first = take_word(after);
      if (!header_.role && !first.empty() && without_space_before(after).starts_with(recipient_prefix)) {
        reading.start.role = Role::tool;
        reading.start.name = first;
        text = after;
      }
      read_words(text, true, false, reading);
    }
  }
  std::string replaced;
  for (std::string* field : {&reading.start.name, &reading.start.channel, &reading.start.recipient, &reading.start.content_type})
    *field = std::string(valid_utf8(*field, replaced));
  return reading;
}

void RecoveringParser::read_channel(std::string_view text, bool by_message, Reading& reading) {
  std::string_view after = text;
  const std::string_view word = take_word(after);
  std::string_view known;
  std::size_t at = std::string_view::npos;
  for (const std::string_view name : known_channels)
    if (const std::size_t found = word.find(name); found < at) known = name, at = found;
  if (!known.empty()) {
    if (!reading.start.channel.empty()) note(Repair::doubled_channel);
    if (std::string& channel = reading.start.channel; !channel.empty() && !is_one_of(channel, known_channels)) append_words(reading.rest, channel);
    reading.start.channel = known;
    append_words(reading.rest, word.substr(0, at));
    // What is glued to the name is text, with what follows it.
    if (const std::string_view glued = word.substr(at + known.size()); !glued.empty()) {
      append_words(reading.rest, std::string_view(glued.data(), by_message ? glued.size() : static_cast<std::size_t>(text.end() - glued.begin())));
      if (!by_message) return;
    }
  } else if (by_message && reading.start.channel.empty() && !word.empty() && std::all_of(word.begin(), word.end(), is_name)) {
    note(Repair::unknown_channel);
    reading.start.channel = word;
  } else {
    append_words(reading.rest, word);
  }
  read_words(after, by_message, true, reading);
}

void RecoveringParser::set_recipient(std::string_view recipient, Reading& reading) {
  if (!reading.has_recipient) {
    reading.start.recipient = recipient;
    reading.has_recipient = true;
    return;
  }
  note(Repair::doubled_recipient);
  if (recipient != reading.start.recipient) append_words(reading.rest, recipient);
}

// Recipient and content type, as far as there are any; what follows them is the message where <|message|> is missing.
void RecoveringParser::read_words(std::string_view text, bool by_message, bool after_channel, Reading& reading) {
  std::string_view before = text;
  for (std::string_view word = take_word(text); !word.empty(); before = text, word = take_word(text)) {
    if (word.size() > recipient_prefix.size() && word.starts_with(recipient_prefix)) {
      set_recipient(word.substr(recipient_prefix.size()), reading);
      continue;
    }
    if (by_message && !reading.has_recipient && word.size() > function_prefix.size() && word.starts_with(function_prefix)) {
      set_recipient(word, reading);
      continue;
    }
    const bool is_type = is_one_of(word, known_types) || (reading.has_recipient && std::all_of(word.begin(), word.end(), is_name));
    if (by_message && (after_channel || reading.has_recipient) && is_type && reading.start.content_type.empty()) {
      reading.start.content_type = word;
      continue;
    }
    if (!by_message) {
      // One space belongs to the header.
      append_words(reading.rest, before.starts_with(' ') ? before.substr(1) : before);
      return;
    }
    append_words(reading.rest, word);
  }
}

void RecoveringParser::add_text(std::string text, std::vector<RecoveredEvent>& out) {
  if (text.empty()) return;
  if (!out.empty()) {
    if (auto* last = std::get_if<RecoveredText>(&out.back())) {
      last->text += text;
      return;
    }
  }
  out.emplace_back(RecoveredText{std::move(text)});
}

}  // namespace althing::protocol::harmony
