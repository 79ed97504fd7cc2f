#include "tessera/infer/engine/mask_predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/infer/engine/task.h"
#include "tessera/infer/sampling/decoding_fields.h"

namespace tessera::infer {

MaskedText::MaskedText(int64_t length, int64_t mask)
    : mask_(mask),
      tokens_(static_cast<size_t>(length), mask),
      log_p_(static_cast<size_t>(length), -std::numeric_limits<double>::infinity()),
      masked_(static_cast<size_t>(length), true) {}

std::vector<int64_t> MaskedText::read() const {
  std::vector<int64_t> ids = tokens_;
  for (size_t i = 0; i < ids.size(); ++i)
    if (masked_[i]) ids[i] = mask_;
  return ids;
}

void MaskedText::fill(std::span<const float> logits) {
  const size_t vocab = logits.size() / tokens_.size();
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!masked_[i]) continue;
    const auto row = logits.subspan(i * vocab, vocab);
    size_t best = vocab;
    for (size_t v = 0; v < vocab; ++v)
      if (static_cast<int64_t>(v) != mask_ && (best == vocab || row[v] > row[best])) best = v;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v)
      if (static_cast<int64_t>(v) != mask_)
        sum += std::exp(static_cast<double>(row[v]) - static_cast<double>(row[best]));
    if (!std::isfinite(sum))
      fail(ErrorKind::input, "generate", "logits that are not finite among {}", vocab);
    tokens_[i] = static_cast<int64_t>(best);
    log_p_[i] = -std::log(sum);
    masked_[i] = false;
  }
}

void MaskedText::mask(int64_t n) {
  std::vector<size_t> order(tokens_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return log_p_[a] < log_p_[b]; });
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) masked_[order[i]] = true;
}

double MaskedText::mean_log_p() const {
  return std::accumulate(log_p_.begin(), log_p_.end(), 0.0) / static_cast<double>(length());
}

int64_t masked_again(int64_t length, int64_t done, int64_t iterations) {
  return length * (iterations - done) / iterations;
}

std::vector<int64_t> likely_lengths(std::span<const float> logits,
                                    int64_t most,
                                    int64_t least,
                                    int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t n = std::max<int64_t>(1, least); n <= std::min<int64_t>(longest, std::ssize(logits));
       ++n)
    lengths.push_back(n);
  std::stable_sort(lengths.begin(), lengths.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a - 1)] > logits[static_cast<size_t>(b - 1)];
  });
  lengths.resize(std::min(lengths.size(), static_cast<size_t>(most)));
  return lengths;
}

void check_mask_predict(const model::ModelSpec& spec, const Request& request) {
  const DecodingOptions& decoding = request.decoding;
  if (!spec.mask) {
    if (decoding.mask_predict)
      fail(ErrorKind::usage, "generate",
           "iterations and lengths for a model that writes from left to right; leave them out");
    return;
  }
  const auto refuse = [](const std::string& what) {
    fail(ErrorKind::usage, "generate",
         "{} for a model that predicts all tokens of a text at once (mask-predict); leave it out: "
         "it takes iterations and length candidates",
         what);
  };
  if (request.beams) refuse("a search with beams");
  if (request.resume_from || request.keep) refuse("a session");
  if (!request.targets.ids.empty()) refuse("the likelihood of a text from left to right");
  if (request.logprobs) refuse("the likelihood of every token (logprobs)");
  if (decoding.constraint) refuse("a grammar");
  if (!decoding.stop_strings.empty()) refuse("a text that ends it (stop)");
  if (!decoding.forced_begin.empty() || decoding.forced_end)
    refuse("ids that it is forced to have");
  if (decoding.choice != 0) refuse("another choice");
  if (!decoding.sampling.logit_bias.empty()) refuse("logit_bias");
  for (const DecodingField& field : sampling_fields())
    if (field.get(decoding.sampling) != field.get(SamplingOptions())) refuse(field.flag());
  if (const MaskPredictOptions how = decoding.mask_predict.value_or(MaskPredictOptions());
      how.iterations < 1 || how.lengths < 1)
    fail(ErrorKind::usage, "generate",
         "{} iterations, {} length candidates; expected at least 1 of each", how.iterations,
         how.lengths);
}

namespace {

class MaskPredict final : public Task {
 public:
  MaskPredict(const model::Model& model, const text::Tokenizer* tokenizer, const Request& request)
      : Task(model, request),
        model_(model),
        request_(request),
        how_(request.decoding.mask_predict.value_or(MaskPredictOptions())) {
    // the row that feeds the source to the encoder, which predicts the lengths
    rows_.push_back({request.prompt, {1, mask()}});
    result_.prompt_tokens = size_of(request.prompt.source);
    if (tokenizer != nullptr)
      decoder_.emplace(*tokenizer, /*skip_special=*/!request.decoding.show_special);
    open();
  }

  bool whole() const override { return true; }

  std::vector<const Sequence*> rows() const override {
    std::vector<const Sequence*> rows;
    for (const Candidate& row : rows_) rows.push_back(&row.sequence);
    return rows;
  }

  void read_source(const nn::Encoded& source) override {
    const Tensor logits =
        model_.target_lengths(source).to(at::kCPU, at::kFloat).flatten().contiguous();
    const DecodingOptions& decoding = request_.decoding;
    const int64_t positions = longest_sequence(model_.spec(), decoding.context);
    int64_t longest = std::min(decoding.max_new_tokens, logits.numel());
    if (positions > 0) longest = std::min(longest, positions);
    lengths_ = likely_lengths({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())},
                              how_.lengths, decoding.min_new_tokens, longest);
    if (lengths_.empty())
      fail(ErrorKind::usage, "generate",
           "at least {} new tokens, and at most {}: this model's answers have 1 to {} tokens",
           decoding.min_new_tokens, longest, logits.numel());
  }

  void choose(const Tensor& logits, const DraftTree&) override {
    if (done_ < 0) return;
    const float* data = logits.const_data_ptr<float>();
    for (Candidate& row : rows_) {
      const int64_t n = row.text.length() * logits.size(1);
      row.text.fill({data, static_cast<size_t>(n)});
      data += n;
    }
  }

  Outcome take() override {
    Outcome outcome;
    std::vector<Candidate> next;
    if (++done_ == 0) {
      for (const int64_t n : lengths_) next.push_back({request_.prompt, {n, mask()}});
      outcome.parents.assign(next.size(), 0);
    } else {
      for (size_t i = 0; i < rows_.size(); ++i) {
        MaskedText text = rows_[i].text;
        const int64_t n = masked_again(text.length(), done_, how_.iterations);
        if (n == 0) {
          judge(text);
          continue;
        }
        text.mask(n);
        next.push_back({request_.prompt, std::move(text)});
        outcome.parents.push_back(i);
      }
    }
    if (next.empty()) {
      settle("stop");
      return outcome;
    }
    rows_ = std::move(next);
    for (Candidate& row : rows_) row.sequence.tokens = row.text.read();
    return outcome;
  }

  void finish(const char* reason) override {
    if (done()) return;
    if (done_ > 0)
      for (const Candidate& row : rows_) judge(row.text);
    settle(reason);
  }

 private:
  struct Candidate {
    Sequence sequence;
    MaskedText text;
  };

  int64_t mask() const { return *model_.spec().mask; }

  void open() override {
    if (request_.decoding.max_new_tokens == 0) settle("length");
  }

  /// Keeps the better text. Ties go to the more likely length, which need not finish first.
  void judge(const MaskedText& text) {
    const auto rank = [this](const MaskedText& one) {
      return std::find(lengths_.begin(), lengths_.end(), one.length()) - lengths_.begin();
    };
    if (best_) {
      const double own = text.mean_log_p(), other = best_->mean_log_p();
      if (own < other || (own == other && rank(text) > rank(*best_))) return;
    }
    best_ = text;
  }

  void settle(const char* reason) {
    result_.finish_reason = reason;
    if (!best_) return;
    result_.token_ids = best_->tokens();
    if (request_.on_token)
      for (const int64_t id : result_.token_ids) request_.on_token(id);
    if (!decoder_) return;
    for (const int64_t id : result_.token_ids)
      result_.text += decoder_->push(static_cast<int32_t>(id));
    result_.text += decoder_->finish();
    if (request_.on_text) request_.on_text(result_.text);
  }

  const model::Model& model_;
  Request request_;
  MaskPredictOptions how_;
  std::optional<text::StreamDecoder> decoder_;
  std::vector<int64_t> lengths_;  // most likely first
  std::vector<Candidate> rows_;
  std::optional<MaskedText> best_;  // of the finished candidates
  int64_t done_ = -1;               // iterations so far; -1 = lengths are not known yet
};

}  // namespace

std::unique_ptr<Task> make_mask_predict(const model::Model& model,
                                        const text::Tokenizer* tokenizer,
                                        const Request& request) {
  return std::make_unique<MaskPredict>(model, tokenizer, request);
}

}  // namespace tessera::infer
