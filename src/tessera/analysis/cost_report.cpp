#include "tessera/analysis/cost_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/analysis/line_plot.h"

namespace tessera::analysis {
namespace {

using Row = std::vector<std::string>;

std::string time_text(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f}", ms, ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

std::string memory_text(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

const Row kColumns = {"mechanism", "claims", "pass",   "tokens", "ms",
                      "time",      "MB",     "memory", "step",   "holds"};

/// One row for each pass of a mechanism.
std::vector<Row> rows_of(const Cost& cost, int64_t fit_from) {
  const auto checks = checks_of(cost, fit_from);
  const auto verdict = [&](const std::string& prefix) -> std::string {
    std::vector<std::string> failed;
    bool any = false;
    for (const Check& check : checks) {
      if (check.what.rfind(prefix, 0) != 0) continue;
      any = true;
      if (!check.holds()) failed.push_back(check.what.substr(check.what.find(' ') + 1));
    }
    return !any             ? "not checked"
           : failed.empty() ? "yes"
                            : fmt::format("NO: {}", fmt::join(failed, ", "));
  };
  std::vector<Row> rows;
  for (const Curve& curve : cost.curves) {
    if (curve.points.empty()) continue;
    const Point& last = curve.points.back();
    const auto exponents = fit(curve, fit_from);
    const auto power = [](double exponent) { return fmt::format("T^{:.2f}", exponent); };
    rows.push_back(
        {cost.title(),
         fmt::format("{}; {}", spec::name_of(cost.claim.time), spec::name_of(cost.claim.memory)),
         name_of(curve.pass), std::to_string(last.length), time_text(last.seconds),
         exponents ? power(exponents->time) : "-", memory_text(last.bytes),
         exponents ? power(exponents->memory) : "-", "-", verdict(name_of(curve.pass))});
    if (curve.pass == Pass::forward && cost.step) {
      rows.back()[8] = fmt::format("{:.2f}", cost.step->ratio()) +
                       (cost.step->constant_state ? "" : " (state grows)");
      if (verdict("decode").rfind("NO", 0) == 0)
        rows.back()[9] = rows.back()[9] == "yes" ? "NO: step" : rows.back()[9] + ", step";
    }
  }
  return rows;
}

/// What was not measured, a line each.
std::vector<std::string> gaps(const CostRun& run) {
  std::vector<std::string> out;
  for (const Cost& cost : run.costs)
    for (const Curve& curve : cost.curves)
      if (!curve.left_out.empty())
        out.push_back(fmt::format("{} {}: {}", cost.title(), name_of(curve.pass), curve.left_out));
  return out;
}

std::string padded(const std::vector<Row>& rows) {
  std::vector<size_t> widths(kColumns.size());
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += c >= 3 && c <= 7 ? fmt::format("{:>{}}  ", row[c], widths[c])
                               : fmt::format("{:<{}}  ", row[c], widths[c]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string markdown_row(const Row& row) {
  return fmt::format("| {} |\n", fmt::join(row, " | "));
}

const char* section_title(spec::Slot slot) {
  switch (slot) {
    case spec::Slot::mixer:
      return "Mixers";
    case spec::Slot::pattern:
      return "Patterns, in softmax attention";
    default:
      return "Positions, in softmax attention that sees all of the past";
  }
}

}  // namespace

std::string cost_text(const CostRun& run) {
  std::vector<Row> rows = {kColumns};
  for (const Cost& cost : run.costs)
    for (Row& row : rows_of(cost, run.fit_from)) rows.push_back(std::move(row));
  std::string out = padded(rows);
  for (const std::string& line : gaps(run)) out += "not measured: " + line + "\n";
  for (const std::string& line : failures(run)) out += "DOES NOT HOLD: " + line + "\n";
  return out;
}

std::string cost_markdown(const CostRun& run,
                          const std::vector<std::pair<std::string, std::string>>& plots) {
  std::string out = fmt::format(
      "# Measured time and memory of mechanisms\n\nWritten by `{}` on {} ({}), {} threads: one "
      "layer of width {} over one document "
      "of "
      "float32, medians of {} interleaved repeats. How to read it: "
      "[docs/guide/mixer_costs.md](../guide/mixer_costs.md).\n\n",
      run.command, run.cpu, run.target, run.threads, run.width, run.repeats);
  for (const auto& [file, caption] : plots) out += fmt::format("![{}]({})\n\n", caption, file);
  for (const spec::Slot slot : {spec::Slot::mixer, spec::Slot::pattern, spec::Slot::position}) {
    std::string table;
    for (const Cost& cost : run.costs)
      if (cost.mechanism->slot == slot)
        for (Row row : rows_of(cost, run.fit_from)) {
          row[0] = "`" + cost.mechanism->name + "`";
          table += markdown_row(row);
        }
    if (table.empty()) continue;
    out += fmt::format("## {}\n\n{}|{}\n{}\n", section_title(slot), markdown_row(kColumns),
                       fmt::join(Row(kColumns.size(), "---|"), ""), table);
  }
  const auto bullets = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    out += fmt::format("## {}\n\n", title);
    for (const std::string& line : lines) out += "- " + line + "\n";
    out += "\n";
  };
  bullets("Claims that do not hold", failures(run));
  bullets("Not measured", gaps(run));
  out.pop_back();
  return out;
}

std::string cost_csv(const CostRun& run) {
  std::string out = "slot,mechanism,pass,length,seconds,peak_bytes\n";
  for (const Cost& cost : run.costs)
    for (const Curve& curve : cost.curves)
      for (const Point& p : curve.points)
        out += fmt::format("{},{},{},{},{:.6g},{}\n", spec::name_of(cost.mechanism->slot),
                           cost.mechanism->name, name_of(curve.pass), p.length, p.seconds, p.bytes);
  return out;
}

std::string cost_svg(const CostRun& run, Pass pass, bool memory) {
  // lines by slot and claim, in the order of the registry
  std::map<std::pair<spec::Slot, Growth>, std::vector<Line>> groups;
  for (const Cost& cost : run.costs) {
    const Curve* curve = cost.curve(pass);
    if (curve == nullptr || curve->points.empty()) continue;
    Line line{cost.mechanism->name, {}};
    for (const Point& p : curve->points)
      line.points.emplace_back(static_cast<double>(p.length),
                               memory
                                   ? static_cast<double>(std::max<int64_t>(1, p.bytes)) / (1 << 20)
                                   : p.seconds * 1e3);
    const Growth claim = memory ? cost.claim.memory : cost.claim.time;
    groups[{cost.mechanism->slot, claim}].push_back(std::move(line));
  }
  LinePlot plot;
  plot.title = fmt::format("One layer, width {}, {}: {}", run.width, name_of(pass),
                           memory ? "peak memory" : "time");
  plot.x_label = "tokens";
  plot.y_label = memory ? "MB" : "ms";
  plot.slopes = {1, 2};
  for (const spec::Slot slot : {spec::Slot::mixer, spec::Slot::pattern, spec::Slot::position})
    for (auto& [key, lines] : groups) {
      if (key.first != slot) continue;
      for (size_t i = 0; i < lines.size(); i += kLinesOfPanel)
        plot.panels.push_back(
            {fmt::format("{}s that claim {}", spec::name_of(slot), spec::name_of(key.second)),
             {lines.begin() + static_cast<std::ptrdiff_t>(i),
              lines.begin() +
                  static_cast<std::ptrdiff_t>(std::min(i + kLinesOfPanel, lines.size()))}});
    }
  return svg_of(plot);
}

}  // namespace tessera::analysis
