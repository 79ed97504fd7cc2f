// Lines that somebody types: edited, recalled and completed on a terminal (libedit), else as they
// come.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

/// One at a time: the library below keeps its state for the whole program.
class LineEditor {
 public:
  /// Words that begin a line are completed from `commands`, others from the names of files.
  /// `history`: the lines of earlier times, which only their owner may read; empty = none are kept.
  LineEditor(std::vector<std::string> commands, const std::filesystem::path& history);
  bool terminal() const { return terminal_; }
  /// Without the end of the line; nothing at the end. Lines that are pasted together stay together:
  /// what is pasted is no sign that the line is done. Prompts go to stderr.
  std::optional<std::string> read(const char* prompt);
  /// The next line on a terminal is edited from this text on.
  void begin_with(const std::string& text);
  /// Gives the terminal back as it was; may be called by a handler of signals.
  static void restore();

 private:
  void remember(const std::string& line);

  bool terminal_;
  std::filesystem::path history_;
};

}  // namespace tessera::cli
