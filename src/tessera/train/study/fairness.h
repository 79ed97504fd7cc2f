// Whether models of a study were compared on equal terms: what each run read, what each model had,
// how its learning rate was found. Torch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/train/data/dataset.h"
#include "tessera/train/study/study.h"

namespace tessera::train {

/// SHA-256 over what a run reads in its first `steps` steps: ids and targets of 64 updates spread
/// evenly over it, the first and the last among them (all of fewer), with the key of the data.
std::string order_of(const Dataset& source, const TrainRecipe& how, int64_t steps);
/// The same of the windows that are evaluated, 64 of them.
std::string validation_of(const Dataset& source);

/// What is known of an entry when it is judged.
struct EntryFacts {
  std::map<int64_t, std::string> orders;  // order_of(), by seed
  std::string validation;                 // validation_of()
  double rate = 0;                        // that it was trained with
  bool rate_at_end = false;               // RateSearch::at_end()
  std::map<int64_t, std::string> failed;  // why runs ended without a result, by seed
};

struct Finding {
  /// order, validation, equality, budget, rate, seeds, recipe, failed
  std::string check;
  bool unfair = false;  // else worth knowing
  std::string text;     // names the entry
};

/// What is unequal, the unfair first. `facts`: of each entry of the study.
std::vector<Finding> findings_of(const Study& study, const std::vector<EntryFacts>& facts);

}  // namespace tessera::train
