#include "tessera/train/source.h"

#include "tessera/train/sha256.h"
#include "tessera/train/tasks.h"
#include "tessera/train/token_cache.h"

namespace tessera::train {
namespace {

class TextSource final : public Source {
 public:
  TextSource(TokenData data, int64_t length, uint64_t seed)
      : data_(std::move(data)), order_(data_.train.tokens(), length, seed) {
    if (data_.valid.tokens() > 0) valid_ = windows_in_order(data_.valid.tokens(), length);
  }

  PackedBatch train(int64_t first, int64_t count) const override {
    std::vector<Window> windows;
    for (int64_t i = 0; i < count; ++i) windows.push_back(order_.at(first + i));
    return pack(data_.train, windows);
  }
  int64_t valid_samples() const override { return static_cast<int64_t>(valid_.size()); }
  PackedBatch valid(int64_t first, int64_t count) const override {
    return pack(data_.valid,
                std::span(valid_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
  }
  double tokens_per_byte() const override {
    const auto bytes = static_cast<double>(data_.valid.text_bytes());
    return bytes > 0 ? static_cast<double>(data_.valid.tokens()) / bytes : 0;
  }
  const std::string& key() const override { return data_.key; }

 private:
  TokenData data_;
  SampleOrder order_;
  std::vector<Window> valid_;
};

class TaskSource final : public Source {
 public:
  TaskSource(const Recipe& recipe)
      : task_(*recipe.task),
        vocab_(recipe.spec.vocab),
        length_(recipe.train.length),
        random_(RandomKey(static_cast<uint64_t>(recipe.train.seed)).fold("data")),
        key_(sha256("made, not read; version 1")) {}

  PackedBatch train(int64_t first, int64_t count) const override {
    return batch(
        first, count,
        [&](int64_t sample) {
          if (task_.examples == 0) return random_.fold("train").fold(static_cast<uint64_t>(sample));
          const RandomKey epoch =
              random_.fold("order").fold(static_cast<uint64_t>(sample / task_.examples));
          return random_.fold("train").fold(
              static_cast<uint64_t>(permuted(sample % task_.examples, task_.examples, epoch)));
        },
        length_);
  }
  int64_t valid_samples() const override { return task_.valid; }
  PackedBatch valid(int64_t first, int64_t count) const override {
    return batch(
        first, count,
        [&](int64_t sample) { return random_.fold("valid").fold(static_cast<uint64_t>(sample)); },
        task_.valid_length > 0 ? task_.valid_length : length_);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  template <class KeyOf>
  PackedBatch batch(int64_t first, int64_t count, KeyOf key_of, int64_t length) const {
    PackedBatch out;
    for (int64_t i = 0; i < count; ++i) {
      const Example example = make_example(task_, vocab_, length, key_of(first + i));
      out.pieces.push_back({i, static_cast<int64_t>(out.ids.size()), length});
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

}  // namespace

std::unique_ptr<Source> open_source(const Recipe& recipe,
                                    const std::filesystem::path& cache,
                                    const CancelToken* cancel) {
  if (recipe.task) return std::make_unique<TaskSource>(recipe);
  return std::make_unique<TextSource>(
      prepare_tokens(recipe.data, open_tokenizer(recipe.data), recipe.spec.vocab, cache, cancel),
      recipe.train.length, static_cast<uint64_t>(recipe.train.seed));
}

}  // namespace tessera::train
