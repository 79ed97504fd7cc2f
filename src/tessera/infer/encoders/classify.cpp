#include "tessera/infer/encoders/classify.h"

#include <algorithm>

#include "tessera/nn/embed/token.h"
#include "tessera/nn/head/classifier.h"

namespace tessera::infer {
namespace {

constexpr int64_t kTokensPerPass = 4096;

const nn::ClassifierConfig* classifier_of(const model::ModelSpec& spec) {
  return dynamic_cast<const nn::ClassifierConfig*>(spec.head.config.get());
}

int64_t limit_of(const LoadedModel& loaded, const ClassifyOptions& options) {
  const int64_t longest = loaded.model.spec().longest_sequence();
  if (longest == 0) return options.max_tokens;
  return options.max_tokens == 0 ? longest : std::min(longest, options.max_tokens);
}

bool has_types(const model::ModelSpec& spec) {
  const auto* embed = dynamic_cast<const nn::TokenEmbedConfig*>(spec.embed.config.get());
  return embed != nullptr && embed->n_types > 1;
}

void check_known(const model::ModelSpec& spec, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids)
    if (id >= spec.vocab)
      fail(ErrorKind::input, "classify", "token id {}; the model has a vocabulary of {}", id,
           spec.vocab);
}

/// Documents of one model call.
struct TextRows {
  std::vector<std::vector<int64_t>> ids;
  std::vector<int64_t> types;
  bool typed = false;  // some are pairs

  void add(std::vector<int64_t> own, size_t second) {
    typed = typed || second < own.size();
    for (size_t t = 0; t < own.size(); ++t) types.push_back(t >= second ? 1 : 0);
    ids.push_back(std::move(own));
  }
  nn::Batch batch(const model::ModelSpec& spec) const {
    nn::Batch out = nn::Batch::of(ids);
    if (typed && has_types(spec)) out.types_N = at::tensor(types, at::kLong);
    return out;
  }
};

std::vector<double> doubles_of(const Tensor& values) {
  const Tensor x = values.to(at::kCPU, at::kDouble).contiguous();
  return {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()};
}

size_t largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

ClassificationTask classification_task_of(const LoadedModel& loaded) {
  const model::ModelSpec& spec = loaded.model.spec();
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "classify",
         "this model has no tokenizer; expected tokenizer.json or vocab.txt in its folder");
  if (spec.head && spec.head.type() == "span") return ClassificationTask::answers;
  const nn::ClassifierConfig* head = classifier_of(spec);
  if (head == nullptr || spec.encoder)
    fail(ErrorKind::usage, "classify",
         "this model has {}; expected a classifier or a span head (`tessera finetune MODEL --data "
         "FILE` makes one)",
         spec.head ? fmt::format("the head \"{}\"", spec.head.type()) : "no head");
  return head->of == nn::ClassifierOf::tokens ? ClassificationTask::words
                                              : ClassificationTask::texts;
}

std::vector<std::string> class_names(const model::ModelSpec& spec) {
  const nn::ClassifierConfig& head = *classifier_of(spec);
  if (!head.labels.empty()) return head.labels;
  std::vector<std::string> out;
  for (int64_t i = 0; i < head.n_labels; ++i) out.push_back(std::to_string(i));
  return out;
}

bool compares_documents(const model::ModelSpec& spec) {
  const nn::ClassifierConfig* head = classifier_of(spec);
  return head != nullptr && head->two_towers();
}

std::vector<text::ClassifierInput> classifier_inputs(const LoadedModel& loaded,
                                                     std::string_view first,
                                                     std::optional<std::string_view> second,
                                                     int64_t limit) {
  if (!compares_documents(loaded.model.spec()))
    return {text::classifier_input(*loaded.tokenizer, first, second, limit)};
  if (!second)
    fail(ErrorKind::input, "classify",
         "found one text, and the model compares two documents; expected a pair of texts");
  return {text::classifier_input(*loaded.tokenizer, first, std::nullopt, limit),
          text::classifier_input(*loaded.tokenizer, *second, std::nullopt, limit)};
}

Tensor classifier_logits(const LoadedModel& loaded,
                         const std::vector<text::ClassifierInput>& texts,
                         const CancelToken* cancel) {
  const at::NoGradGuard no_gradients;
  TextRows rows;
  for (const text::ClassifierInput& text : texts) {
    check_known(loaded.model.spec(), text.ids);
    rows.add(text.ids, text.second);
  }
  const nn::Batch batch = rows.batch(loaded.model.spec());
  model::ForwardOptions call;
  call.cancel = cancel;
  return loaded.model.logits(loaded.model.pooled(loaded.model.hidden(batch, call), batch))
      .to(at::kCPU, at::kDouble);
}

std::vector<ClassPrediction> classify_texts(const LoadedModel& loaded,
                                            const std::vector<ClassifierPair>& texts,
                                            const ClassifyOptions& options) {
  const at::NoGradGuard no_gradients;
  std::vector<ClassPrediction> out;
  std::vector<text::ClassifierInput> next;
  int64_t tokens = 0;
  const auto compute = [&] {
    if (next.empty()) return;
    const Tensor wide = classifier_logits(loaded, next, options.cancel);
    const Tensor p_RC = options.multi_label ? wide.sigmoid() : wide.softmax(-1);
    for (int64_t row = 0; row < wide.size(0); ++row) {
      ClassPrediction& one = out[out.size() - static_cast<size_t>(wide.size(0) - row)];
      one.logits = doubles_of(wide[row]);
      one.probabilities = doubles_of(p_RC[row]);
      one.best = largest(one.logits);
    }
    next.clear();
    tokens = 0;
  };
  for (const ClassifierPair& pair : texts) {
    std::vector<text::ClassifierInput> inputs;
    try {
      inputs = classifier_inputs(
          loaded, pair.text,
          pair.second ? std::optional<std::string_view>(*pair.second) : std::nullopt,
          limit_of(loaded, options));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::input) throw;
      fail(ErrorKind::input, "classify", "text {}: {}", out.size() + 1, error.what());
    }
    out.emplace_back();
    for (text::ClassifierInput& input : inputs) {
      check_known(loaded.model.spec(), input.ids);
      out.back().cut = out.back().cut || input.cut;
      tokens += static_cast<int64_t>(input.ids.size());
      next.push_back(std::move(input));
    }
    if (tokens >= kTokensPerPass) compute();
  }
  compute();
  return out;
}

std::vector<WordPrediction> classify_words(const LoadedModel& loaded,
                                           const std::vector<std::string>& words,
                                           const ClassifyOptions& options) {
  const at::NoGradGuard no_gradients;
  const text::WordTokens tokens(*loaded.tokenizer);
  std::vector<WordPrediction> out;
  std::vector<int32_t> ids;
  std::vector<size_t> firsts;  // index of each word's first token
  for (const std::string& word : words) {
    out.push_back({word});
    firsts.push_back(ids.size());
    const std::vector<int32_t> own = tokens.of(word, out.size() == 1);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  text::ClassifierInput judged = text::classifier_input_of_tokens(
      *loaded.tokenizer, ids, std::nullopt, limit_of(loaded, options));
  check_known(loaded.model.spec(), judged.ids);
  model::ForwardOptions call;
  call.cancel = options.cancel;
  const Tensor logits_NC = loaded.model.logits(
      loaded.model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{judged.ids}), call));
  const Tensor p_NC = logits_NC.to(at::kCPU, at::kDouble).softmax(-1);
  for (size_t i = 0; i < out.size(); ++i) {
    // words past the end or before the begin, and words without tokens
    const size_t next = i + 1 < out.size() ? firsts[i + 1] : ids.size();
    const size_t end = judged.first_dropped + judged.first_length;
    out[i].cut = firsts[i] < judged.first_dropped || firsts[i] >= end || firsts[i] == next;
    if (out[i].cut) continue;
    const std::vector<double> p = doubles_of(
        p_NC[static_cast<int64_t>(judged.first_begin + firsts[i] - judged.first_dropped)]);
    out[i].best = largest(p);
    out[i].probability = p[out[i].best];
  }
  return out;
}

SpanAnswer find_answer(const LoadedModel& loaded,
                       const std::string& question,
                       const std::string& context,
                       const ClassifyOptions& options) {
  const at::NoGradGuard no_gradients;
  const model::ModelSpec& spec = loaded.model.spec();
  constexpr int64_t kUsual = 384;
  const int64_t limit = limit_of(loaded, options);
  const auto windows = text::answer_windows(
      *loaded.tokenizer, question, context,
      options.max_tokens > 0 || limit == 0 ? std::max<int64_t>(limit, 1) : std::min(limit, kUsual),
      options.stride);
  std::vector<SpanLogits> logits;
  for (const text::AnswerWindow& window : windows) {
    check_known(spec, window.ids);
    TextRows rows;
    rows.add(window.ids, window.second);
    model::ForwardOptions call;
    call.cancel = options.cancel;
    const Tensor own = loaded.model.logits(loaded.model.hidden(rows.batch(spec), call));
    logits.push_back({doubles_of(own.select(1, 0)), doubles_of(own.select(1, 1))});
  }
  return best_answer(windows, logits, options.max_answer, options.allow_no_answer, spec.causal());
}

}  // namespace tessera::infer
