#include "tessera/train/objective/masked_lm/masked_objective.h"

#include <algorithm>

#include "tessera/model/call_plan.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/masked_lm/masking.h"

namespace tessera::train {
namespace {

/// The windows of another dataset with masked tokens: a new mask in every training sample, and a
/// constant mask in validation samples for every seed.
class MaskedSource final : public Dataset {
 public:
  MaskedSource(std::unique_ptr<Dataset> texts, Masking masking, int64_t seed)
      : texts_(std::move(texts)),
        masking_(std::move(masking)),
        key_(RandomKey(static_cast<uint64_t>(seed)).fold("objective")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample)
      keys.push_back(key_.fold(static_cast<uint64_t>(sample)));
    return hide_tokens(texts_->train(first, count, begun), masking_, keys);
  }
  int64_t valid_samples() const override { return texts_->valid_samples(); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(RandomKey(hash_name("valid")).fold(static_cast<uint64_t>(sample)));
    return hide_tokens(texts_->valid(samples), masking_, keys);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return texts_->key(); }

 private:
  std::unique_ptr<Dataset> texts_;
  Masking masking_;
  RandomKey key_;
};

/// The mask token; throws Error(spec) if the tokenizer has none, or it is outside the vocabulary.
int64_t mask_id(const MaskedRecipe& how, int64_t vocab, const text::Tokenizer& tokenizer) {
  if (how.mask_id) {
    if (*how.mask_id >= vocab)
      fail(ErrorKind::spec, "objective.mask_id", "found {}; the spec has a vocabulary of {}",
           *how.mask_id, vocab);
    return *how.mask_id;
  }
  const auto id = tokenizer.id(*how.mask_token);
  if (!id)
    fail(ErrorKind::spec, "objective.mask_token",
         "found \"{}\", which the tokenizer does not have; expected one of its tokens, or mask_id",
         *how.mask_token);
  if (*id >= vocab)
    fail(ErrorKind::spec, "objective.mask_token",
         "found \"{}\", id {}; the spec has a vocabulary "
         "of {}",
         *how.mask_token, *id, vocab);
  return *id;
}

}  // namespace

Masking masking_of(const MaskedRecipe& how, int64_t vocab, const text::Tokenizer& tokenizer) {
  Masking out{how, mask_id(how, vocab, tokenizer), {}, {}};
  if (how.unit != MaskUnit::token) out.starts = word_starts(tokenizer);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id) && id != out.mask_id) out.ordinary.push_back(id);
  return out;
}

namespace {

class MaskedObjective final : public ObjectiveOf<MaskedRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  void check(const ModelPlan& plan) const override {
    check_masked(plan, keys_, type(), "masked_lm");
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return masked_windows(plan, keys_, cache, cancel);
  }
};

}  // namespace

std::vector<ObjectiveKind> masked_lm_kinds() {
  return {objective_kind<MaskedObjective, MaskedRecipe>()};
}

void check_masked(const DataPlan& plan,
                  const MaskedRecipe& how,
                  std::string_view type,
                  std::string_view head) {
  if (plan.spec.arch != model::Arch::encoder)
    fail(ErrorKind::spec, "objective.type",
         "\"{}\" with arch \"{}\", which does not see what follows; expected \"encoder\"", type,
         name_of(plan.spec.arch));
  if (!plan.spec.head || (!head.empty() && plan.spec.head.type() != head))
    fail(ErrorKind::spec, "spec.head", "found {}; objective \"{}\" needs \"{}\"",
         plan.spec.head ? fmt::format("\"{}\"", plan.spec.head.type()) : "none", type,
         head.empty() ? "masked_lm" : head);
  check_text_alone(plan.data, type);
  if (plan.train.windows == WindowOrder::carried)
    fail(ErrorKind::spec, "train.windows",
         "an encoder reads its whole input at once and carries nothing on; use \"isolated\"");
  if (how.mask + how.random > 1)
    fail(ErrorKind::spec, "objective.random", "found {} with mask {}; expected at most 1 together",
         how.random, how.mask);
  if (how.unit == MaskUnit::span && how.count == MaskCount::bernoulli)
    fail(ErrorKind::spec, "objective.count",
         "\"bernoulli\" with unit \"span\", which does not draw words independently; expected "
         "\"exact\"");
  if (how.mask_token.has_value() == how.mask_id.has_value())
    fail(ErrorKind::spec, "objective.mask_token", "{}; expected either it or mask_id",
         how.mask_id ? "given together with mask_id" : "missing");
  mask_id(how, plan.spec.vocab, open_tokenizer(plan.data));
}

PackedBatch hide_tokens(PackedBatch batch,
                        const Masking& masking,
                        const std::vector<RandomKey>& keys) {
  std::vector<int64_t> begins;  // starts of documents in their row
  for (size_t i = 0; i < batch.pieces.size();) {
    const int64_t row = batch.pieces[i].row, begin = batch.pieces[i].begin;
    int64_t length = 0;
    begins.clear();
    for (; i < batch.pieces.size() && batch.pieces[i].row == row; ++i) {
      begins.push_back(length);
      length += batch.pieces[i].length;
    }
    const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(length);
    masking.apply(std::span(batch.ids).subspan(first, size),
                  std::span(batch.targets).subspan(first, size),
                  MaskDraws::of(keys[static_cast<size_t>(row)], length), begins);
  }
  batch.n_targets = static_cast<int64_t>(batch.targets.size()) -
                    std::count(batch.targets.begin(), batch.targets.end(), -1);
  return batch;
}

std::unique_ptr<Dataset> masked_windows(const DataPlan& plan,
                                        const MaskedRecipe& how,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel) {
  return of_texts(
      plan, cache, cancel,
      [&](TokenData data, const text::Tokenizer& tokenizer, const LengthSchedule& ramp) {
        return std::make_unique<MaskedSource>(text_windows(std::move(data), plan.train, 0, ramp),
                                              masking_of(how, plan.spec.vocab, tokenizer),
                                              plan.train.seed);
      });
}

}  // namespace tessera::train
