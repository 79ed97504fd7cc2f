// Where the samples of a run come from: the files of a recipe, or a task that makes them.
// Torch-free.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "tessera/base/cancel.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Training samples first, first + 1, ...: a function of the recipe and these numbers alone.
  /// Where windows are carried, `begun` gains the streams of which one of these is the first.
  virtual PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const = 0;
  /// Samples to evaluate on; 0 = none.
  virtual int64_t valid_samples() const = 0;
  virtual PackedBatch valid(const std::vector<int64_t>& samples) const = 0;
  /// Of the text to evaluate on; 0 where what is predicted is no text.
  virtual double tokens_per_byte() const = 0;
  /// What whoever trains should know of the data, a line each.
  const std::vector<std::string>& notes() const { return notes_; }
  void remark(std::string line) { notes_.push_back(std::move(line)); }
  /// SHA-256 of all that the samples depend on, besides the recipe.
  virtual const std::string& key() const = 0;

 private:
  std::vector<std::string> notes_;
};

/// The windows of those numbers.
std::vector<Window> chosen(const std::vector<Window>& windows, const std::vector<int64_t>& numbers);

/// The same batch, whose row 0 is that sample.
PackedBatch numbered(PackedBatch batch, int64_t first_sample);

/// Windows of a text, each asking for the tokens behind its own; the first `prefix` tokens of a
/// document see each other and are not asked for.
std::unique_ptr<Dataset> text_windows(TokenData data,
                                      const TrainRecipe& how,
                                      int64_t prefix,
                                      const LengthSchedule& ramp);

/// Makes the samples of one text of a recipe.
using SamplesOfText = std::function<std::unique_ptr<Dataset>(
    TokenData data, const text::Tokenizer& tokenizer, const LengthSchedule& ramp)>;

/// The text of a recipe's files, or the mix of its texts. Throws what prepare_tokens() and `make`
/// do.
std::unique_ptr<Dataset> of_texts(const Recipe& recipe,
                                  const std::filesystem::path& cache,
                                  const CancelToken* cancel,
                                  const SamplesOfText& make);

/// What the recipe's objective asks. `cache`: where tokens of files are kept. Throws what its
/// ObjectiveConfig::open() throws.
std::unique_ptr<Dataset> open_source(const Recipe& recipe,
                                     const std::filesystem::path& cache,
                                     const CancelToken* cancel = nullptr);

}  // namespace tessera::train
