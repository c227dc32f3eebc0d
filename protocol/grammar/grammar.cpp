// See the header.
#include "protocol/grammar/grammar.hpp"

#include <algorithm>
#include <utility>

#include "protocol/grammar/json_schema.hpp"

namespace althing::protocol::grammar {

Result<std::shared_ptr<const Automaton>> compile(const wire::Grammar& asked) {
  switch (asked.kind) {
    case wire::GrammarKind::json_schema:
      return compile_json_schema(asked.text);
    case wire::GrammarKind::json_object:
      return compile_json_object();
    case wire::GrammarKind::regex:
      return compile_regex(asked.text);
  }
  return Error{ErrorCode::internal, "a grammar of no kind", "grammar"};
}

Grammar::Grammar(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie, std::vector<TokenId> ends,
                 std::uint32_t vocabulary)
    : matcher_(std::move(automaton)), trie_(std::move(trie)), ends_(std::move(ends)), vocabulary_(vocabulary), stack_(trie_->depth_max() + 1) {}

Grammar::Reader::Reader(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->mutex_);
  at_ = grammar_->matcher_.start();
  if (at_ == Matcher::full) {
    grammar_->make_room();
    at_ = grammar_->matcher_.start();
  }
  grammar_->readers_.push_back(this);
}

Grammar::Reader::~Reader() {
  const std::lock_guard lock(grammar_->mutex_);
  std::erase(grammar_->readers_, this);
}

bool Grammar::Reader::push(TokenId token) {
  const std::lock_guard lock(grammar_->mutex_);
  return grammar_->push(*this, token);
}

bool Grammar::Reader::is_complete() const {
  const std::lock_guard lock(grammar_->mutex_);
  return at_ < grammar_->matcher_.count() && grammar_->matcher_.is_complete(at_);
}

Result<Mask> Grammar::Reader::mask() {
  const std::lock_guard lock(grammar_->mutex_);
  return grammar_->mask(*this);
}

// Numbers of standings are void afterwards, but those that readers have.
void Grammar::make_room() {
  std::vector<Matcher::Standing*> kept;
  for (Reader* reader : readers_) kept.push_back(&reader->at_);
  matcher_.reset(std::move(kept));
  masks_.clear();
  mask_bytes_ = 0;
}

bool Grammar::push(Reader& reader, TokenId token) {
  const auto bytes = trie_->tokenizer().bytes_of(token);
  if (!bytes || bytes->empty() || trie_->tokenizer().is_special(token)) return false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Matcher::Standing at = reader.at_;
    for (std::size_t i = 0; i < bytes->size() && at < Matcher::full - 1; ++i) at = matcher_.step(at, static_cast<std::uint8_t>((*bytes)[i]));
    if (at == Matcher::full) {
      make_room();
      continue;
    }
    if (at == Matcher::dead) return false;
    reader.at_ = at;
    return true;
  }
  return false;
}

Result<Mask> Grammar::mask(Reader& reader) {
  if (const auto found = masks_.find(reader.at_); found != masks_.end()) return found->second;
  std::vector<std::uint32_t> words(mask_words(vocabulary_), 0);
  if (reader.at_ >= matcher_.count()) return Error{ErrorCode::internal, "the grammar lost its place; please report this", "grammar"};
  if (!walk(reader.at_, words)) {
    make_room();
    std::fill(words.begin(), words.end(), 0);
    if (!walk(reader.at_, words))
      return Error{ErrorCode::too_large, "the grammar is too ambiguous: what may come next has too many forms to keep; simplify it", "grammar"};
  }
  if (matcher_.is_complete(reader.at_))
    for (const TokenId end : ends_)
      if (end < vocabulary_) words[end / 32] |= 1u << (end % 32);
  if (std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0; }))
    return Error{ErrorCode::internal, "no token of the vocabulary goes on with what the grammar needs here", "grammar"};
  auto mask = std::make_shared<const std::string>(encode_mask(words));
  if (mask_bytes_ + mask->size() > mask_bytes_max) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += mask->size();
  masks_.emplace(reader.at_, mask);
  return Mask(std::move(mask));
}

// False when the matcher is full.
bool Grammar::walk(Matcher::Standing from, std::vector<std::uint32_t>& words) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  stack_[0] = from;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const Matcher::Standing at = matcher_.step(stack_[node.depth], node.byte);
    if (at == Matcher::full) return false;
    if (at == Matcher::dead) {
      i = node.end;
      continue;
    }
    stack_[node.depth + 1u] = at;
    if (node.token < vocabulary_) words[node.token / 32] |= 1u << (node.token % 32);
    ++i;
  }
  return true;
}

GrammarLibrary::GrammarLibrary(std::shared_ptr<const Tokenizer> tokenizer, std::uint32_t vocabulary)
    : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary) {}

Result<std::shared_ptr<Grammar>> GrammarLibrary::get(const wire::Grammar& asked, const std::vector<TokenId>& ends) {
  std::string key = std::to_string(static_cast<int>(asked.kind));
  for (const TokenId end : ends) key += ',' + std::to_string(end);
  key += ' ' + asked.text;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Grammar> grammar;
  std::erase_if(entries_, [](const Entry& entry) { return entry.grammar.expired(); });
  for (const Entry& entry : entries_)
    if (entry.key == key) grammar = entry.grammar.lock();
  if (!grammar) {
    auto automaton = compile(asked);
    if (!automaton) return automaton.error();
    while (entries_.size() >= grammars_max && !kept_.empty()) {
      kept_.pop_back();
      std::erase_if(entries_, [](const Entry& entry) { return entry.grammar.expired(); });
    }
    if (entries_.size() >= grammars_max)
      return Error{ErrorCode::busy,
                   std::to_string(grammars_max) + " different grammars are being followed, which is the most; try again later, or use one of them",
                   "grammar"};
    if (!trie_) trie_ = std::make_shared<const TokenTrie>(tokenizer_);
    grammar = std::make_shared<Grammar>(std::move(*automaton), trie_, ends, vocabulary_);
    entries_.push_back({std::move(key), grammar});
  }
  kept_.remove(grammar);
  kept_.push_front(grammar);
  if (kept_.size() > kept_max) kept_.pop_back();
  return grammar;
}

}  // namespace althing::protocol::grammar
