#include "tessera/cli/line_editor.h"

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>

#include <editline/readline.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/text/utf8.h"

namespace tessera::cli {
namespace {

constexpr int kMostLines = 1000;
// as a line shows what was pasted
constexpr std::string_view kNewLine = "↵", kTab = "⇥";
constexpr char kPasteOn[] = "\x1b[?2004h", kPasteOff[] = "\x1b[?2004l";

std::vector<std::string> commands_known;
termios terminal_before;
bool terminal_known = false;

/// Called until it returns null; the caller frees what it gets.
char* next_command(const char* begun, int state) {
  static size_t at;
  if (state == 0) at = 0;
  while (at < commands_known.size()) {
    const std::string& command = commands_known[at++];
    if (command.starts_with(begun)) return strdup(command.c_str());
  }
  return nullptr;
}

char** completions(const char* begun, int start, int) {
  return start == 0 ? rl_completion_matches(begun, next_command) : nullptr;
}

/// What is typed, character by character. A terminal marks what is pasted by two sequences of keys;
/// the ends of lines between them are no end of the line that is edited.
class Keys {
 public:
  /// A character, -1 at the end.
  int next() {
    if (!waiting_.empty()) return taken();
    const int first = byte();
    if (first < 0) return -1;
    if (first == '\x1b') {
      read_sequence();
      return taken();
    }
    if (pasting_ && (first == '\r' || first == '\n')) {
      if (first == '\n' && last_ == '\r') return last_ = 0, next();
      last_ = first;
      return kReturn;
    }
    last_ = first;
    if (pasting_ && first == '\t') return kTabulator;
    return character(first);
  }
  /// As if it had been typed next.
  void push(std::string_view text) {
    text::for_each_character(
        text, [&](char32_t c, size_t, size_t) { waiting_.push_back(static_cast<int>(c)); });
  }

 private:
  static constexpr int kReturn = 0x21B5, kTabulator = 0x21E5;  // kNewLine, kTab

  static int byte() {
    char c = 0;
    return ::read(STDIN_FILENO, &c, 1) == 1 ? static_cast<uint8_t>(c) : -1;
  }
  /// The rest of a key's sequence is there at once.
  static bool more() {
    pollfd of{STDIN_FILENO, POLLIN, 0};
    return ::poll(&of, 1, 50) == 1;
  }
  void read_sequence() {
    std::string keys = "\x1b";
    for (const std::string_view mark : {std::string_view("\x1b[200~"), {"\x1b[201~"}}) {
      while (keys.size() < mark.size() && mark.starts_with(keys) && more()) {
        const int c = byte();
        if (c < 0) break;
        keys += static_cast<char>(c);
      }
      if (keys != mark) continue;
      pasting_ = mark[4] == '0';
      waiting_.push_back(next());
      return;
    }
    for (const char c : keys) waiting_.push_back(static_cast<uint8_t>(c));
  }
  static int character(int first) {
    const int further = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
    int c = further == 0 ? first : first & (0x3F >> further);
    for (int i = 0; i < further; ++i) {
      const int next = byte();
      if (next < 0) return -1;
      c = c << 6 | (next & 0x3F);
    }
    return c;
  }
  int taken() {
    const int c = waiting_.front();
    waiting_.pop_front();
    return c;
  }
  std::deque<int> waiting_;
  bool pasting_ = false;
  int last_ = 0;
};

Keys keys;

int next_key(FILE*) {
  return keys.next();
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

}  // namespace

LineEditor::LineEditor(std::vector<std::string> commands, const std::filesystem::path& history)
    : terminal_(isatty(STDIN_FILENO) != 0), history_(history) {
  commands_known = std::move(commands);
  if (!terminal_) return;
  // libedit counts characters by the locale; all texts here are UTF-8
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  terminal_known = tcgetattr(STDIN_FILENO, &terminal_before) == 0;
  rl_catch_signals = 0;
  rl_outstream = stderr;
  rl_getc_function = next_key;
  rl_attempted_completion_function = completions;
  using_history();
  stifle_history(kMostLines);
  if (history_.empty()) return;
  std::error_code none;
  std::filesystem::create_directories(history_.parent_path(), none);
  if (!std::filesystem::exists(history_, none)) return;
  try {
    const std::string all = read_text_file(history_, size_t{64} << 20);
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      if (end > begin) lines.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
    const size_t first = lines.size() - std::min<size_t>(lines.size(), kMostLines);
    std::string kept;
    for (size_t i = first; i < lines.size(); ++i) {
      add_history(lines[i].c_str());
      kept += lines[i] + "\n";
    }
    if (first > kMostLines) {
      write_file_atomically(history_, kept);
      ::chmod(history_.c_str(), S_IRUSR | S_IWUSR);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "tessera: no history of lines: {}\n", error.what());
    history_.clear();
  }
}

void LineEditor::remember(const std::string& line) {
  add_history(line.c_str());
  if (history_.empty()) return;
  const int file =
      ::open(history_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  const std::string text = line + "\n";
  bool written = file >= 0 && ::fchmod(file, S_IRUSR | S_IWUSR) == 0 &&
                 ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written) {
    fmt::print(stderr, "tessera: no history of lines: {}: {}\n", history_.string(),
               std::strerror(errno));
    history_.clear();
  }
  if (file >= 0) ::close(file);
}

void LineEditor::begin_with(const std::string& text) {
  if (terminal_) keys.push(replaced(replaced(text, "\n", kNewLine), "\t", kTab));
}

std::optional<std::string> LineEditor::read(const char* prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  fmt::print(stderr, "{}", kPasteOn);
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt), &std::free);
  fmt::print(stderr, "{}", kPasteOff);
  if (!line) return std::nullopt;
  if (*line != '\0') remember(line.get());
  return replaced(replaced(line.get(), kNewLine, "\n"), kTab, "\t");
}

void LineEditor::restore() {
  if (!terminal_known) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  if (::write(STDERR_FILENO, kPasteOff, sizeof kPasteOff - 1) < 0) return;
}

}  // namespace tessera::cli
