// The safetensors header: one case a lie that a file can tell.
#include "gpu/weights/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "gpu/weights/message.hpp"
#include "tests/support/checkpoint_writer.hpp"

namespace althing::gpu {
namespace {

using tests::safetensors_of;
using tests::safetensors_raw;

Result<std::vector<TensorView>> parse(const std::string& file) { return parse_safetensors("w.safetensors", std::as_bytes(std::span(file))); }

TEST(Safetensors, well_formed_file_gives_views_in_order_of_data) {
  const std::string file = safetensors_of({{"b", DType::f32, {2, 1}, "abcdefgh"}, {"a", DType::u8, {3}, "xyz"}, {"scalar", DType::bf16, {}, "12"}});
  const auto views = parse(file);
  ASSERT_TRUE(views) << views.error().message;
  ASSERT_EQ(views->size(), 3u);
  EXPECT_EQ((*views)[0].name, "b");
  EXPECT_EQ((*views)[0].shape, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*views)[1].data), 3), "xyz");
  EXPECT_EQ(byte_count((*views)[2]), 2u);
}

TEST(Safetensors, zero_size_tensors_have_an_address_inside_the_file) {
  const std::string file = safetensors_of({{"a", DType::f32, {0, 7}, ""}, {"b", DType::u8, {2}, "hi"}, {"c", DType::bf16, {0}, ""}});
  const auto views = parse(file);
  ASSERT_TRUE(views) << views.error().message;
  for (const TensorView& view : *views) {
    EXPECT_FALSE(view.empty());
    EXPECT_LT(view.data, std::as_bytes(std::span(file)).data() + file.size()) << view.name;
  }
}

TEST(Safetensors, no_tensors_at_all_is_well_formed) {
  EXPECT_TRUE(parse(safetensors_raw("{}", "")));
  EXPECT_TRUE(parse(safetensors_raw(R"({"__metadata__":{}}   )", "")));
}

struct Corruption {
  const char* what;
  std::string file;
  ErrorCode code;
  std::vector<std::string> says;  // all of these, in the one line
};

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::vector<Corruption> corruptions() {
  const auto raw = [](const std::string& entries, std::size_t data) {
    return safetensors_raw(fmt::format("{{{}}}", entries), std::string(data, 'd'));
  };
  const auto at = [](std::size_t header, std::size_t offset) { return fmt::format("byte {}", 8 + header + 2 + offset); };
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  const auto c = ErrorCode::corrupt;
  std::string long_shape = "[1", huge_length = safetensors_raw("{}", "");
  for (int i = 0; i < 8; ++i) long_shape += ",1";
  long_shape += "]";
  huge_length[7] = '\x7f';
  std::string claim = safetensors_raw("{}", "");
  claim[3] = 5;  // 83,886,082 bytes: under the cap, over the file
  const std::string b_at_2 = entry("b", "U8", "[4]", "[2,6]"), b_at_5 = entry("b", "U8", "[4]", "[5,9]"), bad = entry("a", "U8", "[5]", "[0,4]");
  const std::string comma = ",";
  return {
      {"shorter than the length", "1234567", c, {"header", "byte 7", "7 bytes"}},
      {"length over the cap", huge_length, c, {"header", "byte 0", "100000000"}},
      {"length over the file", claim, c, {"header", "byte 10", "83886082"}},
      {"no brace", safetensors_raw(" {}", ""), c, {"header", "byte 8", "'{'"}},
      {"empty header", safetensors_raw("", ""), c, {"header", "byte 8"}},
      {"broken JSON", safetensors_raw(R"({"a":)", ""), c, {"header", "bytes 8 to 12", "JSON"}},
      {"invalid UTF-8", safetensors_raw("{\"\xff\":1}", ""), c, {"header", "JSON"}},
      {"something after the JSON", safetensors_raw("{} {}", ""), c, {"header", "JSON"}},
      {"metadata not an object", raw(R"("__metadata__":3)", 0), c, {"__metadata__"}},
      {"metadata not strings", raw(R"("__metadata__":{"k":3})", 0), c, {"__metadata__", "'k'"}},
      {"metadata twice", raw(R"("__metadata__":{},"__metadata__":{})", 0), c, {"__metadata__", "twice"}},
      {"empty name", raw(entry("", "U8", "[4]", "[0,4]"), 4), c, {"empty name"}},
      {"entry not an object", raw(R"("a":[1])", 0), c, {"tensor 'a'", "byte 9", "object"}},
      {"no dtype", raw(R"("a":{"shape":[4],"data_offsets":[0,4]})", 4), c, {"tensor 'a'", "byte 9", "dtype"}},
      {"no shape", raw(R"("a":{"dtype":"U8","data_offsets":[0,4]})", 4), c, {"tensor 'a'", "shape"}},
      {"no offsets", raw(R"("a":{"dtype":"U8","shape":[4]})", 4), c, {"tensor 'a'", "data_offsets"}},
      {"unknown key", raw(R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})", 4), c, {"tensor 'a'", "'x'"}},
      {"shape twice", raw(R"("a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]})", 4), c, {"tensor 'a'", "'shape' twice"}},
      {"dtype not a string", raw(R"("a":{"dtype":8,"shape":[4],"data_offsets":[0,4]})", 4), c, {"tensor 'a'", "dtype"}},
      {"made-up dtype", raw(entry("a", "F128", "[4]", "[0,4]"), 4), c, {"tensor 'a'", "byte 9", "F128"}},
      {"dtype nothing here uses", raw(entry("a", "F64", "[1]", "[0,8]"), 8), ErrorCode::unsupported, {"tensor 'a'", "byte 9", "F64", "BF16"}},
      {"shape not a list", raw(entry("a", "U8", "4", "[0,4]"), 4), c, {"tensor 'a'", "shape"}},
      {"negative dimension", raw(entry("a", "U8", "[-4]", "[0,4]"), 4), c, {"tensor 'a'", "shape"}},
      {"fractional dimension", raw(entry("a", "U8", "[4.0]", "[0,4]"), 4), c, {"tensor 'a'", "shape"}},
      {"nine dimensions", raw(entry("a", "U8", long_shape, "[0,1]"), 1), c, {"tensor 'a'", "8 dimensions"}},
      {"product over 64 bits", raw(entry("a", "U8", "[4294967296,4294967296]", "[0,4]"), 4), c, {"tensor 'a'", "64 bits"}},
      {"bytes over 64 bits", raw(entry("a", "F32", "[4611686018427387904]", "[0,4]"), 4), c, {"tensor 'a'", "64 bits"}},
      {"product over 64 bits behind a zero", raw(entry("a", "U8", "[0,4294967296,4294967296]", "[0,0]"), 0), c, {"tensor 'a'", "64 bits"}},
      {"one offset", raw(entry("a", "U8", "[4]", "[0]"), 4), c, {"tensor 'a'", "two numbers"}},
      {"three offsets", raw(entry("a", "U8", "[4]", "[0,4,4]"), 4), c, {"tensor 'a'", "two numbers"}},
      {"negative offset", raw(entry("a", "U8", "[4]", "[-4,0]"), 4), c, {"tensor 'a'", "whole numbers"}},
      {"offset over 64 bits", raw(entry("a", "U8", "[4]", "[0,18446744073709551616]"), 4), c, {"byte"}},
      {"ends before it begins", raw(entry("a", "U8", "[4]", "[4,0]"), 4), c, {"tensor 'a'", "byte 9", "[4, 0]"}},
      {"past the end", raw(entry("a", "U8", "[4]", "[1,5]"), 4), c, {"tensor 'a'", "byte", "5 bytes", "holds 4"}},
      {"far past the end", raw(entry("a", "U8", "[18446744073709551615]", "[0,18446744073709551615]"), 4), c, {"tensor 'a'", "holds 4"}},
      {"size differs from the shape", raw(bad, 4), c, {"tensor 'a'", at(bad.size(), 0), "needs 5 bytes", "hold 4"}},
      {"gap before", raw(entry("a", "U8", "[4]", "[1,5]"), 5), c, {"tensor 'a'", "1 bytes before"}},
      {"gap between", raw(a + comma + b_at_5, 9), c, {"tensor 'b'", at(a.size() + 1 + b_at_5.size(), 4), "1 bytes before"}},
      {"overlap", raw(a + comma + b_at_2, 6), c, {"tensor 'b'", at(a.size() + 1 + b_at_2.size(), 2), "overlaps tensor 'a'"}},
      {"same bytes twice", raw(a + comma + entry("b", "U8", "[4]", "[0,4]"), 4), c, {"overlaps"}},
      {"zero size inside another", raw(a + comma + entry("z", "U8", "[0]", "[2,2]"), 4), c, {"tensor 'z'", "overlaps"}},
      {"bytes after the last", raw(a, 5), c, {"tensor 'a'", at(a.size(), 4), "1 bytes after"}},
      {"data without tensors", safetensors_raw("{}", "x"), c, {"byte 10", "1 bytes after"}},
      {"duplicate", raw(a + comma + entry("a", "U8", "[1]", "[4,5]"), 5), c, {"tensor 'a'", "byte 9", "twice"}},
      {"duplicate written with an escape", raw(a + comma + entry("\\u0061", "U8", "[1]", "[4,5]"), 5), c, {"tensor 'a'", "twice"}},
      {"line break in a name", raw(entry("x\\ny", "U8", "[5]", "[0,4]"), 4), c, {"tensor 'x\\x0ay'"}},
  };
}

TEST(Safetensors, every_corruption_is_one_line_naming_file_tensor_and_byte) {
  for (const Corruption& c : corruptions()) {
    const auto views = parse(c.file);
    ASSERT_FALSE(views) << c.what;
    EXPECT_EQ(views.error().code, c.code) << c.what << ": " << views.error().message;
    EXPECT_EQ(views.error().message.rfind("w.safetensors: ", 0), 0u) << c.what << ": " << views.error().message;
    EXPECT_THAT(views.error().message, testing::HasSubstr("byte")) << c.what;
    EXPECT_THAT(views.error().message, testing::Not(testing::HasSubstr("\n"))) << c.what;
    for (const std::string& text : c.says) EXPECT_THAT(views.error().message, testing::HasSubstr(text)) << c.what;
  }
}

TEST(Safetensors, a_file_cut_anywhere_is_refused) {
  const std::string file = safetensors_of({{"a", DType::f32, {2}, "abcdefgh"}, {"b", DType::u8, {3}, "xyz"}});
  for (std::size_t length = 0; length < file.size(); ++length) {
    // A copy of exactly this size, so that a read past the end is a read past an allocation.
    const std::string cut(file.data(), length);
    const auto views = parse(cut);
    ASSERT_FALSE(views) << length;
    EXPECT_THAT(views.error().message, testing::HasSubstr("byte")) << length;
  }
}

TEST(Safetensors, a_changed_byte_gives_views_inside_the_file_or_an_error) {
  const std::string file = safetensors_of({{"a", DType::f32, {2}, "abcdefgh"}, {"b", DType::u8, {3}, "xyz"}});
  std::size_t accepted = 0, refused = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128}) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const auto views = parse(changed);
      (views ? accepted : refused) += 1;
      if (!views) continue;
      std::uint64_t bytes = 0;
      for (const TensorView& view : *views) bytes += byte_count(view);
      EXPECT_EQ(bytes, 11u) << at;
    }
  }
  EXPECT_GT(accepted, 8u * 11);  // changes of data, at least
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace althing::gpu
