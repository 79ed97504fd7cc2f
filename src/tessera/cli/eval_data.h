// `eval --data`: evaluates a file of examples.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/train/loop/evaluate_data.h"

namespace tessera::cli {

struct EvalData {
  train::DataEvaluationOptions how;

  /// Adds the options; they exclude those for plain text.
  void add(CLI::App& app);
  bool given() const { return !how.data.data.empty(); }
};

int evaluate_data(EvalData& o, bool json);

}  // namespace tessera::cli
