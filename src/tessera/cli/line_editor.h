// Line input: edited, with history and completion on a terminal (libedit), otherwise read as it is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

/// One instance at a time: libedit has global state.
class LineEditor {
 public:
  /// Completes words at the beginning of a line from `commands`, others from file names. `history`:
  /// file of earlier lines, readable only by its owner; empty = no history.
  LineEditor(std::vector<std::string> commands, const std::filesystem::path& history);
  bool terminal() const { return terminal_; }
  /// The line without its end; nullopt at the end of input. Pasted lines stay together, because
  /// pasting does not finish the input. Prompts go to stderr.
  std::optional<std::string> read(const char* prompt);
  /// The next line on a terminal starts with this text.
  void begin_with(const std::string& text);
  /// Restores the terminal; may be called from a signal handler.
  static void restore();

 private:
  void remember(const std::string& line);

  bool terminal_;
  std::filesystem::path history_;
};

}  // namespace tessera::cli
