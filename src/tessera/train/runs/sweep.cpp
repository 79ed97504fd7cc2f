#include "tessera/train/runs/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr size_t kMostRuns = 10'000;

/// Parts between commas that stand outside of brackets and quotes.
std::vector<std::string> sweep_values(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\' && i + 1 < text.size()) {
      parts.back() += c;
      parts.back() += text[++i];
      continue;
    }
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// A value as part of a folder's name.
std::string name_of_value(const std::string& value) {
  std::string out;
  for (const char c : value)
    out +=
        std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+' ? c : '_';
  constexpr size_t kMost = 40;
  return out.size() <= kMost ? out : out.substr(0, kMost);
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> number_in(const LogLine& line, const std::string& name) {
  if (!line.valid_loss && line.scores.empty() && name != "loss") return std::nullopt;
  if (name == "loss") return line.loss;
  if (name == "valid_loss") return line.valid_loss;
  if (name == "valid_bits_per_byte") return line.valid_bits_per_byte;
  if (name == "accuracy" && line.accuracy) return line.accuracy;
  const auto score = line.scores.find(name);
  return score == line.scores.end() ? std::nullopt : std::optional(score->second);
}

}  // namespace

Sweep plan_sweep(const std::vector<std::string>& grids, int64_t seeds) {
  if (seeds < 1) fail(ErrorKind::usage, "sweep", "--seeds {}; expected 1 or more", seeds);
  Sweep sweep;
  sweep.seeds = seeds;
  size_t combinations = 1;
  for (const std::string& grid : grids) {
    const size_t equals = grid.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == grid.size())
      fail(ErrorKind::usage, "sweep", "--grid {}; expected KEY=a,b,c, as optimizer.lr=1e-3,3e-3",
           grid);
    sweep.keys.push_back(grid.substr(0, equals));
    if (sweep.keys.back() == "train.seed")
      fail(ErrorKind::usage, "sweep", "--grid train.seed; expected --seeds N");
    if (std::count(sweep.keys.begin(), sweep.keys.end(), sweep.keys.back()) > 1)
      fail(ErrorKind::usage, "sweep", "--grid {}: given twice; expected one list of values",
           sweep.keys.back());
    sweep.values.push_back(sweep_values(std::string_view(grid).substr(equals + 1)));
    const std::vector<std::string>& values = sweep.values.back();
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i].empty() || std::count(values.begin(), values.end(), values[i]) > 1)
        fail(ErrorKind::usage, "sweep", "--grid {}: {}; expected values that differ",
             sweep.keys.back(), values[i].empty() ? "an empty value" : values[i] + " twice");
    combinations *= values.size();
    if (combinations * static_cast<size_t>(seeds) > kMostRuns)
      fail(ErrorKind::usage, "sweep", "more than {} runs; expected fewer values or seeds",
           kMostRuns);
  }
  for (size_t row = 0; row < combinations; ++row) {
    // the last key changes first
    std::vector<std::string> values(sweep.keys.size());
    size_t rest = row;
    for (size_t k = sweep.keys.size(); k-- > 0;) {
      values[k] = sweep.values[k][rest % sweep.values[k].size()];
      rest /= sweep.values[k].size();
    }
    for (int64_t seed = 1; seed <= seeds; ++seed) {
      SweepRun run;
      run.row = row;
      for (size_t k = 0; k < sweep.keys.size(); ++k) {
        run.overrides.push_back(sweep.keys[k] + "=" + values[k]);
        const size_t dot = sweep.keys[k].rfind('.');
        run.name +=
            fmt::format("{}={},", sweep.keys[k].substr(dot == std::string::npos ? 0 : dot + 1),
                        name_of_value(values[k]));
      }
      run.overrides.push_back(fmt::format("train.seed={}", seed));
      run.name += fmt::format("seed={}", seed);
      sweep.runs.push_back(std::move(run));
    }
    sweep.rows.push_back(std::move(values));
  }
  // values that look alike as names, and keys that end alike
  for (size_t i = 0; i < sweep.runs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (sweep.runs[i].row != sweep.runs[j].row && sweep.runs[i].name == sweep.runs[j].name) {
        for (SweepRun& run : sweep.runs) run.name = fmt::format("{},{}", run.row + 1, run.name);
        return sweep;
      }
  return sweep;
}

SweepGoal goal_of(const std::string& number) {
  const bool loss = number == "loss" || number == "valid_loss" || number == "valid_bits_per_byte" ||
                    number == "mae" || number == "mse" || number == "rmse";
  return {number, !loss};
}

std::optional<double> reached(const RunRecord& run, const SweepGoal& goal) {
  // the loss of training is that of the end; all else the best of the evaluations
  std::optional<double> best;
  for (const LogLine& line : run.lines) {
    const std::optional<double> value = number_in(line, goal.number);
    if (!value || !std::isfinite(*value)) continue;
    if (!best || goal.number == "loss" || (goal.greater ? *value > *best : *value < *best))
      best = value;
  }
  return best;
}

std::vector<SweepRow> sweep_rows(const Sweep& sweep,
                                 const std::vector<std::optional<double>>& reached,
                                 const SweepGoal& goal) {
  std::vector<SweepRow> rows(sweep.rows.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i].values = sweep.rows[i];
  for (size_t i = 0; i < sweep.runs.size(); ++i)
    rows[sweep.runs[i].row].reached.push_back(reached.at(i));
  for (SweepRow& row : rows) {
    for (const std::optional<double>& value : row.reached)
      if (value) row.mean += *value, ++row.finished;
    if (row.finished == 0) continue;
    row.mean /= static_cast<double>(row.finished);
    double squares = 0;
    for (const std::optional<double>& value : row.reached)
      if (value) squares += (*value - row.mean) * (*value - row.mean);
    if (row.finished > 1)
      row.deviation = std::sqrt(squares / static_cast<double>(row.finished - 1));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const SweepRow& a, const SweepRow& b) {
    if (a.finished != b.finished) return a.finished > b.finished;
    if (a.finished == 0) return false;
    return goal.greater ? a.mean > b.mean : a.mean < b.mean;
  });
  return rows;
}

std::vector<std::string> sweep_notes(const Sweep& sweep, const SweepRow& best) {
  std::vector<std::string> notes;
  for (size_t k = 0; k < sweep.keys.size(); ++k) {
    std::vector<double> numbers;
    for (const std::string& value : sweep.values[k])
      if (const auto number = number_of(value)) numbers.push_back(*number);
    if (numbers.size() < 2 || numbers.size() != sweep.values[k].size()) continue;
    const double chosen = *number_of(best.values[k]);
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    if (chosen == *least || chosen == *most)
      notes.push_back(fmt::format("the best {} is the {} of its values; try {} ones", sweep.keys[k],
                                  chosen == *least ? "least" : "greatest",
                                  chosen == *least ? "smaller" : "greater"));
  }
  return notes;
}

}  // namespace tessera::train
