// What masks cost: the tree of a vocabulary, a compiled grammar, masks at places that nobody has been to, and at places that are known. The texts are
// random ones that the grammar allows, token by token, as a hot model would write them.
//
//   mask_cost [--model FOLDER] [TOKENS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "protocol/grammar/grammar.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point then) { return std::chrono::duration<double, std::micro>(Clock::now() - then).count(); }

struct Named {
  const char* name;
  wire::Grammar grammar;
};

const std::vector<Named>& grammars() {
  static const std::vector<Named> all = {
      {"json_object", {wire::GrammarKind::json_object, ""}},
      {"person",
       {wire::GrammarKind::json_schema,
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string",)"
        R"("format":"email"},"tags":{"type":"array","items":{"enum":["new","old","lost"]},"maxItems":4}},"required":["name","age","tags"]})"}},
      {"maxLength 200",
       {wire::GrammarKind::json_schema, R"({"type":"object","properties":{"text":{"type":"string","maxLength":200}},"required":["text"]})"}},
      {"tree",
       {wire::GrammarKind::json_schema,
        R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"kids":{"type":"array","maxItems":3,)"
        R"("items":{"$ref":"#/$defs/node"}}},"required":["value","kids"]}}})"}},
      {"regex", {wire::GrammarKind::regex, "[A-Z][a-z]+( [A-Z][a-z]+){1,3}, [0-9]{4}-[0-9]{2}-[0-9]{2}"}}};
  return all;
}

TokenId some_legal(const std::string& mask, std::uint32_t vocabulary, std::mt19937_64& random) {
  const auto words = *decode_mask(mask, vocabulary);
  for (auto token = static_cast<TokenId>(random() % vocabulary);; token = (token + 1) % vocabulary)
    if (is_legal(words, token)) return token;
}

void measure(grammar::GrammarLibrary& library, const Named& named, const std::vector<TokenId>& ends, std::uint32_t vocabulary, std::size_t tokens) {
  auto began = Clock::now();
  auto grammar = library.get(named.grammar, ends);
  const double compiled = microseconds_since(began);
  if (!grammar) return void(std::printf("%-14s %s\n", named.name, grammar.error().message.c_str()));
  std::mt19937_64 random(1);
  std::vector<double> first, again, pushes;
  std::size_t bytes = 0;
  auto reader = std::make_unique<grammar::Grammar::Reader>(*grammar);
  for (std::size_t i = 0; i < tokens; ++i) {
    began = Clock::now();
    const auto mask = reader->mask();
    first.push_back(microseconds_since(began));
    if (!mask) return void(std::printf("%-14s %s\n", named.name, mask.error().message.c_str()));
    began = Clock::now();
    [[maybe_unused]] const auto same = reader->mask();
    again.push_back(microseconds_since(began));
    bytes += (*mask)->size();
    const TokenId token = some_legal(**mask, vocabulary, random);
    began = Clock::now();
    if (!reader->push(token)) reader = std::make_unique<grammar::Grammar::Reader>(*grammar);  // it ended the text
    pushes.push_back(microseconds_since(began));
  }
  const auto at = [](std::vector<double>& times, double part) {
    std::sort(times.begin(), times.end());
    return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
  };
  double sum = 0;
  for (const double time : first) sum += time;
  std::printf("%-14s %9.0f us %9.1f us %9.1f us %9.1f us %9.1f us %9.2f us %9.2f us %7zu\n", named.name, compiled, sum / static_cast<double>(tokens),
              at(first, 0.5), at(first, 0.99), at(first, 1), at(again, 0.5), at(pushes, 0.5), bytes / tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "mask_cost [--model FOLDER] [TOKENS]\n"
                             "Microseconds that masks of tokens cost under several grammars. Without a model: the vocabulary of o200k_harmony."))
    return 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::size_t tokens = 2000;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--model") == 0 && i + 1 < argc)
      tokenizer = *Tokenizer::of_model(argv[++i]);
    else
      tokens = static_cast<std::size_t>(std::max(1, std::atoi(argv[i])));
  }
  if (!tokenizer)
    tokenizer = *Tokenizer::from_tiktoken(ALTHING_SOURCE_DIR "/tests/data/o200k_base.tiktoken", Tokenizer::o200k_harmony_special_tokens());
  const std::uint32_t vocabulary = tokenizer->vocabulary_size();
  const auto began = Clock::now();
  const grammar::TokenTrie trie(tokenizer);
  std::printf("%u tokens, %zu nodes in their tree, made in %.0f ms\n", vocabulary, trie.nodes().size(), microseconds_since(began) / 1000);
  std::printf("%-14s %12s %12s %12s %12s %12s %12s %12s %7s\n", "grammar", "compile", "mask, mean", "median", "99 %", "most", "known mask", "token",
              "bytes");
  grammar::GrammarLibrary library(tokenizer, vocabulary);
  const std::vector<TokenId> ends{*tokenizer->special("<|return|>")};
  for (const Named& named : grammars()) measure(library, named, ends, vocabulary, tokens);
  return 0;
}
