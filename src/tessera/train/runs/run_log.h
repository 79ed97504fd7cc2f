// What a run reports: a line of JSON per logged step in log.jsonl, its numbers as a table in
// log.csv and, for TensorBoard, in events.out.tfevents.tessera. Torch-free.
//
// Columns of the table are those that every line has, then what comes up on the way, in that order;
// with a number that is not among them the table is rewritten.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::train {

/// Losses are means of nats per token. `seconds` and `tokens_per_s` are the only values that differ
/// between two runs of one recipe on one machine.
struct LogLine {
  int64_t step = 0;  // updates made
  double loss = 0;   // of the update's own batch, before it
  double lr = 0;
  double grad_norm = 0;                   // before clipping
  int64_t tokens = 0;                     // predicted since the start
  double tokens_per_s = 0;                // since the line before
  double seconds = 0;                     // since the start, pauses left out
  std::optional<double> valid_loss = {};  // when evaluated
  std::optional<double> valid_bits_per_byte = {};
  std::optional<double> accuracy = {};        // of the validation's targets, the share ranked first
  std::map<std::string, double> losses = {};  // those of parts, by name
  std::map<std::string, double> scores = {};  // of what is held out, by name, when evaluated
  spec::Json experts = {};                    // what the update used them for (expert_use.h)
  std::vector<std::string> alarms = {};       // routers that have collapsed
  spec::Json expert_changes = {};          // by mixture, where some came or went (expert_changes.h)
  std::vector<std::string> warnings = {};  // of what happened just now (run_watch.h)
  std::string stopped = {};                // why the run ends here, before its last step
  std::optional<double> loss_scale = {};   // of the update, in fp16
  std::optional<double> noise_scale = {};  // tokens, when measured (noise_scale.h)
  spec::Json norms = {};                   // by layer, when measured (gradient_norms.h)
};

/// A number for a line: "nan", whatever its sign.
std::string number_text(double value);

spec::Json to_json(const LogLine& line);
/// Throws Error(file) that begins with `where` when it is not such a line.
LogLine log_line_of(const spec::Json& json, const std::string& where);

/// Every number of a line, by its name; those of objects in it as "losses/NAME".
std::vector<std::pair<std::string, double>> numbers_of(const spec::Json& line);

class RunLog {
 public:
  /// Keeps the lines up to `step` and continues after them; 0 empties it. Throws Error(resource).
  RunLog(const std::filesystem::path& folder, int64_t step);
  ~RunLog();
  void write(const LogLine& line);
  /// To disk, before a checkpoint that relies on it.
  void flush();

 private:
  struct File;
  void write_table(const spec::Json& line);

  std::filesystem::path folder_;
  std::vector<std::string> columns_;
  std::unique_ptr<File> jsonl_, csv_, events_;
  double begin_ = 0;  // of the run, pauses left out, on the clock of the day
};

}  // namespace tessera::train
