// Progress output of training.
#pragma once

#include <chrono>
#include <map>
#include <set>

#include <unistd.h>

#include <fmt/format.h>

#include "tessera/base/resident.h"
#include "tessera/train/loop/loop.h"

namespace tessera::cli {

/// One line, updated in place on a terminal; separate lines elsewhere.
class TrainProgress {
 public:
  /// `unit` of LogLine::tokens.
  explicit TrainProgress(std::string unit = "tokens") : unit_(std::move(unit)) {}
  void operator()(const train::LogLine& line, int64_t steps) {
    alarm(line);
    for (const std::string& text : line.warnings)
      fmt::print(stderr, "{}tessera: step {}: {}\n", terminal_ ? "\n" : "", line.step, text);
    if (!line.expert_changes.empty())
      fmt::print(stderr, "{}tessera: step {}: {}\n", terminal_ ? "\n" : "", line.step,
                 train::text_of_changes(line.expert_changes));
    const bool last = line.step == steps, evaluated = line.valid_loss.has_value();
    if (line.noise_scale) noise_ = *line.noise_scale;
    const auto now = std::chrono::steady_clock::now();
    const double since = std::chrono::duration<double>(now - shown_).count();
    if (!last && !evaluated && since < (terminal_ ? 0.2 : 10.0)) return;
    shown_ = now;
    const double speed = line.tokens_per_s,
                 left = line.step > 0 ? line.seconds / static_cast<double>(line.step) *
                                            static_cast<double>(steps - line.step)
                                      : 0;
    std::string text = fmt::format(
        "step {:>6}/{}  loss {:.4f}  lr {:.2e}  {:>8.{}f} {}/s  {:>4.0f} s left  {} MB", line.step,
        steps, line.loss, line.lr, speed, speed < 100 ? 1 : 0, unit_, left, resident_bytes() >> 20);
    if (evaluated) text += fmt::format("  valid {:.4f}", *line.valid_loss);
    if (evaluated && line.accuracy) text += fmt::format("  accuracy {:.3f}", *line.accuracy);
    for (const auto& [name, score] : line.scores)
      if (name != "accuracy") text += fmt::format("  {} {:.3f}", name, score);
    if (noise_ > 0) text += fmt::format("  noise scale {:.3g} {}", noise_, unit_);
    if (terminal_)
      fmt::print(stderr, "\r{:<120}{}", text, evaluated || last ? "\n" : "");
    else
      fmt::print(stderr, "{}\n", text);
    std::fflush(stderr);
  }

 private:
  /// Warns once per router whose experts are idle for a while; the log has every step.
  void alarm(const train::LogLine& line) {
    constexpr int64_t kLong = 50;  // steps; the first ones of a run vary in any case
    std::map<std::string, int64_t> idle;
    for (const std::string& text : line.alarms) {
      const std::string router = text.substr(0, text.find(':'));
      const auto before = idle_.find(router);
      idle[router] = before == idle_.end() ? 1 : before->second + 1;
      if (idle[router] == kLong && warned_.insert(router).second)
        fmt::print(stderr, "{}tessera: step {}: {}\n", terminal_ ? "\n" : "", line.step, text);
    }
    idle_ = std::move(idle);
  }

  std::string unit_;
  double noise_ = 0;                     // latest noise scale
  std::map<std::string, int64_t> idle_;  // number of steps, by router
  std::set<std::string> warned_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace tessera::cli
