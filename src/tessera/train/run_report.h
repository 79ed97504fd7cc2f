// Runs side by side: how far each is, what it reached, where their recipes differ; as a table, as
// JSON, as one page with plots that needs nothing from elsewhere. Torch-free. Reads what run_log.h
// and trainer.h write, while they write it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/train/run_log.h"

namespace tessera::train {

enum class RunStatus { running, complete, not_running };

struct RunRecord {
  std::string name;  // of its folder, longer where others have the same
  std::filesystem::path folder;
  spec::Json recipe;           // resolved
  std::vector<LogLine> lines;  // none where it has just begun
  RunStatus state = RunStatus::not_running;

  /// The line with the least loss of validation; nullptr without any.
  const LogLine* best() const;
  /// Updates that the recipe asks for; 0 where it does not say.
  int64_t steps() const;
};

/// Of a folder that is none of a run, those below it that are are taken. Throws Error(file) where
/// there are none. A last line that is still being written is left out.
std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& folders);

/// Keys by which recipes differ, each with a value for every run ("" where one has it not). Paths
/// of data and what steers reporting alone are among them.
struct KeyDifference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<KeyDifference> differences(const std::vector<RunRecord>& runs);

/// At most `keys` lines of differences.
std::string table_of(const std::vector<RunRecord>& runs, size_t keys = 24);
spec::Json json_of_runs(const std::vector<RunRecord>& runs);
/// `refresh`: seconds after which a browser reads it anew; 0 = never.
std::string page_of(const std::vector<RunRecord>& runs, int refresh = 0);

}  // namespace tessera::train
