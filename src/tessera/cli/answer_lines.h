// `generate` over the lines of a file: a teacher's words as what students learn from. Kim, Rush
// 2016, arXiv:1606.07947 (sequence-level distillation).
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
  /// Prints every line with an answer under its key; where that is the prompt's, with prompt and
  /// answer as one text. Where lines hold what is expected, says at the end how near it is.
  /// `answer`: the texts behind some prompts, the first of which stands in line `first`, from 0.
  /// Throws Error(file) naming a line that lacks a text.
  void run(const std::function<std::vector<std::string>(const std::vector<std::string>& prompts,
                                                        int64_t first)>& answer) const;
};

}  // namespace tessera::cli
