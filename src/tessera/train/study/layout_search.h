// A search over layouts: which mixer each layer has, and further choices such as norm or
// feed-forward layer. Candidates train by successive halving (halving.h), each with every learning
// rate of the study; the best are then compared as entries of a study, with rates of their own and
// several seeds. Torch-free.
//
//   "search": { "mixers": {"a": {"type": "attention", "n_heads": 4, "position": "rope"},
//                          "g": "gated_delta_net"},
//               "over": {"spec.residual": ["pre_norm", "sandwich"]},
//               "period": 3, "candidates": 16, "finalists": 2 }
#pragma once

#include "tessera/train/study/halving.h"
#include "tessera/train/study/study_report.h"

namespace tessera::train {

/// The numbers of "search"; its keys "mixers" and "over" are objects of the author's names.
struct SearchRecipe {
  int64_t period = 0;
  int64_t candidates = 16;
  int64_t finalists = 2;

  static constexpr auto fields() {
    using C = SearchRecipe;
    using spec::field;
    return std::tuple{
        field("period", &C::period,
              "layers of the pattern that is repeated over the model; 0 = all layers", {.min = 0}),
        field("candidates", &C::candidates,
              "largest number of candidates; drawn at random from more combinations", {.min = 2}),
        field("finalists", &C::finalists, "layouts that are compared after the search",
              {.min = 1})};
  }
};

/// Planned.
struct LayoutSearch {
  SearchRecipe how;
  /// Baselines (the entries of the file), then the candidates; made equal in size.
  Study study;
  size_t baselines = 0;
  std::string reference;  // as the file has it; "" = the first baseline, else the best layout

  size_t candidates() const { return study.entries.size() - baselines; }
};

/// Reads the study and its "search". A mixer is a part, or a type with the heads of the base's own.
/// The first candidate has the first mixer in all layers and the first value of each key; the
/// others are drawn by a fixed seed where there are too many. Throws Error(spec) or Error(usage) of
/// one line: no choice at all, a base without a spec or with layers of several branches, a period
/// that does not divide the layers, and what read_study() throws.
LayoutSearch read_search(const StudyFile& file);

/// A candidate of the halving: a layout with a learning rate.
struct LayoutTrial {
  size_t entry = 0;  // of LayoutSearch::study
  double rate = 0;
};
/// Every candidate with every rate: those of the study, or with a shared rate that of the recipe.
std::vector<LayoutTrial> trials_of(const LayoutSearch& search);

/// Layouts by their best trial, the best first.
struct RankedLayout {
  size_t entry = 0;
  double rate = 0, fraction = 0, loss = 0;
};
std::vector<RankedLayout> ranked_layouts(const std::vector<LayoutTrial>& trials,
                                         const Halving& halving);

/// The study of the baselines and the best layouts.
Study final_study(const LayoutSearch& search, const std::vector<RankedLayout>& ranking);

struct SearchResult {
  Study study;  // final_study()
  StudyResult result;
};

/// The ranking as a part of the report.
ReportPart search_part(const LayoutSearch& search, const std::vector<RankedLayout>& ranking);

}  // namespace tessera::train
