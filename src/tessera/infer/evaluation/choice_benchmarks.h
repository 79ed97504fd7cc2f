// Benchmarks of lm-evaluation-harness by name: prompts, choices and right answers of the documents
// of their data sets (choice_benchmarks.json: Jinja templates). Torch-free.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/infer/evaluation/task_file.h"

namespace tessera::infer {

/// The names, in the order of choice_benchmarks.json.
const std::vector<std::string>& choice_benchmarks();

/// A benchmark with its templates compiled.
class ChoiceBenchmark {
 public:
  /// Throws Error(usage) for an unknown name.
  explicit ChoiceBenchmark(const std::string& name);
  ~ChoiceBenchmark();
  ChoiceBenchmark(ChoiceBenchmark&&) noexcept;

  /// The example of a document, in the layout of the data set on the Hugging Face Hub or in that of
  /// its authors. Throws Error(file) with `place` for a document without the keys of the benchmark.
  std::pair<TaskExample, TaskKind> example(const spec::Json& document,
                                           const std::string& place) const;
  /// The scores that lm-evaluation-harness reports.
  const std::vector<std::string>& scores() const;

 private:
  struct Templates;
  std::unique_ptr<const Templates> templates_;
};

}  // namespace tessera::infer
