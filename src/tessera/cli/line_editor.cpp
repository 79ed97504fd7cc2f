#include "tessera/cli/line_editor.h"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>

#include <editline/readline.h>
#include <termios.h>
#include <unistd.h>

namespace tessera::cli {
namespace {

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

}  // namespace

LineEditor::LineEditor(std::vector<std::string> commands) : terminal_(isatty(STDIN_FILENO) != 0) {
  commands_known = std::move(commands);
  if (!terminal_) return;
  terminal_known = tcgetattr(STDIN_FILENO, &terminal_before) == 0;
  rl_catch_signals = 0;
  rl_outstream = stderr;
  rl_attempted_completion_function = completions;
  using_history();
  stifle_history(1000);
}

std::optional<std::string> LineEditor::read(const char* prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt), &std::free);
  if (!line) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return std::string(line.get());
}

void LineEditor::restore() {
  if (terminal_known) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

}  // namespace tessera::cli
