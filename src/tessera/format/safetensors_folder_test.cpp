#include <gtest/gtest.h>

#include "tessera/format/safetensors.h"
#include "tessera/format/test_support.h"

namespace tessera::format::safetensors_folder_test {
namespace {

using test::bytes_of;
using test::error_of;
using test::TemporaryFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

TensorView text_tensor(std::string name, std::string_view text) {
  return {std::move(name), DType::u8, {static_cast<int64_t>(text.size())}, bytes_of(text)};
}

std::vector<std::string> names_of(const TensorFile& file) {
  std::vector<std::string> names;
  for (const TensorView& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
}

// a and b in one shard, c in another
void put_two_shards(const TemporaryFolder& folder) {
  write_safetensors(folder / "s1.safetensors",
                    std::vector{text_tensor("a", "1"), text_tensor("b", "22")},
                    {{"k", "1"}, {"only", "first"}});
  write_safetensors(folder / "s2.safetensors", std::vector{text_tensor("c", "333")}, {{"k", "2"}});
}

void put_index(const TemporaryFolder& folder, std::string_view weight_map) {
  folder.write(kIndex, fmt::format(R"({{"metadata":{{}},"weight_map":{}}})", weight_map));
}

TEST(SafetensorsFolder, ReadsShardsThroughTheIndex) {
  const TemporaryFolder folder;
  put_two_shards(folder);
  put_index(folder, R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  folder.write("unrelated.safetensors", "garbage");
  const TensorFile file = open_safetensors_folder(folder.path());
  EXPECT_EQ(names_of(file), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(file.at("c").data.size(), 3u);
  EXPECT_EQ(file.metadata(), (StringMap{{"k", "1"}, {"only", "first"}}));
}

TEST(SafetensorsFolder, ReadsTheSingleFileWithoutIndex) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", std::vector{text_tensor("a", "1")});
  folder.write("consolidated.safetensors", "garbage");
  EXPECT_EQ(names_of(open_safetensors_folder(folder.path())), std::vector<std::string>{"a"});
}

TEST(SafetensorsFolder, SaysWhichRuleIsBroken) {
  const auto error_with = [](std::string_view index) {
    const TemporaryFolder folder;
    put_two_shards(folder);
    folder.write(kIndex, index);
    return error_of([&] { open_safetensors_folder(folder.path()); });
  };
  const auto expect = [&](std::string_view weight_map, std::string_view expected) {
    const std::string error = error_with(fmt::format(R"({{"weight_map":{}}})", weight_map));
    EXPECT_NE(error.find(expected), std::string::npos) << weight_map << "\n  " << error;
  };
  expect("[]", "no weight_map; expected an object");
  expect(R"({"a":1})", "weight_map: \"a\" is an integer; expected a file name");
  for (const char* name :
       {"../s1.safetensors", "/etc/s1.safetensors", "x/s1.safetensors", "x\\\\s1.safetensors",
        "..safetensors", "s1.safetensors\\u0000", "s1\\n.safetensors", "", "s1.bin"})
    expect(fmt::format(R"({{"a":"{}"}})", name),
           "expected a plain file name that ends with .safetensors");
  expect(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s3.safetensors"})",
         "s3.safetensors: No such file; expected all 2 shards that model.safetensors.index.json");
  expect(R"({"a":"s1.safetensors","a":"s2.safetensors"})", "key \"a\" appears twice");
  EXPECT_NE(error_with("[").find("invalid JSON"), std::string::npos);
  EXPECT_NE(error_with(std::string_view("{\"weight_map\":{}}\0", 18)).find("zero byte"),
            std::string::npos);

  const TemporaryFolder empty;
  EXPECT_NE(error_of([&] { open_safetensors_folder(empty.path()); }).find("holds neither"),
            std::string::npos);
}

// the index says which files there are; what they hold counts, as transformers has it
TEST(SafetensorsFolder, EveryTensorOfAShardIsRead) {
  const TemporaryFolder folder;
  put_two_shards(folder);
  for (const char* index :
       {R"({"a":"s1.safetensors","c":"s2.safetensors"})",
        R"({"a":"s2.safetensors","b":"s2.safetensors","c":"s1.safetensors"})"}) {
    put_index(folder, index);
    std::vector<std::string> notes;
    const TensorFile file = open_safetensors_folder(folder.path(), &notes);
    EXPECT_EQ(names_of(file), (std::vector<std::string>{"a", "b", "c"})) << index;
    EXPECT_TRUE(notes.empty()) << index;
  }
}

TEST(SafetensorsFolder, ATensorThatNoShardHoldsIsNoted) {
  const TemporaryFolder folder;
  put_two_shards(folder);
  put_index(folder, R"({"a":"s1.safetensors","c":"s2.safetensors","d":"s2.safetensors"})");
  std::vector<std::string> notes;
  const TensorFile file = open_safetensors_folder(folder.path(), &notes);
  EXPECT_EQ(names_of(file), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("lists 1 tensors that no shard holds: \"d\""), std::string::npos)
      << notes[0];
}

TEST(SafetensorsFolder, TheWholeFileIsReadBeforeAnIndex) {
  for (const bool shards : {true, false}) {
    const TemporaryFolder folder;
    if (shards) put_two_shards(folder);
    put_index(folder, R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
    write_safetensors(folder / "model.safetensors", std::vector{text_tensor("w", "whole")});
    std::vector<std::string> notes;
    const TensorFile file = open_safetensors_folder(folder.path(), &notes);
    EXPECT_EQ(names_of(file), std::vector<std::string>{"w"}) << shards;
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("ignored are model.safetensors.index.json"), std::string::npos)
        << notes[0];
  }
}

TEST(SafetensorsFolder, ATensorInTwoShardsHasOneValue) {
  const TemporaryFolder folder;
  put_two_shards(folder);
  put_index(folder, R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  write_safetensors(folder / "s2.safetensors",
                    std::vector{text_tensor("c", "333"), text_tensor("a", "1")});
  EXPECT_EQ(names_of(open_safetensors_folder(folder.path())),
            (std::vector<std::string>{"a", "b", "c"}));
  write_safetensors(folder / "s2.safetensors",
                    std::vector{text_tensor("c", "333"), text_tensor("a", "9")});
  EXPECT_NE(error_of([&] {
              open_safetensors_folder(folder.path());
            }).find("holds another tensor \"a\" than"),
            std::string::npos);
}

TEST(SafetensorsFolder, WritesShardsThatItReads) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", "stale");
  const std::vector<TensorView> tensors = {text_tensor("d", "4444"), text_tensor("a", "1"),
                                           text_tensor("b", "22"), text_tensor("c", "333")};
  const auto files = write_safetensors_folder(folder.path(), tensors, {{"k", "v"}}, 3);
  EXPECT_EQ(files.size(), 4u);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"model-00001-of-00003.safetensors",
                                                      "model-00002-of-00003.safetensors",
                                                      "model-00003-of-00003.safetensors", kIndex}));
  EXPECT_EQ(names_of(open_safetensors(folder / "model-00001-of-00003.safetensors")),
            std::vector<std::string>{"d"});
  EXPECT_EQ(names_of(open_safetensors(folder / "model-00002-of-00003.safetensors")),
            (std::vector<std::string>{"a", "b"}));
  const TensorFile file = open_safetensors_folder(folder.path());
  EXPECT_EQ(names_of(file), (std::vector<std::string>{"d", "a", "b", "c"}));
  EXPECT_EQ(file.metadata(), (StringMap{{"k", "v"}}));

  write_safetensors_folder(folder.path(), tensors);
  EXPECT_EQ(names_of(open_safetensors_folder(folder.path())),
            (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_FALSE(std::filesystem::exists(folder / kIndex));
}

TEST(SafetensorsFolder, FullDiskAtTheLastShardLeavesNothing) {
  const TemporaryFolder folder;
  const std::string large(1 << 16, 'x');
  const std::vector<TensorView> tensors = {text_tensor("a", "1"), text_tensor("b", large)};
  test::expect_error(ErrorKind::resource, "cannot write: File too large", [&] {
    const tessera::test::SmallFiles full(1 << 12);
    write_safetensors_folder(folder.path(), tensors, {}, 1);
  });
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace tessera::format::safetensors_folder_test
