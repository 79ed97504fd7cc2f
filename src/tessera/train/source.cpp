#include "tessera/train/source.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tessera/model/call_plan.h"
#include "tessera/train/chat_source.h"
#include "tessera/train/masking.h"
#include "tessera/train/mixed_source.h"
#include "tessera/train/noise_source.h"
#include "tessera/train/sha256.h"
#include "tessera/train/tasks.h"
#include "tessera/train/token_cache.h"

namespace tessera::train {
namespace {

/// The last token of a document predicts nothing.
void check_targets(const TokenSplit& split, const char* name) {
  if (split.tokens() == split.documents())
    fail(ErrorKind::input, "data",
         "the {} split: found {} documents of one token each, so that no position has a target; "
         "expected one of at least 2 tokens",
         name, split.documents());
}

PackedBatch numbered(PackedBatch batch, int64_t first_sample) {
  batch.first_sample = first_sample;
  return batch;
}

class TextSource final : public Source {
 public:
  /// The first `prefix` tokens of a document see each other.
  TextSource(TokenData data, const TrainRecipe& how, int64_t prefix, const LengthRamp& ramp)
      : data_(std::move(data)), prefix_(prefix), ramp_(ramp) {
    const auto seed = static_cast<uint64_t>(how.seed);
    const int64_t tokens = data_.train.tokens();
    check_targets(data_.train, "train");
    if (data_.valid.tokens() > 0) check_targets(data_.valid, "valid");
    streams_ = how.batch * how.accumulate;
    if (how.windows == WindowOrder::carried)
      carried_.emplace(tokens, how.length, streams_, seed);
    else
      isolated_.emplace(tokens, how.length, seed);
    if (data_.valid.tokens() > 0) valid_ = windows_in_order(data_.valid.tokens(), how.length);
  }

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    std::vector<Window> windows;
    for (int64_t i = first; i < first + count; ++i) {
      if (isolated_) {
        Window& window = windows.emplace_back(isolated_->at(i));
        window.length = std::min(window.length, ramp_.at(i));
        continue;
      }
      const StreamOrder::Next next = carried_->at(i);
      if (next.first) begun.push_back(i % streams_);
      windows.push_back(next.window);
    }
    return numbered(packed(data_.train, windows), first);
  }
  int64_t valid_samples() const override { return static_cast<int64_t>(valid_.size()); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    return packed(data_.valid, chosen(valid_, samples));
  }
  double tokens_per_byte() const override {
    const auto bytes = static_cast<double>(data_.valid.text_bytes());
    return bytes > 0 ? static_cast<double>(data_.valid.tokens()) / bytes : 0;
  }
  const std::string& key() const override { return data_.key; }

 private:
  PackedBatch packed(const TokenSplit& split, const std::vector<Window>& windows) const {
    PackedBatch batch = pack(split, windows);
    hide_seen(batch, prefix_);
    return batch;
  }

  TokenData data_;
  int64_t prefix_ = 0, streams_ = 0;
  LengthRamp ramp_;
  std::optional<SampleOrder> isolated_;
  std::optional<StreamOrder> carried_;
  std::vector<Window> valid_;
};

/// The windows of another source, with tokens hidden: anew in every training sample, and always the
/// same in what is held out, whatever the seed.
class MaskedSource final : public Source {
 public:
  MaskedSource(std::unique_ptr<Source> texts, Masking masking, int64_t seed)
      : texts_(std::move(texts)),
        masking_(std::move(masking)),
        key_(RandomKey(static_cast<uint64_t>(seed)).fold("objective")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample)
      keys.push_back(key_.fold(static_cast<uint64_t>(sample)));
    return masked(texts_->train(first, count, begun), keys);
  }
  int64_t valid_samples() const override { return texts_->valid_samples(); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(RandomKey(hash_name("valid")).fold(static_cast<uint64_t>(sample)));
    return masked(texts_->valid(samples), keys);
  }
  double tokens_per_byte() const override { return texts_->tokens_per_byte(); }
  const std::string& key() const override { return texts_->key(); }

 private:
  /// Row r by keys[r]; the pieces of a row lie side by side.
  PackedBatch masked(PackedBatch batch, const std::vector<RandomKey>& keys) const {
    std::vector<int64_t> begins;  // of documents in their row
    for (size_t i = 0; i < batch.pieces.size();) {
      const int64_t row = batch.pieces[i].row, begin = batch.pieces[i].begin;
      int64_t length = 0;
      begins.clear();
      for (; i < batch.pieces.size() && batch.pieces[i].row == row; ++i) {
        begins.push_back(length);
        length += batch.pieces[i].length;
      }
      const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(length);
      masking_.apply(std::span(batch.ids).subspan(first, size),
                     std::span(batch.targets).subspan(first, size),
                     MaskDraws::of(keys[static_cast<size_t>(row)], length), begins);
    }
    batch.n_targets = static_cast<int64_t>(batch.targets.size()) -
                      std::count(batch.targets.begin(), batch.targets.end(), -1);
    return batch;
  }

  std::unique_ptr<Source> texts_;
  Masking masking_;
  RandomKey key_;
};

Masking masking_of(const MaskedRecipe& how, const text::Tokenizer& tokenizer) {
  Masking out{how, how.mask_id.value(), {}, {}};
  if (how.unit != MaskUnit::token) out.starts = word_starts(tokenizer);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id) && id != out.mask_id) out.ordinary.push_back(id);
  return out;
}

/// What an encoder reads, and what the decoder answers; without an encoder the source is a prefix.
class PairSource final : public Source {
 public:
  PairSource(TokenData data, const Recipe& recipe, const LengthRamp& ramp)
      : data_(std::move(data)),
        order_(std::max<int64_t>(1, data_.train.documents() / 2),
               static_cast<uint64_t>(recipe.train.seed)),
        prefixed_(!recipe.spec.encoder),
        start_(recipe.spec.start),
        ramp_(ramp) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<int64_t> pairs;
    for (int64_t sample = first; sample < first + count; ++sample)
      pairs.push_back(order_.at(sample));
    return numbered(packed(data_.train, pairs, ramp_.at(first)), first);
  }
  int64_t valid_samples() const override { return data_.valid.documents() / 2; }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    return packed(data_.valid, samples, ramp_.to);
  }
  /// Of the answers: they are what is predicted.
  double tokens_per_byte() const override {
    int64_t tokens = 0;
    for (int64_t document = 1; document < data_.valid.documents(); document += 2)
      tokens += data_.valid.document(document).second;
    const auto bytes = static_cast<double>(data_.valid.text_bytes());
    return bytes > 0 ? static_cast<double>(tokens) / bytes : 0;
  }
  const std::string& key() const override { return data_.key; }

 private:
  PackedBatch packed(const TokenSplit& split,
                     const std::vector<int64_t>& pairs,
                     int64_t length) const {
    return prefixed_ ? pack_prefixed(split, pairs, data_.separator, length)
                     : pack_pairs(split, pairs, start_, length);
  }

  TokenData data_;
  PairOrder order_;
  bool prefixed_;
  int64_t start_;
  LengthRamp ramp_;
};

class TaskSource final : public Source {
 public:
  TaskSource(const Recipe& recipe)
      : task_(*recipe.task),
        vocab_(recipe.spec.vocab),
        length_(recipe.train.length),
        random_(RandomKey(static_cast<uint64_t>(recipe.train.seed)).fold("data")),
        key_(sha256("made, not read; version 1")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample) keys.push_back(key_of(sample));
    return numbered(batch(keys, length_), first);
  }
  int64_t valid_samples() const override { return task_.valid; }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(random_.fold("valid").fold(static_cast<uint64_t>(sample)));
    return batch(keys, task_.valid_length > 0 ? task_.valid_length : length_);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  /// Of a training sample; the examples of a finite set come in another order in every epoch.
  RandomKey key_of(int64_t sample) const {
    int64_t number = sample;
    if (const int64_t n = task_.examples; n > 0)
      number =
          permuted(sample % n, n, random_.fold("order").fold(static_cast<uint64_t>(sample / n)));
    return random_.fold("train").fold(static_cast<uint64_t>(number));
  }

  PackedBatch batch(const std::vector<RandomKey>& keys, int64_t length) const {
    PackedBatch out;
    for (const RandomKey& key : keys) {
      const Example example = make_example(task_, vocab_, length, key);
      out.pieces.push_back(
          {static_cast<int64_t>(out.pieces.size()), static_cast<int64_t>(out.ids.size()), length});
      out.ids.insert(out.ids.end(), example.ids.begin(), example.ids.end());
      out.targets.insert(out.targets.end(), example.targets.begin(), example.targets.end());
    }
    out.n_targets = static_cast<int64_t>(out.targets.size()) -
                    std::count(out.targets.begin(), out.targets.end(), -1);
    return out;
  }

  TaskRecipe task_;
  int64_t vocab_, length_;
  RandomKey random_;
  std::string key_;
};

/// Of one text, which gives `share` of the samples of a run.
std::unique_ptr<Source> source_of(const Recipe& recipe,
                                  TokenData data,
                                  const text::Tokenizer& tokenizer,
                                  double share) {
  const TrainRecipe& how = recipe.train;
  const LengthRamp ramp =
      LengthRamp::of(how.curriculum, how.length, how.batch * how.accumulate, share);
  if (!recipe.noises.empty()) return open_noises(recipe, std::move(data), tokenizer, ramp);
  if (recipe.data.source_key) return std::make_unique<PairSource>(std::move(data), recipe, ramp);
  auto texts = std::make_unique<TextSource>(std::move(data), how,
                                            model::CallPlan(recipe.spec).first_call(0), ramp);
  if (!recipe.objective) return texts;
  return std::make_unique<MaskedSource>(std::move(texts), masking_of(*recipe.objective, tokenizer),
                                        how.seed);
}

}  // namespace

std::vector<Window> chosen(const std::vector<Window>& windows,
                           const std::vector<int64_t>& numbers) {
  std::vector<Window> some;
  for (const int64_t number : numbers) some.push_back(windows.at(static_cast<size_t>(number)));
  return some;
}

std::unique_ptr<Source> open_source(const Recipe& recipe,
                                    const std::filesystem::path& cache,
                                    const CancelToken* cancel) {
  if (recipe.task) return std::make_unique<TaskSource>(recipe);
  const text::Tokenizer tokenizer = open_tokenizer(recipe.data);
  if (recipe.chat) return open_chats(recipe, tokenizer, cancel);
  const auto tokens_of = [&](const DataRecipe& data) {
    return prepare_tokens(data, tokenizer, recipe.spec.vocab, cache, cancel);
  };
  if (recipe.data.mix.empty()) return source_of(recipe, tokens_of(recipe.data), tokenizer, 1);
  std::vector<TokenData> texts;
  std::vector<double> shares;
  for (const DataPart& part : recipe.data.mix) {
    texts.push_back(tokens_of(recipe.data.only(part)));
    shares.push_back(recipe.data.temperature ? share_of(part.weight, texts.back().train.tokens(),
                                                        *recipe.data.temperature)
                                             : part.weight);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<MixedSource::Member> members;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto bytes = static_cast<double>(texts[i].valid.text_bytes());
    const double share = shares[i] / sum;
    members.push_back({source_of(recipe, std::move(texts[i]), tokenizer, share), share, bytes});
  }
  return std::make_unique<MixedSource>(std::move(members));
}

}  // namespace tessera::train
