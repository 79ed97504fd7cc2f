#include "tessera/train/runs/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/train/runs/report_page.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/runs/run_plot.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  run.folder = folder;
  run.recipe = spec::read_json_file(folder / "recipe.json");
  if (fs::exists(folder / "written.json"))
    run.written = spec::read_json_file(folder / "written.json");
  const fs::path log = folder / "log.jsonl";
  // asked first: a run that ends in between is then taken for one that still runs, not for one that
  // was cut
  const bool held = is_held(folder);
  const std::string text = fs::exists(log) ? read_text_file(log) : std::string();
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    run.lines.push_back(
        log_line_of(spec::parse_json(text.substr(begin, end - begin), log.string()), log.string()));
  const bool complete =
      !run.lines.empty() && (!run.lines.back().stopped.empty() ||
                             (run.steps() > 0 && run.lines.back().step >= run.steps()));
  run.state = complete ? RunStatus::complete : held ? RunStatus::running : RunStatus::not_running;
  return run;
}

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "recipe.json", ignored);
}

/// Folders of runs: these, or those below them.
std::vector<fs::path> runs_in(const std::vector<fs::path>& folders) {
  std::vector<fs::path> out;
  for (const fs::path& folder : folders) {
    if (is_run(folder)) {
      out.push_back(folder);
      continue;
    }
    std::vector<fs::path> below;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (is_run(entry.path())) below.push_back(entry.path());
    if (below.empty())
      fail(ErrorKind::file, folder.string(),
           "{}; expected the folder of a run (train --out), or one that holds some",
           error ? error.message() : "no recipe.json");
    std::sort(below.begin(), below.end());
    out.insert(out.end(), below.begin(), below.end());
  }
  return out;
}

/// The shortest ends of paths that differ.
std::vector<std::string> names_of(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  for (const fs::path& folder : folders) {
    const fs::path path = fs::absolute(folder / "").lexically_normal().parent_path();
    std::string name = path.filename().string();
    fs::path rest = path.parent_path();
    const auto taken = [&](const std::string& end) {
      return std::count_if(folders.begin(), folders.end(), [&](const fs::path& other) {
               const std::string whole =
                   fs::absolute(other / "").lexically_normal().parent_path().string();
               return whole.ends_with("/" + end) || whole == end;
             }) > 1;
    };
    while (taken(name) && rest.has_filename()) {
      name = rest.filename().string() + "/" + name;
      rest = rest.parent_path();
    }
    names.push_back(name);
  }
  return names;
}

const char* text_of(RunStatus state) {
  return state == RunStatus::running    ? "running"
         : state == RunStatus::complete ? "complete"
                                        : "cut";
}

/// What all runs count, else "seen".
std::string common_unit(const std::vector<RunRecord>& runs) {
  std::string unit = runs.empty() ? "tokens" : unit_of(runs.front().objective());
  for (const RunRecord& run : runs)
    if (unit_of(run.objective()) != unit) return "seen";
  return unit;
}

/// "a, b (2 seeds): best valid 2.25 +- 0.1": a line for each group.
std::vector<std::string> seeds_of(const std::vector<RunRecord>& runs) {
  std::vector<std::string> out;
  for (const SeedGroup& group : seed_groups(runs)) {
    std::vector<std::string> names, numbers;
    for (const size_t i : group.runs) names.push_back(runs[i].name);
    for (const Spread& one : group.spreads)
      numbers.push_back(fmt::format("{} {:.4f} +- {:.4f}", one.name, one.mean, one.deviation));
    out.push_back(fmt::format("{} ({} seeds): {}", fmt::join(names, ", "), names.size(),
                              fmt::join(numbers, ", ")));
  }
  return out;
}

/// A row with the names, then one for every run; columns that no run fills are left out.
Rows rows_of(const std::vector<RunRecord>& runs) {
  const std::string unit = common_unit(runs);
  Rows rows{{"run", "state", "step", "loss", "best valid", "at step", "accuracy", "bits/byte", unit,
             unit + "/s", "time", "left", "parameters", "FLOPs", "lr"}};
  for (const RunRecord& run : runs) {
    std::vector<std::string> row(rows[0].size());
    row[0] = run.name;
    row[1] = text_of(run.state);
    if (!run.lines.empty()) {
      const LogLine& last = run.lines.back();
      row[2] = std::to_string(last.step);
      if (run.steps() > 0) row[2] += fmt::format("/{}", run.steps());
      row[3] = fmt::format("{:.4f}", last.loss);
      if (const LogLine* best = run.best()) {
        row[4] = fmt::format("{:.4f}", *best->valid_loss);
        row[5] = std::to_string(best->step);
        if (best->accuracy) row[6] = fmt::format("{:.4f}", *best->accuracy);
        if (best->valid_bits_per_byte) row[7] = fmt::format("{:.4f}", *best->valid_bits_per_byte);
      }
      row[8] = std::to_string(last.tokens);
      if (last.seconds > 0)
        row[9] = fmt::format("{:.0f}", static_cast<double>(last.tokens) / last.seconds);
      row[10] = duration_of(last.seconds);
      if (run.state == RunStatus::running && last.step > 0)
        row[11] = duration_of(last.seconds / static_cast<double>(last.step) *
                              static_cast<double>(std::max<int64_t>(0, run.steps() - last.step)));
    }
    const RunCosts costs = costs_of(run);
    if (costs.parameters > 0) row[12] = si_text(static_cast<double>(costs.parameters));
    if (costs.flops > 0) row[13] = fmt::format("{:.2e}", costs.flops);
    const Json rate = run.recipe.is_object()
                          ? run.recipe.value(Json::json_pointer("/optimizer/lr"), Json())
                          : Json();
    if (rate.is_number()) row[14] = fmt::format("{:.3g}", rate.get<double>());
    rows.push_back(std::move(row));
  }
  for (size_t c = rows[0].size(); c-- > 2;)
    if (std::all_of(rows.begin() + 1, rows.end(), [&](const auto& row) { return row[c].empty(); }))
      for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  return rows;
}

/// The warnings of the last line that has any, or the reason of an early end.
std::vector<std::string> warnings_of(const std::vector<RunRecord>& runs) {
  std::vector<std::string> out;
  for (const RunRecord& run : runs)
    for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line)
      if (!line->alarms.empty() || !line->warnings.empty() || !line->stopped.empty()) {
        for (const auto* texts : {&line->warnings, &line->alarms})
          for (const std::string& text : *texts)
            out.push_back(fmt::format("{}: step {}: {}", run.name, line->step, text));
        if (!line->stopped.empty())
          out.push_back(
              fmt::format("{}: stopped early at step {}: {}", run.name, line->step, line->stopped));
        break;
      }
  return out;
}

using Of = std::function<double(const LogLine&)>;

/// Losses of all runs against `x`: of training thin, of validation thick with dots.
std::string plot_of_losses(const std::vector<RunRecord>& runs, const char* title, const Of& x) {
  std::vector<Curve> curves;
  for (size_t i = 0; i < runs.size(); ++i) {
    Curve learning{i, runs[i].name, {}, false}, validation{i, runs[i].name, {}, true};
    for (const LogLine& line : runs[i].lines) {
      if (std::isfinite(line.loss)) learning.points.emplace_back(x(line), line.loss);
      if (line.valid_loss && std::isfinite(*line.valid_loss))
        validation.points.emplace_back(x(line), *line.valid_loss);
    }
    curves.push_back(std::move(learning));
    curves.push_back(std::move(validation));
  }
  return plot_of(title, "loss", curves);
}

/// Every other number that a run logs, by steps: first those of whole lines, then those of parts.
std::string other_plots(const std::vector<RunRecord>& runs) {
  constexpr std::array kShown{"step", "loss", "valid_loss", "tokens", "seconds"};
  std::vector<std::string> names;
  std::map<std::string, std::vector<Curve>> curves;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const LogLine& line : runs[i].lines)
      for (const auto& [name, value] : numbers_of(to_json(line))) {
        if (std::find(kShown.begin(), kShown.end(), name) != kShown.end()) continue;
        std::vector<Curve>& of = curves[name];
        if (of.empty()) names.push_back(name);
        if (of.empty() || of.back().run != i) of.push_back({i, runs[i].name, {}, false});
        if (std::isfinite(value)) of.back().points.emplace_back(line.step, value);
      }
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) {
    return name.find('/') == std::string::npos;
  });
  std::string html;
  for (const std::string& name : names) html += plot_of("steps", name, curves.at(name));
  return html;
}

/// A row with the names, then one for every key.
Rows rows_of(const std::vector<RunRecord>& runs, const std::vector<KeyDifference>& keys) {
  Rows rows{{"differs in"}};
  for (const RunRecord& run : runs) rows[0].push_back(run.name);
  for (const KeyDifference& key : keys) {
    rows.push_back({key.key});
    rows.back().insert(rows.back().end(), key.values.begin(), key.values.end());
  }
  return rows;
}

}  // namespace

const LogLine* RunRecord::best() const {
  const LogLine* best = nullptr;
  for (const LogLine& line : lines)
    if (line.valid_loss && (best == nullptr || *line.valid_loss < *best->valid_loss)) best = &line;
  return best;
}

int64_t RunRecord::steps() const {
  const Json::json_pointer key("/train/steps");
  return recipe.is_object() && recipe.contains(key) && recipe[key].is_number_integer()
             ? recipe[key].get<int64_t>()
             : 0;
}

std::string unit_of(const std::string& objective) {
  for (const char* labels : {"classification", "regression", "question_answering"})
    if (objective == labels) return "examples";
  return objective == "token_classification" ? "words" : "tokens";
}

std::string RunRecord::objective() const {
  const Json::json_pointer key("/objective/type");
  return recipe.is_object() && recipe.contains(key) && recipe[key].is_string()
             ? recipe[key].get<std::string>()
             : "";
}

bool RunRecord::reads_windows() const {
  for (const char* examples : {"chat", "preference", "contrastive", "mask_predict"})
    if (objective() == examples) return false;
  const Json::json_pointer pairs("/data/source_key");
  return unit_of(objective()) == "tokens" &&
         !(recipe.is_object() && recipe.contains(pairs) && recipe[pairs].is_string());
}

std::vector<RunRecord> read_runs(const std::vector<fs::path>& given) {
  const std::vector<fs::path> folders = runs_in(given);
  std::vector<RunRecord> runs;
  const std::vector<std::string> names = names_of(folders);
  for (size_t i = 0; i < folders.size(); ++i) {
    runs.push_back(read_run(folders[i]));
    runs.back().name = names[i];
  }
  return runs;
}

std::string table_of(const std::vector<RunRecord>& runs, size_t most) {
  std::string text = aligned(rows_of(runs));
  if (const auto warnings = warnings_of(runs); !warnings.empty()) {
    text += "\n";
    for (const std::string& warning : warnings) text += warning + "\n";
  }
  if (const auto seeds = seeds_of(runs); !seeds.empty()) {
    text += "\nmean and standard deviation over seeds\n";
    for (const std::string& line : seeds) text += line + "\n";
  }
  std::vector<KeyDifference> keys = differences(runs);
  if (keys.empty()) return text;
  const size_t all = keys.size();
  if (all > most) keys.resize(most);
  Rows rows = rows_of(runs, keys);
  constexpr size_t kWidest = 40;
  for (auto& row : rows)
    for (size_t c = 1; c < row.size(); ++c)
      if (row[c].size() > kWidest)
        row[c] = row[c].substr(0, kWidest / 2 - 2) + "..." +
                 row[c].substr(row[c].size() - (kWidest / 2 - 1));
  text += "\n" + aligned(rows);
  if (all > most) text += fmt::format("{} more: --html or --json has them\n", all - most);
  return text;
}

Json json_of_runs(const std::vector<RunRecord>& runs) {
  Json json = {{"runs", Json::array()}, {"differences", Json::array()}};
  for (const RunRecord& run : runs) {
    Json one = {{"name", run.name},
                {"folder", run.folder.string()},
                {"state", text_of(run.state)},
                {"steps", run.steps()},
                {"last", nullptr},
                {"best", nullptr}};
    if (!run.lines.empty()) one["last"] = to_json(run.lines.back());
    if (const LogLine* best = run.best()) one["best"] = to_json(*best);
    one["unit"] = unit_of(run.objective());
    if (const RunCosts costs = costs_of(run); costs.parameters > 0) {
      one["parameters"] = costs.parameters;
      if (costs.flops > 0) one["flops"] = costs.flops;
    }
    json["runs"].push_back(std::move(one));
  }
  for (const KeyDifference& key : differences(runs))
    json["differences"].push_back({{"key", key.key}, {"values", key.values}});
  for (const SeedGroup& group : seed_groups(runs)) {
    Json one = {{"runs", Json::array()}};
    for (const size_t i : group.runs) one["runs"].push_back(runs[i].name);
    for (const Spread& spread : group.spreads)
      one[spread.name] = {{"mean", spread.mean}, {"deviation", spread.deviation}};
    json["seeds"].push_back(std::move(one));
  }
  return json;
}

std::string page_of(const std::vector<RunRecord>& runs, int refresh) {
  std::string html = page_begin("Runs", refresh);
  html += html_table(rows_of(runs), true);
  for (const std::string& warning : warnings_of(runs))
    html += "<p class=\"warn\">" + escaped(warning) + "</p>\n";
  if (const auto seeds = seeds_of(runs); !seeds.empty()) {
    html += "<h2>Mean and standard deviation over seeds</h2>\n";
    for (const std::string& line : seeds) html += "<p>" + escaped(line) + "</p>\n";
  }
  html += "<h2>Loss</h2><p>Thin lines: training loss. Thick lines: validation loss.</p>\n";
  html +=
      plot_of_losses(runs, "steps", [](const LogLine& l) { return static_cast<double>(l.step); });
  html += plot_of_losses(runs, "tokens",
                         [](const LogLine& l) { return static_cast<double>(l.tokens); });
  html += plot_of_losses(runs, "seconds", [](const LogLine& l) { return l.seconds; });
  if (const std::vector<KeyDifference> keys = differences(runs); !keys.empty())
    html += "<h2>Differences of recipes</h2>\n" + html_table(rows_of(runs, keys), false);
  if (const std::string others = other_plots(runs); !others.empty())
    html += "<h2>Other metrics</h2>\n" + others;
  return html + "</body></html>\n";
}

}  // namespace tessera::train
