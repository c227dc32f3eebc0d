// Random sequences of ids for the recovery of Harmony: control ids in any order, header words, and words that can be told apart, each at most once,
// so that it can be asked afterwards in how many events each of them is.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "protocol/harmony/recovery.hpp"
#include "protocol/tokenizer/utf8.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::tests {

struct RandomIds {
  std::vector<TokenId> ids;
  std::vector<std::string> words;  // of `ids`, in their order
};

class HarmonyRandom {
 public:
  explicit HarmonyRandom(const protocol::harmony::Format& format) : format_(format) {
    const protocol::Tokenizer& tokenizer = *format.tokenizer;
    for (const char* text :
         {"assistant", "analysis", "commentary", "final", " to=functions.f", " to=assistant", " json", "json", "user", " ", "\n", "?", "{\"a\":1}"})
      phrases_.push_back(tokenizer.encode(text));
    // Words of one token, none of which is part of another; capitals, so that none arises where lower-case words meet.
    for (TokenId id = 0; id < tokenizer.vocabulary_size() && words_.size() < 400; ++id) {
      const auto bytes = tokenizer.is_special(id) ? std::nullopt : tokenizer.bytes_of(id);
      if (!bytes || bytes->size() < 5 || (*bytes)[0] != ' ') continue;
      const std::string word(bytes->substr(1));
      if (word[0] < 'A' || word[0] > 'Z' || word.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1) != std::string::npos) continue;
      bool apart = true;
      for (const auto& [other, known] : words_) apart = apart && known.find(word) == std::string::npos && word.find(known) == std::string::npos;
      if (apart) words_.emplace_back(id, word);
    }
  }

  RandomIds make(std::mt19937_64& random) {
    RandomIds made;
    std::shuffle(words_.begin(), words_.end(), random);
    const std::size_t length = 1 + random() % 40;
    const TokenId controls[] = {format_.start,     format_.end,  format_.message, format_.channel,
                                format_.constrain, format_.call, format_.return_, format_.endoftext};
    // Some sequences are mostly text, some mostly control, and some are a good message with a bad place in it.
    const std::uint64_t control_share = random() % 10, phrase_share = random() % 10;
    for (std::size_t i = 0; i < length; ++i) {
      if (random() % 10 < control_share) {
        made.ids.push_back(controls[random() % std::size(controls)]);
      } else if (random() % 10 < phrase_share) {
        const auto& phrase = phrases_[random() % phrases_.size()];
        made.ids.insert(made.ids.end(), phrase.begin(), phrase.end());
      } else if (made.words.size() < words_.size()) {
        made.ids.push_back(words_[made.words.size()].first);
        made.words.push_back(words_[made.words.size()].second);
      }
    }
    if (random() % 20 == 0) made.ids.push_back(format_.tokenizer->vocabulary_size() + static_cast<TokenId>(random() % 5));
    return made;
  }

 private:
  const protocol::harmony::Format& format_;
  std::vector<std::vector<TokenId>> phrases_;
  std::vector<std::pair<TokenId, std::string>> words_;
};

// What is wrong with the events of a sequence, or "".
inline std::string wrong_recovery(const protocol::harmony::Format& format, const RandomIds& made) {
  using namespace protocol::harmony;
  RecoveringParser parser(format);
  std::vector<RecoveredEvent> events;
  std::vector<std::string> places;  // every string of every message
  const auto take = [&](std::vector<RecoveredEvent>& batch) {
    events.insert(events.end(), std::make_move_iterator(batch.begin()), std::make_move_iterator(batch.end()));
    batch.clear();
  };
  std::vector<RecoveredEvent> batch;
  for (const TokenId id : made.ids) {
    parser.push(id, batch);
    take(batch);
  }
  parser.finish(batch);
  take(batch);
  bool open = false, continues = false;
  for (const RecoveredEvent& event : events) {
    if (const auto* start = std::get_if<RecoveredStart>(&event)) {
      if (open) return "a message begins inside another";
      open = true;
      continues = false;
      places.insert(places.end(), {start->name, start->channel, start->recipient, start->content_type});
    } else if (const auto* text = std::get_if<RecoveredText>(&event)) {
      if (!open) return "text outside of a message";
      if (text->text.empty()) return "an empty text";
      if (continues) {
        places.back() += text->text;
      } else {
        places.push_back(text->text);
      }
      continues = true;
    } else {
      if (!open) return "an end without a begin";
      open = false;
    }
  }
  if (open) return "a message does not end";
  for (const std::string& place : places) {
    if (protocol::valid_utf8_prefix(place) != place.size()) return "invalid UTF-8: " + place;
    for (const char* control : {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|endoftext|>"})
      if (place.find(control) != std::string::npos) return std::string("a control id as text: ") + place;
  }
  for (const std::string& word : made.words) {
    std::size_t found = 0;
    for (const std::string& place : places)
      for (std::size_t at = place.find(word); at != std::string::npos; at = place.find(word, at + 1)) ++found;
    if (found != 1) return "the word '" + word + "' is in " + std::to_string(found) + " events";
  }
  return "";
}

}  // namespace althing::tests
