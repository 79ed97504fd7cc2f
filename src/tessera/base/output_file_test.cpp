// A file appears whole or not at all, and what stands at its path is written through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <sys/resource.h>
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
  EXPECT_FALSE(fs::exists("/dev/full.partial") || fs::exists("/dev/null.partial"));

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
  EXPECT_THAT(error_of_writing(folder / "none/x"), HasSubstr("cannot create: No such file"));
  EXPECT_THAT(folder.names(), ElementsAre("sub"));
}

TEST(OutputFile, AFullDiskLeavesNothingBehind) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("x", "old");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{100, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of_writing(path, std::string(1000, 'x'));
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(error, HasSubstr("cannot write: File too large"));
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

}  // namespace
}  // namespace tessera
