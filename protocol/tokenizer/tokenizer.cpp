// The public face: files in, pieces through the merger, special tokens only where the caller asked for them.
#include "protocol/tokenizer/tokenizer.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "protocol/tokenizer/byte_pair_encoding.hpp"
#include "protocol/tokenizer/pretokenizer.hpp"
#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol {
namespace {

// The largest published tokenizer.json has 33 MB.
constexpr std::uintmax_t file_bytes_max = std::uintmax_t{512} << 20;

Result<std::string> read_file(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  const auto failed = [&](ErrorCode code, std::string_view what) { return Error{code, fmt::format("{}: {}", file.string(), what), ""}; };
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found)
    return failed(ErrorCode::not_found, "there is no such file; give a tokenizer.json or a .tiktoken file");
  if (!fs::is_regular_file(status)) return failed(ErrorCode::io, error ? error.message() : "not a regular file");
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) return failed(ErrorCode::io, error.message());
  if (size > file_bytes_max) return failed(ErrorCode::too_large, fmt::format("{} bytes, over the limit of {}", size, file_bytes_max));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"), std::fclose);
  if (!stream) return failed(ErrorCode::io, std::strerror(errno));
  std::string text(size, '\0');
  const std::size_t read = std::fread(text.data(), 1, text.size(), stream.get());
  if (read != size) return failed(ErrorCode::io, fmt::format("{} bytes could be read where {} are expected", read, size));
  return text;
}

}  // namespace

struct Tokenizer::State {
  BytePairEncoding encoding;

  // Appends the tokens of ordinary text. REQUIRES: valid UTF-8.
  void encode(std::string_view text, MergeScratch& scratch, std::vector<TokenId>& out) const {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = piece_end(text, begin);
      encode_piece(encoding, text.substr(begin, end - begin), scratch, out);
      begin = end;
    }
  }

  static Result<std::shared_ptr<const Tokenizer>> make(Result<BytePairEncoding> parsed, std::string_view where) {
    if (!parsed) {
      Error error = std::move(parsed).error();
      const std::string message = fmt::format("{}: {}", where, error.message);
      std::string storage;
      error.message = valid_utf8(message, storage);  // It may quote bytes of the file.
      return error;
    }
    auto state = std::make_unique<State>(State{std::move(*parsed)});
    return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(state)));
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_tokenizer_json(const std::filesystem::path& file) {
  auto text = read_file(file);
  if (!text) return std::move(text).error();
  return State::make(parse_tokenizer_json(*text), file.string());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_tokenizer_json_text(std::string_view text) {
  return State::make(parse_tokenizer_json(text), "tokenizer.json");
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_tiktoken(const std::filesystem::path& file,
                                                                  std::vector<std::pair<std::string, TokenId>> special_tokens) {
  auto text = read_file(file);
  if (!text) return std::move(text).error();
  return State::make(parse_tiktoken(*text, std::move(special_tokens)), file.string());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::of_model(const std::filesystem::path& directory) {
  return from_tokenizer_json(directory / "tokenizer.json");
}

std::vector<std::pair<std::string, TokenId>> Tokenizer::o200k_harmony_special_tokens() {
  constexpr TokenId first = 199998, last = 201087;
  std::vector<std::pair<std::string, TokenId>> tokens = {{"<|startoftext|>", 199998}, {"<|endoftext|>", 199999}, {"<|return|>", 200002},
                                                         {"<|constrain|>", 200003},   {"<|channel|>", 200005},   {"<|start|>", 200006},
                                                         {"<|end|>", 200007},         {"<|message|>", 200008},   {"<|call|>", 200012}};
  const std::size_t named_count = tokens.size();
  std::size_t named = 0;
  for (TokenId id = first; id <= last; ++id) {
    if (named < named_count && tokens[named].second == id) {
      ++named;
    } else {
      tokens.emplace_back(fmt::format("<|reserved_{}|>", id), id);
    }
  }
  tokens.emplace_back("<|endofprompt|>", 200018);
  return tokens;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::string storage;
  MergeScratch scratch;
  std::vector<TokenId> tokens;
  state_->encode(valid_utf8(text, storage), scratch, tokens);
  return tokens;
}

std::vector<TokenId> Tokenizer::encode_with_special(std::string_view text) const {
  std::string storage;
  text = valid_utf8(text, storage);
  MergeScratch scratch;
  std::vector<TokenId> tokens;
  std::size_t begin = 0;
  while (const auto match = state_->encoding.specials.next(text, begin)) {
    state_->encode(text.substr(begin, match->begin - begin), scratch, tokens);
    tokens.push_back(match->token);
    begin = match->begin + match->length;
  }
  state_->encode(text.substr(begin), scratch, tokens);
  return tokens;
}

std::optional<std::string_view> Tokenizer::bytes_of(TokenId token) const {
  const std::string_view bytes = state_->encoding.tokens.bytes_of(token);
  if (bytes.empty()) return std::nullopt;
  return bytes;
}

std::optional<TokenId> Tokenizer::special(std::string_view name) const { return state_->encoding.specials.find(name); }
bool Tokenizer::is_special(TokenId token) const { return state_->encoding.tokens.is_special(token); }
TokenId Tokenizer::vocabulary_size() const { return state_->encoding.tokens.size(); }

Result<std::string> Tokenizer::decode(std::span<const TokenId> tokens) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    const auto piece = bytes_of(token);
    if (!piece) return Error{ErrorCode::corrupt, fmt::format("Invalid token for decoding: {}", token), ""};
    bytes.append(*piece);
  }
  return bytes;
}

}  // namespace althing::protocol
