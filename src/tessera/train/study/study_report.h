// What a study found: losses at equal tokens, FLOPs, seconds and state; paired differences with
// intervals; what was unequal. As a table, as JSON, as one page that needs nothing from elsewhere.
// Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/train/runs/report_page.h"
#include "tessera/train/runs/run_report.h"
#include "tessera/train/runs/trial_times.h"
#include "tessera/train/study/fairness.h"
#include "tessera/train/study/rate_search.h"
#include "tessera/train/study/statistics.h"

namespace tessera::train {

/// Of a trained model, on validation sequences of another length.
struct LengthResult {
  int64_t length = 0;  // tokens
  double loss = 0, accuracy = 0;
};

/// Of one entry, by the seeds of the study.
struct EntryResult {
  EntryFacts facts = {};
  std::vector<RateTrial> trials = {};               // of its search; none without
  std::vector<std::optional<RunRecord>> runs = {};  // complete; nothing = failed
  /// Of each seed, the mean loss of every block of validation (TrainOptions::on_block), of all
  /// entries over the same windows; none of failed runs and of objectives that have none.
  std::vector<std::vector<double>> blocks = {};
  /// Of each seed, at evaluate.lengths; without lengths that the model has no positions for.
  std::vector<std::vector<LengthResult>> lengths = {};
  double step_seconds = 0;  // of an update, measured apart from the runs
  double seconds = 0;       // of all runs, search and evaluation during training included
  std::optional<double> decode_tokens_per_s = {};

  /// Losses of validation at the end, nothing of failed runs.
  std::vector<std::optional<double>> losses() const;
  /// Losses or accuracies at the end, at a length of `lengths` or, 0, of training.
  std::vector<std::optional<double>> values(ClaimOf of, int64_t length) const;
};

/// A further part of a report: of a scaling law, of a layout search.
struct ReportPart {
  std::string key, title;  // in report.json; the heading
  Json json = {};
  std::string note = {};  // a paragraph
  std::vector<Rows> tables = {};
  std::string plot = {};  // SVG
};

struct StudyResult {
  std::vector<EntryResult> entries;  // as in the study
  std::string machine;               // processor and threads
  std::string command;
  std::vector<ReportPart> parts = {};
  std::vector<Finding> findings = {};  // in addition to findings_of() the entries
};

/// An entry against the reference; over the seeds that both finished.
struct Comparison {
  PairedDifference difference;
  /// Over seeds and blocks of validation, with at least 3 seeds; its p is the one that counts.
  std::optional<CrossedInterval> crossed = {};
  std::optional<double> p = {};  // Holm's, over all entries
  /// "reference", "better", "worse", "not significant" (p >= 0.05), "one run", "failed"
  std::string verdict;
};
std::vector<Comparison> comparisons_of(const Study& study, const StudyResult& result);

/// A claim of the study against its result.
struct ClaimCheck {
  ClaimRecipe claim;
  std::optional<PairedDifference> difference = {};  // of better minus than; nothing without pairs
  std::optional<std::pair<double, double>> interval = {};  // the one that counts
  /// "appears", "opposite" (both: the interval is without 0), "not significant", "one run",
  /// "failed"
  std::string found;
};
std::vector<ClaimCheck> claims_of(const Study& study, const StudyResult& result);

/// How the intervals of a report came about: of the pairs that the comparisons have.
std::string interval_method(const Study& study, const std::vector<Comparison>& compared);

/// Seconds of all runs of an entry, evaluation included: of its search and of all seeds.
double seconds_of(const Study& study, const StudyEntry& entry, const TrialTimes& times);
/// Seconds of a run of a part of the budget, evaluated at its end.
double seconds_of_part(const StudyEntry& entry, double part, const TrialTimes& times);
/// Sizes and minutes of each entry.
std::string plan_table(const Study& study, const std::vector<TrialTimes>& times);
/// What will run, and how long it takes; `times` of each entry.
std::string plan_text(const Study& study, const std::vector<TrialTimes>& times);

std::string report_text(const Study& study, const StudyResult& result);
Json report_json(const Study& study, const StudyResult& result);
std::string report_page(const Study& study, const StudyResult& result);

}  // namespace tessera::train
