// Benchmarks of labelled texts by name: GLUE (Wang et al. 2018, arXiv:1804.07461), SuperGLUE (Wang
// et al. 2019, arXiv:1905.00537) and Long Range Arena (Tay et al. 2020, arXiv:2011.04006). The
// columns of their files, the classes in the order of
// `datasets` and transformers' run_glue.py, and the scores that they report. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/data/label_data.h"

namespace tessera::train {

struct LabelBenchmark {
  std::string name;    // "glue:cola"
  std::string metric;  // its scores in words, for tables
  bool regression = false;
  /// Columns of its .tsv files if they have no line of names.
  std::vector<std::string> columns = {};
  /// Columns or keys in its files and in those of `datasets`; the first one that is there counts.
  std::vector<std::string> text = {}, text_b = {}, label = {};
  std::vector<std::string> classes = {};  // empty for a regression
  std::vector<std::string> scores = {};   // names as in Evaluation::scores
  std::optional<RecordLayout> layout = {};
  std::optional<LabelFormat> format = {};  // of all its files
};

/// All benchmarks, by suite.
const std::vector<LabelBenchmark>& label_benchmarks();

/// The benchmark of a name: "glue:cola", or a name of GLUE without its suite ("cola", "sst-2",
/// "SST2"), as run_glue.py has them. nullptr for other names. Throws Error(usage), with the names,
/// for an unknown one of a known suite.
const LabelBenchmark* find_label_benchmark(const std::string& name);

/// The class names of a head in the spelling of the benchmark: equal without case, in the head's
/// order; LABEL_0, LABEL_1, ... and numbers are the benchmark's classes in order. Empty if it has
/// other ones.
std::vector<std::string> benchmark_classes(const LabelBenchmark& benchmark,
                                           const std::vector<std::string>& head);

}  // namespace tessera::train
