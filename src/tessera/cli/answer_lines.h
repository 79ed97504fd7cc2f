// `generate` over the lines of a file, for sequence-level distillation. Kim, Rush 2016,
// arXiv:1606.07947.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/cli/cli.h"

namespace tessera::cli {

struct AnswerLines {
  std::string file;  // JSON lines; "-" = stdin
  std::string prompt_key = "text", answer_key = "answer", expected_key;
  int64_t at_once = 16;

  bool given() const { return !file.empty(); }
  void add(CLI::App& app);
  /// Prints every line with the generated answer under its key; if that is the prompt's key, with
  /// prompt and answer as one text. If lines have expected answers, prints metrics at the end.
  /// `answer`: generates texts for some prompts, the first of which is in line `first`, from 0.
  /// Throws Error(file) naming a line without a text.
  void run(const std::function<std::vector<std::string>(const std::vector<std::string>& prompts,
                                                        int64_t first)>& answer) const;
};

}  // namespace tessera::cli
