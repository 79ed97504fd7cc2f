// The pages for readers: every command of docs/tutorials, docs/howto, docs/coming_from and
// docs/only_here.md does what the page says. A fenced block of commands has one of these comments
// before it:
//   <!-- run -->                     runs; every command succeeds
//   <!-- run: fails -->              runs; the last command fails
//   <!-- not run: REASON -->         is left out; kMostNotRun bounds how many there are
// and a block of output after it one of these:
//   <!-- output -->                  the command prints these lines; a line "..." stands for any
//                                    number of lines, "..." within a line for any text
//   <!-- output: numbers vary -->    the same, whatever the numbers are (times, losses)
//   <!-- file: PATH -->              is (a part of) this file of the repository
// The blocks of a page run in order in one shell, in a folder of its own that has the repository's
// examples, zoo, docs and src, the models smollm2.gguf and all-minilm, `tessera` in PATH, and a
// free port in place of 8080. Pages whose model is absent (TESSERA_SMOLLM2; scripts/setup.sh
// minilm) are skipped.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = TESSERA_SOURCE_DIR;

/// Blocks that no test runs, of all pages: installations, an interactive chat, builds.
constexpr int kMostNotRun = 8;
/// Seconds of processor time a page may take. All of them together take about 170 on 2 cores of a
/// Xeon with AVX-512, the longest 30.
constexpr double kMostSeconds = 90;

enum class Kind { commands, failing, not_run, output, varying_output, file };

struct Block {
  Kind kind = Kind::commands;
  std::string argument;            // the reason, or the path
  std::vector<std::string> lines;  // of the fence
  int line = 0;                    // of the page, where it begins
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// What a comment before a block says of it.
Block block_of(const std::string& comment) {
  Block block;
  const size_t colon = comment.find(": ");
  const std::string word = comment.substr(0, colon);
  if (colon != std::string::npos) block.argument = comment.substr(colon + 2);
  if (comment == "run") {
    block.kind = Kind::commands;
  } else if (comment == "run: fails") {
    block.kind = Kind::failing;
  } else if (comment == "output") {
    block.kind = Kind::output;
  } else if (comment == "output: numbers vary") {
    block.kind = Kind::varying_output;
  } else if (word == "not run" && !block.argument.empty()) {
    block.kind = Kind::not_run;
  } else if (word == "file" && !block.argument.empty()) {
    block.kind = Kind::file;
  } else {
    throw std::runtime_error("unknown comment <!-- " + comment + " -->");
  }
  return block;
}

/// The marked blocks of a page; throws where a block of commands has no mark, or a mark no block.
std::vector<Block> blocks_of(const std::string& page) {
  static const std::regex mark(R"(<!-- ((?:run|not run|output|file).*?) -->)");
  std::vector<Block> blocks;
  const std::vector<std::string> lines = lines_of(page);
  bool marked = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (std::regex_match(lines[i], match, mark)) {
      blocks.push_back(block_of(match[1]));
      blocks.back().line = static_cast<int>(i) + 1;
      marked = true;
    } else if (lines[i].starts_with("```")) {
      if (!marked && lines[i] == "```sh")
        throw std::runtime_error("line " + std::to_string(i + 1) + ": commands without a mark");
      std::vector<std::string> body;
      for (++i; i < lines.size() && lines[i] != "```"; ++i) body.push_back(lines[i]);
      if (marked) blocks.back().lines = body;
      marked = false;
    } else if (marked) {
      throw std::runtime_error("line " + std::to_string(i + 1) + ": a mark without a block");
    }
  }
  return blocks;
}

/// Length of the number that `text` begins with: digits with commas and points between them, and an
/// exponent; 0 where it begins with none.
size_t number_at(std::string_view text) {
  const auto digit = [&](size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
  };
  size_t i = 0;
  while (digit(i)) {
    while (digit(i)) ++i;
    if (i < text.size() && (text[i] == ',' || text[i] == '.') && digit(i + 1)) ++i;
  }
  if (i == 0 || i >= text.size() || text[i] != 'e') return i;
  size_t power = i + 1;
  if (power < text.size() && (text[power] == '-' || text[power] == '+')) ++power;
  if (!digit(power)) return i;
  while (digit(power)) ++power;
  return power;
}

/// Whether a printed line is as `expected` says: "..." is any text, a run of spaces any such run,
/// and a number any number where numbers vary.
bool is_like(std::string_view line, std::string_view expected, bool numbers_vary) {
  while (!expected.empty()) {
    if (expected.starts_with("...")) {
      for (size_t skipped = 0; skipped <= line.size(); ++skipped)
        if (is_like(line.substr(skipped), expected.substr(3), numbers_vary)) return true;
      return false;
    }
    size_t wanted = 1, there = 1;
    if (expected[0] == ' ') {
      wanted = std::min(expected.find_first_not_of(' '), expected.size());
      there = std::min(line.find_first_not_of(' '), line.size());
    } else if (numbers_vary && number_at(expected) > 0) {
      wanted = number_at(expected);
      there = number_at(line);
    } else if (line.empty() || line[0] != expected[0]) {
      return false;
    }
    if (there == 0) return false;
    expected.remove_prefix(wanted);
    line.remove_prefix(there);
  }
  return line.find_first_not_of(' ') == std::string_view::npos;
}

/// Whether `printed` from line `at` on begins with expected[from..]; "..." skips lines.
bool follows(const std::vector<std::string>& printed,
             size_t at,
             const std::vector<std::string>& expected,
             size_t from,
             bool numbers_vary) {
  for (; from < expected.size(); ++from, ++at) {
    if (expected[from] == "...") {
      for (size_t next = at; next <= printed.size(); ++next)
        if (follows(printed, next, expected, from + 1, numbers_vary)) return true;
      return false;
    }
    if (at >= printed.size() || !is_like(printed[at], expected[from], numbers_vary)) return false;
  }
  return true;
}

bool prints(const std::string& printed, const std::vector<std::string>& expected, bool vary) {
  std::vector<std::string> anywhere{"..."};
  anywhere.insert(anywhere.end(), expected.begin(), expected.end());
  return follows(lines_of(printed), 0, anywhere, 0, vary);
}

/// Whether `part`, which may leave out lines by "...", is of `file`.
bool is_part_of(const std::string& file, const std::vector<std::string>& part) {
  return prints(file, part, false);
}

int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return ntohs(address.sin_port);
}

fs::path cache() {
  if (const char* folder = std::getenv("TESSERA_CACHE")) return folder;
  const char* home = std::getenv("HOME");
  return fs::path(home == nullptr ? "/" : home) / ".cache/tessera";
}

/// Lays out what a page expects around it.
void furnish(const fs::path& folder) {
  for (const char* name : {"examples", "zoo", "docs", "src", "README.md"})
    fs::create_symlink(kSource / name, folder / name);
  if (const char* model = std::getenv("TESSERA_SMOLLM2"))
    fs::create_symlink(fs::absolute(model), folder / "smollm2.gguf");
  fs::create_symlink(cache() / "all-minilm-l6-v2", folder / "all-minilm");
}

/// One shell program of all blocks that run; what block N prints goes to the file N.
std::string program_of(const std::vector<Block>& blocks, int port) {
  std::string out =
      "set -uo pipefail\n"
      "trap 'set +e; kill $(jobs -p) 2>/dev/null; wait' EXIT\n";
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].kind != Kind::commands && blocks[i].kind != Kind::failing) continue;
    const std::string n = std::to_string(i);
    out += "echo " + n + " >.at\n";
    out += blocks[i].kind == Kind::commands ? "set -e\n{\n" : "set +e\n{\n";
    for (const std::string& line : blocks[i].lines) out += line + "\n";
    out += "} >.out." + n + " 2>&1\n";
    if (blocks[i].kind == Kind::failing) out += "[ $? -ne 0 ] || exit 99\n";
  }
  out += "echo end >.at\n";
  return std::regex_replace(out, std::regex("\\b8080\\b"), std::to_string(port));
}

std::string read_if_there(const fs::path& file) {
  return fs::exists(file) ? read_text_file(file.string()) : "";
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The pages, by their paths in the repository.
std::vector<std::string> pages() {
  std::vector<std::string> pages{"docs/only_here.md"};
  for (const char* folder : {"docs/tutorials", "docs/howto", "docs/coming_from"})
    for (const auto& entry : fs::directory_iterator(kSource / folder))
      if (entry.path().extension() == ".md")
        pages.push_back(fs::relative(entry.path(), kSource).string());
  std::sort(pages.begin(), pages.end());
  return pages;
}

/// docs/howto/json.md -> howto_json
std::string name_of(const std::string& page) {
  std::string name = fs::path(page).lexically_relative("docs").replace_extension().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

std::vector<Block> blocks_of_page(const std::string& page) {
  return blocks_of(read_text_file((kSource / page).string()));
}

class Page : public ::testing::TestWithParam<std::string> {
 protected:
  /// Runs the blocks in `folder`; a failure names the block that ended the page.
  void run(const std::vector<Block>& blocks, const fs::path& folder) {
    std::ofstream(folder / ".program") << program_of(blocks, free_port());
    const std::string path = fs::path(TESSERA_PROGRAM).parent_path().string();
    const std::string command = "cd '" + folder.string() + "' && PATH='" + path +
                                "':$PATH XDG_STATE_HOME=. timeout -k 5 280 bash .program "
                                "</dev/null";
    const int status = std::system(command.c_str());
    const std::string at = read_if_there(folder / ".at");
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 && at == "end\n") return;
    if (at.empty() || at == "end\n") FAIL() << GetParam() << ": exit status " << code;
    const size_t i = std::stoul(at);
    FAIL() << GetParam() << ":" << blocks.at(i).line << ": exit status " << code
           << (code == 99 ? " (expected to fail)" : "") << "\n"
           << read_if_there(folder / (".out." + std::to_string(i)));
  }

  void compare(const std::vector<Block>& blocks, const fs::path& folder) {
    size_t last = blocks.size();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      if (block.kind == Kind::file) {
        EXPECT_TRUE(is_part_of(read_if_there(kSource / block.argument), block.lines))
            << GetParam() << ":" << block.line << ": is not what " << block.argument << " holds";
      } else if (block.kind == Kind::output || block.kind == Kind::varying_output) {
        if (last == blocks.size()) continue;  // of commands that are not run
        const std::string printed = read_if_there(folder / (".out." + std::to_string(last)));
        EXPECT_TRUE(prints(printed, block.lines, block.kind == Kind::varying_output))
            << GetParam() << ":" << block.line << ": printed was\n"
            << printed;
      } else {
        last = block.kind == Kind::not_run ? blocks.size() : i;
      }
    }
  }
};

TEST_P(Page, Runs) {
  const std::vector<Block> blocks = blocks_of_page(GetParam());
  std::string commands;
  for (const Block& block : blocks)
    if (block.kind == Kind::commands || block.kind == Kind::failing)
      for (const std::string& line : block.lines) commands += line + "\n";
  if (commands.find("smollm2.gguf") != std::string::npos && !std::getenv("TESSERA_SMOLLM2"))
    GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the GGUF file (scripts/setup.sh demo)";
  if (commands.find("all-minilm") != std::string::npos &&
      !fs::exists(cache() / "all-minilm-l6-v2/model.safetensors"))
    GTEST_SKIP() << "there is no all-minilm-l6-v2 (scripts/setup.sh minilm)";
  const test::TemporaryFolder folder;
  furnish(folder.path());
  const double before = processor_seconds();
  run(blocks, folder.path());
  if (!HasFatalFailure()) compare(blocks, folder.path());
  const double seconds = processor_seconds() - before;
  RecordProperty("processor_seconds", std::to_string(seconds));
  if (std::getenv("TESSERA_DOCS_TIMES")) printf("%6.1f s %s\n", seconds, GetParam().c_str());
  EXPECT_LT(seconds, kMostSeconds) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Docs, Page, ::testing::ValuesIn(pages()), [](const auto& info) {
  return name_of(info.param);
});

TEST(Pages, FewBlocksAreNotRun) {
  int run = 0, not_run = 0;
  for (const std::string& page : pages())
    for (const Block& block : blocks_of_page(page)) {
      if (block.kind == Kind::commands || block.kind == Kind::failing) ++run;
      if (block.kind == Kind::not_run) ++not_run;
    }
  EXPECT_LE(not_run, kMostNotRun);
  EXPECT_GT(run, 4 * not_run);
}

/// docs/only_here.md names the test that holds each of its points: `Suite.Name`.
TEST(Pages, TestsThatAreNamedExist) {
  std::string tests;
  for (const char* folder : {"src", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder))
      if (entry.path().string().ends_with("_test.cpp"))
        tests += read_text_file(entry.path().string());
  const std::string page = read_text_file((kSource / "docs/only_here.md").string());
  static const std::regex name("`([A-Z][A-Za-z0-9]+)\\.([A-Z][A-Za-z0-9]+)`");
  int named = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), name), end; at != end; ++at, ++named)
    EXPECT_NE(tests.find("(" + at->str(1) + ", " + at->str(2) + ")"), std::string::npos)
        << at->str() << " is no test";
  EXPECT_GE(named, 10);
}

TEST(Pages, BlocksAreFound) {
  const std::vector<Block> blocks = blocks_of(
      "<!-- run -->\n```sh\na\nb\n```\ntext\n<!-- output: numbers vary -->\n```text\n1\n"
      "```\n<!-- not run: long -->\n```sh\nc\n```\n");
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].lines, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(blocks[1].kind, Kind::varying_output);
  EXPECT_EQ(blocks[2].argument, "long");
  EXPECT_THROW(blocks_of("```sh\na\n```\n"), std::runtime_error);
  EXPECT_THROW(blocks_of("<!-- run -->\ntext\n"), std::runtime_error);
  EXPECT_THROW(blocks_of("<!-- runs: x -->\n```sh\n```\n"), std::runtime_error);
}

TEST(Pages, OutputIsCompared) {
  const std::string printed = "a 1\nloss 2.5, 12 tokens/s\nlast (c)\n";
  EXPECT_TRUE(prints(printed, {"a 1"}, false));
  EXPECT_TRUE(prints(printed, {"a 1", "...", "last (c)"}, false));
  EXPECT_TRUE(prints(printed, {"loss 2.5, ... tokens/s"}, false));
  EXPECT_TRUE(prints(printed, {"loss  7.25, 1,300 tokens/s"}, true));
  EXPECT_FALSE(prints(printed, {"loss 7.25, 12 tokens/s"}, false));
  EXPECT_FALSE(prints(printed, {"a 1", "last (c)"}, false));  // a line is missing between
  EXPECT_FALSE(prints(printed, {"last (c)", "...", "a 1"}, false));
  EXPECT_FALSE(prints(printed, {"a"}, true));
  EXPECT_TRUE(prints("x 1.5e-04, [0, 12]\n", {"x 2e+3, [7, 1,000]"}, true));
  EXPECT_FALSE(prints("x 1.5e-04\n", {"x y"}, true));
}

/// The tables of sampling options, recipe keys, request fields and options are the program's own.
TEST(Tables, AreWhatTheProgramSays) {
  const test::TemporaryFolder folder;
  const fs::path docs = folder / "docs", printed = folder / "printed";
  fs::copy(kSource / "docs", docs, fs::copy_options::recursive);
  const std::string command = "'" TESSERA_PROGRAM "' docs --tables --out '" + docs.string() +
                              "' >'" + printed.string() + "' 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text_file(printed.string());
  EXPECT_EQ(read_text_file(printed.string()), "") << "stale pages; run `make docs-tables`";
  // a row that is not the program's goes, one that is missing comes back
  const std::string page = (docs / "guide/generation.md").string();
  const std::string right = read_text_file(page);
  const size_t row = right.find("| `--top-k` |");
  ASSERT_NE(row, std::string::npos);
  std::string wrong = right;
  wrong.replace(row, right.find('\n', row) - row, "| `--no-such` | 0 | 0 | nothing |");
  std::ofstream(page) << wrong;
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text_file(printed.string());
  EXPECT_EQ(read_text_file(printed.string()), page + "\n");
  EXPECT_EQ(read_text_file(page), right);
  // a mark without its end changes nothing
  wrong.erase(wrong.find("<!-- end of table -->"));
  std::ofstream(page) << wrong;
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(read_text_file(printed.string()).find("a table without its end"), std::string::npos);
  EXPECT_EQ(read_text_file(page), wrong);
}

/// What a failing page does to its test, by the parts that decide it.
TEST(Pages, AFailingCommandEndsAPage) {
  const test::TemporaryFolder folder;
  const auto status = [&](const std::string& page) {
    std::ofstream(folder / "program") << program_of(blocks_of(page), 1);
    return std::system(("cd '" + folder.path().string() + "' && bash program").c_str());
  };
  EXPECT_EQ(status("<!-- run -->\n```sh\ntrue\n```\n"), 0);
  EXPECT_NE(status("<!-- run -->\n```sh\nfalse\ntrue\n```\n"), 0);
  EXPECT_NE(status("<!-- run -->\n```sh\nfalse | true\n```\n"), 0);
  EXPECT_EQ(status("<!-- run: fails -->\n```sh\nfalse\n```\n"), 0);
  EXPECT_NE(status("<!-- run: fails -->\n```sh\ntrue\n```\n"), 0);
}

}  // namespace
}  // namespace tessera
