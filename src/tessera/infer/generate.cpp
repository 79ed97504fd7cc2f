#include "tessera/infer/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "tessera/infer/draft.h"
#include "tessera/infer/lookup.h"

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
      const text::Tokenizer* tokenizer,
      const GenerateOptions& options)
      : index_(index),
        options_(options),
        tokens_(prompt),
        key_(RandomKey(options.sampling.seed).fold("sampling")) {
    result_.prompt_tokens = static_cast<int64_t>(prompt.size());
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
      const std::vector<int32_t> ids(prompt.begin(), prompt.end());
      decoder_->prime(ids);
    }
  }

  bool done() const { return !result_.finish_reason.empty(); }
  const std::vector<int64_t>& tokens() const { return tokens_; }
  int64_t left() const {
    return options_.max_new_tokens - static_cast<int64_t>(result_.token_ids.size());
  }
  Generation take() { return std::move(result_); }

  /// The token after `tokens`, which may be guesses: a function of these, logits and seed alone.
  int64_t choose(std::span<const float> logits, const std::vector<int64_t>& tokens) const {
    return sample(logits, tokens, options_.sampling, key_);
  }

  void accept(std::span<const float> logits) {
    const int64_t id = choose(logits, tokens_);
    if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
        options_.stop_ids.end())
      return finish("stop");
    tokens_.push_back(id);
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
  std::vector<int64_t> tokens_;
  RandomKey key_;
  std::optional<text::StreamDecoder> decoder_;
  size_t emitted_ = 0;
  bool stopped_ = false;
  Generation result_;
};

/// Feeds rows to the model, with a state where the model has one.
class Feeder {
 public:
  Feeder(const model::Model& model, size_t rows, const GenerateOptions& options)
      : model_(model),
        options_(options),
        stateful_(model.spec().no_state_reason().empty()),
        fed_(rows, 0) {
    const Speculation& speculation = options.speculation;
    if (stateful_)
      state_ = model::State(model.spec(), static_cast<int64_t>(rows),
                            speculation.on() ? speculation.guesses + 1 : 0);
  }

  /// Logits after the last token of each of the given rows, [rows, vocab].
  Tensor next(const std::vector<size_t>& active, const std::vector<Row>& rows) {
    if (!stateful_) return whole(active, rows);
    const int64_t border = model_.spec().switch_length();
    for (const size_t r : active) {  // all angles change here: the row is computed anew
      const auto length = static_cast<int64_t>(rows[r].tokens().size());
      if (border > 0 && fed_[r] > 0 && fed_[r] <= border && length > border) restart(r);
    }
    std::vector<Tensor> last(active.size());
    for (size_t done = 0; done < active.size();) done = feed_some(active, rows, last);
    return model_.logits(at::stack(last));
  }

  /// Whether a row has come to where all angles change, so that next() must compute it anew.
  bool changes(const std::vector<size_t>& active, const std::vector<Row>& rows) const {
    const int64_t border = model_.spec().switch_length();
    return border > 0 && std::any_of(active.begin(), active.end(), [&](size_t r) {
             return fed_[r] <= border && static_cast<int64_t>(rows[r].tokens().size()) > border;
           });
  }

  /// Logits after the last token of each row, the only one not fed yet, and after each of its
  /// guesses. All of these stay pending until keep().
  std::vector<Tensor> ahead(const std::vector<size_t>& active,
                            const std::vector<Row>& rows,
                            const std::vector<std::vector<int64_t>>& guesses) {
    nn::Batch batch;
    std::vector<int64_t> ids;
    for (const size_t r : active) {
      const auto n = static_cast<int64_t>(guesses[r].size()) + 1;
      batch.segments.push_back(
          {static_cast<int64_t>(r), static_cast<int64_t>(ids.size()), n, fed_[r]});
      ids.push_back(rows[r].tokens().back());
      ids.insert(ids.end(), guesses[r].begin(), guesses[r].end());
    }
    batch.ids_N = at::tensor(ids, at::kLong);
    batch.number();
    model::ForwardOptions forward;
    forward.state = &state_;
    forward.pending = true;
    forward.cancel = options_.cancel;
    const Tensor logits =
        model_.logits(model_.hidden(batch, forward)).to(at::kCPU, at::kFloat).contiguous();
    std::vector<Tensor> parts;
    for (const nn::Segment& segment : batch.segments)
      parts.push_back(logits.narrow(0, segment.begin, segment.length));
    return parts;
  }

  /// The first n tokens of the last ahead() are the row's.
  void keep(size_t row, int64_t n) {
    state_.commit(static_cast<int64_t>(row), n);
    fed_[row] += n;
  }

 private:
  Tensor whole(const std::vector<size_t>& active, const std::vector<Row>& rows) {
    std::vector<Tensor> last;
    for (const size_t r : active)
      last.push_back(
          model_.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{rows[r].tokens()}), {})
              .select(0, -1));
    return model_.logits(at::stack(last));
  }

  void restart(size_t row) {
    model::State fresh(model_.spec(), 1);
    // rows keep their numbers: rebuild the list around the fresh one
    std::vector<int64_t> before, after;
    for (int64_t r = 0; r < state_.rows(); ++r)
      (r < static_cast<int64_t>(row) ? before : after).push_back(r);
    after.erase(after.begin());
    model::State rebuilt = state_.select(before);
    rebuilt.append(fresh);
    rebuilt.append(state_.select(after));
    state_ = std::move(rebuilt);
    fed_[row] = 0;
  }

  /// One call of at most prefill_chunk tokens (never less than one per row); returns how many rows
  /// are complete.
  size_t feed_some(const std::vector<size_t>& active,
                   const std::vector<Row>& rows,
                   std::vector<Tensor>& last) {
    nn::Batch batch;
    std::vector<int64_t> ids;
    std::vector<size_t> slots;
    const int64_t border = model_.spec().switch_length();
    for (size_t a = 0; a < active.size(); ++a) {
      const auto& tokens = rows[active[a]].tokens();
      const int64_t fed = fed_[active[a]], left = static_cast<int64_t>(tokens.size()) - fed;
      int64_t room =
          std::max<int64_t>(options_.prefill_chunk - static_cast<int64_t>(ids.size()), 0);
      if (border > 0 && static_cast<int64_t>(tokens.size()) > border)
        room = std::max(room, left);  // not cut where angles change
      const int64_t n = std::min(left, room);
      if (n == 0) continue;
      batch.segments.push_back(
          {static_cast<int64_t>(active[a]), static_cast<int64_t>(ids.size()), n, fed});
      ids.insert(ids.end(), tokens.begin() + fed, tokens.begin() + fed + n);
      slots.push_back(a);
    }
    batch.ids_N = at::tensor(ids, at::kLong);
    batch.number();
    model::ForwardOptions forward;
    forward.state = &state_;
    forward.cancel = options_.cancel;
    const Tensor hidden = model_.hidden(batch, forward);
    for (size_t i = 0; i < slots.size(); ++i) {
      const nn::Segment& segment = batch.segments[i];
      fed_[active[slots[i]]] += segment.length;
      if (fed_[active[slots[i]]] == static_cast<int64_t>(rows[active[slots[i]]].tokens().size()))
        last[slots[i]] = hidden.select(0, segment.begin + segment.length - 1);
    }
    return static_cast<size_t>(
        std::count_if(last.begin(), last.end(), [](const Tensor& t) { return t.defined(); }));
  }

  const model::Model& model_;
  const GenerateOptions& options_;
  bool stateful_;
  model::State state_;
  std::vector<int64_t> fed_;
};

std::span<const float> row_of(const Tensor& logits_NC, int64_t row) {
  return {logits_NC.const_data_ptr<float>() + row * logits_NC.size(1),
          static_cast<size_t>(logits_NC.size(1))};
}

/// Steps of several tokens: guesses, and the model's word on them.
class Speculator {
 public:
  Speculator(const model::Model& model, size_t rows, int64_t limit, const GenerateOptions& options)
      : options_(options), limit_(limit), border_(model.spec().switch_length()) {
    const Speculation& how = options.speculation;
    if (const std::string reason = model.spec().no_state_reason(); !reason.empty())
      fail(ErrorKind::usage, "generate",
           "guesses need a state to roll back, which this model cannot continue from: {}", reason);
    if (how.guesses < 1)
      fail(ErrorKind::usage, "generate", "{} guesses; expected at least 1", how.guesses);
    if (how.draft == nullptr) return;
    if (how.lookup > 0)
      fail(ErrorKind::usage, "generate", "both a draft and a look-up; expected one of them");
    if (how.draft->spec().vocab != model.spec().vocab)
      fail(ErrorKind::usage, "generate",
           "the draft has {} tokens, the model {}; expected the same tokens",
           how.draft->spec().vocab, model.spec().vocab);
    draft_.emplace(*how.draft, rows,
                   Draft::Options{how.guesses, options.prefill_chunk, options.cancel});
  }

  void step(const std::vector<size_t>& active,
            Feeder& feeder,
            std::vector<Row>& rows,
            Generations& out) {
    const auto guesses = guess(active, rows);
    const std::vector<Tensor> logits = feeder.ahead(active, rows, guesses);
    for (size_t a = 0; a < active.size(); ++a) {
      const size_t r = active[a];
      const auto n = static_cast<int64_t>(guesses[r].size());
      int64_t right = 0;  // guesses that are what the model says
      for (rows[r].accept(row_of(logits[a], 0));
           right < n && !rows[r].done() &&
           rows[r].tokens().back() == guesses[r][static_cast<size_t>(right)];)
        rows[r].accept(row_of(logits[a], ++right));
      feeder.keep(r, right + 1);
      if (draft_ && n > 0) draft_->keep(r, right);
      out.decode_tokens += right + 1;
      out.guessed_tokens += n;
      out.accepted_tokens += right;
    }
  }

 private:
  std::vector<std::vector<int64_t>> guess(const std::vector<size_t>& active,
                                          const std::vector<Row>& rows) {
    std::vector<std::vector<int64_t>> guesses(rows.size()), sequences(rows.size());
    std::vector<int64_t> counts(rows.size(), 0);
    for (const size_t r : active) {
      sequences[r] = rows[r].tokens();
      const auto length = static_cast<int64_t>(sequences[r].size());
      counts[r] = std::min(options_.speculation.guesses, rows[r].left() - 1);
      if (limit_ > 0) counts[r] = std::min(counts[r], limit_ - length);
      if (border_ >= length) counts[r] = std::min(counts[r], border_ - length);
      if (!draft_ && counts[r] > 0)
        guesses[r] = look_up(sequences[r], options_.speculation.lookup, counts[r]);
    }
    if (!draft_) return guesses;
    return draft_->guess(
        std::move(sequences), std::move(counts),
        [&](size_t row, std::span<const float> logits, const std::vector<int64_t>& tokens) {
          return rows[row].choose(logits, tokens);
        });
  }

  const GenerateOptions& options_;
  int64_t limit_, border_;
  std::optional<Draft> draft_;
};

/// Longest sequence: what the caller allows, or what the model is made for; never more than it has
/// positions.
int64_t longest(const model::Model& model, const GenerateOptions& options) {
  if (options.context == 0) return model.spec().longest_sequence();
  const int64_t positions = model.spec().max_positions();
  return positions == 0 ? options.context : std::min(options.context, positions);
}

void check_prompts(const model::Model& model,
                   const std::vector<std::vector<int64_t>>& prompts,
                   int64_t limit) {
  for (size_t r = 0; r < prompts.size(); ++r) {
    const std::string which = prompts.size() > 1 ? fmt::format("prompt {}", r) : "the prompt";
    if (prompts[r].empty())
      fail(ErrorKind::input, "generate", "{} is empty; expected at least one token", which);
    if (limit > 0 && static_cast<int64_t>(prompts[r].size()) > limit)
      fail(ErrorKind::input, "generate", "{} has {} tokens; this model's context is {}: shorten it",
           which, prompts[r].size(), limit);
    for (const int64_t id : prompts[r])
      if (id < 0 || id >= model.spec().vocab)
        fail(ErrorKind::input, "generate", "{}: token id {}; expected 0 to {}", which, id,
             model.spec().vocab - 1);
  }
}

}  // namespace

Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options) {
  if (!model.spec().causal() || !model.has_head())
    fail(ErrorKind::usage, "generate",
         "this model is an {} and cannot generate; expected a decoder with a head",
         model::name_of(model.spec().arch));
  options.sampling.check();
  if (options.prefill_chunk < 1)
    fail(ErrorKind::usage, "generate", "prefill_chunk = {}; expected at least 1 token",
         options.prefill_chunk);
  const int64_t limit = longest(model, options);
  check_prompts(model, prompts, limit);
  const at::NoGradGuard no_gradients;
  std::vector<Row> rows;
  for (size_t r = 0; r < prompts.size(); ++r) rows.emplace_back(r, prompts[r], tokenizer, options);
  Generations out;
  Feeder feeder(model, rows.size(), options);
  std::optional<Speculator> speculator;
  if (options.speculation.on()) speculator.emplace(model, rows.size(), limit, options);
  for (bool prefill = true;; prefill = false) {
    std::vector<size_t> active;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (options.cancel != nullptr && options.cancel->requested()) rows[r].finish("cancelled");
      if (options.max_new_tokens <= 0 ||
          (limit > 0 && static_cast<int64_t>(rows[r].tokens().size()) > limit))
        rows[r].finish("length");
      if (!rows[r].done()) active.push_back(r);
    }
    if (active.empty()) break;
    const auto start = Clock::now();
    try {
      if (speculator && !prefill && !feeder.changes(active, rows)) {
        speculator->step(active, feeder, rows, out);
      } else {
        const Tensor logits = feeder.next(active, rows).to(at::kCPU, at::kFloat).contiguous();
        for (size_t a = 0; a < active.size(); ++a)
          rows[active[a]].accept(row_of(logits, static_cast<int64_t>(a)));
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
