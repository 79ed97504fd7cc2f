// Which architecture for a task, a length and a memory: templates of specs scaled to a number of
// parameters, excluded where the task or the memory does not allow them, and ordered by rules, each
// with its evidence. Templates and rules are data (advice.json). Times are those of a cost run
// (analysis/cost.h): one layer of every mixer by the length of a text. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/analysis/cost.h"
#include "tessera/model/plan.h"

namespace tessera::analysis {

/// A task, or a demand on the model, by name.
struct Named {
  std::string name, about;
};

/// What supports a rule: a page of the documentation (a path below docs/, and a line of it), or a
/// paper.
struct Evidence {
  std::string page, says;
  std::string paper, title;
  std::string text() const;  // "docs/guide/losses.md (measured)", "arXiv:2305.13245 (GQA)"
};

/// problem -> remedy. A rule applies to a question if all of its conditions do.
struct Rule {
  std::string id, problem, remedy;
  Json when;                               // advice.cpp, applies()
  std::vector<std::string> prefer, avoid;  // tags of candidates
  std::vector<Evidence> evidence;          // at least one
};

/// A template: its spec has $width, $heads and others in place of numbers.
struct Template {
  std::string name, about;
  std::vector<std::string> tags;
  std::string key;  // of the spec, the integer that is solved for (model/solve.h)
  Json spec;
};

/// Width and depth of models up to a number of parameters.
struct Shape {
  double parameters = 0;
  int64_t width = 0, layers = 0;
};

struct AdviceData {
  struct Task : Named {
    std::vector<std::string> arch;  // that can do it
  };
  std::vector<Task> tasks;
  std::vector<Named> needs;
  std::vector<Shape> shapes;  // ascending
  std::vector<Template> templates;
  std::vector<Rule> rules;
};
/// Those of advice.json.
const AdviceData& advice_data();
/// The cost run of docs/mechanisms/cost.json.
const CostRun& shipped_costs();

struct Question {
  std::string task = "language_modeling";
  int64_t length = 2048;       // tokens of a text
  int64_t trained_length = 0;  // tokens of a training text; 0 = length
  double parameters = 1e8;     // all of them, of all experts
  double memory = 0;           // bytes for weights and states; 0 = no limit
  double train_tokens = 0;     // tokens of training; 0 = not known
  int64_t vocab = 32000;
  int64_t sequences = 1;                // decoded at once
  std::vector<std::string> needs = {};  // names of AdviceData::needs
  Pass pass = Pass::forward;            // inference; or backward: training
};

struct Candidate {
  std::string name, about;
  std::string excluded;  // why it is out of the question; "" = it is not
  Json spec;             // of the size asked for; null if excluded before it was solved
  model::Plan plan;
  double bytes = 0;  // weights of 16 bits, and f16 states of all sequences after `length` tokens
  /// Time of its mixers at `length` by that of full attention in their place; nothing where one of
  /// them was not measured.
  std::optional<double> time;
  bool extrapolated = false;  // `length` is longer than what was measured
  int64_t score = 0;          // rules that prefer it, less those that advise against it
  std::vector<const Rule*> preferred_by, avoided_by;
  bool pareto = false;  // no other one is at least as good in score, time and bytes, and better in
                        // one of them
};

/// The candidates that fit, by score, then time, bytes and name; then those that are excluded, in
/// the order of the templates. Throws Error(usage) for an unknown task or need, with the nearest
/// name, and for a number of parameters that no template reaches.
std::vector<Candidate> advise(const Question& question,
                              const AdviceData& data = advice_data(),
                              const CostRun& costs = shipped_costs());

/// Seconds at `length`: linear between the logarithms of neighbouring points; below the first one
/// by the first two, beyond the last one by the exponent of the fit. Nothing for a curve of fewer
/// than two points.
struct TimeAt {
  double seconds = 0;
  bool extrapolated = false;
};
std::optional<TimeAt> time_at(const Curve& curve, int64_t length, int64_t fit_from);

/// From which length on a mechanism is faster than full attention.
struct Crossover {
  std::string title;  // "mixer/mamba2"
  Pass pass = Pass::forward;
  std::optional<double> length;  // nothing: not up to `longest`
  bool from_start = false;       // already at the shortest measured length, which `length` is
  int64_t longest = 0;           // the longest length at which both were measured
};
/// The first length at which `of` becomes faster than `reference`, linear in the logarithm of the
/// length between the logarithms of the ratio, over the lengths that both have.
Crossover crossover(const Cost& reference, const Cost& of, Pass pass);

/// Tables of docs/guide/choosing.md (cli/doc_tables.h): rules, crossovers.
std::string rules_markdown(const AdviceData& data);
std::string crossovers_markdown(const CostRun& costs);

}  // namespace tessera::analysis
