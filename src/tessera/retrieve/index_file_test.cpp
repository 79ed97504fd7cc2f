#include "tessera/retrieve/index_file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/retrieve/text_files.h"

namespace tessera::retrieve::index_file_test {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;

/// Two passages of one file; the numbers outlive what is returned.
IndexFile small() {
  static const std::vector<float> numbers = {1, 0, 0, 0.6f, 0.8f, 0};
  IndexFile index;
  index.model = "/models/m";
  index.print = "p";
  index.width = 3;
  index.cut = {20, 4};
  index.files = {{"a.md", "00"}};
  index.passages = {{0, {0, 4, 1, 1}, "one\n"}, {0, {4, 12, 2, 3}, "\"two\"\n\xC3\xA4\n"}};
  index.vectors = {"vectors", DType::f32, {2, 3}, std::as_bytes(std::span(numbers))};
  return index;
}

TEST(IndexFile, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  write_index(folder / "index", small());
  const IndexFile read = open_index(folder / "index"), wrote = small();
  EXPECT_EQ(read.model, wrote.model);
  EXPECT_EQ(read.print, wrote.print);
  EXPECT_EQ(read.cut.tokens, 20);
  EXPECT_EQ(read.cut.overlap, 4);
  ASSERT_EQ(read.passages.size(), 2u);
  EXPECT_EQ(read.passages[1].text, wrote.passages[1].text);
  EXPECT_EQ(read.passages[1].place.last_line, 3);
  EXPECT_TRUE(std::ranges::equal(read.vectors.data, wrote.vectors.data));
  EXPECT_EQ(read.source(read.passages[0]), "a.md:1");
  EXPECT_EQ(read.source(read.passages[1]), "a.md:2-3");
}

TEST(IndexFile, ANewOneReplacesTheOldOneAndNothingElse) {
  const TemporaryFolder folder;
  write_index(folder / "index", small());
  IndexFile other = small();
  other.passages[0].text = "other\n";
  write_index(folder / "index", other);
  EXPECT_EQ(open_index(folder / "index").passages[0].text, "other\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "index"), fs::directory_iterator()), 3);
  fs::create_directory(folder / "mine");
  folder.write("mine/thesis.tex", "years of work");
  expect_error(ErrorKind::usage, "holds something else",
               [&] { write_index(folder / "mine", small()); });
  expect_error(ErrorKind::usage, "a file; expected a folder",
               [&] { write_index(folder / "mine/thesis.tex", small()); });
}

// as with a full disk: the second file cannot be written
TEST(IndexFile, WhatIsNotWrittenToItsEndLeavesNothing) {
  const TemporaryFolder folder;
  write_index(folder / "index", small());
  std::string vectors;
  for (const auto& entry : fs::directory_iterator(folder / "index"))
    if (entry.path().extension() == ".safetensors") vectors = entry.path().filename();
  fs::create_directories(folder / "full" / vectors);
  folder.write("full/index.json", "{}");  // an index, so that the folder is taken
  EXPECT_ANY_THROW(write_index(folder / "full", small()));
  for (const auto& entry : fs::directory_iterator(folder / "full"))
    EXPECT_TRUE(entry.path().filename() == vectors || entry.path().filename() == "index.json")
        << entry;
  // an index that was there stays
  EXPECT_NO_THROW(write_index(folder / "index", small()));
  EXPECT_EQ(open_index(folder / "index").passages.size(), 2u);
}

TEST(IndexFile, PartsMustAgree) {
  const TemporaryFolder folder;
  const fs::path path = folder / "index";
  expect_error(ErrorKind::file, "no index", [&] { open_index(path); });
  write_index(path, small());
  const std::string good = read_text_file(path / "index.json");
  const auto refused = [&](const std::string& from, const std::string& to, const char* message) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    folder.write("index/index.json", bad);
    expect_error(ErrorKind::file, message, [&] { open_index(path); });
  };
  refused("\"width\": 3", "\"width\": 4", "expected float32 [2, 4]");
  refused("\"width\": 3", "\"width\": \"3\"", "\"width\" is a string; expected an integer from 1");
  refused("\"width\": 3", "\"width\": -1", "\"width\" is -1");
  refused("\"tessera_index\": 1", "\"tessera_index\": 2", "version 2; expected 1");
  refused("\"passages\": \"", "\"passages\": \"../", "expected the name of a file in its folder");
  refused("\"print\"", "\"prunt\"", "\"print\" is missing");
  refused("\"sha256\"", "\"sha\"", "\"sha256\" is missing");
  refused("\"a.md\",", "7,", "\"path\" is 7; expected a string");
  folder.write("index/index.json", good);
  EXPECT_NO_THROW(open_index(path));
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".jsonl") {
      const std::string lines = read_text_file(entry.path());
      folder.write("index/" + entry.path().filename().string(),
                   lines.substr(0, lines.find('\n') + 1));
      expect_error(ErrorKind::file, "expected float32 [1, 3]", [&] { open_index(path); });
      folder.write(
          "index/" + entry.path().filename().string(),
          R"({"file": 1, "begin": 0, "end": 1, "first_line": 1, "last_line": 1, "text": ""})");
      expect_error(ErrorKind::file, "file 1 of 1", [&] { open_index(path); });
    }
}

TEST(TextFiles, FoldersGiveTheirTextsAndSayWhatTheyLeaveOut) {
  const TemporaryFolder folder;
  for (const char* name : {"b.md", "a.txt", "sub/c.md", ".git/d.md", "sub/.e.md"}) {
    fs::create_directories((folder / name).parent_path());
    folder.write(name, "text\n");
  }
  folder.write("zero.md", std::string("a\0b", 3));
  folder.write("latin.md", "caf\xE9");
  const auto names = [&](const TextFiles& files) {
    std::vector<std::string> out;
    for (const std::string& path : files.paths)
      out.push_back(fs::relative(path, folder.path()).string());
    return out;
  };
  const TextFiles all = text_files({folder.path()});
  EXPECT_EQ(names(all), (std::vector<std::string>{"a.txt", "b.md", "sub/c.md"}));
  ASSERT_EQ(all.left_out.size(), 2u);
  EXPECT_TRUE(all.left_out[0].path.ends_with("latin.md"));
  EXPECT_EQ(names(text_files({folder.path()}, {".md"})),
            (std::vector<std::string>{"b.md", "sub/c.md"}));
  // one that is named counts whatever its name, and once
  EXPECT_EQ(names(text_files({folder / "a.txt", folder / "sub", folder / "sub/c.md"}, {".md"})),
            (std::vector<std::string>{"a.txt", "sub/c.md"}));
  EXPECT_EQ(text_files({folder / "b.md"}, {}, 3).left_out.size(), 1u);
  expect_error(ErrorKind::file, "not there", [&] { text_files({folder / "nothing"}); });
}

}  // namespace
}  // namespace tessera::retrieve::index_file_test
