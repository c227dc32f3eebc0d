// What a streamed token costs on its way from the engine to a socket, without actors and without a network: detokenise, parse Harmony, make events,
// cut deltas, encode. Tokens a second on one core, for streams of 512 tokens of real text, a delta every token and every 16 tokens.
//
//   frontend_work [--json] [TEXT-FILE]
//
// The rows: `parse` is what every stream pays; `capnp`, `json` are parse and the body of the wire; `sse` is parse and what the HTTP gateway makes of
// the delta for a chat completion (it hears it over the wire, whose decoding is in the row too). The rows of one line take turns, a stream each.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/harmony/format.hpp"
#include "protocol/openai/chat_answer.hpp"
#include "protocol/openai/chat_request.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/delta_log.hpp"
#include "tests/support/usage.hpp"

namespace {

using namespace althing;
using namespace althing::protocol;

constexpr std::size_t stream_tokens = 512;
constexpr std::size_t text_bytes_max = 128u << 10;
constexpr double turn_seconds = 2;  // of each row

enum class Row : std::uint8_t { parse, capnp, json, sse };
constexpr std::array<const char*, 4> row_names{"parse", "capnp", "json", "sse"};

// The text as answers: a header, as many of its tokens as fit, and the end.
std::vector<std::vector<TokenId>> streams_of(const harmony::Format& format, const std::string& text) {
  const std::vector<TokenId> tokens = format.tokenizer->encode(text);
  std::vector<TokenId> header = format.tokenizer->encode("final");
  header.insert(header.begin(), format.channel);
  header.push_back(format.message);
  std::vector<std::vector<TokenId>> streams;
  const std::size_t body = stream_tokens - header.size() - 1;
  for (std::size_t at = 0; at + body <= tokens.size(); at += body) {
    std::vector<TokenId>& stream = streams.emplace_back(header);
    stream.insert(stream.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(at + body));
    stream.push_back(format.return_);
  }
  return streams;
}

// One stream from its first token to its last; the bytes that came out, so that nothing is left out as unused.
std::size_t serve(const harmony::Format& format, const std::vector<TokenId>& tokens, std::size_t every, Row row) {
  wire::DeltaLog log("6d1f0a52c7e94b38a1d2f3e405162738", format, row == Row::sse);
  openai::ChatRequest request;
  request.stream = true;
  openai::ChatAnswer answer({"0123456789abcdef01234567", 1'700'000'000, "synthetic"}, request, format);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    log.push(tokens[i]);
    if (i + 1 == tokens.size()) log.close();
    if (((i + 1) % every != 0 && i + 1 < tokens.size()) || !log.pending()) continue;
    const wire::ServerMessage& delta = log.cut();
    if (row == Row::parse) continue;
    const std::string body = wire::encode(delta, row == Row::json ? wire::Encoding::json : wire::Encoding::capnp);
    bytes += body.size();
    if (row != Row::sse) continue;
    const auto heard = wire::decode_server(body, wire::Encoding::capnp, Limits{});
    bytes += answer.push(std::get<wire::Delta>(*heard)).size();
  }
  return bytes + log.messages().size();
}

// Of this thread's processor, so that who else runs on the machine matters little.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Spent {
  double seconds = 0;
  std::size_t tokens = 0;
  std::size_t bytes = 0;
};

void measure(const harmony::Format& format, const std::vector<std::vector<TokenId>>& streams, std::size_t every, bool json) {
  std::array<Spent, row_names.size()> spent;
  const double until = cpu_seconds() + turn_seconds * static_cast<double>(row_names.size());
  for (std::size_t next = 0; cpu_seconds() < until; ++next) {
    const std::vector<TokenId>& tokens = streams[next % streams.size()];
    for (std::size_t row = 0; row < row_names.size(); ++row) {
      const double began = cpu_seconds();
      spent[row].bytes += serve(format, tokens, every, static_cast<Row>(row));
      spent[row].seconds += cpu_seconds() - began;
      spent[row].tokens += tokens.size();
    }
  }
  for (std::size_t row = 0; row < row_names.size(); ++row) {
    const double rate = static_cast<double>(spent[row].tokens) / spent[row].seconds;
    if (json)
      std::printf(R"({"figure": "frontend_%s_%zu", "value": %.0f, "unit": "tok/s"})"
                  "\n",
                  row_names[row], every, rate);
    else
      std::printf("%-5s %2zu tokens a delta: %9.0f tok/s, %6.0f ns a token, %5.1f bytes a token\n", row_names[row], every, rate, 1e9 / rate,
                  static_cast<double>(spent[row].bytes) / static_cast<double>(spent[row].tokens));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (tests::helped(argc, argv,
                    "frontend_work [--json] [TEXT-FILE]\n"
                    "Tokens a second of detokenise, parse and encode on one core; the text is ARCHITECTURE.md unless another is given."))
    return 0;
  bool json = false;
  std::string file = ALTHING_SOURCE_DIR "/ARCHITECTURE.md";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json")
      json = true;
    else
      file = argv[i];
  }
  std::ifstream stream(file);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  text.resize(std::min(text.size(), text_bytes_max));
  auto tokenizer = Tokenizer::from_tiktoken(ALTHING_SOURCE_DIR "/tests/data/o200k_base.tiktoken", Tokenizer::o200k_harmony_special_tokens());
  auto format = tokenizer ? harmony::Format::of(*tokenizer) : Result<harmony::Format>(tokenizer.error());
  const auto streams = format ? streams_of(*format, text) : std::vector<std::vector<TokenId>>();
  if (streams.empty()) {
    std::fprintf(stderr, "frontend_work: %s\n", format ? (file + " has too little text for one stream").c_str() : format.error().message.c_str());
    return 1;
  }
  for (const std::size_t every : {std::size_t{1}, std::size_t{16}}) measure(*format, streams, every, json);
}
