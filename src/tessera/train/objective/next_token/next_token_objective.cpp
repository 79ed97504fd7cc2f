#include "tessera/train/objective/next_token/next_token_objective.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/model/call_plan.h"
#include "tessera/base/sha256.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/data/tasks.h"

namespace tessera::train {
namespace {

/// Sources for the encoder and targets for the decoder; without an encoder the source is a prefix.
class PairSource final : public Dataset {
 public:
  PairSource(TokenData data, const DataPlan& plan, const LengthSchedule& ramp)
      : data_(std::move(data)),
        order_(std::max<int64_t>(1, data_.train.documents() / 2),
               static_cast<uint64_t>(plan.train.seed)),
        prefixed_(!plan.spec.encoder),
        start_(plan.spec.start),
        ramp_(ramp) {
    remark_cuts();
  }

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
  /// Of the targets.
  double tokens_per_byte() const override {
    int64_t tokens = 0;
    for (int64_t document = 1; document < data_.valid.documents(); document += 2)
      tokens += data_.valid.document(document).second;
    const auto bytes = static_cast<double>(data_.valid.text_bytes());
    return bytes > 0 ? static_cast<double>(tokens) / bytes : 0;
  }
  const std::string& key() const override { return data_.key; }

 private:
  /// Number of tokens truncated by train.length.
  void remark_cuts() {
    for (const auto& [split, name] : {std::pair{&data_.train, "train"}, {&data_.valid, "valid"}}) {
      int64_t sources = 0, texts = 0;
      for (int64_t document = 0; document + 1 < split->documents(); document += 2) {
        const int64_t source = split->document(document).second,
                      text = split->document(document + 1).second;
        // both as one text, without the separator between them and the last input
        const int64_t joined = source + text - 1 - (data_.separator ? 1 : 0);
        sources += !prefixed_ && source > ramp_.to ? 1 : 0;
        texts += (prefixed_ ? joined : text) > ramp_.to ? 1 : 0;
      }
      if (sources + texts > 0)
        remark(fmt::format(
            "of {} {} pairs {} sources and {} targets are longer than train.length = {} tokens "
            "and are truncated: the end of such a target is not trained",
            split->documents() / 2, name, sources, texts, ramp_.to));
    }
  }
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
  LengthSchedule ramp_;
};

class TaskSource final : public Dataset {
 public:
  TaskSource(const TaskRecipe& task, int64_t vocab, const TrainRecipe& how)
      : task_(task),
        keys_(keys_of_task(task_)),
        vocab_(vocab),
        length_(how.length),
        random_(RandomKey(static_cast<uint64_t>(how.seed)).fold("data")),
        key_(sha256("made, not read; version 1")) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<RandomKey> keys;
    for (int64_t sample = first; sample < first + count; ++sample) keys.push_back(key_of(sample));
    return numbered(batch(keys, length_), first);
  }
  int64_t valid_samples() const override { return keys_.valid; }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<RandomKey> keys;
    for (const int64_t sample : samples)
      keys.push_back(random_.fold("valid").fold(static_cast<uint64_t>(sample)));
    return batch(keys, keys_.valid_length > 0 ? keys_.valid_length : length_);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  /// Example number of a training sample; a finite set is shuffled in every epoch.
  RandomKey key_of(int64_t sample) const {
    int64_t number = sample;
    if (const int64_t n = keys_.examples; n > 0)
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
  TaskKeys keys_;
  int64_t vocab_, length_;
  RandomKey random_;
  std::string key_;
};

class NextTokens final : public ObjectiveConfig {
 public:
  explicit NextTokens(std::string type) : type_(std::move(type)) {}
  std::string type() const override { return type_; }
  spec::Json dump() const override { return nullptr; }

  void check(const ModelPlan& plan) const override {
    check_predicts_tokens(plan.spec, type());
    if (plan.spec.encoder && !plan.data.has_sources())
      fail(ErrorKind::spec, "data.source_key",
           "missing; an encoder_decoder learns from pairs: expected the key of what the encoder "
           "reads in every line of a jsonl file");
    const int64_t prefix = model::CallPlan(plan.spec).first_call(0);
    if (plan.data.has_sources() || prefix == 0) return;
    if (prefix > plan.train.length && plan.data.task() == nullptr)
      fail(ErrorKind::spec, "train.length",
           "{} tokens; the first {} of a document see each other, which leaves none to predict: "
           "expected at least {}",
           plan.train.length, prefix, prefix);
    const Curriculum& curriculum = plan.train.curriculum;
    if (curriculum.steps > 0 && prefix > curriculum.from)
      fail(ErrorKind::spec, "train.curriculum.from",
           "found {}; the first {} tokens of a document see each other, which leaves none to "
           "predict: expected at least {}",
           curriculum.from, prefix, prefix);
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    if (const TaskRecipe* task = plan.data.task())
      return std::make_unique<TaskSource>(*task, plan.spec.vocab, plan.train);
    return of_texts(plan, cache, cancel,
                    [&](TokenData data, const text::Tokenizer&,
                        const LengthSchedule& ramp) -> std::unique_ptr<Dataset> {
                      if (plan.data.has_sources()) return pair_source(std::move(data), plan, ramp);
                      return text_windows(std::move(data), plan.train,
                                          model::CallPlan(plan.spec).first_call(0), ramp);
                    });
  }

 private:
  std::string type_;
};

}  // namespace

std::unique_ptr<Dataset> pair_source(TokenData data,
                                     const DataPlan& plan,
                                     const LengthSchedule& ramp) {
  return std::make_unique<PairSource>(std::move(data), plan, ramp);
}

ObjectivePtr next_token_objective() {
  return std::make_shared<NextTokens>("causal_lm");
}

ObjectivePtr default_objective(const model::ModelSpec& spec, const DataRecipe& data) {
  if (const TaskRecipe* task = data.task())
    return std::make_shared<NextTokens>(std::string(spec::type_of(*task)));
  if (spec.encoder) return std::make_shared<NextTokens>("seq2seq");
  if (data.has_sources()) return std::make_shared<NextTokens>("prefix_lm");
  return next_token_objective();
}

void check_predicts_tokens(const model::ModelSpec& spec, std::string_view type) {
  if (spec.mask)
    fail(ErrorKind::spec, "objective.type",
         "\"{}\" with a decoder that sees targets whole (\"mask\" of the spec); expected "
         "\"mask_predict\"",
         type);
  if (!spec.causal())
    fail(ErrorKind::spec, "spec.arch",
         "\"{}\" cannot be trained to predict the next token; expected \"decoder\" or "
         "\"encoder_decoder\"",
         name_of(spec.arch));
  if (!spec.head)
    fail(ErrorKind::spec, "spec.head", "missing; a model without logits cannot be trained");
}

}  // namespace tessera::train
