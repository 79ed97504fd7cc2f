#include "tessera/train/objective/mask_predict/mask_predict_objective.h"

#include <algorithm>

#include "tessera/train/data/draws.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/next_token/next_token_objective.h"

namespace tessera::train {
namespace {

/// The pairs of another dataset, with a new mask in every training sample, and a constant mask in
/// validation samples for every seed.
class MaskedPairs final : public Dataset {
 public:
  MaskedPairs(std::unique_ptr<Dataset> pairs,
              int64_t mask,
              std::optional<int32_t> separator,
              int64_t seed)
      : pairs_(std::move(pairs)),
        mask_(mask),
        separator_(separator),
        key_(RandomKey(static_cast<uint64_t>(seed)).fold("objective")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample)
      keys.push_back(key_.fold(static_cast<uint64_t>(sample)));
    return mask_texts(pairs_->train(first, count, begun), mask_, separator_, keys);
  }
  int64_t valid_samples() const override { return pairs_->valid_samples(); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(RandomKey(hash_name("valid")).fold(static_cast<uint64_t>(sample)));
    return mask_texts(pairs_->valid(samples), mask_, separator_, keys);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return pairs_->key(); }

 private:
  std::unique_ptr<Dataset> pairs_;
  int64_t mask_;
  std::optional<int32_t> separator_;
  RandomKey key_;
};

/// Truncated targets would train a wrong length.
void check_lengths(const TokenSplit& split,
                   std::optional<int32_t> separator,
                   const char* name,
                   const DataPlan& plan) {
  const int64_t length = plan.train.length, longest = plan.spec.longest_target();
  const auto tokens = [&](int64_t document) { return split.document(document).second; };
  for (int64_t pair = 0; pair < split.documents() / 2; ++pair) {
    const auto refuse = [&](const char* what, int64_t n, int64_t most) {
      fail(ErrorKind::input, "data",
           "pair {} of the {} split: the {} has {} tokens; expected 1 to {} (train.length {}, "
           "n_labels of the encoder's head {})",
           pair + 1, name, what, n, most, length, longest);
    };
    const int64_t source = tokens(2 * pair), text = tokens(2 * pair + 1) - (separator ? 1 : 0);
    if (source > length) refuse("source", source, length);
    if (text < 1 || text > std::min(length, longest))
      refuse("text", text, std::min(length, longest));
  }
}

class MaskPredictObjective final : public ObjectiveOf<MaskPredictRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  void check(const ModelPlan& plan) const override {
    if (!plan.spec.mask)
      fail(ErrorKind::spec, "objective.type",
           "\"{}\" with a {} that does not see targets whole; expected an \"encoder_decoder\" with "
           "\"mask\"",
           type(), name_of(plan.spec.arch));
    if (!plan.data.has_sources())
      fail(ErrorKind::spec, "data.source_key",
           "missing; objective \"{}\" learns from pairs: expected the key of what the encoder "
           "reads in every line of a jsonl file",
           type());
    if (plan.train.windows == WindowOrder::carried)
      fail(ErrorKind::spec, "train.windows", "pairs are independent; use \"isolated\"");
    if (plan.train.curriculum.steps > 0)
      fail(ErrorKind::spec, "train.curriculum",
           "cuts texts, whose whole length objective \"{}\" learns; leave it out", type());
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return of_texts(plan, cache, cancel,
                    [&](TokenData data, const text::Tokenizer&,
                        const LengthSchedule& ramp) -> std::unique_ptr<Dataset> {
                      const std::optional<int32_t> separator = data.separator;
                      check_lengths(data.train, separator, "train", plan);
                      check_lengths(data.valid, separator, "valid", plan);
                      return std::make_unique<MaskedPairs>(pair_source(std::move(data), plan, ramp),
                                                           *plan.spec.mask, separator,
                                                           plan.train.seed);
                    });
  }
};

}  // namespace

std::vector<ObjectiveKind> mask_predict_kinds() {
  return {objective_kind<MaskPredictObjective, MaskPredictRecipe>()};
}

PackedBatch mask_texts(const PackedBatch& pairs,
                       int64_t mask,
                       std::optional<int32_t> separator,
                       const std::vector<RandomKey>& keys) {
  PackedBatch out = pairs;
  out.ids.clear();
  out.targets.clear();
  out.pieces.clear();
  out.n_targets = 0;
  for (const PackedDocument& piece : pairs.pieces) {
    const auto text =
        std::span(pairs.targets)
            .subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.length));
    const int64_t n =
        piece.length - (separator && piece.length > 1 && text.back() == *separator ? 1 : 0);
    const RandomKey key = keys[static_cast<size_t>(piece.row)];
    const int64_t masked = 1 + below(key.fold("count"), 0, n);
    out.pieces.push_back({piece.row, std::ssize(out.ids), n});
    out.ids.insert(out.ids.end(), text.begin(), text.begin() + n);
    out.targets.resize(out.ids.size(), -1);
    for (const int64_t at : choice(key.fold("select"), n, masked)) {
      const auto place = static_cast<size_t>(out.pieces.back().begin + at);
      out.targets[place] = std::exchange(out.ids[place], mask);
    }
    out.n_targets += masked;
  }
  return out;
}

}  // namespace tessera::train
