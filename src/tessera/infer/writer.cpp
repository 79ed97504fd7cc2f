#include <algorithm>
#include <limits>

#include "tessera/infer/task.h"

namespace tessera::infer {

Task::Task(const model::Model& model, const Request& request)
    : targets_(request.targets), heard_(targets_.begin) {
  if (!targets_.ids.empty()) scorer_.emplace(model);
}

int64_t Task::wants_from() const {
  return scorer_ ? heard_ : std::numeric_limits<int64_t>::max();
}

void Task::hear(int64_t begin, const Tensor& hidden_ND) {
  const int64_t end = std::min(begin + hidden_ND.size(0), targets_.begin + size_of(targets_.ids));
  // what is computed anew was heard before
  if (!scorer_ || end <= heard_) return;
  require(begin <= heard_, "engine", "hidden states from {} on; expected those of {}", begin,
          heard_);
  const auto first = targets_.ids.begin() + (heard_ - targets_.begin);
  scorer_->add(hidden_ND.narrow(0, heard_ - begin, end - heard_),
               at::tensor(std::vector<int64_t>(first, first + (end - heard_)), at::kLong));
  heard_ = end;
}

void Task::begin() {
  if (scorer_) result_.score = scorer_->finish(&result_.log_p);
  scorer_.reset();
  if (!done()) open();
}

int64_t Task::guess(std::span<const float>, const std::vector<int64_t>&) const {
  fail(ErrorKind::internal, "engine", "guesses for a request that makes no use of them");
}

void Task::fail_with(std::exception_ptr error) {
  result_.finish_reason = "error";
  result_.error = std::move(error);
}

namespace {

/// A row's tokens, its text, and whether it is done.
class Writer final : public Task {
 public:
  Writer(const model::Model& model, const text::Tokenizer* tokenizer, const Request& request)
      : Task(model, request),
        writing_(request.writing),
        on_token_(request.on_token),
        on_text_(request.on_text),
        sequence_(request.begin),
        begin_(static_cast<int64_t>(sequence_.tokens.size())),
        longest_(longest_sequence(model.spec(), request.writing.context)),
        key_(RandomKey(request.writing.sampling.seed).fold("sampling")) {
    const bool answers = !sequence_.source.empty();
    result_.prompt_tokens =
        static_cast<int64_t>(answers ? sequence_.source.size() : sequence_.tokens.size());
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
      // beside an encoder the text begins behind the start token
      const std::vector<int32_t> ids(sequence_.tokens.begin() + (answers ? 1 : 0),
                                     sequence_.tokens.end());
      decoder_->prime(ids);
    }
    if (!wants_targets()) check_limits();
  }

  std::vector<const Sequence*> rows() const override { return {&sequence_}; }

  int64_t may_guess() const override {
    const int64_t left =
        writing_.max_new_tokens - static_cast<int64_t>(result_.token_ids.size()) - 1;
    return longest_ > 0 ? std::min(left, longest_ - static_cast<int64_t>(sequence_.tokens.size()))
                        : left;
  }

  int64_t guess(std::span<const float> logits, const std::vector<int64_t>& tokens) const override {
    const auto forced = forced_id(writing_, static_cast<int64_t>(tokens.size()) - begin_);
    return forced ? *forced : sample(logits, tokens, writing_.sampling, key_);
  }

  void choose(const Tensor& logits, const std::vector<int64_t>& guesses) override {
    chosen_.clear();
    const auto row = [&](size_t i) {
      return std::span(logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1),
                       static_cast<size_t>(logits.size(1)));
    };
    chosen_.push_back(guess(row(0), sequence_.tokens));
    if (guesses.empty()) return;
    std::vector<int64_t> tokens = sequence_.tokens;
    for (size_t i = 0; i < guesses.size() && chosen_[i] == guesses[i]; ++i) {
      tokens.push_back(guesses[i]);
      chosen_.push_back(guess(row(i + 1), tokens));
    }
  }

  Outcome take() override {
    int64_t right = -1;
    for (size_t i = 0; i < chosen_.size() && !done(); ++i, ++right) accept(chosen_[i]);
    const bool anew = !done() && writing_.shift && is_full();
    if (anew) shift();
    check_limits();
    return {{0}, right, anew};
  }

  void finish(const char* reason) override {
    if (done()) return;
    result_.finish_reason = reason;
    if (decoder_ && !stopped_ && add_text(decoder_->finish(), true)) result_.finish_reason = "stop";
  }

 private:
  void open() override { check_limits(); }

  void accept(int64_t id) {
    if (std::find(writing_.stop_ids.begin(), writing_.stop_ids.end(), id) !=
        writing_.stop_ids.end())
      return finish("stop");
    sequence_.tokens.push_back(id);
    result_.token_ids.push_back(id);
    if (on_token_) on_token_(id);
    if (decoder_ && add_text(decoder_->push(static_cast<int32_t>(id)), false))
      return finish("stop");
    if (static_cast<int64_t>(result_.token_ids.size()) >= writing_.max_new_tokens) finish("length");
  }

  /// The last token is never fed.
  bool is_full() const { return longest_ > 0 && size_of(sequence_.tokens) > longest_; }
  void check_limits() {
    if (writing_.max_new_tokens <= 0 || is_full()) finish("length");
  }

  void shift() {
    const int64_t before = size_of(sequence_.tokens);
    sequence_.tokens = shifted(sequence_.tokens, writing_.keep_first);
    begin_ -= before - size_of(sequence_.tokens);
    // as many tokens as before a shift are before another choice
    key_ = key_.fold(static_cast<uint64_t>(++result_.shifts));
  }

  /// Appends text, emits what is certain; true when a stop string was met.
  bool add_text(const std::string& piece, bool last) {
    result_.text += piece;
    size_t end = std::string::npos;
    for (const std::string& stop : writing_.stop_strings)
      if (!stop.empty()) end = std::min(end, result_.text.find(stop, emitted_));
    stopped_ = end != std::string::npos;
    if (stopped_) result_.text.resize(end);
    // hold back what may be the beginning of a stop string
    size_t certain = result_.text.size();
    if (!stopped_ && !last)
      for (const std::string& stop : writing_.stop_strings)
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

  Writing writing_;
  std::function<void(int64_t)> on_token_;
  std::function<void(std::string_view)> on_text_;
  Sequence sequence_;
  int64_t begin_;    // of the new tokens
  int64_t longest_;  // tokens of a sequence, 0 = any
  RandomKey key_;
  std::optional<text::StreamDecoder> decoder_;
  size_t emitted_ = 0;
  bool stopped_ = false;
  std::vector<int64_t> chosen_;
};

}  // namespace

std::unique_ptr<Task> make_writer(const model::Model& model,
                                  const text::Tokenizer* tokenizer,
                                  const Request& request) {
  return std::make_unique<Writer>(model, tokenizer, request);
}

}  // namespace tessera::infer
