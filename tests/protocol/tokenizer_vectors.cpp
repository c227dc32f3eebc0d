// Runs published encodings through the tokenizer: tokenizer_vectors [--tokenizer FILE] [FILE.jsonl …]
// A line is {"text","ids"} or {"unit","count","n_ids","first_ids","last_ids","ids_csv_sha256"} (a text of repeated units), told apart by its
// keys. Every line is one case; its text must also come back from its tokens. FILE is a .tiktoken (o200k_harmony's special tokens are added) or a
// tokenizer.json; without arguments the o200k data in the tree is used.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "protocol/tokenizer/tokenizer.hpp"
#include "tests/support/sha256.hpp"
#include "tests/support/usage.hpp"
#include "tests/support/verdict.hpp"

namespace althing::protocol {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

std::string csv_of(const Ids& ids) {
  std::string csv;
  for (const TokenId id : ids) csv += (csv.empty() ? "" : ",") + std::to_string(id);
  return csv;
}

std::string shortened(const Ids& ids) {
  const std::string csv = csv_of(ids);
  return csv.size() <= 200 ? "[" + csv + "]" : "[" + csv.substr(0, 200) + "…], " + std::to_string(ids.size()) + " ids";
}

// Each check returns what is wrong, or nothing.
std::string check_text(const Tokenizer& tokenizer, const Json& line) {
  const auto text = line.at("text").get<std::string>();
  const auto expected = line.at("ids").get<Ids>();
  const Ids actual = tokenizer.encode(text);
  if (actual != expected) return "expected " + shortened(expected) + ", got " + shortened(actual);
  const auto decoded = tokenizer.decode(actual);
  return decoded.ok() && *decoded == text ? "" : "the tokens do not decode to the text";
}

std::string check_run(const Tokenizer& tokenizer, const Json& line) {
  const auto unit = line.at("unit").get<std::string>();
  const auto count = line.at("count").get<std::size_t>();
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += unit;
  const Ids actual = tokenizer.encode(text);
  if (const auto expected = line.at("n_ids").get<std::size_t>(); actual.size() != expected)
    return "expected " + std::to_string(expected) + " ids, got " + std::to_string(actual.size());
  const auto first = line.at("first_ids").get<Ids>(), last = line.at("last_ids").get<Ids>();
  if (first.size() > actual.size() || last.size() > actual.size()) return "more first or last ids are listed than there are ids";
  const Ids actual_first(actual.begin(), actual.begin() + static_cast<std::ptrdiff_t>(first.size()));
  const Ids actual_last(actual.end() - static_cast<std::ptrdiff_t>(last.size()), actual.end());
  if (actual_first != first) return "expected to begin with " + shortened(first) + ", got " + shortened(actual_first);
  if (actual_last != last) return "expected to end with " + shortened(last) + ", got " + shortened(actual_last);
  const auto expected_hash = line.at("ids_csv_sha256").get<std::string>();
  if (const std::string hash = tests::Sha256::hex(csv_of(actual)); hash != expected_hash)
    return "expected the hash " + expected_hash + ", got " + hash;
  const auto decoded = tokenizer.decode(actual);
  return decoded.ok() && *decoded == text ? "" : "the tokens do not decode to the text";
}

std::string check_line(const Tokenizer& tokenizer, const std::string& text) {
  try {
    const Json line = Json::parse(text);
    if (line.contains("text") && line.contains("ids")) return check_text(tokenizer, line);
    if (line.contains("unit") && line.contains("count")) return check_run(tokenizer, line);
    return "neither a line with text and ids nor one with unit and count";
  } catch (const Json::exception& error) {
    return error.what();
  }
}

void run_file(const Tokenizer& tokenizer, const std::filesystem::path& file, tests::Verdict& verdict) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return verdict.fail(file.string(), "cannot be read");
  std::string line;
  int cases = 0;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    ++cases;
    const std::string wrong = check_line(tokenizer, line);
    if (wrong.empty()) {
      verdict.pass();
    } else {
      verdict.fail(file.filename().string() + ":" + std::to_string(number), wrong);
    }
  }
  if (cases == 0) verdict.fail(file.string(), "has no lines");
}

int run(const std::vector<std::string>& arguments) {
  const std::filesystem::path data = ALTHING_SOURCE_DIR "/tests/data";
  std::filesystem::path tokenizer_file = data / "o200k_base.tiktoken";
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != "--tokenizer") {
      files.emplace_back(arguments[i]);
    } else if (++i < arguments.size()) {
      tokenizer_file = arguments[i];
    } else {
      std::fprintf(stderr, "--tokenizer needs a file after it\n");
      return 2;
    }
  }
  if (files.empty()) files = {data / "o200k_vectors.jsonl", data / "o200k_long_runs.jsonl"};
  tests::Verdict verdict;
  const auto tokenizer = tokenizer_file.extension() == ".json" ? Tokenizer::from_tokenizer_json(tokenizer_file)
                                                               : Tokenizer::from_tiktoken(tokenizer_file, Tokenizer::o200k_harmony_special_tokens());
  if (tokenizer.ok()) {
    for (const auto& file : files) run_file(**tokenizer, file, verdict);
  } else {
    verdict.fail(tokenizer_file.string(), tokenizer.error().message);
  }
  return verdict.close();
}

}  // namespace
}  // namespace althing::protocol

int main(int argc, char** argv) {
  if (althing::tests::helped(argc, argv,
                             "tokenizer_vectors [--tokenizer FILE] [VECTORS.jsonl …]\n"
                             "Texts and the token ids that a reference gave them; those of tests/data unless files are named."))
    return 0;
  return althing::protocol::run(std::vector<std::string>(argv + 1, argv + argc));
}
