// Per-example results of a task as JSON lines, from which an interrupted evaluation continues.
// Torch-free.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::infer {

/// The first line describes the evaluation, each further line is the result of the next example.
/// Lines are flushed when added, so that a killed process loses the batch at work only.
class ResultLines {
 public:
  /// No file: results are not stored.
  ResultLines() = default;
  /// Creates the file, or reads the results in it; an incomplete last line is removed. Throws
  /// Error(usage) if it describes another evaluation, Error(file) if it is none, Error(resource) if
  /// it cannot be written.
  ResultLines(std::filesystem::path path, const spec::Json& evaluation);

  /// Results read from the file, of examples 0 on.
  const std::vector<spec::Json>& done() const { return done_; }
  void add(const spec::Json& result);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
  std::vector<spec::Json> done_;
};

}  // namespace tessera::infer
