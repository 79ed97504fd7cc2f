#include <algorithm>
#include <cmath>

#include "tessera/infer/engine/task.h"

namespace tessera::infer {
namespace {

struct Hypothesis {
  Sequence sequence;
  std::vector<int64_t> made;  // new tokens, the end not among them
  double log_p = 0;
};

struct Finished {
  std::vector<int64_t> made;
  double score = 0;
  const char* reason = "stop";
};

struct Candidate {
  size_t beam = 0;
  int64_t id = 0;
  double log_p = 0;
};

/// Beam search (beam.h): the hypotheses are its rows.
class Search final : public Task {
 public:
  Search(const model::Model& model, const text::Tokenizer* tokenizer, const Request& request)
      : Task(model, request),
        request_(request),
        writing_(settled(request.writing, request.begin)),
        beams_(*request_.beams),
        given_(request.begin.tokens.size()) {
    live_.push_back({request.begin, {}, 0});
    if (tokenizer != nullptr) find_ids(writing_.sampling, *tokenizer);
    const bool answers = !request.begin.source.empty();
    // one step more than the positions hold: the last token is never fed
    const auto held = static_cast<int64_t>(request.begin.tokens.size());
    result_.prompt_tokens = answers ? static_cast<int64_t>(request.begin.source.size()) : held;
    const int64_t longest = longest_sequence(model.spec(), writing_.context);
    most_ = writing_.max_new_tokens;
    if (longest > 0 && longest + 1 - held <= most_) {
      most_ = longest + 1 - held;
      limit_ = Limit::context;
    }
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
      if (!answers)
        decoder_->prime(
            std::vector<int32_t>(request.begin.tokens.begin(), request.begin.tokens.end()));
    }
    if (!wants_targets()) open();
  }

  std::vector<const Sequence*> rows() const override {
    std::vector<const Sequence*> rows;
    for (const Hypothesis& h : live_) rows.push_back(&h.sequence);
    return rows;
  }

  void choose(const Tensor& logits, const GuessTree&) override { ranked_ = rank(logits); }

  Outcome take() override {
    const auto kept = static_cast<size_t>(beams_.beams);
    ++length_;
    std::vector<Hypothesis> next;
    Outcome outcome;
    for (size_t i = 0; i < ranked_.size() && next.size() < kept; ++i) {
      const Candidate& c = ranked_[i];
      const Hypothesis& parent = live_[c.beam];
      if (ends(c.id)) {
        if (i < kept) put_aside(parent.made, c.log_p, "stop");
        continue;
      }
      next.push_back({parent.sequence, parent.made, c.log_p});
      next.back().sequence.tokens.push_back(c.id);
      next.back().made.push_back(c.id);
      outcome.parents.push_back(c.beam);
    }
    live_ = std::move(next);
    if (over()) settle(false);
    return outcome;
  }

  void finish(const char*) override {
    if (!done()) settle(true);
  }

 private:
  void open() override {
    if (over()) settle(false);
  }

  bool over() const { return live_.empty() || length_ >= most_ || !can_improve(); }

  bool ends(int64_t id) const {
    return std::find(writing_.stop_ids.begin(), writing_.stop_ids.end(), id) !=
           writing_.stop_ids.end();
  }
  double score(double log_p, int64_t length) const {
    return log_p /
           std::pow(static_cast<double>(std::max<int64_t>(length, 1)), beams_.length_penalty);
  }

  /// Keeps the best `beams`, best first; of equal scores the earlier one.
  void put_aside(const std::vector<int64_t>& made, double log_p, const char* reason) {
    const Finished f{made, score(log_p, length_), reason};
    const auto behind = [](const Finished& a, const Finished& b) { return a.score > b.score; };
    finished_.insert(std::upper_bound(finished_.begin(), finished_.end(), f, behind), f);
    if (static_cast<int64_t>(finished_.size()) > beams_.beams) finished_.pop_back();
  }

  /// log p only falls; how far a score can still come follows from the length that favours it most,
  /// which `heuristic` takes to be the present one.
  bool can_improve() const {
    using convert::EarlyStopping;
    if (static_cast<int64_t>(finished_.size()) < beams_.beams) return true;
    if (beams_.early_stopping == EarlyStopping::always) return false;
    int64_t length = length_;
    if (beams_.early_stopping == EarlyStopping::never)
      length = beams_.length_penalty > 0 ? most_ : length_ + 1;
    return score(live_.front().log_p, length) > finished_.back().score;
  }

  /// ln of the sum of exp z: what turns logits into log p.
  static double log_sum(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float z : logits) sum += std::exp(z - largest);
    if (!std::isfinite(sum))
      fail(ErrorKind::input, "generate", "logits that are not finite among {}", logits.size());
    return largest + std::log(sum);
  }

  /// log p of what follows a hypothesis, as the options change it; of nothing that may not come.
  void extend(size_t beam, std::span<const float> logits, std::vector<Candidate>& all) const {
    const Hypothesis& h = live_[beam];
    double normal = log_sum(logits);
    std::vector<float> scores;
    for (const float z : logits) scores.push_back(static_cast<float>(z - normal));
    const std::vector<int64_t> banned = banned_ids(writing_, length_);
    const bool changed =
        change_logits(scores, h.sequence.tokens, given_, writing_.sampling) || !banned.empty();
    for (const int64_t id : banned)
      if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = -INFINITY;
    if (changed) logits = scores, normal = beams_.renormalize ? log_sum(scores) : 0;
    for (size_t v = 0; v < logits.size(); ++v)
      if (logits[v] > -INFINITY)
        all.push_back({beam, static_cast<int64_t>(v), h.log_p - normal + logits[v]});
  }

  /// The best continuations of all hypotheses: enough that `beams` go on whatever ends.
  std::vector<Candidate> rank(const Tensor& logits) const {
    const auto vocab = static_cast<size_t>(logits.size(1));
    std::vector<Candidate> all;
    // what must be chosen is certain
    if (const auto forced = forced_id(writing_, length_)) {
      for (size_t b = 0; b < live_.size(); ++b) all.push_back({b, *forced, live_[b].log_p});
      return all;
    }
    all.reserve(live_.size() * vocab);
    for (size_t b = 0; b < live_.size(); ++b)
      extend(b, std::span(logits.const_data_ptr<float>() + b * vocab, vocab), all);
    if (all.empty())
      fail(ErrorKind::input, "generate", "no token may follow after {} new ones", length_);
    const size_t wanted = static_cast<size_t>(beams_.beams) * (1 + writing_.stop_ids.size());
    const size_t n = std::min(all.size(), wanted);
    const auto before = [](const Candidate& x, const Candidate& y) {
      if (x.log_p != y.log_p) return x.log_p > y.log_p;
      return x.beam != y.beam ? x.beam < y.beam : x.id < y.id;
    };
    std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(n), all.end(), before);
    all.resize(n);
    return all;
  }

  /// The best of all is the result; `interrupted` where the search was ended from outside.
  void settle(bool interrupted) {
    for (const Hypothesis& h : live_)
      if (interrupted || length_ >= most_)
        put_aside(h.made, h.log_p, interrupted ? "cancelled" : "length");
    const Finished best = finished_.empty() ? Finished{{}, 0, "length"} : finished_.front();
    result_.finish_reason = best.reason;
    if (result_.finish_reason == "length") result_.limit = limit_;
    result_.token_ids = best.made;
    if (request_.on_token)
      for (const int64_t id : best.made) request_.on_token(id);
    if (!decoder_) return;
    for (const int64_t id : best.made) result_.text += decoder_->push(static_cast<int32_t>(id));
    result_.text += decoder_->finish();
    if (request_.on_text) request_.on_text(result_.text);
  }

  Request request_;
  Writing writing_;
  BeamOptions beams_;
  size_t given_;  // tokens before the new ones
  std::optional<text::StreamDecoder> decoder_;
  std::vector<Hypothesis> live_;    // best first
  std::vector<Finished> finished_;  // best first
  std::vector<Candidate> ranked_;
  int64_t length_ = 0, most_ = 0;
  Limit limit_ = Limit::new_tokens;  // that most_ comes from
};

}  // namespace

std::unique_ptr<Task> make_search(const model::Model& model,
                                  const text::Tokenizer* tokenizer,
                                  const Request& request) {
  return std::make_unique<Search>(model, tokenizer, request);
}

}  // namespace tessera::infer
