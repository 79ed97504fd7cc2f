#include "tessera/infer/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "tessera/infer/guesser.h"
#include "tessera/infer/request.h"

namespace tessera::infer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One row's progress: its tokens, its text, and whether it is done.
class Row {
 public:
  Row(size_t index,
      const std::vector<int64_t>& prompt,
      const model::ModelSpec& spec,
      const text::Tokenizer* tokenizer,
      const GenerateOptions& options)
      : index_(index),
        options_(options),
        sequence_(first_sequence(spec, prompt)),
        key_(RandomKey(options.sampling.seed).fold("sampling")) {
    result_.prompt_tokens = static_cast<int64_t>(prompt.size());
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
      if (spec.encoder) return;
      const std::vector<int32_t> ids(prompt.begin(), prompt.end());
      decoder_->prime(ids);
    }
  }

  bool done() const { return !result_.finish_reason.empty(); }
  const Sequence& sequence() const { return sequence_; }
  /// Tokens that may still come.
  int64_t left() const {
    return options_.max_new_tokens - static_cast<int64_t>(result_.token_ids.size());
  }
  Generation take() { return std::move(result_); }

  /// The token after `tokens`, which may be guesses: a function of these, logits and seed alone.
  int64_t choose(std::span<const float> logits, const std::vector<int64_t>& tokens) const {
    return sample(logits, tokens, options_.sampling, key_);
  }

  void accept(std::span<const float> logits) {
    const int64_t id = choose(logits, sequence_.tokens);
    if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
        options_.stop_ids.end())
      return finish("stop");
    sequence_.tokens.push_back(id);
    result_.token_ids.push_back(id);
    if (decoder_ && add_text(decoder_->push(static_cast<int32_t>(id)), false))
      return finish("stop");
    if (static_cast<int64_t>(result_.token_ids.size()) >= options_.max_new_tokens) finish("length");
  }

  void finish(const char* reason) {
    if (done()) return;
    if (decoder_ && !stopped_ && add_text(decoder_->finish(), true)) reason = "stop";
    result_.finish_reason = reason;
  }

 private:
  /// Appends text, emits what is certain; true when a stop string was met.
  bool add_text(const std::string& piece, bool last) {
    result_.text += piece;
    size_t end = std::string::npos;
    for (const std::string& stop : options_.stop_strings)
      if (!stop.empty()) end = std::min(end, result_.text.find(stop, emitted_));
    stopped_ = end != std::string::npos;
    if (stopped_) result_.text.resize(end);
    // hold back what may be the beginning of a stop string
    size_t certain = result_.text.size();
    if (!stopped_ && !last)
      for (const std::string& stop : options_.stop_strings)
        for (size_t n = std::min(stop.size(), result_.text.size() - emitted_); n > 0; --n)
          if (result_.text.compare(result_.text.size() - n, n, stop, 0, n) == 0) {
            certain = std::min(certain, result_.text.size() - n);
            break;
          }
    if (certain > emitted_ && options_.on_text)
      options_.on_text(index_, std::string_view(result_.text).substr(emitted_, certain - emitted_));
    emitted_ = std::max(emitted_, certain);
    return stopped_;
  }

  size_t index_;
  const GenerateOptions& options_;
  Sequence sequence_;
  RandomKey key_;
  std::optional<text::StreamDecoder> decoder_;
  size_t emitted_ = 0;
  bool stopped_ = false;
  Generation result_;
};

std::span<const float> row_of(const Tensor& logits_NC, int64_t row) {
  return {logits_NC.const_data_ptr<float>() + row * logits_NC.size(1),
          static_cast<size_t>(logits_NC.size(1))};
}

/// What the steps of one call of generate() share.
struct Run {
  const model::Model& model;
  const GenerateOptions& options;
  int64_t limit;  // tokens of a sequence, 0 = any
  Feeder feeder;
  std::optional<Guesser> guesser;
  std::vector<Row> rows;
  std::vector<const Sequence*> sequences;

  /// One token for every row.
  void step(const std::vector<size_t>& active) {
    const Tensor logits = feeder.next(active, sequences).to(at::kCPU, at::kFloat).contiguous();
    for (size_t a = 0; a < active.size(); ++a)
      rows[active[a]].accept(row_of(logits, static_cast<int64_t>(a)));
  }

  /// Guesses, and the model's word on them: for every row as many tokens as it would have chosen
  /// itself, and the one after.
  void guessed_step(const std::vector<size_t>& active, Generations& out) {
    const auto guesses = guess(active);
    const std::vector<Tensor> parts = feeder.ahead(active, sequences, guesses);
    for (size_t a = 0; a < active.size(); ++a) {
      Row& row = rows[active[a]];
      const std::vector<int64_t>& guessed = guesses[active[a]];
      const Tensor logits = parts[a].to(at::kCPU, at::kFloat).contiguous();
      size_t right = 0;
      row.accept(row_of(logits, 0));
      while (right < guessed.size() && !row.done() &&
             row.sequence().tokens.back() == guessed[right])
        row.accept(row_of(logits, static_cast<int64_t>(++right)));
      const auto kept = static_cast<int64_t>(right);
      feeder.keep(active[a], kept + 1);
      if (!guessed.empty()) guesser->keep(active[a], kept);
      out.decode_tokens += kept + 1;
      out.guessed_tokens += static_cast<int64_t>(guessed.size());
      out.accepted_tokens += kept;
    }
  }

  std::vector<std::vector<int64_t>> guess(const std::vector<size_t>& active) {
    const int64_t border = model.spec().switch_length();
    std::vector<std::vector<int64_t>> tokens(rows.size());
    std::vector<int64_t> counts(rows.size(), 0);
    for (const size_t r : active) {
      tokens[r] = rows[r].sequence().tokens;
      const auto length = static_cast<int64_t>(tokens[r].size());
      counts[r] = std::min(options.speculation.guesses, rows[r].left() - 1);
      if (limit > 0) counts[r] = std::min(counts[r], limit - length);
      // no guess goes where all angles change
      if (border >= length) counts[r] = std::min(counts[r], border - length);
    }
    return guesser->guess(
        std::move(tokens), std::move(counts),
        [&](size_t row, std::span<const float> logits, const std::vector<int64_t>& so_far) {
          return rows[row].choose(logits, so_far);
        });
  }
};

}  // namespace

Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options) {
  const int64_t limit = check_request(model, prompts, options);
  const at::NoGradGuard no_gradients;
  const Speculation& speculation = options.speculation;
  Run run{model,
          options,
          limit,
          Feeder(model, prompts.size(), options.prefill_chunk, options.cancel,
                 speculation.on() ? speculation.guesses + 1 : 0, options.kv),
          std::nullopt,
          {},
          {}};
  if (speculation.on()) run.guesser.emplace(model, prompts.size(), options);
  std::vector<Row>& rows = run.rows;
  for (size_t r = 0; r < prompts.size(); ++r)
    rows.emplace_back(r, prompts[r], model.spec(), tokenizer, options);
  for (const Row& row : rows) run.sequences.push_back(&row.sequence());
  Generations out;
  for (bool prefill = true;; prefill = false) {
    std::vector<size_t> active;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (options.cancel != nullptr && options.cancel->requested()) rows[r].finish("cancelled");
      if (options.max_new_tokens <= 0 ||
          (limit > 0 && static_cast<int64_t>(rows[r].sequence().tokens.size()) > limit))
        rows[r].finish("length");
      if (!rows[r].done()) active.push_back(r);
    }
    if (active.empty()) break;
    const auto start = Clock::now();
    try {
      if (run.guesser && !prefill && !run.feeder.changes(active, run.sequences)) {
        run.guessed_step(active, out);
      } else {
        run.step(active);
        if (!prefill) out.decode_tokens += static_cast<int64_t>(active.size());
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
      continue;  // the rows above finish as cancelled
    }
    (prefill ? out.prefill_seconds : out.decode_seconds) += seconds_since(start);
    if (prefill)
      for (const auto& prompt : prompts) out.prefill_tokens += static_cast<int64_t>(prompt.size());
  }
  for (Row& row : rows) out.rows.push_back(row.take());
  return out;
}

}  // namespace tessera::infer
