// JSON schemas as automata over the texts that satisfy them. What is read of the schema is read strictly: a keyword that this does not know, or a
// condition that it cannot hold a text to, is an error that names it and where it stands. Texts are narrower than a schema may allow (members in the
// schema's order, one spelling of each key, little white space, no members that nobody named unless additionalProperties says so); never wider.
// docs/structured-output.md lists keywords and choices.
#pragma once

#include <memory>
#include <string_view>

#include "protocol/grammar/automaton.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::protocol::grammar {

inline constexpr std::size_t schema_bytes_max = 256 * 1024;
inline constexpr std::size_t schema_parts_max = 20'000;  // schemas in it, and in what it refers to

// Errors: corrupt (not JSON), too_large, unsupported (a keyword, by name and path), invalid_argument (a keyword's value; no text satisfies it).
Result<std::shared_ptr<const Automaton>> compile_json_schema(std::string_view text);

// Any JSON object.
Result<std::shared_ptr<const Automaton>> compile_json_object();
// The whole text is the expression's. Errors: add_regex's.
Result<std::shared_ptr<const Automaton>> compile_regex(std::string_view expression);

}  // namespace althing::protocol::grammar
