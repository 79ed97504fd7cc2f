#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/infer/engine/task.h"
#include "tessera/infer/engine/reasoning_counter.h"

namespace tessera::infer {

Task::Task(const model::Model& model, const Request& request)
    : targets_(request.targets), next_target_(targets_.begin), on_read_(request.on_read) {
  if (!targets_.ids.empty()) scorer_.emplace(model, targets_.top);
}

int64_t Task::wants_from() const {
  return scorer_ ? next_target_ : std::numeric_limits<int64_t>::max();
}

void Task::on_hidden(int64_t begin, const Tensor& hidden_ND) {
  const int64_t end = std::min(begin + hidden_ND.size(0), targets_.begin + size_of(targets_.ids));
  // tokens that are computed again have been scored already
  if (!scorer_ || end <= next_target_) return;
  require(begin <= next_target_, "engine", "hidden states from {} on; expected those of {}", begin,
          next_target_);
  const auto first = targets_.ids.begin() + (next_target_ - targets_.begin);
  scorer_->add(hidden_ND.narrow(0, next_target_ - begin, end - next_target_),
               at::tensor(std::vector<int64_t>(first, first + (end - next_target_)), at::kLong));
  next_target_ = end;
}

void Task::book(int64_t reused) {
  result_.cached_tokens = std::min(reused, result_.prompt_tokens);
}

void Task::begin() {
  if (on_read_) on_read_(result_.cached_tokens);
  if (scorer_) result_.score = scorer_->finish(&result_.log_p, &result_.target_top);
  scorer_.reset();
  if (!done()) open();
}

int64_t Task::draft_token(std::span<const float>, const std::vector<int64_t>&) const {
  fail(ErrorKind::internal, "engine", "draft tokens for a request without speculative decoding");
}

void Task::fail_with(std::exception_ptr error) {
  result_.finish_reason = "error";
  result_.error = std::move(error);
}

namespace {

/// Sampling task: the tokens of one row, its text, and whether it is done. Everything that counts
/// tokens of the answer (samplers, limits, reasoning, constraints) reads the history, which a
/// context shift does not shorten.
class Writer final : public Task {
 public:
  Writer(const model::Model& model, const text::Tokenizer* tokenizer, const Request& request)
      : Task(model, request),
        decoding_(settled(request.decoding, request.prompt)),
        most_likely_(request.logprobs),
        of_choice_(request.post_sampling_logprobs),
        sequence_(request.prompt),
        history_(sequence_.tokens),
        given_(history_.size()),
        longest_(longest_sequence(model.spec(), decoding_.context)),
        key_(stream_of(decoding_)) {
    const bool answers = !sequence_.source.empty();
    result_.prompt_tokens =
        static_cast<int64_t>(answers ? sequence_.source.size() : sequence_.tokens.size());
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer, /*skip_special=*/!decoding_.show_special);
      // with an encoder the text begins after the start token
      const std::vector<int32_t> ids(sequence_.tokens.begin() + (answers ? 1 : 0),
                                     sequence_.tokens.end());
      decoder_->prime(ids);
    }
    if (decoding_.reasoning) budget_.emplace(*decoding_.reasoning);
    if (decoding_.constraint) state_ = decoding_.constraint->start();
    SamplingOptions& sampling = decoding_.sampling;
    if (sampling.dry_breaker_ids.empty() && tokenizer != nullptr) find_ids(sampling, *tokenizer);
    for (const int64_t id : request.generated)
      if (!done()) accept(id);
    // from here on callbacks are called and time counts
    replays_ = false;
    first_ = request.generated_since;
    on_chances_ = request.on_logprobs;
    on_token_ = request.on_token;
    on_text_ = request.on_text;
    if (!wants_targets()) check_limits();
  }

  std::vector<const Sequence*> rows() const override { return {&sequence_}; }

  int64_t max_draft_tokens() const override {
    const int64_t left =
        decoding_.max_new_tokens - static_cast<int64_t>(result_.token_ids.size()) - 1;
    return longest_ > 0 ? std::min(left, longest_ - static_cast<int64_t>(sequence_.tokens.size()))
                        : left;
  }

  int64_t draft_token(std::span<const float> logits,
                      const std::vector<int64_t>& tokens) const override {
    // no draft token after an end; after a rejected one the choice does not matter
    SamplerMemory memory = memory_;
    if (result_.shifts == 0) return pick(logits, tokens, memory).value_or(0);
    std::vector<int64_t> seen = history_;
    seen.insert(seen.end(), tokens.begin() + std::ssize(sequence_.tokens), tokens.end());
    return pick(logits, seen, memory).value_or(0);
  }

  void choose(const Tensor& logits, const DraftTree& drafts) override {
    logprobs_.clear();
    SamplerMemory memory = memory_;
    const auto row = [&](size_t i) {
      return std::span(logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1),
                       static_cast<size_t>(logits.size(1)));
    };
    choose_each(drafts, [&](size_t i, const std::vector<int64_t>& seen) {
      PositionLogprobs of_pick;
      const auto id = pick(row(i), seen, memory, of_choice_ ? &of_pick : nullptr);
      // the vocabulary may lack a token that the grammar needs
      if (!id)
        fail(
            ErrorKind::input, "generate",
            "constrained decoding: no token is allowed after {} new tokens; the grammar expects {}",
            made(seen), state_ ? state_->expected() : "more text");
      chosen_.push_back(*id);
      memories_.push_back(memory);
      if (most_likely_)
        logprobs_.push_back(of_choice_ ? of_pick : logprobs_of(row(i), *id, *most_likely_));
    });
  }

  bool takes_most_likely(int64_t drafts) const override {
    if (state_ || budget_ || most_likely_ || !infer::takes_most_likely(decoding_.sampling))
      return false;
    for (int64_t i = 0; i <= drafts; ++i)
      if (!banned_ids(decoding_, made(history_) + i).empty() ||
          forced_id(decoding_, made(history_) + i))
        return false;
    return true;
  }

  void choose_most_likely(std::span<const int64_t> ids, const DraftTree& drafts) override {
    choose_each(drafts, [&](size_t i, const std::vector<int64_t>&) {
      chosen_.push_back(ids[i]);
      memories_.push_back(memory_);
    });
  }

  Outcome take() override {
    size_t taken = 0;
    for (size_t i = 0; i < chosen_.size() && !done(); ++i, ++taken) {
      if (most_likely_ && !stops(chosen_[i])) {
        result_.logprobs.push_back(std::move(logprobs_[i]));
        if (on_chances_) on_chances_(result_.logprobs.back());
      }
      accept(chosen_[i]);
      memory_ = memories_[i];
    }
    accepted_.resize(std::min(accepted_.size(), std::max<size_t>(taken, 1) - 1));
    const bool replaced = !done() && decoding_.shift && is_full();
    if (replaced) shift();
    check_limits();
    return {{0}, accepted_, replaced};
  }

  void finish(const char* reason) override {
    if (done()) return;
    result_.finish_reason = reason;
    if (state_ && !state_->may_end())
      result_.cut = fmt::format("after {} new tokens; expected {}", result_.token_ids.size(),
                                state_->expected());
    if (decoder_ && !stopped_ && add_text(decoder_->finish(), true)) result_.finish_reason = "stop";
  }

 private:
  /// Calls decide(0, the history), and for each draft token that is the choice before it, in turn.
  template <class Decide>
  void choose_each(const DraftTree& drafts, const Decide& decide) {
    chosen_.clear();
    memories_.clear();
    accepted_.clear();
    decide(0, history_);
    if (drafts.empty()) return;
    std::vector<int64_t> seen = history_;
    for (int64_t node = -1; !stops(chosen_.back());) {
      node = drafts.child(node, chosen_.back());
      if (node < 0) break;
      seen.push_back(chosen_.back());
      // the text ends here
      if (state_ && behind(seen)->must_end()) break;
      accepted_.push_back(node);
      decide(static_cast<size_t>(node) + 1, seen);
    }
  }

  void open() override {
    check_limits();
    if (!done() && state_ && state_->must_end()) finish("stop");
  }

  static RandomKey stream_of(const DecodingOptions& decoding) {
    const RandomKey key = RandomKey(decoding.sampling.seed).fold("sampling");
    return decoding.choice > 0 ? key.fold(static_cast<uint64_t>(decoding.choice)) : key;
  }
  /// Number of new tokens in `seen`, which is the history and draft tokens.
  int64_t made(const std::vector<int64_t>& seen) const {
    return static_cast<int64_t>(seen.size() - given_);
  }
  bool stops(int64_t id) const {
    return std::find(decoding_.stop_ids.begin(), decoding_.stop_ids.end(), id) !=
           decoding_.stop_ids.end();
  }

  /// Constraint state after `seen` (the history and draft tokens); nullptr if the constraint does
  /// not allow them.
  const text::ConstraintState* behind(const std::vector<int64_t>& seen) const {
    const std::span<const int64_t> further = std::span(seen).subspan(history_.size());
    if (further.empty()) return state_.get();
    if (!ahead_ || ahead_at_ != history_.size() || ahead_tokens_.size() > further.size() ||
        !std::equal(ahead_tokens_.begin(), ahead_tokens_.end(), further.begin())) {
      ahead_ = state_->clone();
      ahead_at_ = history_.size();
      ahead_tokens_.clear();
    }
    while (ahead_tokens_.size() < further.size()) {
      const int64_t id = further[ahead_tokens_.size()];
      if (!ahead_->accept(id)) {
        ahead_.reset();
        return nullptr;
      }
      ahead_tokens_.push_back(id);
    }
    return ahead_.get();
  }

  /// The token forced after `seen`, if any.
  std::optional<int64_t> required_id(const std::vector<int64_t>& seen) const {
    if (const auto forced = forced_id(decoding_, made(seen))) return forced;
    return budget_ ? budget_->next(std::span(seen).subspan(history_.size())) : std::nullopt;
  }

  /// The token chosen after `seen`, the history and draft tokens; nullopt if none is allowed.
  /// `logprobs`: receives the log-probability of the choice.
  std::optional<int64_t> pick(std::span<const float> logits,
                              const std::vector<int64_t>& seen,
                              SamplerMemory& memory,
                              PositionLogprobs* logprobs = nullptr) const {
    const int64_t top = most_likely_.value_or(0);
    const auto forced = required_id(seen);
    if (forced) {
      if (logprobs != nullptr)
        *logprobs = {{*forced, 0},
                     std::vector<TokenLogprob>(top > 0 ? 1 : 0, TokenLogprob{*forced, 0})};
      return forced;
    }
    const std::vector<int64_t> banned = banned_ids(decoding_, made(seen));
    const auto choice = [&](std::span<const float> scores) {
      return sample(scores, seen, decoding_.sampling, key_, given_, &memory, top, logprobs);
    };
    if (!state_ && banned.empty()) return choice(logits);
    std::vector<float> scores(logits.begin(), logits.end());
    for (const int64_t id : banned)
      if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = -INFINITY;
    if (state_) {
      const text::ConstraintState* const state = behind(seen);
      if (state == nullptr || !constrain(*state, made(seen), scores)) return std::nullopt;
    }
    return choice(scores);
  }

  /// Sets tokens that the constraint does not allow to -infinity; false if none is left.
  bool constrain(const text::ConstraintState& state,
                 int64_t made,
                 std::vector<float>& scores) const {
    std::vector<uint64_t> bits((scores.size() + 63) / 64, 0);
    state.allow(bits);
    // a tokenizer may have more tokens than the model has logits
    if (const size_t rest = scores.size() % 64; rest != 0) bits.back() &= ~(~uint64_t{0} << rest);
    const bool may_end = made >= decoding_.min_new_tokens && state.may_end();
    for (const int64_t id : decoding_.stop_ids) {
      if (static_cast<size_t>(id) >= scores.size()) continue;
      if (may_end)
        text::set_bit(bits, id);
      else
        text::clear_bit(bits, id);
    }
    bool any = false;
    for (size_t w = 0; w < bits.size(); ++w) {
      any = any || bits[w] != 0;
      if (bits[w] == ~uint64_t{0}) continue;
      const size_t end = std::min(scores.size(), 64 * (w + 1));
      for (size_t i = 64 * w; i < end; ++i)
        if (!text::has_bit(bits, static_cast<int64_t>(i))) scores[i] = -INFINITY;
    }
    return any;
  }

  void accept(int64_t id) {
    if (stops(id)) {
      result_.stop_id = id;
      return finish("stop");
    }
    if (state_) require(state_->accept(id), "engine", "token {} against the constraint", id);
    sequence_.tokens.push_back(id);
    history_.push_back(id);
    if (budget_) budget_->take(id);
    result_.token_ids.push_back(id);
    if (on_token_) on_token_(id);
    std::string piece = decoder_ ? decoder_->push(static_cast<int32_t>(id)) : "";
    if (decoder_ && add_text(piece, false)) return finish("stop");
    if (state_ && state_->must_end()) return finish("stop");
    if (is_late() && piece.find('\n') != std::string::npos) return finish_at(Limit::time);
    // if both limits are reached, more new tokens would not help
    if (static_cast<int64_t>(result_.token_ids.size()) >= decoding_.max_new_tokens)
      finish_at(is_full() && !decoding_.shift ? Limit::context : Limit::new_tokens);
  }

  /// True if its time limit, counted from the first token, is exceeded.
  bool is_late() {
    if (decoding_.line_limit.count() == 0 || replays_) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!first_) first_ = now;
    return now - *first_ > decoding_.line_limit;
  }

  /// The last token is never fed.
  bool is_full() const { return longest_ > 0 && size_of(sequence_.tokens) > longest_; }
  void check_limits() {
    if (decoding_.max_new_tokens <= 0)
      finish_at(Limit::new_tokens);
    else if (is_full())
      finish_at(Limit::context);
  }

  void finish_at(Limit limit) {
    finish("length");
    if (result_.finish_reason == "length") result_.limit = limit;
  }

  void shift() {
    sequence_.tokens = shifted(sequence_.tokens, decoding_.keep_first);
    ++result_.shifts;
  }

  /// Appends text and emits what is final; true if a stop string was found.
  bool add_text(const std::string& piece, bool last) {
    result_.text += piece;
    size_t end = std::string::npos;
    for (const std::string& stop : decoding_.stop_strings) {
      const size_t at = stop.empty() ? std::string::npos : result_.text.find(stop, emitted_);
      if (at < end) {
        end = at;
        result_.stop_string = stop;
      }
    }
    stopped_ = end != std::string::npos;
    if (stopped_) result_.text.resize(end + (decoding_.keep_stop ? result_.stop_string.size() : 0));
    // hold back what may be the beginning of a stop string
    size_t certain = result_.text.size();
    if (!stopped_ && !last)
      for (const std::string& stop : decoding_.stop_strings)
        for (size_t n = std::min(stop.size(), result_.text.size() - emitted_); n > 0; --n)
          if (result_.text.compare(result_.text.size() - n, n, stop, 0, n) == 0) {
            certain = std::min(certain, result_.text.size() - n);
            break;
          }
    const std::string_view fresh = std::string_view(result_.text).substr(emitted_);
    const size_t begin = std::exchange(emitted_, std::max(emitted_, certain));
    if (certain > begin && on_text_) on_text_(fresh.substr(0, certain - begin));
    return stopped_;
  }

  DecodingOptions decoding_;
  std::optional<int64_t> most_likely_;
  bool of_choice_;  // logprobs_ are those after sampling
  std::function<void(const PositionLogprobs&)> on_chances_;
  std::function<void(int64_t)> on_token_;
  std::function<void(std::string_view)> on_text_;
  Sequence sequence_;             // the model's input; a context shift shortens it
  std::vector<int64_t> history_;  // all tokens, prompt and generated
  size_t given_;                  // prompt tokens
  int64_t longest_;               // max. tokens of a sequence, 0 = no limit
  bool replays_ = true;           // while it takes over tokens generated before
  std::optional<std::chrono::steady_clock::time_point> first_;  // time of the first token
  RandomKey key_;
  std::optional<text::StreamDecoder> decoder_;
  size_t emitted_ = 0;
  bool stopped_ = false;
  SamplerMemory memory_;
  std::optional<ReasoningCounter> budget_;
  std::vector<int64_t> chosen_;
  std::vector<int64_t> accepted_;           // draft tokens, parallel to the first of `chosen_`
  std::vector<PositionLogprobs> logprobs_;  // of these
  std::vector<SamplerMemory> memories_;     // after each
  std::unique_ptr<text::ConstraintState> state_;
  // after draft tokens; a task is used by one thread at a time
  mutable std::unique_ptr<text::ConstraintState> ahead_;
  mutable size_t ahead_at_ = 0;
  mutable std::vector<int64_t> ahead_tokens_;
};

}  // namespace

std::unique_ptr<Task> make_sampling_task(const model::Model& model,
                                         const text::Tokenizer* tokenizer,
                                         const Request& request) {
  return std::make_unique<Writer>(model, tokenizer, request);
}

}  // namespace tessera::infer
