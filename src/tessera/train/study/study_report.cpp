#include "tessera/train/study/study_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tessera/train/runs/report_page.h"
#include "tessera/train/runs/run_plot.h"

namespace tessera::train {
namespace {

constexpr double kSignificant = 0.05;

/// Mean and deviation (of a sample) of the runs done so far.
struct Summary {
  size_t count = 0;
  double mean = 0, deviation = 0;
};
Summary summary_of(const std::vector<std::optional<double>>& values) {
  Summary out;
  for (const std::optional<double>& value : values)
    if (value) out.mean += *value, ++out.count;
  if (out.count == 0) return out;
  out.mean /= static_cast<double>(out.count);
  double squares = 0;
  for (const std::optional<double>& value : values)
    if (value) squares += (*value - out.mean) * (*value - out.mean);
  if (out.count > 1) out.deviation = std::sqrt(squares / static_cast<double>(out.count - 1));
  return out;
}

const LogLine* last_evaluation(const RunRecord& run) {
  for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line)
    if (line->valid_loss) return &*line;
  return nullptr;
}

std::vector<std::optional<double>> bits_of(const EntryResult& result) {
  std::vector<std::optional<double>> out;
  for (const std::optional<RunRecord>& run : result.runs) {
    const LogLine* line = run ? last_evaluation(*run) : nullptr;
    out.push_back(line == nullptr ? std::nullopt : line->valid_bits_per_byte);
  }
  return out;
}

/// The interval that counts: over seeds and blocks where there is one, else over seeds.
std::optional<std::pair<double, double>> interval_of(const Comparison& one) {
  if (one.crossed) return std::pair(one.crossed->low, one.crossed->high);
  return one.difference.interval;
}

std::string interval_text(const Comparison& one) {
  const auto interval = interval_of(one);
  return interval ? fmt::format("[{:+.4f}, {:+.4f}]", interval->first, interval->second)
                  : std::string();
}

/// Differences of blocks by seed; none below 3 seeds, or where the blocks are not the same.
std::vector<std::vector<double>> block_differences(const EntryResult& own,
                                                   const EntryResult& base) {
  constexpr size_t kFewestSeeds = 3;
  std::vector<std::vector<double>> out;
  for (size_t s = 0; s < std::min(own.blocks.size(), base.blocks.size()); ++s) {
    const std::vector<double>&first = own.blocks[s], &second = base.blocks[s];
    if (first.empty() || second.empty()) continue;
    if (first.size() != second.size() || (!out.empty() && out[0].size() != first.size())) return {};
    out.emplace_back();
    for (size_t b = 0; b < first.size(); ++b) out.back().push_back(first[b] - second[b]);
  }
  return out.size() < kFewestSeeds ? std::vector<std::vector<double>>() : out;
}

std::string equal_text(const Study& study) {
  const EqualRecipe& equal = study.equal;
  if (equal.by == EqualBy::none) return "sizes are not matched";
  const std::string what =
      equal.by == EqualBy::state_bytes ? "bytes of state" : std::string(spec::enum_name(equal.by));
  return fmt::format("equal in {} ({:.6g} within {:g} %{})", what, study.amount,
                     100 * equal.tolerance,
                     equal.key.empty() ? "" : fmt::format(", by {}", equal.key));
}

std::string size_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  for (const auto& [size, name] : {std::pair(1e12, "TB"), {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}})
    if (value >= size) return fmt::format("{:.3g} {}", value / size, name);
  return fmt::format("{} B", bytes);
}

/// "layers.3" of "layers.3.mixer"; other modules as they are.
std::string layer_of_module(const std::string& module) {
  const size_t at = module.find("layers.");
  if (at == std::string::npos) return module;
  const size_t end = module.find('.', at + 7);
  return module.substr(0, end);
}

std::string claim_text(const ClaimRecipe& claim) {
  return fmt::format("{} better than {} in {}{}", claim.better, claim.than,
                     spec::enum_name(claim.of),
                     claim.length > 0 ? fmt::format(" at {} tokens", claim.length) : "");
}

/// Without the columns that no entry fills.
Rows filled(Rows rows) {
  for (size_t c = rows[0].size(); c-- > 1;)
    if (std::all_of(rows.begin() + 1, rows.end(), [&](const auto& row) { return row[c].empty(); }))
      for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  return rows;
}

/// What tells models apart: of a text the loss, of a task the accuracy.
ClaimOf told_by(const EntryResult& result) {
  const Summary bits = summary_of(bits_of(result));
  return bits.count > 0 ? ClaimOf::loss : ClaimOf::accuracy;
}

/// Gradient norms by layer at each measurement, of the first run that has them: modules
/// "layers.N..." as layer N, others by their name.
Json gradient_norms_of(const EntryResult& result) {
  for (const std::optional<RunRecord>& run : result.runs) {
    Json out = Json::array();
    if (!run) continue;
    for (const LogLine& line : run->lines) {
      if (!line.norms.is_object() || line.norms.empty()) continue;
      std::map<std::string, double> squares;
      for (const auto& [module, norms] : line.norms.items()) {
        if (!norms.contains("gradient") || !norms["gradient"].is_number()) continue;
        const double norm = norms["gradient"].get<double>();
        squares[layer_of_module(module)] += norm * norm;
      }
      Json layers = Json::object();
      for (const auto& [layer, square] : squares) layers[layer] = std::sqrt(square);
      out.push_back({{"step", line.step}, {"layers", std::move(layers)}});
    }
    if (!out.empty()) return out;
  }
  return Json::array();
}

/// A row with the names, then one for every claim.
Rows claim_rows(const Study& study, const StudyResult& result) {
  Rows rows{{"claim", "source", "difference", "95 % interval", "found"}};
  for (const ClaimCheck& check : claims_of(study, result)) {
    std::vector<std::string> row(rows[0].size());
    row[0] = claim_text(check.claim);
    row[1] = check.claim.paper;
    if (check.difference) row[2] = fmt::format("{:+.4f}", check.difference->mean);
    if (check.interval)
      row[3] = fmt::format("[{:+.4f}, {:+.4f}]", check.interval->first, check.interval->second);
    row[4] = check.found;
    rows.push_back(std::move(row));
  }
  return rows;
}

/// A row with the names, then one for every entry: sizes and costs of the models.
Rows cost_rows(const Study& study, const StudyResult& result) {
  Rows rows{{"entry", "parameters", "body", study.equal.key, "FLOPs/token", "state", "lr", "steps",
             "tokens", "seconds", "decode/s"}};
  for (size_t i = 0; i < study.entries.size(); ++i) {
    const StudyEntry& entry = study.entries[i];
    const EntryResult& own = result.entries[i];
    rows.push_back(
        {entry.name, std::to_string(entry.parameters), std::to_string(entry.body_parameters),
         entry.solved ? std::to_string(*entry.solved) : "", si_text(entry.flops),
         size_text(entry.state_bytes),
         fmt::format("{:.3g}{}", own.facts.rate, own.facts.rate_at_end ? " (end)" : ""),
         std::to_string(entry.steps), std::to_string(entry.steps * entry.tokens_per_step),
         fmt::format("{:.1f}", static_cast<double>(entry.steps) * own.step_seconds),
         own.decode_tokens_per_s ? fmt::format("{:.0f}", *own.decode_tokens_per_s) : ""});
  }
  return filled(std::move(rows));
}

/// The same of what they reach.
Rows loss_rows(const Study& study, const StudyResult& result) {
  Rows rows{{"entry", "valid loss", "std", "bits/byte", "accuracy", "difference", "95 % interval",
             "p", "verdict"}};
  for (const int64_t length : study.evaluate.lengths)
    rows[0].push_back(fmt::format("at {}", length));
  const std::vector<Comparison> compared = comparisons_of(study, result);
  for (size_t i = 0; i < study.entries.size(); ++i) {
    const StudyEntry& entry = study.entries[i];
    const EntryResult& own = result.entries[i];
    const Comparison& against = compared[i];
    std::vector<std::string> row(rows[0].size());
    row[0] = entry.name;
    if (const Summary loss = summary_of(own.losses()); loss.count > 0) {
      row[1] = fmt::format("{:.4f}", loss.mean);
      if (loss.count > 1) row[2] = fmt::format("{:.4f}", loss.deviation);
    }
    const ClaimOf of = told_by(own);
    if (const Summary bits = summary_of(bits_of(own)); of == ClaimOf::loss && bits.count > 0)
      row[3] = fmt::format("{:.4f}", bits.mean);
    if (const Summary hits = summary_of(own.values(ClaimOf::accuracy, 0));
        of == ClaimOf::accuracy && hits.count > 0)
      row[4] = fmt::format("{:.4f}", hits.mean);
    if (against.verdict != "reference" && against.difference.pairs > 0) {
      row[5] = fmt::format("{:+.4f}", against.difference.mean);
      row[6] = interval_text(against);
      if (against.p) row[7] = fmt::format("{:.3g}", *against.p);
    }
    row[8] = against.verdict;
    for (size_t l = 0; l < study.evaluate.lengths.size(); ++l)
      if (const Summary there = summary_of(own.values(of, study.evaluate.lengths[l]));
          there.count > 0)
        row[9 + l] = fmt::format("{:.4f}", there.mean);
    rows.push_back(std::move(row));
  }
  return filled(std::move(rows));
}

/// The unfair first.
std::vector<Finding> all_findings(const Study& study, const StudyResult& result) {
  std::vector<EntryFacts> facts;
  for (const EntryResult& entry : result.entries) facts.push_back(entry.facts);
  std::vector<Finding> out = findings_of(study, facts);
  out.insert(out.end(), result.findings.begin(), result.findings.end());
  std::stable_partition(out.begin(), out.end(), [](const Finding& one) { return one.unfair; });
  return out;
}

/// Mean loss of validation over the seeds, by steps at which all of them were evaluated.
std::vector<std::pair<int64_t, double>> curve_of(const EntryResult& result) {
  std::map<int64_t, std::vector<double>> by_step;
  size_t runs = 0;
  for (const std::optional<RunRecord>& run : result.runs) {
    if (!run) continue;
    ++runs;
    for (const LogLine& line : run->lines)
      if (line.valid_loss && std::isfinite(*line.valid_loss))
        by_step[line.step].push_back(*line.valid_loss);
  }
  std::vector<std::pair<int64_t, double>> out;
  for (const auto& [step, losses] : by_step) {
    if (losses.size() != runs) continue;
    double mean = 0;
    for (const double loss : losses) mean += loss / static_cast<double>(runs);
    out.emplace_back(step, mean);
  }
  return out;
}

using PerStep = std::function<double(const StudyEntry&, const EntryResult&)>;

/// Losses of all entries against what an update costs.
std::string plot_by(const Study& study,
                    const StudyResult& result,
                    const char* x,
                    const PerStep& cost) {
  std::vector<Curve> curves;
  for (size_t i = 0; i < study.entries.size(); ++i) {
    Curve curve{i, study.entries[i].name, {}, true};
    const double each = cost(study.entries[i], result.entries[i]);
    for (const auto& [step, loss] : curve_of(result.entries[i]))
      curve.points.emplace_back(each * static_cast<double>(step), loss);
    curves.push_back(std::move(curve));
  }
  return plot_of(x, "valid loss", curves);
}

std::string plot_by_state(const Study& study, const StudyResult& result) {
  std::vector<Curve> curves;
  for (size_t i = 0; i < study.entries.size(); ++i) {
    const Summary loss = summary_of(result.entries[i].losses());
    Curve curve{i, study.entries[i].name, {}, true};
    if (loss.count > 0)
      curve.points.emplace_back(static_cast<double>(study.entries[i].state_bytes), loss.mean);
    curves.push_back(std::move(curve));
  }
  return plot_of("bytes of state", "valid loss", curves);
}

/// Differences to the reference with their intervals, a line for each entry.
std::string forest_of(const Study& study, const std::vector<Comparison>& compared) {
  constexpr double kLabels = 180, kWidth = 620, kRight = kWidth - 20, kRow = 26, kTop = 14;
  std::vector<size_t> shown;
  double reach = 0;
  for (size_t i = 0; i < compared.size(); ++i) {
    if (compared[i].verdict == "reference" || compared[i].difference.pairs == 0) continue;
    shown.push_back(i);
    const PairedDifference& one = compared[i].difference;
    reach = std::max(reach, std::fabs(one.mean));
    if (const auto interval = interval_of(compared[i]))
      reach = std::max({reach, std::fabs(interval->first), std::fabs(interval->second)});
  }
  if (shown.empty()) return "";
  if (reach == 0) reach = 1;
  const double middle = (kLabels + kRight) / 2,
               bottom = kTop + kRow * static_cast<double>(shown.size());
  const auto at = [&](double value) { return middle + value / reach * (kRight - middle) * 0.95; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"differences of validation loss to {2}\">\n"
      "<line x1=\"{3:.1f}\" x2=\"{3:.1f}\" y1=\"{4}\" y2=\"{5:.1f}\" class=\"grid\"/>\n",
      kWidth, bottom + 34, escaped(study.reference), middle, kTop - 6, bottom);
  for (size_t row = 0; row < shown.size(); ++row) {
    const size_t i = shown[row];
    const PairedDifference& one = compared[i].difference;
    const double y = kTop + kRow * (static_cast<double>(row) + 0.5);
    svg += fmt::format("<text x=\"0\" y=\"{:.1f}\">{}</text>\n", y + 4,
                       escaped(study.entries[i].name));
    if (const auto interval = interval_of(compared[i]))
      svg += fmt::format(
          "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-width=\"2\"/>\n",
          at(interval->first), at(interval->second), y, y, colour_of(i));
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}: {:+.4f} {}</title>"
        "</circle>\n",
        at(one.mean), y, colour_of(i), escaped(study.entries[i].name), one.mean,
        interval_text(compared[i]));
  }
  for (const double value : {-reach, 0.0, reach})
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       at(value), bottom + 14, value == 0 ? "0" : fmt::format("{:+.3g}", value));
  return svg + fmt::format(
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" class=\"title\">loss "
                   "minus that of {}; left is better</text></svg>\n",
                   middle, bottom + 30, escaped(study.reference));
}

/// Rates by entry, with the loss after each share of the budget.
Rows rate_rows(const Study& study, const StudyResult& result) {
  Rows rows{{"entry", "lr", "budget", "valid loss"}};
  for (size_t i = 0; i < study.entries.size(); ++i)
    for (const RateTrial& trial : result.entries[i].trials)
      rows.push_back({study.entries[i].name, fmt::format("{:.4g}", trial.rate),
                      fmt::format("1/{:g}", 1 / trial.fraction),
                      std::isfinite(trial.loss) ? fmt::format("{:.4f}", trial.loss) : "diverged"});
  return rows;
}

/// Keys by which the entries' recipes differ.
std::vector<KeyDifference> differences_of(const StudyResult& result) {
  std::vector<RunRecord> first;
  for (const EntryResult& entry : result.entries)
    for (const std::optional<RunRecord>& run : entry.runs)
      if (run) {
        first.push_back(*run);
        break;
      }
  return first.size() == result.entries.size() ? differences(first) : std::vector<KeyDifference>();
}

}  // namespace

std::vector<std::optional<double>> EntryResult::losses() const {
  std::vector<std::optional<double>> out;
  for (const std::optional<RunRecord>& run : runs) {
    const LogLine* line = run ? last_evaluation(*run) : nullptr;
    out.push_back(line == nullptr ? std::nullopt : line->valid_loss);
  }
  return out;
}

std::vector<std::optional<double>> EntryResult::values(ClaimOf of, int64_t length) const {
  std::vector<std::optional<double>> out;
  for (size_t s = 0; s < runs.size(); ++s) {
    std::optional<double> value;
    if (length == 0) {
      if (const LogLine* line = runs[s] ? last_evaluation(*runs[s]) : nullptr)
        value = of == ClaimOf::loss ? line->valid_loss : line->accuracy;
    } else if (s < lengths.size()) {
      for (const LengthResult& one : lengths[s])
        if (one.length == length) value = of == ClaimOf::loss ? one.loss : one.accuracy;
    }
    out.push_back(value);
  }
  return out;
}

std::vector<ClaimCheck> claims_of(const Study& study, const StudyResult& result) {
  std::vector<ClaimCheck> out;
  for (const ClaimRecipe& claim : study.claims) {
    ClaimCheck check;
    check.claim = claim;
    const EntryResult &own = result.entries[study.index_of(claim.better)],
                      &other = result.entries[study.index_of(claim.than)];
    const auto better = own.values(claim.of, claim.length),
               than = other.values(claim.of, claim.length);
    std::vector<double> first, second;
    for (size_t s = 0; s < better.size(); ++s)
      if (better[s] && than[s]) first.push_back(*better[s]), second.push_back(*than[s]);
    if (first.empty()) {
      check.found = "failed";
      out.push_back(std::move(check));
      continue;
    }
    check.difference = paired_difference(first, second);
    check.interval = check.difference->interval;
    // blocks are those of the loss at the trained length
    if (claim.of == ClaimOf::loss && claim.length == 0)
      if (const auto blocks = block_differences(own, other); !blocks.empty()) {
        const CrossedInterval crossed = crossed_interval(blocks);
        check.interval = {crossed.low, crossed.high};
      }
    if (!check.interval)
      check.found = "one run";
    else if (check.interval->first <= 0 && check.interval->second >= 0)
      check.found = "not significant";
    else
      check.found =
          (check.difference->mean < 0) == (claim.of == ClaimOf::loss) ? "appears" : "opposite";
    out.push_back(std::move(check));
  }
  return out;
}

std::vector<Comparison> comparisons_of(const Study& study, const StudyResult& result) {
  const size_t reference = study.reference_index();
  const std::vector<std::optional<double>> base = result.entries[reference].losses();
  std::vector<Comparison> out(study.entries.size());
  std::vector<double> p;
  std::vector<size_t> with_p;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::vector<std::optional<double>> own = result.entries[i].losses();
    std::vector<double> first, second;
    for (size_t s = 0; s < own.size(); ++s)
      if (own[s] && base[s]) first.push_back(*own[s]), second.push_back(*base[s]);
    if (!first.empty()) out[i].difference = paired_difference(first, second);
    if (const auto blocks = block_differences(result.entries[i], result.entries[reference]);
        !blocks.empty())
      out[i].crossed = crossed_interval(blocks);
    if (i == reference || !out[i].difference.p) continue;
    p.push_back(out[i].crossed ? out[i].crossed->p : *out[i].difference.p);
    with_p.push_back(i);
  }
  const std::vector<double> adjusted = holm_adjusted(p);
  for (size_t k = 0; k < with_p.size(); ++k) out[with_p[k]].p = adjusted[k];
  for (size_t i = 0; i < out.size(); ++i)
    out[i].verdict = i == reference                 ? "reference"
                     : out[i].difference.pairs == 0 ? "failed"
                     : !out[i].p                    ? "one run"
                     : *out[i].p >= kSignificant    ? "not significant"
                     : out[i].difference.mean < 0   ? "better"
                                                    : "worse";
  return out;
}

std::string interval_method(const Study& study, const std::vector<Comparison>& compared) {
  std::vector<std::string> by_blocks, by_seeds, without;
  for (size_t i = 0; i < compared.size(); ++i) {
    if (compared[i].verdict == "reference" || compared[i].difference.pairs == 0) continue;
    (compared[i].crossed               ? by_blocks
     : compared[i].difference.interval ? by_seeds
                                       : without)
        .push_back(study.entries[i].name);
  }
  if (compared.size() == 1) return "one model: no differences";
  constexpr const char* kBlocks = "crossed bootstrap over seeds and validation blocks";
  constexpr const char* kSeeds = "Student's t over the seeds";
  std::string text;
  if (by_blocks.empty() && by_seeds.empty())
    return study.seeds.size() < 2 ? "one seed: no intervals"
                                  : "no pairs of runs of two seeds: no intervals";
  text = fmt::format("95 % intervals: {}", by_blocks.empty() ? kSeeds : kBlocks);
  if (!by_blocks.empty() && !by_seeds.empty())
    text += fmt::format(" (of {}: {})", fmt::join(by_seeds, ", "), kSeeds);
  if (!without.empty())
    text += fmt::format("; one pair of runs, no interval: {}", fmt::join(without, ", "));
  return text;
}

double seconds_of(const Study& study, const StudyEntry& entry, const TrialTimes& times) {
  const auto update = times.update_seconds * static_cast<double>(entry.steps);
  const double all_data = times.pass_seconds * static_cast<double>(times.passes);
  double seconds = 0;
  if (study.tunes()) {
    const SearchCost search = cost_of_search(study.rates_of(entry).size());
    seconds += search.budgets * update + static_cast<double>(search.runs) * all_data;
  }
  // evaluated on some of the data several times, on all of it at the end
  const TrainRecipe how = recipe_of(entry, {entry.steps, entry.rate, study.seeds.front()}).train;
  const double some =
      times.pass_seconds * static_cast<double>(std::min(how.eval_batches, times.passes));
  const auto evaluations = static_cast<double>((how.steps - 1) / how.eval_every);
  return seconds +
         static_cast<double>(study.seeds.size()) * (update + evaluations * some + all_data);
}

double seconds_of_part(const StudyEntry& entry, double part, const TrialTimes& times) {
  return times.update_seconds * static_cast<double>(entry.steps_of(part)) +
         times.pass_seconds * static_cast<double>(times.passes);
}

std::string plan_table(const Study& study, const std::vector<TrialTimes>& times) {
  Rows rows{{"entry", "parameters", "body", study.equal.key, "FLOPs/token", "state", "steps",
             "tokens", "ms/step", "minutes"}};
  for (size_t i = 0; i < study.entries.size(); ++i) {
    const StudyEntry& entry = study.entries[i];
    rows.push_back({entry.name, std::to_string(entry.parameters),
                    std::to_string(entry.body_parameters),
                    entry.solved ? std::to_string(*entry.solved) : "", si_text(entry.flops),
                    size_text(entry.state_bytes), std::to_string(entry.steps),
                    std::to_string(entry.steps * entry.tokens_per_step),
                    fmt::format("{:.1f}", 1000 * times[i].update_seconds),
                    fmt::format("{:.1f}", seconds_of(study, entry, times[i]) / 60)});
  }
  return aligned(filled(std::move(rows)));
}

std::string plan_text(const Study& study, const std::vector<TrialTimes>& times) {
  double seconds = 0;
  for (size_t i = 0; i < study.entries.size(); ++i)
    seconds += seconds_of(study, study.entries[i], times[i]);
  std::string rates = "the learning rates of the recipes";
  if (study.tunes())
    rates = fmt::format("{} learning rates tried for each ({:g} budgets)",
                        study.rates_of(study.entries.front()).size(),
                        cost_of_search(study.rates_of(study.entries.front()).size()).budgets);
  return plan_table(study, times) + fmt::format(
                                        "\n{}; seeds {}; {}; about {:.1f} minutes of training and "
                                        "evaluation on this machine\n",
                                        equal_text(study), fmt::join(study.seeds, ", "), rates,
                                        seconds / 60);
}

std::string report_text(const Study& study, const StudyResult& result) {
  std::string text;
  for (const ReportPart& part : result.parts) {
    text += part.title + "\n\n";
    for (const Rows& rows : part.tables) text += aligned(rows) + "\n";
    if (!part.note.empty()) text += part.note + "\n\n";
  }
  text += aligned(loss_rows(study, result)) + "\n" + aligned(cost_rows(study, result));
  if (!study.claims.empty()) text += "\n" + aligned(claim_rows(study, result));
  text += fmt::format("\n{}; seeds {}; difference: valid loss minus that of {}\n{}\n",
                      equal_text(study), fmt::join(study.seeds, ", "), study.reference,
                      interval_method(study, comparisons_of(study, result)));
  for (const Finding& finding : all_findings(study, result))
    text += fmt::format("{}: {}\n", finding.unfair ? "unfair" : "note", finding.text);
  return text;
}

Json report_json(const Study& study, const StudyResult& result) {
  Json json = {{"reference", study.reference},
               {"equal", {{"by", spec::enum_name(study.equal.by)}, {"text", equal_text(study)}}},
               {"seeds", study.seeds},
               {"entries", Json::array()},
               {"findings", Json::array()}};
  if (study.equal.by != EqualBy::none) {
    json["equal"]["amount"] = study.amount;
    json["equal"]["key"] = study.equal.key;
    json["equal"]["tolerance"] = study.equal.tolerance;
  }
  const std::vector<Comparison> compared = comparisons_of(study, result);
  for (size_t i = 0; i < study.entries.size(); ++i) {
    const StudyEntry& entry = study.entries[i];
    const EntryResult& own = result.entries[i];
    Json one = {{"name", entry.name},
                {"parameters", entry.parameters},
                {"body_parameters", entry.body_parameters},
                {"flops_per_token", entry.flops},
                {"training_flops", entry.training_flops()},
                {"state_bytes", entry.state_bytes},
                {"steps", entry.steps},
                {"tokens", entry.steps * entry.tokens_per_step},
                {"seconds_per_step", own.step_seconds},
                {"seconds", own.seconds},
                {"learning_rate", own.facts.rate},
                {"runs", Json::array()},
                {"curve", Json::array()},
                {"verdict", compared[i].verdict}};
    if (entry.solved) one["solved"] = *entry.solved;
    if (own.decode_tokens_per_s) one["decode_tokens_per_s"] = *own.decode_tokens_per_s;
    const std::vector<std::optional<double>> losses = own.losses();
    for (size_t s = 0; s < losses.size(); ++s) {
      const int64_t seed = study.seeds[s];
      Json run = {{"seed", seed}, {"valid_loss", losses[s] ? Json(*losses[s]) : Json()}};
      const LogLine* last = own.runs[s] ? last_evaluation(*own.runs[s]) : nullptr;
      if (last != nullptr && last->accuracy) run["accuracy"] = *last->accuracy;
      if (last != nullptr && last->valid_bits_per_byte)
        run["bits_per_byte"] = *last->valid_bits_per_byte;
      if (s < own.lengths.size())
        for (const LengthResult& at : own.lengths[s])
          run["lengths"].push_back(
              {{"length", at.length}, {"valid_loss", at.loss}, {"accuracy", at.accuracy}});
      if (const auto order = own.facts.orders.find(seed); order != own.facts.orders.end())
        run["order"] = order->second;
      if (const auto why = own.facts.failed.find(seed); why != own.facts.failed.end())
        run["failed"] = why->second;
      one["runs"].push_back(std::move(run));
    }
    one["validation"] = own.facts.validation;
    for (const auto& [step, loss] : curve_of(own))
      one["curve"].push_back({{"step", step}, {"valid_loss", loss}});
    for (const RateTrial& trial : own.trials)
      one["rates"].push_back(
          {{"rate", trial.rate},
           {"fraction", trial.fraction},
           {"valid_loss", std::isfinite(trial.loss) ? Json(trial.loss) : Json()}});
    one["rate_at_end"] = own.facts.rate_at_end;
    if (Json norms = gradient_norms_of(own); !norms.empty())
      one["gradient_norms"] = std::move(norms);
    if (compared[i].verdict != "reference" && compared[i].difference.pairs > 0) {
      const PairedDifference& difference = compared[i].difference;
      one["difference"] = {{"mean", difference.mean}, {"pairs", difference.pairs}};
      if (difference.interval)
        one["difference"]["interval"] = {difference.interval->first, difference.interval->second};
      if (const auto& crossed = compared[i].crossed)
        one["difference"]["crossed_interval"] = {crossed->low, crossed->high};
      if (compared[i].p) one["difference"]["p"] = *compared[i].p;
    }
    json["entries"].push_back(std::move(one));
  }
  bool fair = true;
  for (const Finding& finding : all_findings(study, result)) {
    fair = fair && !finding.unfair;
    json["findings"].push_back(
        {{"check", finding.check}, {"unfair", finding.unfair}, {"text", finding.text}});
  }
  json["fair"] = fair;
  for (const ClaimCheck& check : claims_of(study, result)) {
    Json one = spec::dump_struct(check.claim);
    if (check.difference) one["difference"] = check.difference->mean;
    if (check.interval) one["interval"] = {check.interval->first, check.interval->second};
    one["found"] = check.found;
    json["claims"].push_back(std::move(one));
  }
  for (const ReportPart& part : result.parts) json[part.key] = part.json;
  json["intervals"] = interval_method(study, compared);
  for (const KeyDifference& key : differences_of(result))
    json["differences"].push_back({{"key", key.key}, {"values", key.values}});
  json["machine"] = result.machine;
  json["command"] = result.command;
  return json;
}

std::string report_page(const Study& study, const StudyResult& result) {
  const std::vector<Comparison> compared = comparisons_of(study, result);
  std::string html =
      page_begin("Comparison of " + std::to_string(study.entries.size()) + " models");
  for (size_t i = 0; i < compared.size(); ++i) {
    if (compared[i].verdict == "reference") continue;
    html +=
        fmt::format("<p><b>{}</b>: {}{}</p>\n", escaped(study.entries[i].name),
                    compared[i].verdict == "better" || compared[i].verdict == "worse"
                        ? fmt::format("{} than {}", compared[i].verdict, escaped(study.reference))
                        : compared[i].verdict,
                    compared[i].difference.pairs > 0
                        ? fmt::format(" ({:+.4f} nats {})", compared[i].difference.mean,
                                      interval_text(compared[i]))
                        : "");
  }
  html += html_table(loss_rows(study, result), true);
  html += fmt::format(
      "<p>difference: validation loss minus that of {}; {}; p-values adjusted by Holm's "
      "method.</p>\n",
      escaped(study.reference), escaped(interval_method(study, compared)));
  html += html_table(cost_rows(study, result), true);
  html += fmt::format("<p>{}; seeds {}.</p>\n", escaped(equal_text(study)),
                      fmt::join(study.seeds, ", "));
  for (const Finding& finding : all_findings(study, result))
    html += fmt::format("<p class=\"warn\">{}: {}</p>\n", finding.unfair ? "unfair" : "note",
                        escaped(finding.text));
  if (!study.claims.empty())
    html += "<h2>Claims of papers</h2>\n" + html_table(claim_rows(study, result), false);
  html += "<h2>Validation loss</h2><p>Means over the seeds.</p>\n";
  html += plot_by(study, result, "tokens", [](const StudyEntry& entry, const EntryResult&) {
    return static_cast<double>(entry.tokens_per_step);
  });
  html += plot_by(study, result, "FLOPs", [](const StudyEntry& entry, const EntryResult&) {
    return 3 * entry.flops * static_cast<double>(entry.tokens_per_step);
  });
  html += plot_by(study, result, "seconds",
                  [](const StudyEntry&, const EntryResult& own) { return own.step_seconds; });
  html += plot_by_state(study, result);
  if (const std::string forest = forest_of(study, compared); !forest.empty())
    html += "<h2>Differences with 95 % intervals</h2>\n" + forest;
  for (const ReportPart& part : result.parts) {
    html += "<h2>" + escaped(part.title) + "</h2>\n";
    for (const Rows& rows : part.tables) html += html_table(rows, false);
    if (!part.note.empty()) html += "<p>" + escaped(part.note) + "</p>\n";
    html += part.plot;
  }
  if (const Rows rows = rate_rows(study, result); rows.size() > 1)
    html += "<h2>Learning rates</h2>\n" + html_table(rows, false);
  if (const std::vector<KeyDifference> keys = differences_of(result); !keys.empty()) {
    Rows rows{{"differs in"}};
    for (const StudyEntry& entry : study.entries) rows[0].push_back(entry.name);
    for (const KeyDifference& key : keys) {
      rows.push_back({key.key});
      rows.back().insert(rows.back().end(), key.values.begin(), key.values.end());
    }
    html += "<h2>Differences of recipes</h2>\n" + html_table(rows, false);
  }
  html += fmt::format("<h2>Reproduction</h2><p>{}</p><p><code>{}</code></p>\n",
                      escaped(result.machine), escaped(result.command));
  return html + "</body></html>\n";
}

}  // namespace tessera::train
