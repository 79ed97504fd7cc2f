#include "tessera/train/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tessera/train/data/mixed_source.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {
namespace {

/// The last token of a document has no target.
void check_targets(const TokenSplit& split, const char* name) {
  if (split.tokens() == split.documents())
    fail(ErrorKind::input, "data",
         "the {} split: found {} documents of one token each, so that no position has a target; "
         "expected one of at least 2 tokens",
         name, split.documents());
}

class TextSource final : public Dataset {
 public:
  /// The first `prefix` tokens of a document attend to each other.
  TextSource(TokenData data, const TrainRecipe& how, int64_t prefix, const LengthSchedule& ramp)
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
  LengthSchedule ramp_;
  std::optional<SampleOrder> isolated_;
  std::optional<StreamOrder> carried_;
  std::vector<Window> valid_;
};

}  // namespace

std::vector<Window> chosen(const std::vector<Window>& windows,
                           const std::vector<int64_t>& numbers) {
  std::vector<Window> some;
  for (const int64_t number : numbers) some.push_back(windows.at(static_cast<size_t>(number)));
  return some;
}

PackedBatch numbered(PackedBatch batch, int64_t first_sample) {
  batch.first_sample = first_sample;
  return batch;
}

std::unique_ptr<Dataset> text_windows(TokenData data,
                                      const TrainRecipe& how,
                                      int64_t prefix,
                                      const LengthSchedule& ramp) {
  return std::make_unique<TextSource>(std::move(data), how, prefix, ramp);
}

std::unique_ptr<Dataset> of_texts(const DataPlan& plan,
                                  const std::filesystem::path& cache,
                                  const CancelToken* cancel,
                                  const SamplesOfText& make) {
  const TrainRecipe& how = plan.train;
  const TextData& files = plan.data.files();
  const text::Tokenizer tokenizer = open_tokenizer(plan.data);
  std::vector<std::string> remarks;
  const auto tokens_of = [&](const TextData& data) {
    TokenData tokens = prepare_tokens(data, tokenizer, plan.spec.vocab, cache, cancel,
                                      plan.spec.encoder ? plan.spec.encoder->vocab : 0);
    remarks.insert(remarks.end(), tokens.notes.begin(), tokens.notes.end());
    return tokens;
  };
  const auto with_remarks = [&](std::unique_ptr<Dataset> source) {
    for (std::string& line : remarks) source->remark(std::move(line));
    return source;
  };
  const auto source_of = [&](TokenData data, double share) {
    return make(std::move(data), tokenizer,
                LengthSchedule::of(how.curriculum, how.length, how.batch * how.accumulate, share));
  };
  if (files.mix.empty()) return with_remarks(source_of(tokens_of(files), 1));
  std::vector<TokenData> texts;
  std::vector<double> shares;
  for (const DataPart& part : files.mix) {
    texts.push_back(tokens_of(files.only(part)));
    shares.push_back(files.temperature
                         ? share_of(part.weight, texts.back().train.tokens(), *files.temperature)
                         : part.weight);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<MixedSource::Member> members;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto bytes = static_cast<double>(texts[i].valid.text_bytes());
    const double share = shares[i] / sum;
    members.push_back({source_of(std::move(texts[i]), share), share, bytes});
  }
  return with_remarks(std::make_unique<MixedSource>(std::move(members)));
}

}  // namespace tessera::train
