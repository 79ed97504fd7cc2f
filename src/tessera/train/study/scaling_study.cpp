#include "tessera/train/study/scaling_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/train/runs/run_plot.h"

namespace tessera::train {
namespace {

constexpr const char* kScaling = "scaling";
constexpr size_t kFewestLevels = 3;

void check_budgets(std::vector<double>& budgets) {
  std::sort(budgets.begin(), budgets.end());
  for (const double budget : budgets)
    if (!(budget > 0) || budget > 1)
      fail(ErrorKind::spec, "scaling.budgets", "found {:g}; expected parts of the budget in (0, 1]",
           budget);
  if (std::set<double>(budgets.begin(), budgets.end()).size() != budgets.size())
    fail(ErrorKind::spec, "scaling.budgets", "a part twice; expected different parts");
  if (budgets.size() < kFewestLevels || budgets.back() != 1)
    fail(ErrorKind::spec, "scaling.budgets",
         "found {} parts, the largest {:g}; expected three or more, the largest 1", budgets.size(),
         budgets.empty() ? 0 : budgets.back());
}

/// The fit of an entry and its prediction; without a fit where runs are too few.
struct Predicted {
  std::optional<ScalingFit> fit = {};
  double parameters = 0, tokens = 0;  // of the prediction
  double loss = 0, low = 0, high = 0;
};

Predicted predicted(const ScalingStudy& scaling, const ScalingResult& result, size_t entry) {
  constexpr int64_t kResamples = 400;
  Predicted out;
  std::tie(out.parameters, out.tokens) = next_size(scaling, entry);
  std::vector<ScalingRun> runs;
  for (const ScalingPoint& point : result.points[entry]) runs.push_back(point.run);
  if (!can_fit_scaling(runs)) return out;
  out.fit = fit_scaling(runs);
  out.loss = out.fit->loss(out.parameters, out.tokens);
  // what a single run adds to the law
  std::vector<double> residuals;
  for (const ScalingRun& run : runs)
    residuals.push_back(run.loss / out.fit->loss(run.parameters, run.tokens));
  const RandomKey key = RandomKey(0).fold("scaling_residuals");
  std::vector<double> losses;
  for (const ScalingFit& fit : bootstrap_scaling(runs, *out.fit, kResamples)) {
    const auto which = static_cast<size_t>((uint64_t{key.bits(losses.size())} * runs.size()) >> 32);
    losses.push_back(fit.loss(out.parameters, out.tokens) * residuals[which]);
  }
  std::tie(out.low, out.high) = central_95(losses);
  return out;
}

std::string number(double value) {
  return fmt::format("{:.4g}", value);
}

Json json_of(const Predicted& one, const std::vector<ScalingPoint>& points) {
  Json json = Json::object();
  if (one.fit) {
    const ScalingFit& fit = *one.fit;
    json["fit"] = {{"E", fit.e}, {"A", fit.a},       {"alpha", fit.alpha},
                   {"B", fit.b}, {"beta", fit.beta}, {"objective", fit.objective}};
    json["prediction"] = {{"parameters", one.parameters},
                          {"tokens", one.tokens},
                          {"valid_loss", one.loss},
                          {"interval", {one.low, one.high}}};
    const double flops = 6 * one.parameters * one.tokens;
    const auto [parameters, tokens] = fit.optimum(flops);
    if (std::isfinite(parameters) && std::isfinite(tokens))
      json["compute_optimal"] = {{"flops", flops}, {"parameters", parameters}, {"tokens", tokens}};
  }
  json["runs"] = Json::array();
  for (const ScalingPoint& point : points) {
    Json run = {{"parameters", point.run.parameters},
                {"tokens", point.run.tokens},
                {"seed", point.seed},
                {"valid_loss", point.run.loss}};
    if (one.fit) run["fitted"] = one.fit->loss(point.run.parameters, point.run.tokens);
    json["runs"].push_back(std::move(run));
  }
  return json;
}

/// Mean loss of an entry's runs of one size and part, over the seeds; NaN without runs.
double mean_loss(const std::vector<ScalingPoint>& points, size_t size, double budget) {
  double sum = 0, count = 0;
  for (const ScalingPoint& point : points)
    if (point.size == size && point.budget == budget) sum += point.run.loss, ++count;
  return count > 0 ? sum / count : NAN;
}

/// Losses at the whole budget by size, and the law from the smallest size to the predicted one.
std::string plot_of_sizes(const ScalingStudy& scaling,
                          const ScalingResult& result,
                          const std::vector<Predicted>& all) {
  constexpr int kPoints = 40;
  std::vector<Curve> curves;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& name = scaling.sizes[0].entries[i].name;
    Curve measured{i, name, {}, true}, law{i, name + ", fit", {}, false};
    for (size_t size = 0; size < scaling.sizes.size(); ++size) {
      const double loss = mean_loss(result.points[i], size, 1);
      if (std::isfinite(loss))
        measured.points.emplace_back(
            static_cast<double>(scaling.sizes[size].entries[i].body_parameters), loss);
    }
    curves.push_back(std::move(measured));
    if (!all[i].fit) continue;
    const StudyEntry &first = scaling.sizes.front().entries[i],
                     &last = scaling.sizes.back().entries[i];
    const auto tokens = static_cast<double>(last.steps * last.tokens_per_step),
               least = static_cast<double>(first.body_parameters);
    for (int k = 0; k <= kPoints; ++k) {
      const double n =
          least * std::pow(all[i].parameters / least, static_cast<double>(k) / kPoints);
      law.points.emplace_back(n, all[i].fit->loss(n, tokens));
    }
    curves.push_back(std::move(law));
  }
  return plot_of("parameters", "valid loss", curves);
}

}  // namespace

ScalingStudy read_scaling(const StudyFile& file) {
  ScalingStudy out;
  Json plain = file.json;
  out.how = spec::read_struct<ScalingRecipe>(plain["scaling"], spec::Scope().at("scaling"));
  plain.erase("scaling");
  check_budgets(out.how.budgets);
  if (out.how.sizes.size() < kFewestLevels)
    fail(ErrorKind::spec, "scaling.sizes", "found {}; expected three or more",
         out.how.sizes.size());
  if (const Json equal = plain.value("equal", Json::object());
      equal.is_object() && equal.contains("value") && !equal["value"].is_null())
    fail(ErrorKind::spec, "equal.value",
         "one amount for all sizes; remove it: the first entry of "
         "each size gives the amount");
  if (!plain.contains("entries") || !plain["entries"].is_array())
    fail(ErrorKind::spec, "entries", "found {}; expected a list of entries",
         spec::kind_of(plain.value("entries", Json())));
  for (const std::vector<std::string>& size : out.how.sizes) {
    Json own = plain;
    for (Json& entry : own["entries"]) {
      if (!entry.is_object()) continue;  // refused below
      Json set = size;
      // what an entry sets itself is its own
      if (entry.contains("set") && entry["set"].is_array())
        set.insert(set.end(), entry["set"].begin(), entry["set"].end());
      entry["set"] = std::move(set);
    }
    out.sizes.push_back(read_study(own, file.folder, 1));
    if (out.sizes.size() < 2) continue;
    const StudyEntry &before = out.sizes[out.sizes.size() - 2].entries[0],
                     &last = out.sizes.back().entries[0];
    if (last.body_parameters <= before.body_parameters)
      fail(ErrorKind::usage, kScaling,
           "size {} of entry \"{}\" has {} parameters without token table and head, the one before "
           "{}; expected sizes that grow",
           out.sizes.size(), last.name, last.body_parameters, before.body_parameters);
  }
  for (const StudyEntry& entry : out.sizes.back().entries) {
    std::set<int64_t> steps;
    for (const double budget : out.how.budgets) steps.insert(entry.steps_of(budget));
    if (steps.size() < kFewestLevels)
      fail(ErrorKind::usage, kScaling,
           "entry \"{}\": {} steps have fewer than three different parts; expected a larger budget",
           entry.name, entry.steps);
  }
  return out;
}

std::pair<double, double> next_size(const ScalingStudy& scaling, size_t entry) {
  const StudyEntry &last = scaling.sizes.back().entries.at(entry),
                   &before = scaling.sizes[scaling.sizes.size() - 2].entries.at(entry);
  const auto n = static_cast<double>(last.body_parameters);
  return {scaling.how.parameters.value_or(n * n / static_cast<double>(before.body_parameters)),
          scaling.how.tokens.value_or(static_cast<double>(last.steps * last.tokens_per_step))};
}

/// Of a fit in which the loss does not fall with one of the two; "" for others.
std::string warning_of(const ScalingFit& fit, const std::string& entry) {
  std::string out;
  for (const auto& [exponent, name, what, remedy] :
       {std::tuple(fit.alpha, "alpha", "larger models", "a larger budget or sizes further apart"),
        std::tuple(fit.beta, "beta", "more tokens", "larger budgets")})
    if (exponent <= 0)
      out += fmt::format(
          " {}: {} = {:.3g}, so {} have no lower loss in these runs and the prediction beyond them "
          "has no meaning; expected {}.",
          entry, name, exponent, what, remedy);
  return out;
}

ReportPart scaling_part(const ScalingStudy& scaling, const ScalingResult& result) {
  const std::vector<StudyEntry>& entries = scaling.sizes.back().entries;
  Rows fits{{"entry", "E", "A", "alpha", "B", "beta", "next parameters", "tokens", "predicted loss",
             "95 % interval"}},
      runs{{"entry", "parameters", "tokens", "valid loss", "fitted"}};
  Json json = {{"entries", Json::array()}};
  std::string warnings;
  std::vector<Predicted> all;
  for (size_t i = 0; i < entries.size(); ++i) {
    all.push_back(predicted(scaling, result, i));
    const Predicted& one = all.back();
    std::vector<std::string> row{entries[i].name};
    if (one.fit) {
      const ScalingFit& fit = *one.fit;
      warnings += warning_of(fit, entries[i].name);
      row.insert(row.end(),
                 {number(fit.e), number(fit.a), number(fit.alpha), number(fit.b), number(fit.beta),
                  si_text(one.parameters), si_text(one.tokens), fmt::format("{:.4f}", one.loss),
                  fmt::format("[{:.4f}, {:.4f}]", one.low, one.high)});
    } else {
      row.emplace_back("too few runs");
      row.resize(fits[0].size());
    }
    fits.push_back(std::move(row));
    for (size_t size = 0; size < scaling.sizes.size(); ++size) {
      const StudyEntry& entry = scaling.sizes[size].entries[i];
      for (const double budget : scaling.how.budgets) {
        const double loss = mean_loss(result.points[i], size, budget);
        const int64_t tokens = entry.steps_of(budget) * entry.tokens_per_step;
        runs.push_back(
            {entry.name, std::to_string(entry.body_parameters), std::to_string(tokens),
             std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "failed",
             one.fit
                 ? fmt::format("{:.4f}", one.fit->loss(static_cast<double>(entry.body_parameters),
                                                       static_cast<double>(tokens)))
                 : ""});
      }
    }
    Json own = json_of(one, result.points[i]);
    own["name"] = entries[i].name;
    json["entries"].push_back(std::move(own));
  }
  return {
      .key = "scaling",
      .title = "Scaling law L(N, D) = E + A/N^alpha + B/D^beta",
      .json = std::move(json),
      .note =
          std::string(
              "N: parameters without token table and head; D: training tokens. The interval is "
              "for a run: bootstrap over the runs, with their residuals. The tables below are of "
              "the largest size.") +
          warnings,
      .tables = {fits, runs},
      .plot = plot_of_sizes(scaling, result, all)};
}

StudyResult scaling_report(const ScalingStudy& scaling, const ScalingResult& result) {
  StudyResult out = result.sizes.back();
  out.findings = result.findings;
  for (size_t size = 0; size + 1 < scaling.sizes.size(); ++size) {
    std::vector<EntryFacts> facts;
    for (const EntryResult& entry : result.sizes[size].entries) facts.push_back(entry.facts);
    for (Finding& finding : findings_of(scaling.sizes[size], facts))
      if (finding.unfair)
        out.findings.push_back(
            {finding.check, true, fmt::format("size {}: {}", size + 1, finding.text)});
  }
  out.parts.push_back(scaling_part(scaling, result));
  return out;
}

}  // namespace tessera::train
