// What tests of grammars share: whether a text is an automaton's, and random texts of it.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "protocol/grammar/matcher.hpp"

namespace althing::protocol::grammar {

enum class Read : std::uint8_t { no, prefix, whole };

inline Read read(const std::shared_ptr<const Automaton>& automaton, std::string_view text) {
  Matcher matcher(automaton);
  Matcher::Standing at = matcher.start();
  for (const char c : text) {
    at = matcher.step(at, static_cast<std::uint8_t>(c));
    if (at == Matcher::dead || at == Matcher::full) return Read::no;
  }
  return matcher.is_complete(at) ? Read::whole : Read::prefix;
}

// A walk over legal bytes, any as likely as another, until the text is whole and the dice say so, or after `bytes_max`.
inline std::string random_text(Matcher& matcher, std::mt19937_64& random, std::size_t bytes_max, bool& whole) {
  std::string text;
  Matcher::Standing at = matcher.start();
  for (whole = false; text.size() < bytes_max;) {
    std::string legal;
    for (int byte = 0; byte < 256; ++byte)
      if (const auto next = matcher.step(at, static_cast<std::uint8_t>(byte)); next != Matcher::dead && next != Matcher::full)
        legal += static_cast<char>(byte);
    if (matcher.is_complete(at) && (legal.empty() || random() % 4 == 0)) return whole = true, text;
    if (legal.empty()) return text += "<dead end>";
    // What ends strings, lists and objects comes up often enough.
    std::string closing;
    for (const char c : legal)
      if (std::string_view("\"]}").find(c) != std::string_view::npos) closing += c;
    const std::string& from = !closing.empty() && random() % 3 == 0 ? closing : legal;
    text += from[random() % from.size()];
    at = matcher.step(at, static_cast<std::uint8_t>(text.back()));
  }
  return text;
}

}  // namespace althing::protocol::grammar
