#include "tessera/base/text_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::text_input_test {
namespace {

using test::expect_error;

class TextInput : public testing::Test {
 protected:
  std::filesystem::path fifo() const {
    const std::filesystem::path path = folder_.path() / "pipe";
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  const test::TemporaryFolder folder_;
};

/// More than a pipe holds, so that reader and writer must take turns.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i) + "\n";
  return text;
}

/// Standard input is this descriptor for as long as the object lives.
class StandardInput {
 public:
  explicit StandardInput(int fd) : before_(::dup(STDIN_FILENO)) { ::dup2(fd, STDIN_FILENO); }
  ~StandardInput() {
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

TEST_F(TextInput, AFileIsReadWhole) {
  folder_.write("a.txt", "one\ntwo");
  EXPECT_EQ(read_text_input(folder_.path() / "a.txt"), "one\ntwo");
  folder_.write("empty.txt", "");
  EXPECT_EQ(read_text_input(folder_.path() / "empty.txt"), "");
}

TEST_F(TextInput, APipeIsReadToItsEnd) {
  const std::filesystem::path path = fifo();
  const std::string text = long_text();
  std::thread writer([&] {
    ::usleep(50'000);  // the reader is there first, and must wait
    std::ofstream(path) << text;
  });
  EXPECT_EQ(read_text_input(path), text);
  writer.join();
}

TEST_F(TextInput, StandardInputIsADash) {
  const std::string text = long_text();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    const StandardInput input(ends[0]);
    std::thread writer([&] {
      EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
      ::close(ends[1]);
    });
    EXPECT_EQ(read_text_input("-"), text);
    writer.join();
  }
  ::close(ends[0]);
  // from where it stands, as a shell's redirection may have read some of it already
  folder_.write("a.txt", "one\ntwo");
  const int file = ::open((folder_.path() / "a.txt").c_str(), O_RDONLY);
  ::lseek(file, 4, SEEK_SET);
  const StandardInput input(file);
  EXPECT_EQ(read_text_input("-"), "two");
  ::close(file);
}

TEST_F(TextInput, AWaitEndsOnRequest) {
  CancelToken cancel;
  const std::filesystem::path path = fifo();
  std::thread other([&] {
    ::usleep(50'000);
    cancel.request(SIGINT);
  });
  expect_error(ErrorKind::cancelled, "stopped", [&] { read_text_input(path, &cancel); });
  other.join();
}

TEST_F(TextInput, SaysWhatCannotBeRead) {
  const std::string missing = (folder_.path() / "none").string();
  expect_error(ErrorKind::file, "[file] " + missing + ": No such file",
               [&] { read_text_input(missing); });
  expect_error(ErrorKind::file, "Is a directory; expected a text",
               [&] { read_text_input(folder_.path()); });
  const std::filesystem::path path = fifo();
  std::thread writer([&] { std::ofstream(path) << "12345"; });
  expect_error(ErrorKind::file, "more than 4 bytes", [&] { read_text_input(path, nullptr, 4); });
  writer.join();
}

}  // namespace
}  // namespace tessera::text_input_test
