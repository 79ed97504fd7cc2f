// The program as scripts see it: what it prints, its exit code, one line where it refuses.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"

namespace tessera {

inline const std::filesystem::path kSource = TESSERA_SOURCE_DIR;
inline const std::string kZoo = (kSource / "zoo").string();
inline const std::string kGoldens = (kSource / "tests/golden/families").string();

struct Outcome {
  int code = -1;
  std::string out, err;
};

class CliRunner : public ::testing::Test {
 protected:
  Outcome run(const std::string& arguments,
              const std::string& before = "",
              const std::string& after = "</dev/null") {
    const std::string err = (folder_ / "stderr").string();
    const std::string command =
        before + "'" TESSERA_PROGRAM "' " + arguments + " 2>'" + err + "' " + after;
    Outcome outcome;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      outcome.out.append(buffer.data(), n);
    const int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.err = read_text_file(err);
    return outcome;
  }

  void expect_refused(const std::string& arguments, int code, const std::string& words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << arguments << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }

  /// The same of what has said something before.
  static void expect_complaint(const Outcome& outcome, int code, const std::string& words) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << words << "\n" << outcome.err;
  }

  /// A tiny llama folder of the goldens.
  std::string tiny() const { return kGoldens + "/llama/base"; }
  const test::TemporaryFolder folder_;
};

}  // namespace tessera
