// Runs side by side: how far each is, what it reached, where their recipes differ; as a table, as
// JSON, as one page with plots that needs nothing from elsewhere. Torch-free. Reads what run_log.h
// and trainer.h write, while they write it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/train/run_log.h"

namespace tessera::train {

struct RunRecord {
  std::string name;   // of its folder, longer where others have the same
  spec::Json recipe;  // resolved
  std::vector<LogLine> lines;

  /// The line with the least loss of validation; nullptr without any.
  const LogLine* best() const;
};

/// Throws Error(file) where a folder is none of a run. A last line that is still being written is
/// left out.
std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& folders);

/// Keys by which recipes differ, each with a value for every run ("" where one has it not). Paths
/// of data and what steers reporting alone are among them.
struct KeyDifference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<KeyDifference> differences(const std::vector<RunRecord>& runs);

std::string table_of(const std::vector<RunRecord>& runs);
spec::Json json_of_runs(const std::vector<RunRecord>& runs);
/// `refresh`: seconds after which a browser reads it anew; 0 = never.
std::string page_of(const std::vector<RunRecord>& runs, int refresh = 0);

}  // namespace tessera::train
