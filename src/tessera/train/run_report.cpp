#include "tessera/train/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

RunRecord read_run(const fs::path& folder) {
  const fs::path recipe = folder / "recipe.json", log = folder / "log.jsonl";
  for (const fs::path& file : {recipe, log})
    if (!fs::exists(file))
      fail(ErrorKind::file, folder.string(), "no {}; expected the folder of a run (train --out)",
           file.filename().string());
  RunRecord run;
  run.recipe = spec::read_json_file(recipe);
  const std::string text = read_text_file(log);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    run.lines.push_back(
        log_line_of(spec::parse_json(text.substr(begin, end - begin), log.string()), log.string()));
  return run;
}

/// The shortest ends of paths that tell them apart.
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

void flatten(const Json& json, const std::string& path, std::map<std::string, std::string>& out) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items())
      flatten(value, path.empty() ? key : path + "." + key, out);
  } else if (json.is_array() && !json.empty() && json[0].is_object()) {
    for (size_t i = 0; i < json.size(); ++i) flatten(json[i], fmt::format("{}[{}]", path, i), out);
  } else {
    out[path] = json.is_string() ? json.get<std::string>() : json.dump();
  }
}

constexpr std::array kHeads{"run",      "step",   "loss",     "valid",  "at step",
                            "accuracy", "tokens", "tokens/s", "seconds"};

std::vector<std::vector<std::string>> rows_of(const std::vector<RunRecord>& runs) {
  std::vector<std::vector<std::string>> rows{{kHeads.begin(), kHeads.end()}};
  for (const RunRecord& run : runs) {
    std::vector<std::string> row(kHeads.size());
    row[0] = run.name;
    if (!run.lines.empty()) {
      const LogLine& last = run.lines.back();
      row[1] = std::to_string(last.step);
      if (const Json steps = run.recipe.value(Json::json_pointer("/train/steps"), Json());
          steps.is_number_integer())
        row[1] += "/" + steps.dump();
      row[2] = fmt::format("{:.4f}", last.loss);
      if (const LogLine* best = run.best()) {
        row[3] = fmt::format("{:.4f}", *best->valid_loss);
        row[4] = std::to_string(best->step);
        if (best->accuracy) row[5] = fmt::format("{:.4f}", *best->accuracy);
      }
      row[6] = std::to_string(last.tokens);
      if (last.seconds > 0)
        row[7] = fmt::format("{:.0f}", static_cast<double>(last.tokens) / last.seconds);
      row[8] = fmt::format("{:.1f}", last.seconds);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

// told apart by people who do not see all colours (Okabe and Ito 2008)
constexpr std::array kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                              "#e69f00", "#56b4e9", "#000000"};

const char* colour_of(size_t run) {
  return kColours[run % kColours.size()];
}

/// 1, 2 or 5 times a power of ten, about a fifth of a range.
double tick_of(double range) {
  if (!(range > 0)) return 1;
  const double size = std::pow(10.0, std::floor(std::log10(range / 5)));
  for (const double by : {1.0, 2.0, 5.0})
    if (range / (size * by) <= 6) return size * by;
  return size * 10;
}

struct Axis {
  double low, high;
  double begin, end;  // on the page
  double at(double value) const {
    return begin + (end - begin) * (high > low ? (value - low) / (high - low) : 0.5);
  }
};

using Of = std::function<double(const LogLine&)>;

/// Losses of all runs against what `x` says: of training thin, of validation thick with dots.
std::string plot_of(const std::vector<RunRecord>& runs, const char* title, const Of& x) {
  constexpr double kWidth = 460, kHeight = 300;
  double right = 0, low = INFINITY, high = -INFINITY;
  for (const RunRecord& run : runs)
    for (const LogLine& line : run.lines) {
      right = std::max(right, x(line));
      for (const double y : {line.loss, line.valid_loss.value_or(line.loss)})
        if (std::isfinite(y)) low = std::min(low, y), high = std::max(high, y);
    }
  if (!std::isfinite(low)) low = 0, high = 1;
  const double margin = 0.05 * std::max(high - low, 1e-6);
  const Axis across{0, std::max(right, 1e-9), 52, kWidth - 12},
      up{low - margin, high + margin, kHeight - 36, 12};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"loss by {2}\">\n",
      kWidth, kHeight, title);
  const double by_x = tick_of(across.high), by_y = tick_of(up.high - up.low);
  for (double v = 0; v <= across.high; v += by_x)
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"grid\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.4g}</text>\n",
        across.at(v), up.end, up.begin, up.begin + 14, v);
  for (double v = std::ceil(up.low / by_y) * by_y; v <= up.high; v += by_y)
    svg += fmt::format(
        "<line x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" class=\"grid\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        up.at(v), across.begin, across.end, across.begin - 6, up.at(v) + 4,
        std::fabs(v) < by_y / 2 ? 0 : v);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (across.begin + across.end) / 2, kHeight - 6, title);
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string learning, validation, dots;
    for (const LogLine& line : runs[i].lines) {
      if (std::isfinite(line.loss))
        learning += fmt::format("{:.1f},{:.1f} ", across.at(x(line)), up.at(line.loss));
      if (!line.valid_loss || !std::isfinite(*line.valid_loss)) continue;
      const double px = across.at(x(line)), py = up.at(*line.valid_loss);
      validation += fmt::format("{:.1f},{:.1f} ", px, py);
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{} step {}: "
          "{:.4f}</title>"
          "</circle>",
          px, py, colour_of(i), escaped(runs[i].name), line.step, *line.valid_loss);
    }
    svg += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1\" opacity=\"0.5\"/>\n"
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>{}\n",
        learning, colour_of(i), validation, colour_of(i), dots);
  }
  return svg + "</svg>\n";
}

std::string html_table(const std::vector<std::vector<std::string>>& rows, bool colours) {
  std::string html = "<table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    html += "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const bool head = r == 0 || c == 0;
      const std::string mark =
          colours && r > 0 && c == 0
              ? fmt::format("<span style=\"color:{}\">&#9632;</span> ", colour_of(r - 1))
              : std::string();
      html += fmt::format("<{0}>{1}{2}</{0}>", head ? "th" : "td", mark, escaped(rows[r][c]));
    }
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

}  // namespace

const LogLine* RunRecord::best() const {
  const LogLine* best = nullptr;
  for (const LogLine& line : lines)
    if (line.valid_loss && (best == nullptr || *line.valid_loss < *best->valid_loss)) best = &line;
  return best;
}

std::vector<RunRecord> read_runs(const std::vector<fs::path>& folders) {
  std::vector<RunRecord> runs;
  const std::vector<std::string> names = names_of(folders);
  for (size_t i = 0; i < folders.size(); ++i) {
    runs.push_back(read_run(folders[i]));
    runs.back().name = names[i];
  }
  return runs;
}

std::vector<KeyDifference> differences(const std::vector<RunRecord>& runs) {
  std::vector<std::map<std::string, std::string>> flat(runs.size());
  std::set<std::string> keys;
  for (size_t i = 0; i < runs.size(); ++i) {
    flatten(runs[i].recipe, "", flat[i]);
    for (const auto& [key, value] : flat[i]) keys.insert(key);
  }
  std::vector<KeyDifference> out;
  for (const std::string& key : keys) {
    KeyDifference difference{key, {}};
    for (const auto& of : flat)
      difference.values.push_back(of.count(key) > 0 ? of.at(key) : std::string());
    if (std::adjacent_find(difference.values.begin(), difference.values.end(),
                           std::not_equal_to<>()) != difference.values.end())
      out.push_back(std::move(difference));
  }
  return out;
}

std::string table_of(const std::vector<RunRecord>& runs) {
  const auto aligned = [](const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths;
    for (const auto& row : rows) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    }
    std::string text;
    for (const auto& row : rows) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c)
        line += c == 0 ? fmt::format("{:<{}}", row[c], widths[c])
                       : fmt::format("  {:>{}}", row[c], widths[c]);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  };
  std::string text = aligned(rows_of(runs));
  const std::vector<KeyDifference> keys = differences(runs);
  if (keys.empty()) return text;
  std::vector<std::vector<std::string>> rows{{"differs in"}};
  for (const RunRecord& run : runs) rows[0].push_back(run.name);
  for (const KeyDifference& key : keys) {
    rows.push_back({key.key});
    for (const std::string& value : key.values)
      rows.back().push_back(value.size() > 40 ? value.substr(0, 37) + "..." : value);
  }
  return text + "\n" + aligned(rows);
}

Json json_of_runs(const std::vector<RunRecord>& runs) {
  Json json = {{"runs", Json::array()}, {"differences", Json::array()}};
  for (const RunRecord& run : runs) {
    Json one = {{"name", run.name}, {"last", nullptr}, {"best", nullptr}};
    if (!run.lines.empty()) one["last"] = to_json(run.lines.back());
    if (const LogLine* best = run.best()) one["best"] = to_json(*best);
    json["runs"].push_back(std::move(one));
  }
  for (const KeyDifference& key : differences(runs))
    json["differences"].push_back({{"key", key.key}, {"values", key.values}});
  return json;
}

std::string page_of(const std::vector<RunRecord>& runs, int refresh) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>runs</title>\n";
  if (refresh > 0) html += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", refresh);
  html +=
      "<style>body{font:14px sans-serif;margin:24px;color:#222;background:#fff}"
      "table{border-collapse:collapse;margin:12px 0 28px}"
      "th,td{padding:4px 10px;text-align:right;border-bottom:1px solid #ddd}"
      "th:first-child{text-align:left}td{font-variant-numeric:tabular-nums}"
      "svg{margin:0 12px 12px 0}svg text{font:11px sans-serif;fill:#444}"
      ".grid{stroke:#e4e4e4}</style></head>\n<body><h1>Runs</h1>\n";
  html += html_table(rows_of(runs), true);
  html += "<h2>Loss</h2><p>Of training thin, of validation thick.</p>\n";
  html += plot_of(runs, "steps", [](const LogLine& l) { return static_cast<double>(l.step); });
  html += plot_of(runs, "tokens", [](const LogLine& l) { return static_cast<double>(l.tokens); });
  html += plot_of(runs, "seconds", [](const LogLine& l) { return l.seconds; });
  if (const std::vector<KeyDifference> keys = differences(runs); !keys.empty()) {
    std::vector<std::vector<std::string>> rows{{"key"}};
    for (const RunRecord& run : runs) rows[0].push_back(run.name);
    for (const KeyDifference& key : keys) {
      rows.push_back({key.key});
      rows.back().insert(rows.back().end(), key.values.begin(), key.values.end());
    }
    html += "<h2>Where recipes differ</h2>\n" + html_table(rows, false);
  }
  return html + "</body></html>\n";
}

}  // namespace tessera::train
