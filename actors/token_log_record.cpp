// Writer and reader of a record name the same fields in the same order. See the header.
#include "actors/token_log_record.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "scheduler/vocabulary/limits.hpp"

namespace althing::actors {
namespace {

class WordWriter {
 public:
  void number(std::uint32_t value) { words_.push_back(value); }
  void number64(std::uint64_t value) {
    number(static_cast<std::uint32_t>(value));
    number(static_cast<std::uint32_t>(value >> 32));
  }
  void bits(float value) { number(std::bit_cast<std::uint32_t>(value)); }
  void numbers(const std::vector<std::uint32_t>& values) {
    number(static_cast<std::uint32_t>(values.size()));
    words_.insert(words_.end(), values.begin(), values.end());
  }
  void text(std::string_view text) {
    const auto bytes = static_cast<std::uint32_t>(text.size());
    number(bytes);
    const std::size_t at = words_.size();
    words_.resize(at + (std::size_t{bytes} + 3) / 4, 0);
    if (bytes > 0) std::memcpy(words_.data() + at, text.data(), bytes);
  }
  void texts(const std::vector<std::string>& texts) {
    number(static_cast<std::uint32_t>(texts.size()));
    for (const std::string& one : texts) text(one);
  }
  std::vector<std::uint32_t> take() { return std::move(words_); }

 private:
  std::vector<std::uint32_t> words_;
};

// After the first fault every read is void and whole() is false.
class WordReader {
 public:
  explicit WordReader(std::span<const std::uint32_t> words) : words_(words) {}

  std::uint32_t number() { return take(1) ? words_[at_ - 1] : 0; }
  std::uint64_t number64() {
    const std::uint64_t low = number();
    return low | (std::uint64_t{number()} << 32);
  }
  float bits() { return std::bit_cast<float>(number()); }
  bool flag() {
    const std::uint32_t value = number();
    if (value > 1) fault_ = true;
    return value == 1;
  }
  std::vector<std::uint32_t> numbers() {
    const std::size_t count = number();
    if (!take(count)) return {};
    const auto found = words_.subspan(at_ - count, count);
    return {found.begin(), found.end()};
  }
  std::string text() {
    const std::size_t bytes = number();
    const std::size_t count = (bytes + 3) / 4;
    if (!take(count)) return {};
    std::string text(bytes, '\0');
    if (bytes > 0) std::memcpy(text.data(), words_.data() + at_ - count, bytes);
    return text;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> texts;
    for (std::uint32_t count = number(); count > 0 && !fault_; --count) texts.push_back(text());
    return texts;
  }
  void fail() { fault_ = true; }
  template <class Enumeration>
  Enumeration one_of(std::uint32_t count) {
    const std::uint32_t value = number();
    if (value >= count) fault_ = true;
    return static_cast<Enumeration>(value < count ? value : 0);
  }
  // Nothing was wrong and nothing is left.
  bool whole() const { return !fault_ && at_ == words_.size(); }

 private:
  bool take(std::size_t count) {
    if (fault_ || words_.size() - at_ < count) {
      fault_ = true;
      return false;
    }
    at_ += count;
    return true;
  }

  std::span<const std::uint32_t> words_;
  std::size_t at_ = 0;
  bool fault_ = false;
};

constexpr std::uint32_t finish_reason_count = 4;

// Cut at a character, so that the text stays valid UTF-8.
std::string_view bounded(std::string_view text) {
  if (text.size() <= logged_text_bytes_max) return text;
  std::size_t end = logged_text_bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end);
}

void write(const SamplingParameters& s, WordWriter& out) {
  out.bits(s.temperature);
  out.bits(s.top_p);
  out.number(s.top_k);
  out.bits(s.min_p);
  out.number64(s.seed);
  out.number(s.choice);
  out.number(s.completion_tokens_max);
  out.number(s.ignore_stop ? 1 : 0);
  out.numbers(s.stop_tokens);
  out.bits(s.repetition_penalty);
  out.bits(s.presence_penalty);
  out.bits(s.frequency_penalty);
  out.number(s.logprobs ? 1 : 0);
  out.number(s.top_logprobs);
  std::vector<std::uint32_t> tokens, biases;
  for (const TokenBias& entry : s.logit_bias) {
    tokens.push_back(entry.token);
    biases.push_back(std::bit_cast<std::uint32_t>(entry.bias));
  }
  out.numbers(tokens);
  out.numbers(biases);
}

SamplingParameters read_sampling(WordReader& in) {
  SamplingParameters s;
  s.temperature = in.bits();
  s.top_p = in.bits();
  s.top_k = in.number();
  s.min_p = in.bits();
  s.seed = in.number64();
  s.choice = in.number();
  s.completion_tokens_max = in.number();
  s.ignore_stop = in.flag();
  s.stop_tokens = in.numbers();
  s.repetition_penalty = in.bits();
  s.presence_penalty = in.bits();
  s.frequency_penalty = in.bits();
  s.logprobs = in.flag();
  s.top_logprobs = in.number();
  const std::vector<std::uint32_t> tokens = in.numbers(), biases = in.numbers();
  if (tokens.size() != biases.size()) in.fail();
  for (std::size_t i = 0; i < std::min(tokens.size(), biases.size()); ++i) s.logit_bias.push_back({tokens[i], std::bit_cast<float>(biases[i])});
  return s;
}

}  // namespace

std::vector<std::uint32_t> to_words(const LoggedSubmit& submit) {
  WordWriter out;
  out.text(submit.client_id);
  out.text(submit.request_id);
  out.number(submit.raw ? 1 : 0);
  out.number(submit.return_tokens ? 1 : 0);
  out.number(submit.choices);
  out.number(submit.credit);
  out.number64(submit.deadline_ns);
  out.number(submit.trace_top_m);
  out.number(submit.traced_cuts_max);
  out.text(submit.tenant);
  out.number(static_cast<std::uint32_t>(submit.priority));
  out.text(submit.owner);
  out.number(submit.grammar ? 1 + static_cast<std::uint32_t>(submit.grammar->kind) : 0);
  out.text(submit.grammar ? submit.grammar->text : "");
  out.number(submit.has_tools ? 1 : 0);
  out.texts(submit.stop);
  out.number(submit.client_stops);
  write(submit.sampling, out);
  out.numbers(submit.boundaries);
  out.numbers(submit.prompt);
  return out.take();
}

std::optional<LoggedSubmit> submit_from_words(std::span<const std::uint32_t> words) {
  WordReader in(words);
  LoggedSubmit submit;
  submit.client_id = in.text();
  submit.request_id = in.text();
  submit.raw = in.flag();
  submit.return_tokens = in.flag();
  submit.choices = in.number();
  submit.credit = in.number();
  submit.deadline_ns = in.number64();
  submit.trace_top_m = in.number();
  submit.traced_cuts_max = in.number();
  submit.tenant = in.text();
  submit.priority = static_cast<std::int32_t>(in.number());
  submit.owner = in.text();
  const auto grammar = in.one_of<std::uint32_t>(1 + protocol::wire::grammar_kind_count);
  std::string grammar_text = in.text();
  if (grammar > 0) submit.grammar = {static_cast<protocol::wire::GrammarKind>(grammar - 1), std::move(grammar_text)};
  submit.has_tools = in.flag();
  submit.stop = in.texts();
  submit.client_stops = in.number();
  submit.sampling = read_sampling(in);
  submit.boundaries = in.numbers();
  submit.prompt = in.numbers();
  if (!in.whole() || submit.request_id.empty() || submit.choices == 0 || submit.choices > choices_bound) return std::nullopt;
  return submit;
}

std::vector<std::uint32_t> to_words(const LoggedEnd& end) {
  WordWriter out;
  out.number(static_cast<std::uint32_t>(end.reason));
  out.number(end.usage.prompt_tokens);
  out.number(end.usage.completion_tokens);
  out.number(end.usage.preemptions);
  out.number(end.usage.cached_tokens);
  out.number(static_cast<std::uint32_t>(end.usage.miss));
  out.number(end.stop_string ? 1 : 0);
  out.number(end.stop_string.value_or(0));
  out.number(end.error ? 1 : 0);
  if (end.error) {
    out.number(static_cast<std::uint32_t>(end.error->code));
    out.text(bounded(end.error->message));
    out.text(bounded(end.error->field));
  }
  return out.take();
}

std::optional<LoggedEnd> end_from_words(std::span<const std::uint32_t> words) {
  WordReader in(words);
  LoggedEnd end;
  end.reason = in.one_of<FinishReason>(finish_reason_count);
  end.usage.prompt_tokens = in.number();
  end.usage.completion_tokens = in.number();
  end.usage.preemptions = in.number();
  end.usage.cached_tokens = in.number();
  end.usage.miss = in.one_of<PrefixMiss>(prefix_miss_count);
  const bool stopped = in.flag();
  const std::uint32_t stop_string = in.number();
  if (stopped) end.stop_string = stop_string;
  if (in.flag()) {
    end.error.emplace();
    end.error->code = in.one_of<ErrorCode>(error_code_count);
    end.error->message = in.text();
    end.error->field = in.text();
  }
  if (!in.whole()) return std::nullopt;
  return end;
}

}  // namespace althing::actors
