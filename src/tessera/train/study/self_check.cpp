#include "tessera/train/study/self_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/spec/names.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

Json json_text(const char* text) {
  return spec::parse_json(text, "self-check");
}

/// What the checks change: two small layers.
constexpr const char* kBase = R"({
  "spec": {"tessera": 1, "arch": "decoder", "vocab": 16, "d_model": 32,
           "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}],
           "ffn": {"type": "glu", "d_hidden": 64}, "head": "tied"},
  "train": {"batch": 64, "length": 16, "log_every": 1000},
  "optimizer": {"type": "adamw", "lr": 4e-3, "betas": [0.9, 0.98]},
  "schedule": {"type": "cosine", "final_fraction": 0.05}
})";

/// A model of a known result: its entry of the study (JSON), and the accuracy that it must have.
struct KnownModel {
  const char* name;
  const char* entry;
  double at_least = 0, at_most = 1;
};

/// Results of the literature, at sizes that train in seconds. Limits lie between what models reach
/// that can do the task and those that cannot, over seeds 1 to 3; checks of one folder share runs.
struct KnownResult {
  const char* name;
  const char* claim;
  const char* folder;
  const char* recipe;  // merged into the base
  std::vector<KnownModel> models;
};

const std::vector<KnownResult>& known_results() {
  constexpr const char* kLinear =
      R"({"spec": {"layers": [{"repeat": 2, "mixer": {"type": "linear_attention", "n_heads": 2}}]}})";
  constexpr const char* kInduction = R"({"data": {"type": "induction_heads", "valid": 256},
    "train": {"steps": 600}, "schedule": {"warmup": 60}})";
  static const std::vector<KnownResult> results{
      {"induction heads",
       "two layers of attention copy what followed an earlier occurrence; linear attention, whose "
       "state only adds, does not (Olsson et al. 2022, arXiv:2209.11895; Arora et al. 2023, "
       "arXiv:2312.04927)",
       "induction",
       kInduction,
       {{"attention", "{}", 0.95, 1}, {"linear_attention", kLinear, 0, 0.5}}},
      {"window",
       "a window that is shorter than the distance, summed over the layers, loses what lies beyond "
       "it (Beltagy et al. 2020, arXiv:2004.05150)",
       "induction",
       kInduction,
       {{"attention", "{}", 0.95, 1},
        {"window-4",
         R"({"spec": {"layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2,
             "position": "rope", "pattern": {"type": "window", "width": 4}}}]}})",
         0, 0.6}}},
      {"associative recall",
       "the delta rule recalls the values of four keys; linear attention of the same state mixes "
       "them up (Arora et al. 2023, arXiv:2312.04927; Yang et al. 2024, arXiv:2406.06484)",
       "recall",
       R"({"spec": {"vocab": 17}, "data": {"type": "mqar", "items": 4, "valid": 256},
           "train": {"steps": 250, "batch": 128}, "schedule": {"warmup": 60}})",
       {{"delta_net",
         R"({"spec": {"layers": [{"repeat": 2, "mixer": {"type": "delta_net", "n_heads": 2}}]}})",
         0.9, 1},
        {"linear_attention", kLinear, 0, 0.5}}},
      {"parity",
       "a linear recurrence tracks the parity of bits only with negative eigenvalues (Grazzi et "
       "al. 2024, arXiv:2411.12537)",
       "parity",
       R"({"spec": {"vocab": 2}, "data": {"type": "parity", "valid": 256},
           "train": {"steps": 300, "length": 32}, "schedule": {"warmup": 60}})",
       {{"negative",
         R"({"spec": {"layers": [{"mixer": {"type": "delta_net", "n_heads": 2, "d_conv": 0,
             "negative_eigenvalues": true}}]}})",
         0.95, 1},
        {"positive",
         R"({"spec": {"layers": [{"mixer": {"type": "delta_net", "n_heads": 2, "d_conv": 0}}]}})",
         0, 0.8}}},
      {"length generalization",
       "a nonlinear recurrence keeps the parity of bits at four times the trained length; linear "
       "attention does not (Merrill et al. 2024, arXiv:2404.08819; Beck et al. 2024, "
       "arXiv:2405.04517)",
       "parity_length",
       R"({"spec": {"vocab": 2}, "data": {"type": "parity", "valid": 256, "valid_length": 64},
           "train": {"steps": 300}, "schedule": {"warmup": 60}})",
       {{"slstm",
         R"({"spec": {"layers": [{"repeat": 2, "mixer": {"type": "slstm", "n_heads": 2}}]}})", 0.9,
         1},
        {"linear_attention", kLinear, 0, 0.7}}},
      {"warm-up",
       "at a high learning rate pre-norm trains without warm-up, and post-norm needs it (Xiong et "
       "al. 2020, arXiv:2002.04745)",
       "warmup",
       R"({"spec": {"layers": [{"repeat": 8, "mixer": {"type": "attention", "n_heads": 2,
             "position": "rope"}}]},
           "data": {"type": "copying", "items": 4, "valid": 256},
           "train": {"steps": 150, "batch": 32}, "optimizer": {"lr": 2e-2},
           "schedule": {"warmup": 0}})",
       {{"pre_norm", "{}", 0.8, 1},
        {"post_norm", R"({"spec": {"residual": "post_norm"}})", 0, 0.4},
        {"post_norm-warmup",
         R"({"spec": {"residual": "post_norm"}, "set": ["schedule.warmup=75"]})", 0.8, 1}}},
  };
  return results;
}

/// A study in `folder`: the base and a recipe that is merged into it, entries and other keys.
Study study_in(const fs::path& folder,
               const Json& recipe,
               const Json& keys,
               const SelfCheckOptions& options) {
  create_folder(folder);
  Json base = json_text(kBase);
  base.merge_patch(recipe);
  if (options.steps) {
    base["train"]["steps"] = *options.steps;
    base["schedule"]["warmup"] = 0;
  }
  write_file_atomically(folder / "recipe.json", base.dump(2) + "\n");
  Json study = {{"base", "recipe.json"},
                {"equal", {{"multiple_of", 1}, {"tolerance", 0.02}}},
                {"learning_rates", "shared"},
                {"seeds", {1}}};
  study.merge_patch(keys);
  return read_study(study, folder);
}

StudyResult result_of(const Study& study, const fs::path& folder, const SelfCheckOptions& options) {
  StudyOptions own = options.study;
  own.times = false;
  return run_study(study, folder, own);
}

CheckLine check_known(const KnownResult& known,
                      const fs::path& folder,
                      const SelfCheckOptions& options) {
  Json entries = Json::array();
  for (const KnownModel& model : known.models) {
    Json entry = json_text(model.entry);
    entry["name"] = model.name;
    if (options.steps) entry.erase("set");  // warm-up
    entries.push_back(std::move(entry));
  }
  const Study study =
      study_in(folder / known.folder, json_text(known.recipe), {{"entries", entries}}, options);
  const StudyResult result = result_of(study, folder / known.folder, options);
  CheckLine line{.name = known.name, .claim = known.claim, .passed = true};
  std::vector<std::string> found;
  for (size_t i = 0; i < known.models.size(); ++i) {
    const KnownModel& model = known.models[i];
    const std::optional<RunRecord>& run = result.entries[i].runs.at(0);
    const double accuracy = run ? run->lines.back().accuracy.value_or(0) : NAN;
    line.passed = line.passed && accuracy >= model.at_least && accuracy <= model.at_most;
    found.push_back(fmt::format("{} {:.3f} ({} {:g})", model.name, accuracy,
                                model.at_most < 1 ? "at most" : "at least",
                                model.at_most < 1 ? model.at_most : model.at_least));
  }
  line.found = fmt::format("accuracy {}", fmt::join(found, ", "));
  return line;
}

/// The entries of studies that are about the comparison itself.
constexpr const char* kCopying = R"({"data": {"type": "copying", "items": 4, "valid": 256},
  "train": {"steps": 60, "batch": 32}, "schedule": {"warmup": 6}})";

/// Equal models differ by nothing; a model of fewer parameters is found worse.
CheckLine check_statistics(const fs::path& folder, const SelfCheckOptions& options) {
  const Study study = study_in(folder / "statistics", json_text(kCopying),
                               json_text(R"({"equal": {"by": "none"}, "seeds": 3,
        "entries": [{"name": "a"}, {"name": "b"},
                    {"name": "narrow", "set": ["spec.d_model=8", "spec.ffn.d_hidden=16"]}]})"),
                               options);
  const std::vector<Comparison> compared =
      comparisons_of(study, result_of(study, folder / "statistics", options));
  CheckLine line{
      .name = "statistics",
      .claim = "equal models with equal seeds differ by 0, bit for bit; a narrower model is worse"};
  const auto interval = compared[1].crossed;
  const bool nothing =
      compared[1].difference.mean == 0 && interval && interval->low == 0 && interval->high == 0;
  line.passed = nothing && compared[2].verdict == "worse";
  line.found = fmt::format("difference {:g}; narrow {:+.3f} ({})", compared[1].difference.mean,
                           compared[2].difference.mean, compared[2].verdict);
  return line;
}

/// What is planted in a study of two entries, and the finding that must name it.
struct PlantedFault {
  const char* name;
  const char* claim;
  const char* keys;     // of the study
  const char* finding;  // Finding::check; "" = none may be unfair
  bool trains = false;  // found by its runs, else before them
};

constexpr PlantedFault kFaults[] = {
    {"fair study", "a study without a fault has no unfair finding",
     R"({"entries": [{"name": "a"}, {"name": "b", "spec": {"ffn": {"act": "gelu"}}}]})", ""},
    {"planted data order", "a model that reads other samples is found",
     R"({"entries": [{"name": "a"}, {"name": "b", "set": ["data.examples=500"]}]})", "order"},
    {"planted size", "a model of more parameters is found",
     R"({"equal": {"key": ""},
         "entries": [{"name": "a"}, {"name": "b", "set": ["spec.ffn.d_hidden=96"]}]})",
     "equality"},
    {"planted rate",
     "a model whose best learning rate is the lowest or highest of those tried is found",
     R"({"learning_rates": [1e-6, 2e-6], "budget": {"steps": 16},
         "entries": [{"name": "a"}, {"name": "b", "spec": {"ffn": {"act": "gelu"}}}]})",
     "rate", true},
};

CheckLine check_fault(const PlantedFault& fault,
                      const fs::path& folder,
                      const SelfCheckOptions& options) {
  const fs::path own = folder / (*fault.finding == '\0' ? "fair" : fault.finding);
  const Study study = study_in(own, json_text(kCopying), json_text(fault.keys), options);
  std::vector<EntryFacts> facts;
  if (fault.trains)
    for (EntryResult& entry : result_of(study, own, options).entries)
      facts.push_back(std::move(entry.facts));
  else
    facts = orders_of(study, own / "cache", options.study.cancel);
  std::vector<std::string> unfair;
  for (const Finding& finding : findings_of(study, facts))
    if (finding.unfair) unfair.push_back(finding.check);
  CheckLine line{.name = fault.name, .claim = fault.claim};
  line.passed = *fault.finding == '\0'
                    ? unfair.empty()
                    : std::find(unfair.begin(), unfair.end(), fault.finding) != unfair.end();
  line.found =
      unfair.empty() ? "nothing unfair" : fmt::format("unfair: {}", fmt::join(unfair, ", "));
  return line;
}

using Check = std::function<CheckLine(const fs::path&, const SelfCheckOptions&)>;

std::vector<std::pair<std::string, Check>> checks() {
  std::vector<std::pair<std::string, Check>> out;
  for (const PlantedFault& fault : kFaults)
    out.emplace_back(fault.name, [&fault](const fs::path& folder, const SelfCheckOptions& options) {
      return check_fault(fault, folder, options);
    });
  out.emplace_back("statistics", check_statistics);
  for (const KnownResult& known : known_results())
    out.emplace_back(known.name, [&known](const fs::path& folder, const SelfCheckOptions& options) {
      return check_known(known, folder, options);
    });
  return out;
}

}  // namespace

std::vector<std::string> self_check_names() {
  std::vector<std::string> names;
  for (const auto& [name, check] : checks()) names.push_back(name);
  return names;
}

double self_check_seconds() {
  return 120;
}

std::vector<CheckLine> self_check(const fs::path& folder, const SelfCheckOptions& options) {
  const std::vector<std::string> names = self_check_names();
  for (const std::string& name : options.only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(ErrorKind::usage, "self-check", "no check is named \"{}\"{}; expected one of {}", name,
           spec::did_you_mean(name, names), fmt::join(names, ", "));
  std::vector<CheckLine> lines;
  for (const auto& [name, check] : checks()) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), name) == options.only.end())
      continue;
    const auto begin = std::chrono::steady_clock::now();
    lines.push_back(check(folder, options));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    lines.back().seconds = seconds.count();
    if (options.done) options.done(lines.back());
  }
  return lines;
}

}  // namespace tessera::train
