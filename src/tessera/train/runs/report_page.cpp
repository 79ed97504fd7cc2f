#include "tessera/train/runs/report_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/train/runs/run_plot.h"

namespace tessera::train {
namespace {

constexpr const char* kStyle =
    "<style>:root{color-scheme:light dark}"
    "body{font:14px system-ui,sans-serif;margin:24px;color:#222;background:#fff}"
    "h1{font-size:20px}h2{font-size:16px;margin-top:28px}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:12px 0}"
    "th,td{padding:4px 10px;text-align:right;border-bottom:1px solid #8884;font-weight:normal}"
    "tr:first-child th{font-weight:bold}th:first-child{text-align:left;white-space:nowrap}"
    "td{font-variant-numeric:tabular-nums}.warn{color:#b35900}"
    "svg{margin:0 12px 12px 0}svg text{font:11px system-ui,sans-serif;fill:#555}"
    "svg .title{font-size:12px}.grid{stroke:#8883}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}svg text{fill:#aaa}"
    ".warn{color:#e69f00}}"
    "</style>";

}  // namespace

std::string duration_of(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 120) return fmt::format("{} s", s);
  if (s < 7200) return fmt::format("{} min", s / 60);
  if (s < 48 * 3600) return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
}

std::string si_text(double value) {
  for (const auto& [size, name] : {std::pair(1e12, "T"), {1e9, "B"}, {1e6, "M"}, {1e3, "k"}})
    if (value >= size) return fmt::format("{:.3g}{}", value / size, name);
  return fmt::format("{:.3g}", value);
}

std::string aligned(const Rows& rows) {
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
}

std::string html_table(const Rows& rows, bool colours) {
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
  return "<div class=\"wide\">" + html + "</table></div>\n";
}

std::string page_begin(const std::string& title, int refresh) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\n",
      escaped(title));
  if (refresh > 0) html += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", refresh);
  return html + kStyle + fmt::format("</head>\n<body><h1>{}</h1>\n", escaped(title));
}

}  // namespace tessera::train
