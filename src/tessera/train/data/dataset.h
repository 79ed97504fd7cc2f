// The samples of a run: from the files of a recipe, or from a synthetic task. Torch-free.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "tessera/base/cancel.h"
#include "tessera/train/data/data_plan.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/data/token_cache.h"

namespace tessera::train {

/// Training and validation samples of one objective; owns its data (memory-mapped tokens or
/// examples). Samples do not change after creation: each depends on the recipe and its number only,
/// so a run resumes from its counter. Reading is thread-safe. open_source() throws for invalid
/// data; reading samples throws internal errors only.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Training samples first, first + 1, ...: they depend on the recipe and these numbers only. With
  /// carried windows, `begun` receives the streams whose first window is among them.
  virtual PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const = 0;
  /// Number of validation samples; 0 = none.
  virtual int64_t valid_samples() const = 0;
  virtual PackedBatch valid(const std::vector<int64_t>& samples) const = 0;
  /// Of the validation text; 0 if targets are not text.
  virtual double tokens_per_byte() const = 0;
  /// Remarks about the data for the user, a line each.
  const std::vector<std::string>& notes() const { return notes_; }
  void remark(std::string line) { notes_.push_back(std::move(line)); }
  /// SHA-256 of everything that the samples depend on, except the recipe.
  virtual const std::string& key() const = 0;

 private:
  std::vector<std::string> notes_;
};

/// The windows with these numbers.
std::vector<Window> chosen(const std::vector<Window>& windows, const std::vector<int64_t>& numbers);

/// The same batch with the sample number of row 0.
PackedBatch numbered(PackedBatch batch, int64_t first_sample);

/// Language modeling: windows of a text, each predicting the tokens after its own. The first
/// `prefix` tokens of a document attend to each other and are no targets.
std::unique_ptr<Dataset> text_windows(TokenData data,
                                      const TrainRecipe& how,
                                      int64_t prefix,
                                      const LengthSchedule& ramp);

/// Makes the samples of one text of a recipe.
using SamplesOfText = std::function<std::unique_ptr<Dataset>(
    TokenData data, const text::Tokenizer& tokenizer, const LengthSchedule& ramp)>;

/// The text of the plan's files, or the mixture of its texts. Throws the errors of prepare_tokens()
/// and `make`.
std::unique_ptr<Dataset> of_texts(const DataPlan& plan,
                                  const std::filesystem::path& cache,
                                  const CancelToken* cancel,
                                  const SamplesOfText& make);

}  // namespace tessera::train
