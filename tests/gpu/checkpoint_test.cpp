// Checkpoint folders: what opens, what is refused, and that every refusal names file, tensor and byte before memory is taken.
#include "gpu/weights/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/weights/mapped_file.hpp"
#include "gpu/weights/message.hpp"
#include "gpu/weights/shard_index.hpp"
#include "tests/support/checkpoint_writer.hpp"

namespace althing::gpu {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using tests::NamedTensor;
using tests::safetensors_of;
using tests::TemporaryFolder;

std::vector<NamedTensor> six_tensors() {
  std::vector<NamedTensor> all;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) all.push_back({name, DType::u8, {3}, std::string(3, name[0])});
  return all;
}

std::string text_of(const TensorView& view) { return {reinterpret_cast<const char*>(view.data), view.shape[0]}; }

TEST(Checkpoint, one_file_opens_with_its_tensors_by_name) {
  TemporaryFolder folder;
  folder.write("config.json", "{\"x\":1}");
  folder.write("model.safetensors", safetensors_of({six_tensors()[4], six_tensors()[1]}));
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message;
  const Checkpoint& c = **opened;
  ASSERT_EQ(c.tensors().size(), 2u);
  EXPECT_EQ(c.tensors()[0].name, "b");
  EXPECT_EQ(text_of(*c.find("e")), "eee");
  EXPECT_EQ(c.find("a"), nullptr);
  EXPECT_EQ(c.config_json(), "{\"x\":1}");
  EXPECT_EQ(c.tensor_bytes(), 6u);
  EXPECT_EQ(c.file_count(), 1u);
}

TEST(Checkpoint, shards_open_with_and_without_their_index) {
  TemporaryFolder folder;
  folder.write("config.json", "{}");
  tests::write_sharded(folder, six_tensors(), 4);
  for (const bool with_index : {true, false}) {
    if (!with_index) fs::remove(folder.path() / "model.safetensors.index.json");
    const auto opened = Checkpoint::open(folder.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->file_count(), 2u);
    for (const NamedTensor& t : six_tensors()) EXPECT_EQ(text_of(*(*opened)->find(t.name)), t.data);
  }
}

struct FolderFault {
  const char* what;
  std::function<void(const TemporaryFolder&)> make;  // starts from the shards of six tensors, four and two, with an index
  ErrorCode code;
  std::vector<std::string> says;
};

constexpr const char* first = "model-00001-of-00002.safetensors";
constexpr const char* second = "model-00002-of-00002.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

// What may be wrong with the folder and its index.
std::vector<FolderFault> index_faults() {
  const auto edit_index = [](const char* from, const char* to) {
    return [from, to](const TemporaryFolder& f) { f.write(index_name, tests::replaced(tests::read_text(f.path() / index_name), from, to)); };
  };
  const auto remove = [](std::vector<const char*> names) {
    return [names](const TemporaryFolder& f) {
      for (const char* name : names) fs::remove(f.path() / name);
    };
  };
  const auto c = ErrorCode::corrupt;
  return {
      {"no config", remove({"config.json"}), ErrorCode::not_found, {"config.json", "no such file"}},
      {"config too large",
       [](const TemporaryFolder& f) { f.write("config.json", std::string((4u << 20) + 1, ' ')); },
       ErrorCode::too_large,
       {"config.json", "4194305", "4194304"}},
      {"missing shard", remove({second}), ErrorCode::not_found, {index_name, second, "tensor 'e'"}},
      {"missing shard without index", remove({second, index_name}), ErrorCode::not_found, {"1 of 2"}},
      {"no weights", remove({first, second, index_name}), ErrorCode::not_found, {"no *.safetensors"}},
      {"tensor in the wrong shard", edit_index(R"("e":"model-00002)", R"("e":"model-00001)"), c, {second, "tensor 'e'", "byte", index_name, first}},
      {"tensor not in the index",
       edit_index(R"(,"f":"model-00002-of-00002.safetensors")", ""),
       c,
       {second, "tensor 'f'", "byte", "not in the index"}},
      {"tensor only in the index", edit_index(R"("f":)", R"("g":"model-00002-of-00002.safetensors","f":)"), c, {index_name, "tensor 'g'", second}},
      {"tensor twice in the index", edit_index(R"("f":)", R"("a":"model-00002-of-00002.safetensors","f":)"), c, {index_name, "tensor 'a'", "twice"}},
      {"index leaves the folder", edit_index(R"("e":"model-00002)", R"("e":"../model-00002)"), c, {index_name, "tensor 'e'", "../model-00002"}},
      {"index names another kind of file",
       edit_index(R"("e":"model-00002-of-00002.safetensors")", R"("e":"config.json")"),
       c,
       {index_name, "tensor 'e'", "config.json"}},
      {"index with a NUL", edit_index(R"("e":"model-00002-of-00002)", R"("e":"model-00002-of-00002\u0000)"), c, {index_name, "tensor 'e'", "\\x00"}},
      {"index names a number", edit_index(R"("e":"model-00002-of-00002.safetensors")", R"("e":2)"), c, {index_name, "tensor 'e'"}},
      {"index without a map", edit_index("weight_map", "weight_mop"), c, {index_name, "weight_map"}},
      {"index not JSON", edit_index("{", "["), c, {index_name, "JSON"}},
      {"index with an empty map", [](const TemporaryFolder& f) { f.write(index_name, R"({"weight_map":{}})"); }, c, {index_name, "empty"}},
  };
}

// What may be wrong with the shards themselves; starts from the same.
std::vector<FolderFault> shard_faults() {
  const auto c = ErrorCode::corrupt;
  return {
      {"a single file beside the index",
       [](const TemporaryFolder& f) { f.write("model.safetensors", safetensors_of({})); },
       c,
       {index_name, "model.safetensors", "remove one"}},
      {"tensor twice",
       [](const TemporaryFolder& f) {
         f.write(second, safetensors_of({six_tensors()[0], six_tensors()[4], six_tensors()[5]}));
       },
       c,
       {"tensor 'a'", "byte", first, second}},
      {"two sets of shards without index",
       [](const TemporaryFolder& f) {
         fs::remove(f.path() / index_name);
         f.write("other-00001-of-00003.safetensors", safetensors_of({}));
       },
       c,
       {"other-00001-of-00003", "one set"}},
      {"shard empty", [](const TemporaryFolder& f) { f.write(second, ""); }, c, {second, "empty"}},
      {"shard cut",
       [](const TemporaryFolder& f) { fs::resize_file(f.path() / second, fs::file_size(f.path() / second) - 1); },
       c,
       {second, "tensor 'f'", "byte", "cut short"}},
      {"shard with bytes appended",
       [](const TemporaryFolder& f) { fs::resize_file(f.path() / second, fs::file_size(f.path() / second) + 1); },
       c,
       {second, "tensor 'f'", "byte", "1 bytes after"}},
      {"shard is a folder",
       [](const TemporaryFolder& f) {
         fs::remove(f.path() / second);
         fs::create_directory(f.path() / second);
       },
       c,
       {second, "regular file"}},
      {"shard is a FIFO",
       [](const TemporaryFolder& f) {
         fs::remove(f.path() / second);
         ASSERT_EQ(::mkfifo((f.path() / second).c_str(), 0600), 0);
       },
       c,
       {second, "regular file"}},
      {"dangling symlink",
       [](const TemporaryFolder& f) {
         fs::remove(f.path() / second);
         fs::create_symlink("../blobs/gone", f.path() / second);
       },
       ErrorCode::not_found,
       {second, "symlink"}},
      {"symlink to itself",
       [](const TemporaryFolder& f) {
         fs::remove(f.path() / second);
         fs::create_symlink(second, f.path() / second);
       },
       ErrorCode::io,
       {second}},
  };
}

TEST(Checkpoint, every_fault_of_a_folder_is_named) {
  std::vector<FolderFault> faults = index_faults();
  for (FolderFault& fault : shard_faults()) faults.push_back(std::move(fault));
  for (const FolderFault& fault : faults) {
    TemporaryFolder folder;
    folder.write("config.json", "{}");
    tests::write_sharded(folder, six_tensors(), 4);
    fault.make(folder);
    const auto opened = Checkpoint::open(folder.path());
    ASSERT_FALSE(opened) << fault.what;
    EXPECT_EQ(opened.error().code, fault.code) << fault.what << ": " << opened.error().message;
    for (const std::string& text : fault.says) EXPECT_THAT(opened.error().message, HasSubstr(text)) << fault.what;
    EXPECT_THAT(opened.error().message, testing::Not(HasSubstr("\n"))) << fault.what;
  }
}

TEST(Checkpoint, a_folder_that_is_not_there_is_named) {
  const auto opened = Checkpoint::open("/nonexistent/model");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::not_found);
  EXPECT_THAT(opened.error().message, HasSubstr("/nonexistent/model"));
}

// Download caches keep files under blobs/ and link to them from snapshots/.
TEST(Checkpoint, links_of_a_download_cache_are_followed) {
  TemporaryFolder folder;
  folder.write("blobs/c0ffee", "{}");
  folder.write("blobs/beef", safetensors_of(six_tensors()));
  const fs::path snapshot = folder.path() / "snapshots" / "main";
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/c0ffee", snapshot / "config.json");
  fs::create_symlink("../../blobs/beef", snapshot / "model.safetensors");
  const auto opened = Checkpoint::open(snapshot);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->tensors().size(), 6u);
  EXPECT_THAT((*opened)->where((*opened)->tensors()[0]), HasSubstr("snapshots/main/model.safetensors: tensor 'a'"));
}

TEST(Checkpoint, read_gives_the_bytes_of_a_view_and_refuses_others) {
  TemporaryFolder folder;
  folder.write("config.json", "{}");
  tests::write_sharded(folder, six_tensors(), 4);
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message;
  const TensorView& e = *(*opened)->find("e");
  std::string out = "....";
  const auto bytes = std::as_writable_bytes(std::span(out));
  ASSERT_TRUE((*opened)->read(e, 1, bytes.first(2)));
  EXPECT_EQ(out, "ee..");
  EXPECT_FALSE((*opened)->read(e, 0, bytes));
  EXPECT_FALSE((*opened)->read(e, 4, bytes.first(0)));
  EXPECT_FALSE((*opened)->read(e, ~std::uint64_t{0}, bytes.first(2)));
}

TEST(Checkpoint, a_file_cut_after_opening_is_an_error_of_read_and_unchanged) {
  TemporaryFolder folder;
  const fs::path file = folder.write("w.safetensors", safetensors_of(six_tensors()));
  const auto opened = Checkpoint::open_file(file);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_TRUE((*opened)->unchanged());
  fs::resize_file(file, 64);
  const auto status = (*opened)->unchanged();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("has 64 now"));
  std::string out(3, '.');
  const auto read = (*opened)->read(*(*opened)->find("f"), 0, std::as_writable_bytes(std::span(out)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::io);
  EXPECT_THAT(read.error().message, HasSubstr("w.safetensors"));
}

TEST(Checkpoint, a_file_replaced_by_rename_leaves_the_mapping_on_the_old_one) {
  TemporaryFolder folder;
  const fs::path file = folder.write("w.safetensors", safetensors_of(six_tensors()));
  const auto opened = Checkpoint::open_file(file);
  ASSERT_TRUE(opened) << opened.error().message;
  fs::rename(folder.write("new", "short"), file);
  EXPECT_TRUE((*opened)->unchanged());
  EXPECT_EQ(text_of(*(*opened)->find("f")), "fff");
}

TEST(Checkpoint, zero_size_tensors_at_the_end_of_a_page_stay_with_their_file) {
  TemporaryFolder folder;
  folder.write("config.json", "{}");
  // Files of exactly one page may be mapped side by side; the address of a zero-size tensor must not fall into the next.
  std::vector<NamedTensor> page = {{"a", DType::u8, {0}, ""}, {"z", DType::u8, {0}, ""}};
  const std::size_t header = safetensors_of(page).size();
  page[0] = {"a", DType::u8, {4096 - header - 8}, std::string(4096 - header - 8, 'a')};
  std::vector<NamedTensor> all = page;
  all.push_back({"b", DType::u8, {0}, ""});
  all.push_back({"c", DType::u8, {5}, "ccccc"});
  tests::write_sharded(folder, all, 2);
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_THAT((*opened)->where(*(*opened)->find("z")), HasSubstr("model-00001"));
}

TEST(ReadSmallFile, empty_files_are_empty_texts) {
  TemporaryFolder folder;
  const auto text = read_small_file(folder.write("x", ""), 10);
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "");
}

TEST(Printable, is_one_line_of_valid_text) {
  EXPECT_EQ(printable("a'b\\c\nd\x7f"), "a\\x27b\\x5cc\\x0ad\\x7f");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("ab\xd0\xb6z", 3), "ab...");        // the cut would split ж
  EXPECT_EQ(printable("a\xd0\xb6z", 3), "a\xd0\xb6...");  // ж is whole
}

}  // namespace
}  // namespace althing::gpu
