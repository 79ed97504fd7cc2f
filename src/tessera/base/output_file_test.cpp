// A file appears whole or not at all, and what stands at its path is written through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <thread>
#include <unistd.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of_writing(const fs::path& path, std::string_view content = "new") {
  return test::error_of([&] { write_file_atomically(path, content); });
}

TEST(OutputFile, AppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("x", "old");
  {
    OutputFile file(path);
    file.write(std::string_view("ne"));
    EXPECT_EQ(read_text_file(path), "old");
  }  // dropped
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
  write_file_atomically(path, "new");
  EXPECT_EQ(read_text_file(path), "new");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

// a name without a folder is one of the current folder
TEST(OutputFile, ABareNameIsWritten) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder / ".");
  std::string content;
  try {
    write_file_atomically("bare.txt", "first");
    write_file_atomically("bare.txt", "second");
    content = read_text_file("bare.txt");
  } catch (...) {
    fs::current_path(before);
    throw;
  }
  fs::current_path(before);
  EXPECT_EQ(content, "second");
}

TEST(OutputFile, SymbolicLinksStay) {
  const TemporaryFolder folder;
  folder.write("files/there", "old");
  fs::create_symlink("files/there", folder / "relative");
  fs::create_symlink(folder / "relative", folder / "chain");
  fs::create_symlink(folder / "files/later", folder / "dangling");
  write_file_atomically(folder / "chain", "new");
  write_file_atomically(folder / "dangling", "made");
  for (const char* link : {"relative", "chain", "dangling"})
    EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
  EXPECT_EQ(read_text_file(folder / "files/there"), "new");
  EXPECT_EQ(read_text_file(folder / "files/later"), "made");
  EXPECT_THAT(folder.names(), ElementsAre("chain", "dangling", "files", "relative"));

  fs::create_symlink("round", folder / "about");
  fs::create_symlink("about", folder / "round");
  EXPECT_THAT(error_of_writing(folder / "round"), HasSubstr("go round"));
}

TEST(OutputFile, ADeviceIsWrittenThrough) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder / "full");
  fs::create_symlink("/dev/null", folder / "null");
  EXPECT_THAT(error_of_writing(folder / "full"), HasSubstr("No space left"));
  write_file_atomically(folder / "null", "gone");
  EXPECT_TRUE(fs::is_symlink(folder / "full") && fs::is_symlink(folder / "null"));
  EXPECT_THAT(folder.names(), ElementsAre("full", "null"));
  EXPECT_TRUE(fs::is_character_file("/dev/full") && fs::is_character_file("/dev/null"));
  for (const auto& entry : fs::directory_iterator("/dev"))
    EXPECT_FALSE(entry.path().string().ends_with(".partial")) << entry.path();

  // a node, which only root can make: renaming over it would succeed
  const fs::path node = folder / "node";
  if (mknod(node.c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0) return;
  EXPECT_NE(error_of_writing(node), "");
  EXPECT_TRUE(fs::is_character_file(node));
}

TEST(OutputFile, AFifoReceivesTheBytes) {
  const TemporaryFolder folder;
  const fs::path path = folder / "fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] {
    const int fd = open(path.c_str(), O_RDONLY);
    char buffer[64];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
      received.append(buffer, static_cast<size_t>(n));
    close(fd);
  });
  write_file_atomically(path, "through");
  reader.join();
  EXPECT_EQ(received, "through");
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_THAT(folder.names(), ElementsAre("fifo"));
}

TEST(OutputFile, AClosedPipeIsAnError) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_THAT(error_of_writing("/proc/self/fd/" + std::to_string(ends[1])),
              HasSubstr("cannot write: Broken pipe"));
  close(ends[1]);
  std::signal(SIGPIPE, before);
}

TEST(OutputFile, ADescriptorIsWrittenWhereItPoints) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("log", "");
  const int fd = open(path.c_str(), O_RDWR);
  write_file_atomically("/dev/fd/" + std::to_string(fd), "line");
  // the file that is open, not another one of its name
  char buffer[8] = {};
  EXPECT_EQ(pread(fd, buffer, sizeof(buffer), 0), 4);
  EXPECT_STREQ(buffer, "line");
  close(fd);
  EXPECT_THAT(folder.names(), ElementsAre("log"));
}

TEST(OutputFile, WhatCannotBeWrittenIsNamed) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "sub");
  EXPECT_THAT(error_of_writing(folder / "sub"), HasSubstr("is a folder; expected a file"));
  EXPECT_THAT(error_of_writing(folder / "none/x"), HasSubstr("cannot create: there is no folder "));
  EXPECT_THAT(folder.names(), ElementsAre("sub"));
}

TEST(OutputFile, AFullDiskLeavesNothingBehind) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("x", "old");
  const std::string error = [&] {
    const tessera::test::SmallFiles full(100);
    return error_of_writing(path, std::string(1000, 'x'));
  }();
  EXPECT_THAT(error, HasSubstr("cannot write: File too large"));
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

// two writers of one path have temporary files of their own
TEST(OutputFile, TwoWritersOfAPathWriteTheirOwnWholeContent) {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  {
    OutputFile first(path), second(path);
    first.write(std::string_view("aa"));
    second.write(std::string_view("bbbb"));
    first.write(std::string_view("aa"));
    EXPECT_EQ(folder.names().size(), 2u);
    first.commit();
    EXPECT_EQ(read_text_file(path), "aaaa");
    second.commit();
    EXPECT_EQ(read_text_file(path), "bbbb");
  }
  EXPECT_THAT(folder.names(), ElementsAre("x"));

  std::vector<std::thread> writers;
  for (const char letter : {'p', 'q', 'r', 's'})
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 50; ++i) write_file_atomically(path, std::string(10'000, letter));
    });
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_text_file(path);
  EXPECT_EQ(content, std::string(10'000, content[0]));
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

TEST(OutputFile, WhatKilledWritersLeftIsRemoved) {
  const TemporaryFolder folder;
  folder.write("x.12-0.partial", "left");
  folder.write("model.safetensors.999999-17.partial", "left");
  folder.write("cache.4-2.partial/tokens", "left");
  // names of somebody else
  const std::vector<std::string> others = {".1-2.partial", "a-1.partial", "mine.partial",
                                           "x.1-.partial"};
  for (const std::string& name : others) folder.write(name, "");
  write_file_atomically(folder / "y", "new");  // the first in this folder
  std::vector<std::string> want = others;
  want.emplace_back("y");
  std::sort(want.begin(), want.end());
  EXPECT_EQ(folder.names(), want);

  // of one that still writes nothing is taken, also once its file is closed
  OutputFile writing(folder / "z");
  writing.write(std::string_view("whole"));
  remove_leftovers(folder.path());
  writing.finish();
  remove_leftovers(folder.path());
  writing.commit();
  EXPECT_EQ(read_text_file(folder / "z"), "whole");
  // a long name still has a temporary one
  const std::string longest(255, 'n');
  write_file_atomically(folder / longest, "new");
  EXPECT_EQ(read_text_file(folder / longest), "new");
}

}  // namespace
}  // namespace tessera
