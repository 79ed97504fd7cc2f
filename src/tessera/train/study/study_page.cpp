#include "tessera/train/study/study_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/runs/report_page.h"
#include "tessera/train/runs/run_plot.h"

namespace tessera::train {
namespace {

using spec::Json;

/// A number over the seeds of an entry.
struct Seeds {
  int64_t count = 0;
  double mean = 0, deviation = 0, least = INFINITY, largest = -INFINITY;
};

Seeds over(const std::vector<double>& values) {
  Seeds out;
  out.count = std::ssize(values);
  for (const double value : values) {
    out.mean += value / static_cast<double>(out.count);
    out.least = std::min(out.least, value), out.largest = std::max(out.largest, value);
  }
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  if (out.count > 1) out.deviation = std::sqrt(squares / static_cast<double>(out.count - 1));
  return out;
}

/// A key of the runs of an entry, at a length of evaluate.lengths or, 0, of training.
Seeds over_seeds(const Json& entry, const char* key, int64_t length = 0) {
  std::vector<double> values;
  for (const Json& run : entry.at("runs")) {
    if (length == 0 && run.contains(key) && run[key].is_number())
      values.push_back(run[key].get<double>());
    if (length == 0 || !run.contains("lengths")) continue;
    for (const Json& one : run["lengths"])
      if (one.at("length") == length) values.push_back(one.at(key).get<double>());
  }
  return over(values);
}

std::vector<int64_t> lengths_in(const Json& report) {
  std::vector<int64_t> out;
  for (const Json& entry : report.at("entries"))
    for (const Json& run : entry.at("runs"))
      if (run.contains("lengths"))
        for (const Json& one : run["lengths"])
          if (const auto length = one.at("length").get<int64_t>();
              std::find(out.begin(), out.end(), length) == out.end())
            out.push_back(length);
  std::sort(out.begin(), out.end());
  return out;
}

/// Of a text, which has bytes, losses tell; of a task accuracies.
bool is_text(const Json& report) {
  for (const Json& entry : report.at("entries"))
    if (over_seeds(entry, "bits_per_byte").count > 0) return true;
  return false;
}

std::string bytes_text(double bytes) {
  for (const auto& [size, name] : {std::pair(1e6, "MB"), {1e3, "kB"}})
    if (bytes >= size) return fmt::format("{:.3g} {}", bytes / size, name);
  return fmt::format("{:g} B", bytes);
}

std::string name_cell(const Json& name) {
  return fmt::format("`{}`", name.get<std::string>());
}

/// Without the columns whose cells are all empty, as Markdown.
std::string markdown_of(const Rows& rows) {
  std::vector<size_t> shown;
  for (size_t c = 0; c < rows[0].size(); ++c)
    if (c == 0 ||
        std::any_of(rows.begin() + 1, rows.end(), [&](const auto& row) { return !row[c].empty(); }))
      shown.push_back(c);
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out += "|";
    for (const size_t c : shown) out += " " + rows[r][c] + " |";
    out += "\n";
    if (r > 0) continue;
    out += "|";
    for (size_t i = 0; i < shown.size(); ++i) out += "---|";
    out += "\n";
  }
  return out;
}

std::string interval_cell(const Json& low_high) {
  return fmt::format("\\[{:+.3f}, {:+.3f}\\]", low_high.at(0).get<double>(),
                     low_high.at(1).get<double>());
}

std::string result_table(const Json& report) {
  const bool text = is_text(report);
  const std::vector<int64_t> lengths = lengths_in(report);
  Rows rows{{"entry", text ? "validation loss" : "accuracy", "standard deviation",
             text ? "bits per byte" : "validation loss", "difference in loss", "95 % interval",
             "verdict"}};
  for (const int64_t length : lengths)
    rows[0].push_back(fmt::format("{} at {} tokens", text ? "loss" : "accuracy", length));
  for (const Json& entry : report.at("entries")) {
    const Seeds loss = over_seeds(entry, "valid_loss"), hits = over_seeds(entry, "accuracy"),
                bits = over_seeds(entry, "bits_per_byte");
    const Seeds &first = text ? loss : hits, &second = text ? bits : loss;
    std::vector<std::string> row{name_cell(entry.at("name"))};
    row.push_back(first.count > 0 ? fmt::format("{:.3f}", first.mean) : "failed");
    row.push_back(first.count > 1 ? fmt::format("{:.3f}", first.deviation) : "");
    row.push_back(second.count > 0 ? fmt::format("{:.3f}", second.mean) : "");
    const Json difference = entry.value("difference", Json::object());
    row.push_back(difference.contains("mean")
                      ? fmt::format("{:+.3f}", difference["mean"].get<double>())
                      : "");
    row.push_back(difference.contains("crossed_interval")
                      ? interval_cell(difference["crossed_interval"])
                  : difference.contains("interval") ? interval_cell(difference["interval"])
                                                    : "");
    row.push_back(entry.at("verdict").get<std::string>());
    for (const int64_t length : lengths) {
      const Seeds there = over_seeds(entry, text ? "valid_loss" : "accuracy", length);
      row.push_back(there.count > 0 ? fmt::format("{:.3f}", there.mean) : "refused");
    }
    rows.push_back(std::move(row));
  }
  return markdown_of(rows);
}

std::string claims_table(const Json& report) {
  Rows rows{{"claim", "source", "difference", "95 % interval", "at this size"}};
  for (const Json& claim : report.at("claims")) {
    const int64_t length = claim.at("length").get<int64_t>();
    const auto found = claim.at("found").get<std::string>();
    const std::string source = claim.value("paper", ""), prefix = "arXiv:";
    rows.push_back(
        {fmt::format("{} better than {} in {}{}", name_cell(claim.at("better")),
                     name_cell(claim.at("than")), claim.at("of").get<std::string>(),
                     length > 0 ? fmt::format(" at {} tokens", length) : ""),
         source.starts_with(prefix)
             ? fmt::format("[{}](https://arxiv.org/abs/{})", source, source.substr(prefix.size()))
             : source,
         claim.contains("difference") ? fmt::format("{:+.3f}", claim["difference"].get<double>())
                                      : "",
         claim.contains("interval") ? interval_cell(claim["interval"]) : "",
         found == "appears"    ? "the order appears"
         : found == "opposite" ? "did not appear: the opposite order"
         : found == "failed"   ? "not measured: runs failed"
                               : "did not appear: " + found});
  }
  return markdown_of(rows);
}

std::string cost_table(const Json& report, const std::string& where) {
  Rows rows{{"entry", "parameters", "FLOPs per token", "state", "learning rate", "steps",
             "relative decoding speed"}};
  const auto reference =
      std::find_if(report.at("entries").begin(), report.at("entries").end(),
                   [&](const Json& entry) { return entry.at("name") == report.at("reference"); });
  if (reference == report.at("entries").end())
    fail(ErrorKind::file, where, "reference {}: no entry has this name",
         report.at("reference").dump());
  const auto ratio = [&](const Json& entry, const char* key) {
    if (!entry.contains(key) || !reference->contains(key)) return std::string();
    const double own = entry[key].get<double>(), base = (*reference)[key].get<double>();
    return own > 0 && base > 0 ? fmt::format("{:.2f}", own / base) : std::string();
  };
  for (const Json& entry : report.at("entries"))
    rows.push_back(
        {name_cell(entry.at("name")), std::to_string(entry.at("parameters").get<int64_t>()),
         si_text(entry.at("flops_per_token").get<double>()),
         bytes_text(entry.at("state_bytes").get<double>()),
         fmt::format("{:g}{}", entry.at("learning_rate").get<double>(),
                     entry.value("rate_at_end", false) ? " (end)" : ""),
         std::to_string(entry.at("steps").get<int64_t>()), ratio(entry, "decode_tokens_per_s")});
  return markdown_of(rows);
}

/// Layers in the order of the model.
std::vector<std::string> layers_in(const Json& layers) {
  std::vector<std::string> names;
  for (const auto& [name, norm] : layers.items())
    if (name.find("layers.") != std::string::npos) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

/// Of the first and the last measurement; empty where none has them.
std::string norms_table(const Json& report) {
  Rows rows;
  for (const Json& entry : report.at("entries")) {
    if (!entry.contains("gradient_norms") || entry["gradient_norms"].empty()) continue;
    const Json& all = entry["gradient_norms"];
    for (const size_t at : {size_t{0}, all.size() - 1}) {
      const Json& layers = all[at].at("layers");
      const std::vector<std::string> names = layers_in(layers);
      if (rows.empty()) {
        rows.push_back({"entry", "step"});
        for (size_t i = 0; i < names.size(); ++i) rows[0].push_back(fmt::format("layer {}", i + 1));
        rows[0].push_back("last / first");
      }
      std::vector<std::string> row{name_cell(entry.at("name")), all[at].at("step").dump()};
      for (const std::string& name : names)
        row.push_back(fmt::format("{:.3g}", layers[name].get<double>()));
      if (!names.empty())
        row.push_back(fmt::format(
            "{:.2f}", layers[names.back()].get<double>() / layers[names.front()].get<double>()));
      row.resize(rows[0].size());
      rows.push_back(std::move(row));
      if (all.size() == 1) break;
    }
  }
  return rows.empty() ? "" : markdown_of(rows);
}

std::string reproduction(const Json& report) {
  double seconds = 0;
  for (const Json& entry : report.at("entries")) seconds += entry.value("seconds", 0.0);
  std::vector<std::string> seeds;
  for (const Json& seed : report.at("seeds")) seeds.push_back(seed.dump());
  // a sentence of its own
  auto equal = report.at("equal").at("text").get<std::string>();
  if (!equal.empty()) equal[0] = static_cast<char>(std::toupper(equal[0]));
  std::string out = fmt::format(
      "    {}\n\n{}; seeds {}; {}. Training and evaluation took {:.0f} minutes on a busy machine "
      "({}).\n",
      report.at("command").get<std::string>(), equal, fmt::join(seeds, ", "),
      report.at("intervals").get<std::string>(), seconds / 60,
      report.at("machine").get<std::string>());
  std::string notes;
  for (const Json& finding : report.at("findings"))
    notes += fmt::format("- {}: {}\n", finding.at("unfair").get<bool>() ? "unfair" : "note",
                         finding.at("text").get<std::string>());
  return notes.empty() ? out : out + "\n" + notes;
}

/// Calls `make`; a key that the report lacks is an error of its file.
template <class Make>
std::string from_report(const std::string& where, Make&& make) {
  try {
    return make();
  } catch (const Json::exception& error) {
    const std::string_view text = error.what();  // "[json.exception...] ", then the reason
    fail(ErrorKind::file, where, "no report of a study: {}; expected a report.json of compare",
         text.substr(std::min(text.find("] ") + 2, text.size())));
  }
}

// --- the figure ---

struct Dots {
  std::string name;
  Seeds base;
  std::vector<Seeds> lengths;
};

constexpr const char* kFigureStyle =
    "<style>text{font:12px system-ui,sans-serif;fill:#444}.grid{stroke:#8884}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}}</style>\n";

std::string figure_of(const Json& report) {
  constexpr double kLeft = 190, kWidth = 680, kRight = kWidth - 24, kRow = 20, kTop = 12;
  const bool text = is_text(report);
  const char* const key = text ? "valid_loss" : "accuracy";
  const std::vector<int64_t> lengths = lengths_in(report);
  std::vector<Dots> rows;
  double low = INFINITY, high = -INFINITY, far = -INFINITY;
  for (const Json& entry : report.at("entries")) {
    Dots dots{entry.at("name").get<std::string>(), over_seeds(entry, key), {}};
    if (dots.base.count == 0) continue;
    low = std::min(low, dots.base.least), high = std::max(high, dots.base.largest);
    for (const int64_t length : lengths) {
      dots.lengths.push_back(over_seeds(entry, key, length));
      if (dots.lengths.back().count == 0) continue;
      low = std::min(low, dots.lengths.back().mean), far = std::max(far, dots.lengths.back().mean);
    }
    rows.push_back(std::move(dots));
  }
  if (rows.empty()) return "";
  std::stable_sort(rows.begin(), rows.end(), [&](const Dots& a, const Dots& b) {
    return text ? a.base.mean < b.base.mean : a.base.mean > b.base.mean;
  });
  if (!text) low = 0, high = 1;
  // what lies far beyond the losses at the trained length stands at the edge
  else
    high = std::clamp(far, high, high + std::max(0.5, high - low));
  const double margin = text ? 0.03 * std::max(high - low, 1e-3) : 0;
  low -= margin, high += margin;
  const auto at = [&](double value) {
    return kLeft + (kRight - kLeft) * std::clamp((value - low) / (high - low), 0.0, 1.0);
  };
  const double bottom = kTop + kRow * static_cast<double>(rows.size());
  const double height = bottom + (lengths.empty() ? 44 : 64);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"{2} of every entry\">\n",
      kWidth, height, text ? "validation loss" : "accuracy");
  svg += kFigureStyle;
  // ends that are ticks are inside, whatever the rounding
  constexpr double kSlack = 1e-9;
  const double by = tick_of(high - low);
  const auto last_tick = std::llround(std::floor(high / by + kSlack));
  for (auto i = std::llround(std::ceil(low / by - kSlack)); i <= last_tick; ++i) {
    const double value = static_cast<double>(i) * by;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\" class=\"grid\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4}</text>\n",
        at(value), kTop - 4, bottom, bottom + 16, tick_text(value));
  }
  const auto dot = [&](double value, double y, size_t series) {
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", at(value), y,
                       series == 0 ? 4.5 : 3.5, colour_of(series));
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + kRow * (static_cast<double>(r) + 0.5);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 10,
                       y + 4, escaped(rows[r].name));
    svg += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"2\"/>\n",
        at(rows[r].base.least), at(rows[r].base.largest), y, y, colour_of(0));
    for (size_t l = 0; l < lengths.size(); ++l)
      if (rows[r].lengths[l].count > 0) svg += dot(rows[r].lengths[l].mean, y, l + 1);
    svg += dot(rows[r].base.mean, y, 0);
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kRight) / 2,
      bottom + 36,
      text ? "validation loss, nats per token; left is better" : "accuracy; right is better");
  if (!lengths.empty()) {
    double x = kLeft;
    for (size_t l = 0; l <= lengths.size(); ++l) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>", x,
                         bottom + 52, colour_of(l));
      const std::string name = l == 0 ? "as trained" : fmt::format("{} tokens", lengths[l - 1]);
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 9, bottom + 56, name);
      x += 100;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string study_markdown(const Json& report, const std::string& where) {
  return from_report(where, [&] {
    std::string out = "## Results\n\n" + result_table(report);
    if (report.contains("claims"))
      out += "\n## The order that papers claim\n\n" + claims_table(report) +
             "\nA claim is checked by its interval alone; verdicts of the results are adjusted for "
             "the "
             "number of entries\n(Holm), and so need more.\n";
    out += "\n## Size and learning rate\n\n" + cost_table(report, where);
    if (const std::string norms = norms_table(report); !norms.empty())
      out += "\n## Gradient norms by layer\n\nBefore clipping, seed " +
             report.at("seeds").at(0).dump() + ":\n\n" + norms;
    return out + "\n## Reproduction\n\n" + reproduction(report);
  });
}

std::string study_figure(const Json& report, const std::string& where) {
  return from_report(where, [&] { return figure_of(report); });
}

}  // namespace tessera::train
