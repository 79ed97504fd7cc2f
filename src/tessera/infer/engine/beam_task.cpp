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
  std::string stop = {};  // the string that ended it
};

struct Candidate {
  size_t beam = 0;
  int64_t id = 0;
  double log_p = 0;
};

/// A candidate that was looked at.
struct Ranked {
  Candidate of;
  bool ends = false;  // its token is a stop id, or completes a stop string:
  std::string stop = {};
};

/// The better first; of equal ones that of the earlier beam, then of the smaller id.
bool is_before(const Candidate& x, const Candidate& y) {
  if (x.log_p != y.log_p) return x.log_p > y.log_p;
  return x.beam != y.beam ? x.beam < y.beam : x.id < y.id;
}

/// Beam search (beam.h): the hypotheses are its rows.
class Search final : public Task {
 public:
  Search(const model::Model& model, const text::Tokenizer* tokenizer, const Request& request)
      : Task(model, request),
        request_(request),
        decoding_(settled(request.decoding, request.prompt)),
        beams_(*request_.beams),
        given_(request.prompt.tokens.size()) {
    live_.push_back({request.prompt, {}, 0});
    if (tokenizer != nullptr) find_ids(decoding_.sampling, *tokenizer);
    const bool answers = !request.prompt.source.empty();
    // one step more than the positions hold: the last token is never fed
    const auto held = static_cast<int64_t>(request.prompt.tokens.size());
    result_.prompt_tokens = answers ? static_cast<int64_t>(request.prompt.source.size()) : held;
    const int64_t longest = longest_sequence(model.spec(), decoding_.context);
    most_ = decoding_.max_new_tokens;
    if (longest > 0 && longest + 1 - held <= most_) {
      most_ = longest + 1 - held;
      limit_ = Limit::context;
    }
    std::erase(decoding_.stop_strings, "");
    tokenizer_ = tokenizer;
    if (!wants_targets()) open();
  }

  std::vector<const Sequence*> rows() const override {
    std::vector<const Sequence*> rows;
    for (const Hypothesis& h : live_) rows.push_back(&h.sequence);
    return rows;
  }

  void choose(const Tensor& logits, const DraftTree&) override { ranked_ = rank(logits); }

  Outcome take() override {
    const auto kept = static_cast<size_t>(beams_.beams);
    ++length_;
    std::vector<Hypothesis> next;
    Outcome outcome;
    for (size_t i = 0; i < ranked_.size() && next.size() < kept; ++i) {
      const auto& [c, ends, stop] = ranked_[i];
      const Hypothesis& parent = live_[c.beam];
      if (ends) {
        // a stop id is no part of the text
        if (i < kept)
          put_aside(stop.empty() ? parent.made : with(parent.made, c.id), c.log_p, "stop", stop);
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

  static std::vector<int64_t> with(std::vector<int64_t> made, int64_t id) {
    made.push_back(id);
    return made;
  }

  /// Decodes new tokens as what goes on from the prompt.
  text::StreamDecoder decoder() const {
    text::StreamDecoder decoder(*tokenizer_, /*skip_special=*/!decoding_.show_special);
    const std::vector<int64_t>& tokens = request_.prompt.tokens;
    // beside an encoder the text begins behind the start token
    if (request_.prompt.source.empty())
      decoder.prime(std::vector<int32_t>(tokens.begin(), tokens.end()));
    return decoder;
  }

  /// The stop string that the last of the new tokens completes, the earliest of several; "" = none.
  /// No earlier token has completed any.
  std::string stop_of(const std::vector<int64_t>& made) const {
    size_t longest = 0;
    for (const std::string& stop : decoding_.stop_strings) longest = std::max(longest, stop.size());
    if (longest == 0 || tokenizer_ == nullptr) return "";
    // of a long text its end tells; the first character of a part may lack bytes, or a space
    constexpr size_t kBlurred = 8;
    std::string text;
    size_t before = 0;  // bytes without the last token
    for (size_t n = 16;; n *= 4) {
      const bool whole = n >= made.size();
      text::StreamDecoder part =
          whole ? decoder() : text::StreamDecoder(*tokenizer_, !decoding_.show_special);
      text.clear();
      for (size_t i = whole ? 0 : made.size() - n; i < made.size(); ++i) {
        before = text.size();
        text += part.push(static_cast<int32_t>(made[i]));
      }
      if (whole || before >= longest + kBlurred) break;
    }
    const auto [at, stop] = first_stop(text, before);
    return stop;
  }

  /// Where the earliest stop string begins that ends behind `before` bytes, and which it is.
  std::pair<size_t, std::string> first_stop(const std::string& text, size_t before) const {
    std::pair<size_t, std::string> first{std::string::npos, ""};
    for (const std::string& stop : decoding_.stop_strings) {
      const size_t from = before + 1 > stop.size() ? before + 1 - stop.size() : 0;
      if (const size_t at = text.find(stop, from); at < first.first) first = {at, stop};
    }
    return first;
  }

  /// Looks whether the hypothesis ends with this token.
  Ranked looked_at(const Candidate& c) const {
    Ranked out{c};
    out.ends = std::find(decoding_.stop_ids.begin(), decoding_.stop_ids.end(), c.id) !=
               decoding_.stop_ids.end();
    if (out.ends || decoding_.stop_strings.empty()) return out;
    out.stop = stop_of(with(live_[c.beam].made, c.id));
    out.ends = !out.stop.empty();
    return out;
  }

  double score(double log_p, int64_t length) const {
    return log_p /
           std::pow(static_cast<double>(std::max<int64_t>(length, 1)), beams_.length_penalty);
  }

  /// Keeps the best `beams`, best first; of equal scores the earlier one.
  void put_aside(const std::vector<int64_t>& made,
                 double log_p,
                 const char* reason,
                 const std::string& stop = "") {
    const Finished f{made, score(log_p, length_), reason, stop};
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
    const std::vector<int64_t> banned = banned_ids(decoding_, length_);
    const bool changed =
        change_logits(scores, h.sequence.tokens, given_, decoding_.sampling) || !banned.empty();
    for (const int64_t id : banned)
      if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = -INFINITY;
    if (changed) logits = scores, normal = beams_.renormalize ? log_sum(scores) : 0;
    for (size_t v = 0; v < logits.size(); ++v)
      if (logits[v] > -INFINITY)
        all.push_back({beam, static_cast<int64_t>(v), h.log_p - normal + logits[v]});
  }

  /// The best continuations of all hypotheses, up to the last of `beams` that go on.
  std::vector<Ranked> rank(const Tensor& logits) const {
    const auto vocab = static_cast<size_t>(logits.size(1));
    std::vector<Ranked> best;
    // what must be chosen is certain
    if (const auto forced = forced_id(decoding_, length_)) {
      for (size_t b = 0; b < live_.size(); ++b)
        best.push_back(looked_at({b, *forced, live_[b].log_p}));
      return best;
    }
    std::vector<Candidate> all;
    all.reserve(live_.size() * vocab);
    for (size_t b = 0; b < live_.size(); ++b)
      extend(b, std::span(logits.const_data_ptr<float>() + b * vocab, vocab), all);
    if (all.empty())
      fail(ErrorKind::input, "generate", "no token may follow after {} new ones", length_);
    const auto behind = [](const Candidate& x, const Candidate& y) { return is_before(y, x); };
    std::make_heap(all.begin(), all.end(), behind);
    for (int64_t on = 0; on < beams_.beams && !all.empty(); on += best.back().ends ? 0 : 1) {
      std::pop_heap(all.begin(), all.end(), behind);
      best.push_back(looked_at(all.back()));
      all.pop_back();
    }
    return best;
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
    if (tokenizer_ == nullptr) return;
    text::StreamDecoder all = decoder();
    for (const int64_t id : best.made) result_.text += all.push(static_cast<int32_t>(id));
    if (best.stop.empty()) {
      result_.text += all.finish();
    } else {
      result_.stop_string = best.stop;
      if (const size_t at = result_.text.find(best.stop); at != std::string::npos)
        result_.text.resize(at + (decoding_.keep_stop ? best.stop.size() : 0));
    }
    if (request_.on_text) request_.on_text(result_.text);
  }

  Request request_;
  DecodingOptions decoding_;
  BeamOptions beams_;
  size_t given_;  // tokens before the new ones
  const text::Tokenizer* tokenizer_ = nullptr;
  std::vector<Hypothesis> live_;    // best first
  std::vector<Finished> finished_;  // best first
  std::vector<Ranked> ranked_;
  int64_t length_ = 0, most_ = 0;
  Limit limit_ = Limit::new_tokens;  // that most_ comes from
};

}  // namespace

std::unique_ptr<Task> make_beam_task(const model::Model& model,
                                     const text::Tokenizer* tokenizer,
                                     const Request& request) {
  return std::make_unique<Search>(model, tokenizer, request);
}

}  // namespace tessera::infer
