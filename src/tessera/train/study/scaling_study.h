// Scaling laws of a study's entries: every entry trains at several sizes and for several parts of
// the budget, L(N, D) is fitted (scaling_fit.h), and the loss of a next size is predicted with an
// interval. Torch-free.
//
//   "scaling": { "sizes": [["spec.d_model=32", "spec.ffn.d_hidden=96"],
//                          ["spec.d_model=48", "spec.ffn.d_hidden=136"],
//                          ["spec.d_model=64", "spec.ffn.d_hidden=176"]],
//                "budgets": [0.25, 0.5, 1] }
//
// At each size the entries are made equal (N is StudyEntry::body_parameters), and each gets its
// learning rate by the rule of the study; parts of the budget use the rate of the whole.
#pragma once

#include "tessera/train/study/scaling_fit.h"
#include "tessera/train/study/study_report.h"

namespace tessera::train {

struct ScalingRecipe {
  std::vector<std::vector<std::string>> sizes = {};
  std::vector<double> budgets = {0.25, 0.5, 1};
  std::optional<double> parameters = {};
  std::optional<double> tokens = {};

  static constexpr auto fields() {
    using C = ScalingRecipe;
    using spec::field;
    return std::tuple{
        field("sizes", &C::sizes,
              "three or more model sizes, ascending: lists of overrides of the recipe, such as "
              "[\"spec.d_model=64\", \"spec.ffn.d_hidden=176\"]",
              {.required = true}),
        field("budgets", &C::budgets, "parts of the budget, three or more; the largest is 1"),
        field("parameters", &C::parameters,
              "parameters N of the prediction (without token table and head); null = the largest "
              "size, times its ratio to the one before",
              {.min = 1}),
        field("tokens", &C::tokens,
              "training tokens D of the prediction; null = those of the whole budget", {.min = 1})};
  }
};

/// Planned: a study for every size, with the same entries.
struct ScalingStudy {
  ScalingRecipe how;
  std::vector<Study> sizes;
};

/// Reads the study and its "scaling". Throws Error(spec) or Error(usage) of one line: fewer than
/// three sizes or budgets, budgets outside (0, 1], sizes that do not grow, "equal.value" (which is
/// one size), and what read_study() throws.
ScalingStudy read_scaling(const StudyFile& file);

/// A finished run of an entry.
struct ScalingPoint {
  ScalingRun run;
  size_t size = 0;  // index of the size
  double budget = 1;
  int64_t seed = 0;
};

struct ScalingResult {
  std::vector<StudyResult> sizes;
  std::vector<std::vector<ScalingPoint>> points;  // of each entry
  std::vector<Finding> findings = {};             // runs of parts of the budget that failed
};

/// N and D of the prediction of an entry.
std::pair<double, double> next_size(const ScalingStudy& scaling, size_t entry);

/// Fits, predictions and runs as a part of the report of the largest size. The interval of a
/// prediction is for a run: bootstrap over the runs (400 resamples), times a residual of the fit
/// drawn at random; percentiles 2.5 and 97.5. Entries with too few finished runs have no fit.
ReportPart scaling_part(const ScalingStudy& scaling, const ScalingResult& result);
/// The result of the largest size, with scaling_part() and what was unfair at the other sizes.
StudyResult scaling_report(const ScalingStudy& scaling, const ScalingResult& result);

}  // namespace tessera::train
