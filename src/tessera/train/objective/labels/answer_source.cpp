#include "tessera/train/data/data_file.h"
#include "tessera/train/objective/labels/answer_source.h"

#include <algorithm>

#include "tessera/infer/encoders/answer.h"

namespace tessera::train {
namespace {

/// The first and the last token of an answer in a window; nullopt if it is not completely in the
/// window.
std::optional<std::pair<size_t, size_t>> tokens_of(const text::AnswerWindow& window,
                                                   const Answer& answer) {
  const size_t end = answer.begin + answer.text.size();
  const auto& tokens = window.context;
  if (tokens.front().begin > answer.begin || tokens.back().end < end) return std::nullopt;
  std::optional<size_t> first, last;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].end <= answer.begin || tokens[i].begin >= end) continue;
    if (!first) first = i;
    last = i;
  }
  if (!first) return std::nullopt;
  return std::pair(*first, *last);
}

LabelSample sample_of(const text::AnswerWindow& window,
                      const Question& question,
                      bool causal,
                      int64_t types) {
  LabelSample sample;
  sample.ids = window.ids;
  if (types > 1) {
    sample.types.assign(sample.ids.size(), 0);
    std::fill(sample.types.begin() + static_cast<std::ptrdiff_t>(window.second), sample.types.end(),
              1);
  }
  const auto none = static_cast<double>(infer::none_token(window, causal));
  sample.label = {none, none};
  if (question.answers.empty()) return sample;
  if (const auto tokens = tokens_of(window, question.answers.front()))
    sample.label = {static_cast<double>(window.context_begin + tokens->first),
                    static_cast<double>(window.context_begin + tokens->second)};
  return sample;
}

class WindowSource final : public AnswerSource {
 public:
  WindowSource(std::vector<LabelSample> train,
               std::vector<AskedQuestion> valid,
               std::vector<std::string> notes,
               std::string key,
               const DataPlan& plan,
               bool some_lack)
      : train_(std::move(train)),
        valid_(std::move(valid)),
        key_(std::move(key)),
        order_(std::ssize(train_), static_cast<uint64_t>(plan.train.seed)),
        causal_(plan.spec.causal()),
        some_lack_(some_lack),
        types_(token_types(plan.spec)) {
    for (std::string& line : notes) remark(std::move(line));
  }

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<const LabelSample*> samples;
    for (int64_t sample = first; sample < first + count; ++sample)
      samples.push_back(&train_[static_cast<size_t>(order_.at(sample))]);
    return numbered(packed_samples(samples), first);
  }
  int64_t valid_samples() const override { return std::ssize(valid_); }
  PackedBatch valid(const std::vector<int64_t>& numbers) const override {
    std::vector<LabelSample> samples;
    for (const int64_t number : numbers) {
      const AskedQuestion& asked = question(number);
      for (const text::AnswerWindow& window : asked.windows)
        samples.push_back(sample_of(window, asked.question, causal_, types_));
    }
    std::vector<const LabelSample*> all;
    for (const LabelSample& sample : samples) all.push_back(&sample);
    return packed_samples(all);
  }
  const AskedQuestion& question(int64_t number) const override {
    return valid_.at(static_cast<size_t>(number));
  }
  bool some_lack() const override { return some_lack_; }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  std::vector<LabelSample> train_;
  std::vector<AskedQuestion> valid_;
  std::string key_;
  PairOrder order_;
  bool causal_, some_lack_;
  int64_t types_;
};

}  // namespace

std::unique_ptr<AnswerSource> open_answers(const DataPlan& plan,
                                           const LabelTask& task,
                                           const text::Tokenizer& tokenizer,
                                           const CancelToken* cancel) {
  const LabelData& data = *plan.data.labels();
  std::vector<Question> train = read_questions(data, LabelSplit::train, cancel), valid;
  if (!data.valid.empty()) valid = read_questions(data, LabelSplit::valid, cancel);
  if (data.valid_fraction > 0) {
    const std::vector<bool> out = held_out(std::ssize(train), data.valid_fraction);
    std::vector<Question> kept;
    for (size_t i = 0; i < train.size(); ++i)
      (out[i] ? valid : kept).push_back(std::move(train[i]));
    train = std::move(kept);
  }
  const bool causal = plan.spec.causal();
  const int64_t types = token_types(plan.spec);
  bool some_lack = false;
  Sha256 key;
  const auto asked = [&](Question question) {
    if (cancel != nullptr) cancel->check("data");
    some_lack = some_lack || question.answers.empty();
    AskedQuestion out{std::move(question)};
    try {
      out.windows = text::answer_windows(tokenizer, out.question.question, out.question.context,
                                         plan.train.length, task.stride);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      fail(error.kind(), "data", "{}: {}", out.question.where, without_place(error, "data"));
    }
    return out;
  };
  std::vector<LabelSample> samples;
  int64_t questions = 0;
  for (Question& question : train) {
    const AskedQuestion one = asked(std::move(question));
    ++questions;
    for (const text::AnswerWindow& window : one.windows) {
      samples.push_back(sample_of(window, one.question, causal, types));
      check_vocabulary(plan.spec.vocab, samples.back(), one.question.where);
      add_to_key(key, samples.back());
    }
  }
  key.update("valid");
  std::vector<AskedQuestion> held;
  for (Question& question : valid) {
    held.push_back(asked(std::move(question)));
    for (const text::AnswerWindow& window : held.back().windows) {
      const LabelSample sample = sample_of(window, held.back().question, causal, types);
      check_vocabulary(plan.spec.vocab, sample, held.back().question.where);
      add_to_key(key, sample);
    }
    for (const Answer& answer : held.back().question.answers) key.update(answer.text);
  }
  std::vector<std::string> notes{
      fmt::format("train: {} questions in {} windows", questions, samples.size())};
  if (!held.empty()) notes.push_back(fmt::format("valid: {} questions", held.size()));
  return std::make_unique<WindowSource>(std::move(samples), std::move(held), std::move(notes),
                                        key.finish(), plan, some_lack);
}

}  // namespace tessera::train
