#include "tessera/train/objective/permutation/permutation_objective.h"

#include <algorithm>

#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/train/data/draws.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/masked_lm/masked_objective.h"
#include "tessera/train/objective/permutation/permutation_recipe.h"

namespace tessera::train {
namespace {

/// The windows of another dataset in a random order: a new one in every training sample, and a
/// constant one in validation samples for every seed.
class PermutedSource final : public Dataset {
 public:
  PermutedSource(std::unique_ptr<Dataset> texts, Masking choice, int64_t seed)
      : texts_(std::move(texts)),
        choice_(std::move(choice)),
        key_(RandomKey(static_cast<uint64_t>(seed)).fold("objective")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample)
      keys.push_back(key_.fold(static_cast<uint64_t>(sample)));
    return in_order(texts_->train(first, count, begun), keys);
  }
  int64_t valid_samples() const override { return texts_->valid_samples(); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(RandomKey(hash_name("valid")).fold(static_cast<uint64_t>(sample)));
    return in_order(texts_->valid(samples), keys);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return texts_->key(); }

 private:
  /// Row r by keys[r].
  PackedBatch in_order(PackedBatch batch, const std::vector<RandomKey>& keys) const {
    batch = hide_tokens(std::move(batch), choice_, keys);
    std::vector<int64_t> ranks(batch.ids.size());
    for (size_t i = 0; i < batch.pieces.size();) {
      const PackedDocument& first = batch.pieces[i];
      std::vector<size_t> asked;  // targets of this row
      for (; i < batch.pieces.size() && batch.pieces[i].row == first.row; ++i)
        for (int64_t t = 0; t < batch.pieces[i].length; ++t)
          if (const auto at = static_cast<size_t>(batch.pieces[i].begin + t);
              batch.targets[at] >= 0)
            asked.push_back(at);
      const RandomKey key = keys[static_cast<size_t>(first.row)].fold("order");
      int64_t rank = 0;
      for (const int64_t number : shuffled(key, std::ssize(asked)))
        ranks[asked[static_cast<size_t>(number)]] = ++rank;
    }
    return with_queries(batch, ranks, choice_.mask_id);
  }

  std::unique_ptr<Dataset> texts_;
  Masking choice_;
  RandomKey key_;
};

/// Refuses parts that pass information between tokens outside of attention.
void check_parts(const model::ModelSpec& spec) {
  const auto refuse = [](const char* where, const spec::AnyPart& part, const char* reason) {
    fail(ErrorKind::spec, fmt::format("spec.{}", where),
         "\"{}\" {}; objective \"permutation\" needs tokens that hear of others by \"attention\" "
         "with pattern \"full\" alone",
         part.type(), reason);
  };
  model::for_each_part(spec, [&](const spec::AnyPart& part) {
    switch (part.mechanism->slot) {
      case spec::Slot::mixer: {
        const auto* attention = dynamic_cast<const nn::AttentionConfig*>(part.config.get());
        if (attention == nullptr) refuse("layers", part, "does not support an order of tokens");
        if (attention->pattern.type() != "full")
          refuse("layers", attention->pattern, "is a pattern of its own");
        break;
      }
      case spec::Slot::select:
      case spec::Slot::depth:
      case spec::Slot::router:
        refuse("layers", part, "chooses among tokens");
        break;
      case spec::Slot::position:
        if (part.type() == "convolutional") refuse("embed", part, "reads the tokens between");
        break;
      case spec::Slot::norm:
        if (part.type() == "batch_norm") refuse("layers", part, "has statistics over all tokens");
        break;
      default:
        break;
    }
    if (part.config->ids_before() > 0) refuse("embed", part, "reads the ids before a token");
  });
}

class PermutationObjective final : public ObjectiveOf<PermutationRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  void check(const ModelPlan& plan) const override {
    check_masked(plan, keys_.chooses(), type(), "");
    check_parts(plan.spec);
    if (plan.adapter && adapter_keys<VirtualTokenKeys>(*plan.adapter))
      fail(ErrorKind::spec, "adapter.type",
           "virtual tokens have no order; objective \"permutation\" needs another adapter, such "
           "as \"lora\"");
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return of_texts(
        plan, cache, cancel,
        [&](TokenData data, const text::Tokenizer& tokenizer, const LengthSchedule& ramp) {
          return std::make_unique<PermutedSource>(
              text_windows(std::move(data), plan.train, 0, ramp),
              masking_of(keys_.chooses(), plan.spec.vocab, tokenizer), plan.train.seed);
        });
  }
};

}  // namespace

std::vector<ObjectiveKind> permutation_kinds() {
  return {objective_kind<PermutationObjective, PermutationRecipe>()};
}

PackedBatch with_queries(const PackedBatch& batch,
                         const std::vector<int64_t>& ranks,
                         int64_t mask_id) {
  PackedBatch out = batch;
  out.ids.clear(), out.targets.clear(), out.pieces.clear();
  for (const PackedDocument& piece : batch.pieces) {
    const auto from = static_cast<size_t>(piece.begin),
               to = static_cast<size_t>(piece.begin + piece.length);
    auto order = std::make_shared<nn::TokenOrder>();
    std::vector<int64_t> asked;
    for (size_t i = from; i < to; ++i) {
      order->ranks.push_back(ranks[i]);
      if (batch.targets[i] < 0) continue;
      order->places.push_back(static_cast<int64_t>(i - from));
      asked.push_back(batch.targets[i]);
    }
    PackedDocument& whole = out.pieces.emplace_back(piece);
    whole.begin = std::ssize(out.ids);
    whole.length += order->queries();
    out.ids.insert(out.ids.end(), batch.ids.begin() + piece.begin,
                   batch.ids.begin() + piece.begin + piece.length);
    out.ids.insert(out.ids.end(), asked.size(), mask_id);
    out.targets.insert(out.targets.end(), to - from, -1);
    out.targets.insert(out.targets.end(), asked.begin(), asked.end());
    out.orders.push_back(std::move(order));
  }
  out.n_targets = std::ssize(out.targets) - std::count(out.targets.begin(), out.targets.end(), -1);
  return out;
}

}  // namespace tessera::train
