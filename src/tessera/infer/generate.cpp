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
  /// `begin`: what is read before the first new token.
  Row(size_t index,
      Sequence begin,
      const text::Tokenizer* tokenizer,
      const GenerateOptions& options)
      : index_(index),
        options_(options),
        sequence_(std::move(begin)),
        begin_(static_cast<int64_t>(sequence_.tokens.size())),
        key_(RandomKey(options.sampling.seed).fold("sampling")) {
    const bool answers = !sequence_.source.empty();
    result_.prompt_tokens =
        static_cast<int64_t>(answers ? sequence_.source.size() : sequence_.tokens.size());
    if (tokenizer == nullptr) return;
    decoder_.emplace(*tokenizer);
    // beside an encoder the text begins behind the start token
    const std::vector<int32_t> ids(sequence_.tokens.begin() + (answers ? 1 : 0),
                                   sequence_.tokens.end());
    decoder_->prime(ids);
  }

  bool done() const { return !result_.finish_reason.empty(); }
  const Sequence& sequence() const { return sequence_; }
  /// Tokens that may still come.
  int64_t left() const {
    return options_.max_new_tokens - static_cast<int64_t>(result_.token_ids.size());
  }
  /// `reused` tokens of what it read were not computed.
  void book(int64_t reused) { result_.cached_tokens = std::min(reused, result_.prompt_tokens); }
  int64_t computed() const { return result_.prompt_tokens - result_.cached_tokens; }
  Generation take() { return std::move(result_); }

  /// The token after `tokens`, which may be guesses: a function of these, logits and seed alone.
  int64_t choose(std::span<const float> logits, const std::vector<int64_t>& tokens) const {
    const auto forced = forced_id(options_, static_cast<int64_t>(tokens.size()) - begin_);
    return forced ? *forced : sample(logits, tokens, options_.sampling, key_);
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
  int64_t begin_;  // of the new tokens
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

  /// Every row begins with its prompt, behind its row of a session where there is one.
  void begin(const std::vector<std::vector<int64_t>>& prompts, const text::Tokenizer* tokenizer) {
    const Session* session = options.session;
    for (size_t r = 0; r < prompts.size(); ++r) {
      const bool resumed = session != nullptr && !session->rows.empty();
      rows.emplace_back(
          r, first_sequence(model.spec(), prompts[r], resumed ? &session->rows[r] : nullptr),
          tokenizer, options);
      const auto row = static_cast<int64_t>(r);
      if (resumed && session->state.rows() > 0 && session->state.length(row) > 0)
        feeder.resume(r, session->state.select({row}), session->last[r]);
    }
    for (const Row& row : rows) sequences.push_back(&row.sequence());
  }

  /// What the rows have come to, for those who go on from there.
  void end() {
    feeder.remember(sequences);
    Session* session = options.session;
    if (session == nullptr) return;
    session->rows.clear();
    session->last.clear();
    for (size_t r = 0; r < rows.size(); ++r) {
      session->rows.push_back(*sequences[r]);
      session->last.push_back(feeder.last(r));
    }
    session->state = feeder.state();
    session->seed = options.sampling.seed;
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
    std::vector<std::vector<int64_t>> tokens(rows.size());
    std::vector<int64_t> counts(rows.size(), 0);
    for (const size_t r : active) {
      tokens[r] = rows[r].sequence().tokens;
      const auto length = static_cast<int64_t>(tokens[r].size());
      counts[r] = std::min(options.speculation.guesses, rows[r].left() - 1);
      if (limit > 0) counts[r] = std::min(counts[r], limit - length);
      // no guess goes where all angles change
      counts[r] = std::min(counts[r], model.spec().angles_until(length) - length);
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
          Feeder(model, prompts.size(),
                 {options.prefill_chunk, options.cancel, speculation.max_pending(),
                  options.prefix_cache, options.kv}),
          std::nullopt,
          {},
          {}};
  std::vector<Row>& rows = run.rows;
  run.begin(prompts, tokenizer);
  if (speculation.on()) run.guesser.emplace(model, run.sequences, options);
  if (options.on_start) options.on_start();
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
    if (!prefill) continue;
    for (const size_t r : active) {
      rows[r].book(run.feeder.reused(r));
      out.prefill_tokens += rows[r].computed();
    }
  }
  run.end();
  for (Row& row : rows) out.rows.push_back(row.take());
  return out;
}

}  // namespace tessera::infer
