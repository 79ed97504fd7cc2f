#include "tessera/train/data/data_file.h"
#include "tessera/train/objective/labels/label_source.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/nn/embed/token.h"
#include "tessera/text/tokenizer/text_pair.h"
#include "tessera/text/tokenizer/token_spans.h"

namespace tessera::train {
namespace {

class LabelSource final : public LabelDataset {
 public:
  LabelSource(std::vector<LabelSample> train,
              std::vector<LabelSample> valid,
              std::vector<std::string> notes,
              std::string key,
              int64_t seed,
              std::optional<FeatureMaker> features)
      : train_(std::move(train)),
        valid_(std::move(valid)),
        key_(std::move(key)),
        order_(std::ssize(train_), static_cast<uint64_t>(seed)),
        augment_(RandomKey(static_cast<uint64_t>(seed)).fold("augment")),
        features_(std::move(features)) {
    for (std::string& line : notes) remark(std::move(line));
  }

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<const LabelSample*> samples;
    for (int64_t sample = first; sample < first + count; ++sample)
      samples.push_back(&train_[static_cast<size_t>(order_.at(sample))]);
    PackedBatch out = numbered(packed_samples(samples), first);
    if (features_)
      for (size_t i = 0; i < samples.size(); ++i)
        out.features.push_back(features_->input(*samples[i]->feature,
                                                augment_.fold(static_cast<uint64_t>(first) + i)));
    return out;
  }
  int64_t valid_samples() const override { return std::ssize(valid_); }
  PackedBatch valid(const std::vector<int64_t>& numbers) const override {
    std::vector<const LabelSample*> samples;
    for (const int64_t number : numbers) samples.push_back(&valid_.at(static_cast<size_t>(number)));
    PackedBatch out = packed_samples(samples);
    if (features_)
      for (const LabelSample* sample : samples)
        out.features.push_back(features_->input(*sample->feature, std::nullopt));
    return out;
  }
  const LabelSample& valid_sample(int64_t number) const override {
    return valid_.at(static_cast<size_t>(number));
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  std::vector<LabelSample> train_, valid_;
  std::string key_;
  PairOrder order_;
  RandomKey augment_;
  std::optional<FeatureMaker> features_;
};

/// Makes samples, and counts truncated texts and skipped words for notes().
class SampleMaker {
 public:
  SampleMaker(const DataPlan& plan,
              const LabelTask& task,
              const text::Tokenizer& tokenizer,
              const FeatureMaker* features)
      : length_(plan.train.length),
        features_(features),
        task_(task),
        tokenizer_(tokenizer),
        words_(tokenizer),
        types_(token_types(plan.spec)),
        counts_(static_cast<size_t>(task.classes.size()), 0) {}

  LabelSample of(const LabelledText& text) {
    LabelSample sample;
    sample.group = text.group;
    sample.candidate = text.candidate;
    if (features_ != nullptr) {
      sample.feature = std::make_shared<const StoredFeature>(features_->stored(text.file));
      sample.ids.assign(static_cast<size_t>(sample.feature->tokens), 0);
    } else {
      take_text(text, sample);
    }
    if (task_.kind == LabelTask::Kind::score) {
      sample.label = {text.score};
      return sample;
    }
    if (task_.kind == LabelTask::Kind::multi_label)
      sample.label.assign(static_cast<size_t>(task_.classes.size()), 0.0);
    for (const std::string& label : text.labels) {
      const int64_t number = task_.classes.number(label, text.where);
      ++counts_[static_cast<size_t>(number)];
      if (task_.kind == LabelTask::Kind::multi_label)
        sample.label[static_cast<size_t>(number)] = 1;
      else
        sample.label = {static_cast<double>(number)};
    }
    return sample;
  }

  LabelSample of(const LabelledWords& sentence) {
    LabelSample sample;
    std::vector<int32_t> ids;
    std::vector<int64_t> targets;
    for (size_t i = 0; i < sentence.words.size(); ++i) {
      const int64_t number = task_.classes.number(sentence.labels[i], sentence.where);
      ++counts_[static_cast<size_t>(number)];
      const std::vector<int32_t> word = words_.of(sentence.words[i], i == 0);
      ids.insert(ids.end(), word.begin(), word.end());
      // a word without tokens has no target
      for (size_t piece = 0; piece < word.size(); ++piece)
        targets.push_back(piece == 0 ? number : -1);
    }
    at(sentence.where, [&] {
      const auto judged =
          text::classifier_input_of_tokens(tokenizer_, std::move(ids), std::nullopt, length_);
      sample.ids = judged.ids;
      sample.targets.assign(judged.ids.size(), -1);
      std::copy_n(targets.begin(), judged.first_length,
                  sample.targets.begin() + static_cast<std::ptrdiff_t>(judged.first_begin));
      cut_ += judged.cut ? 1 : 0;
    });
    return sample;
  }

  /// Resets the counts.
  std::vector<std::string> notes(std::string_view split, size_t examples) {
    std::vector<std::string> out{fmt::format("{}: {} examples", split, examples)};
    std::vector<std::string> classes;
    for (size_t i = 0; i < counts_.size() && i < 20; ++i)
      classes.push_back(fmt::format("{} {}", task_.classes.names()[i], counts_[i]));
    if (!classes.empty())
      out.back() +=
          fmt::format(" ({}{})", fmt::join(classes, ", "), counts_.size() > 20 ? ", ..." : "");
    if (cut_ > 0)
      out.push_back(fmt::format("{} of them were longer than train.length = {} tokens and cut",
                                cut_, length_));
    std::fill(counts_.begin(), counts_.end(), 0);
    cut_ = 0;
    return out;
  }

 private:
  void take_pair(const LabelledText& text, LabelSample& sample) {
    if (text.text_b.empty())
      fail(ErrorKind::input, "data",
           "{}: no second text, and the model compares two documents; expected it in "
           "data.text_b_key",
           text.where);
    at(text.where, [&] {
      for (const auto& [ids, own] :
           {std::pair(&sample.ids, &text.text), std::pair(&sample.second, &text.text_b)}) {
        const auto judged = text::classifier_input(tokenizer_, *own, std::nullopt, length_);
        *ids = judged.ids;
        cut_ += judged.cut ? 1 : 0;
      }
    });
  }
  void take_text(const LabelledText& text, LabelSample& sample) {
    if (task_.two_towers) return take_pair(text, sample);
    at(text.where, [&] {
      const auto judged = text::classifier_input(
          tokenizer_, text.text,
          text.text_b.empty() ? std::nullopt : std::optional<std::string_view>(text.text_b),
          length_);
      sample.ids = judged.ids;
      if (types_ > 1 && judged.second < judged.ids.size()) sample.types = types_of(judged);
      cut_ += judged.cut ? 1 : 0;
    });
  }
  template <class Make>
  void at(const std::string& where, Make make) {
    try {
      make();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      fail(error.kind(), "data", "{}: {}", where, without_place(error, "data"));
    }
  }

  int64_t length_;
  const FeatureMaker* features_;
  const LabelTask& task_;
  const text::Tokenizer& tokenizer_;
  text::WordTokens words_;
  int64_t types_;
  std::vector<int64_t> counts_;
  int64_t cut_ = 0;
};

/// Examples of both splits.
template <class Example, class Read>
std::pair<std::vector<Example>, std::vector<Example>> splits(const LabelData& data, Read read) {
  std::vector<Example> train = read(LabelSplit::train), valid;
  if (!data.valid.empty()) valid = read(LabelSplit::valid);
  if (data.valid_fraction > 0) {
    const std::vector<bool> out = held_out(std::ssize(train), data.valid_fraction);
    std::vector<Example> kept;
    for (size_t i = 0; i < train.size(); ++i)
      (out[i] ? valid : kept).push_back(std::move(train[i]));
    train = std::move(kept);
  }
  return {std::move(train), std::move(valid)};
}

template <class Example>
std::unique_ptr<Dataset> source_of(const DataPlan& plan,
                                   const LabelTask& task,
                                   const text::Tokenizer& tokenizer,
                                   const std::pair<std::vector<Example>, std::vector<Example>>& all,
                                   std::optional<FeatureMaker> features,
                                   const CancelToken* cancel) {
  SampleMaker make(plan, task, tokenizer, features ? &*features : nullptr);
  Sha256 key;
  std::vector<std::string> notes;
  const auto samples_of = [&](const std::vector<Example>& examples, const char* split) {
    std::vector<LabelSample> out;
    for (const Example& example : examples) {
      if (cancel != nullptr) cancel->check("data");
      out.push_back(make.of(example));
      check_vocabulary(plan.spec.vocab, out.back(), example.where);
      add_to_key(key, out.back());
    }
    key.update(split);
    if (out.empty()) return out;
    for (std::string& note : make.notes(split, out.size())) notes.push_back(std::move(note));
    return out;
  };
  std::vector<LabelSample> train = samples_of(all.first, "train"),
                           valid = samples_of(all.second, "valid");
  for (const auto* split : {&train, &valid})
    for (const LabelSample& sample : *split)
      if (!sample.types.empty() && plan.adapter && adapter_keys<VirtualTokenKeys>(*plan.adapter))
        fail(ErrorKind::spec, "adapter.type",
             "\"{}\" puts tokens before a text, which have no type, and pairs of texts have token "
             "types in this model; expected another type",
             spec::type_of(*plan.adapter));
  if (task.kind == LabelTask::Kind::words && plan.spec.causal())
    notes.push_back(
        "a decoder classifies each word without the words after it; an encoder sees all");
  return std::make_unique<LabelSource>(std::move(train), std::move(valid), std::move(notes),
                                       key.finish(), plan.train.seed, std::move(features));
}

/// For a spec that reads images or sounds.
std::optional<FeatureMaker> features_of(const DataPlan& plan) {
  const auto* embed = dynamic_cast<const nn::FeatureEmbedConfig*>(plan.spec.embed.config.get());
  if (embed == nullptr) return std::nullopt;
  const LabelData& data = *plan.data.labels();
  return FeatureMaker(*embed, feature_settings(data, *embed), data.augment, plan.train.length);
}

}  // namespace

PackedBatch packed_samples(const std::vector<const LabelSample*>& samples) {
  PackedBatch out;
  const bool typed = std::any_of(samples.begin(), samples.end(),
                                 [](const LabelSample* sample) { return !sample->types.empty(); });
  for (size_t row = 0; row < samples.size(); ++row) {
    const LabelSample* sample = samples[row];
    auto n = std::ssize(sample->ids);
    for (const auto* ids : {&sample->ids, &sample->second}) {
      if (ids == &sample->second && ids->empty()) continue;
      out.pieces.push_back({static_cast<int64_t>(row), std::ssize(out.ids), std::ssize(*ids)});
      out.ids.insert(out.ids.end(), ids->begin(), ids->end());
    }
    n += std::ssize(sample->second);
    const auto add = [&](std::vector<int64_t>& to, const std::vector<int64_t>& from,
                         int64_t otherwise) {
      if (from.empty())
        to.insert(to.end(), static_cast<size_t>(n), otherwise);
      else
        to.insert(to.end(), from.begin(), from.end());
    };
    add(out.targets, sample->targets, -1);
    if (typed) add(out.types, sample->types, 0);
    if (!sample->label.empty()) out.labels.push_back(sample->label);
  }
  out.n_targets =
      std::ssize(out.targets) - std::count(out.targets.begin(), out.targets.end(), int64_t{-1});
  return out;
}

void add_to_key(Sha256& key, const LabelSample& sample) {
  const auto add = [&](const auto& values) {
    key.update(std::string_view(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(values[0])));
    key.update("|");
  };
  add(sample.ids);
  add(sample.types);
  add(sample.targets);
  add(sample.label);
  if (!sample.second.empty()) add(sample.second);
  if (sample.feature == nullptr) return;
  add(sample.feature->shape);
  add(sample.feature->pixels);
  if (sample.feature->sound != nullptr) add(sample.feature->sound->samples);
}

int64_t token_types(const model::ModelSpec& spec) {
  const auto* embed = dynamic_cast<const nn::TokenEmbedConfig*>(spec.embed.config.get());
  return embed == nullptr ? 0 : embed->n_types;
}

void check_vocabulary(int64_t vocab, const LabelSample& sample, const std::string& where) {
  for (const auto* ids : {&sample.ids, &sample.second})
    for (const int64_t id : *ids)
      if (id >= vocab)
        fail(ErrorKind::input, "data", "{}: token id {}; the spec has a vocabulary of {}", where,
             id, vocab);
}

std::unique_ptr<Dataset> open_labels(const DataPlan& plan,
                                     const LabelTask& task,
                                     const text::Tokenizer& tokenizer,
                                     const CancelToken* cancel) {
  const LabelData& data = *plan.data.labels();
  if (task.kind == LabelTask::Kind::words)
    return source_of(plan, task, tokenizer,
                     splits<LabelledWords>(
                         data, [&](LabelSplit split) { return read_words(data, split, cancel); }),
                     std::nullopt, cancel);
  const LabelOf kind = task.kind == LabelTask::Kind::score         ? LabelOf::score
                       : task.kind == LabelTask::Kind::multi_label ? LabelOf::multi_label
                                                                   : LabelOf::one_class;
  return source_of(
      plan, task, tokenizer,
      splits<LabelledText>(data,
                           [&](LabelSplit split) { return read_texts(data, split, kind, cancel); }),
      features_of(plan), cancel);
}

}  // namespace tessera::train
