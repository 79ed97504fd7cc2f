// Comparison of runs: how far each is, what it reached, where their recipes differ; as a table, as
// JSON, as one page with plots that needs nothing from elsewhere. Torch-free. Reads what run_log.h
// and trainer.h write, while they write it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// What the log of a run with this objective counts: "tokens", "examples" or "words".
std::string unit_of(const std::string& objective);

enum class RunStatus { running, complete, not_running };

struct RunRecord {
  std::string name;  // of its folder, longer where others have the same
  std::filesystem::path folder;
  spec::Json recipe;           // resolved
  spec::Json written;          // as its author wrote it; null of older runs
  std::vector<LogLine> lines;  // none where it has just begun
  RunStatus state = RunStatus::not_running;

  /// The line with the least loss of validation; nullptr without any.
  const LogLine* best() const;
  /// Updates that the recipe asks for; 0 where it does not say.
  int64_t steps() const;
  /// "" = the next token.
  std::string objective() const;
  /// Whether every step reads whole windows of a text or a task.
  bool reads_windows() const;
};

/// Of a folder that is none of a run, those below it that are are taken. Throws Error(file) where
/// there are none. A last line that is still being written is left out.
std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& folders);

/// Keys that an author wrote and by which recipes differ, each with the value in force for every run
/// ("" where one has it not). Paths of data and what steers reporting alone are among them.
struct KeyDifference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<KeyDifference> differences(const std::vector<RunRecord>& runs);

/// What a run costs; 0 = not known.
struct RunCosts {
  int64_t parameters = 0;
  double flops = 0;  // of its steps so far, forward and backward
};
RunCosts costs_of(const RunRecord& run);

/// Mean and standard deviation (of a sample) of a number over runs.
struct Spread {
  std::string name;
  double mean = 0, deviation = 0;
};
/// Runs of one recipe that differ in train.seed alone, by their places.
struct SeedGroup {
  std::vector<size_t> runs;
  std::vector<Spread> spreads;
};
std::vector<SeedGroup> seed_groups(const std::vector<RunRecord>& runs);

/// At most `keys` lines of differences.
std::string table_of(const std::vector<RunRecord>& runs, size_t keys = 24);
spec::Json json_of_runs(const std::vector<RunRecord>& runs);
/// `refresh`: seconds after which a browser reloads it; 0 = never.
std::string page_of(const std::vector<RunRecord>& runs, int refresh = 0);

}  // namespace tessera::train
