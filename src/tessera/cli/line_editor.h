// Lines that somebody types: edited and completed on a terminal (libedit), else as they come.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

/// One at a time: the library below keeps its state for the whole program.
class LineEditor {
 public:
  /// Words that begin a line are completed from `commands`, others from the names of files.
  explicit LineEditor(std::vector<std::string> commands);
  bool terminal() const { return terminal_; }
  /// Without the end of the line; nothing at the end. Prompts go to stderr.
  std::optional<std::string> read(const char* prompt);
  /// Gives the terminal back as it was; may be called by a handler of signals.
  static void restore();

 private:
  bool terminal_;
};

}  // namespace tessera::cli
