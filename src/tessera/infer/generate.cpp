#include "tessera/infer/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace tessera::infer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One row's progress: its tokens, its text, and whether it is done.
class Row {
 public:
  /// A decoder continues its prompt; beside an encoder it answers it, from the start token on.
  Row(size_t index,
      const std::vector<int64_t>& prompt,
      const model::ModelSpec& spec,
      const text::Tokenizer* tokenizer,
      const GenerateOptions& options)
      : index_(index), options_(options), key_(RandomKey(options.sampling.seed).fold("sampling")) {
    if (spec.encoder) {
      source_ = prompt;
      tokens_ = {spec.start};
    } else {
      tokens_ = prompt;
    }
    result_.prompt_tokens = static_cast<int64_t>(prompt.size());
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
      if (spec.encoder) return;
      const std::vector<int32_t> ids(prompt.begin(), prompt.end());
      decoder_->prime(ids);
    }
  }

  bool done() const { return !result_.finish_reason.empty(); }
  const std::vector<int64_t>& tokens() const { return tokens_; }
  /// What the encoder reads; empty where there is none.
  const std::vector<int64_t>& source() const { return source_; }
  Generation take() { return std::move(result_); }

  void accept(std::span<const float> logits) {
    const int64_t id = sample(logits, tokens_, options_.sampling, key_);
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
  std::vector<int64_t> tokens_, source_;
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
        fed_(rows, 0),
        encoded_(rows) {
    if (stateful_) state_ = model::State(model.spec(), static_cast<int64_t>(rows));
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

 private:
  Tensor whole(const std::vector<size_t>& active, const std::vector<Row>& rows) {
    std::vector<Tensor> last;
    for (const size_t r : active) {
      model::ForwardOptions forward;
      forward.cancel = options_.cancel;
      if (model_.spec().encoder) {
        if (!encoded_[r]) encoded_[r] = encode({r}, {0}, rows);
        forward.encoded = &*encoded_[r];
      }
      const auto batch = nn::Batch::of(std::vector<std::vector<int64_t>>{rows[r].tokens()});
      last.push_back(model_.hidden(batch, forward).select(0, -1));
    }
    return model_.logits(at::stack(last));
  }

  /// The sources of some rows, read by the rows `readers` of the call that follows.
  nn::Encoded encode(const std::vector<size_t>& which,
                     const std::vector<int64_t>& readers,
                     const std::vector<Row>& rows) const {
    std::vector<std::vector<int64_t>> sources;
    for (const size_t r : which) sources.push_back(rows[r].source());
    nn::Batch batch = nn::Batch::of(sources);
    for (size_t i = 0; i < readers.size(); ++i) batch.segments[i].row = readers[i];
    model::ForwardOptions forward;
    forward.cancel = options_.cancel;
    return model_.encode(batch, forward);
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

  /// One call of at most prefill_chunk tokens, sources of new rows included (but always those of
  /// one row); returns how many rows are complete.
  size_t feed_some(const std::vector<size_t>& active,
                   const std::vector<Row>& rows,
                   std::vector<Tensor>& last) {
    nn::Batch batch;
    std::vector<int64_t> ids;
    std::vector<size_t> slots, encode_rows;
    int64_t source_tokens = 0;
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
      if (const auto source = static_cast<int64_t>(rows[active[a]].source().size());
          fed == 0 && source > 0) {
        if (!encode_rows.empty() && source_tokens + source > options_.prefill_chunk) continue;
        source_tokens += source;
        encode_rows.push_back(active[a]);
      }
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
    std::optional<nn::Encoded> encoded;
    if (!encode_rows.empty()) {
      encoded = encode(encode_rows, {encode_rows.begin(), encode_rows.end()}, rows);
      forward.encoded = &*encoded;
    }
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
  std::vector<std::optional<nn::Encoded>> encoded_;  // of rows without a state
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
  if (model.spec().encoder) limit = model.spec().encoder->longest_sequence();
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
  for (size_t r = 0; r < prompts.size(); ++r)
    rows.emplace_back(r, prompts[r], model.spec(), tokenizer, options);
  Generations out;
  Feeder feeder(model, rows.size(), options);
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
    Tensor logits;
    try {
      logits = feeder.next(active, rows).to(at::kCPU, at::kFloat).contiguous();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
      continue;  // the rows above finish as cancelled
    }
    for (size_t a = 0; a < active.size(); ++a)
      rows[active[a]].accept(
          {logits.const_data_ptr<float>() + static_cast<int64_t>(a) * logits.size(1),
           static_cast<size_t>(logits.size(1))});
    (prefill ? out.prefill_seconds : out.decode_seconds) += seconds_since(start);
    if (prefill)
      for (const auto& prompt : prompts) out.prefill_tokens += static_cast<int64_t>(prompt.size());
    else
      out.decode_tokens += static_cast<int64_t>(active.size());
  }
  for (Row& row : rows) out.rows.push_back(row.take());
  return out;
}

}  // namespace tessera::infer
