#include "tessera/infer/beam.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/infer/request.h"

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

/// The search for one prompt.
class Search {
 public:
  Search(const model::Model& model,
         const std::vector<int64_t>& prompt,
         const GenerateOptions& options,
         const BeamOptions& beams,
         int64_t longest)
      : options_(options),
        beams_(beams),
        feeder_(model,
                1,
                {options.prefill_chunk, options.cancel, 0, options.prefix_cache, options.kv}) {
    live_.push_back({first_sequence(model.spec(), prompt), {}, 0});
    // one step more than the positions hold: the last token is never fed
    const auto held = static_cast<int64_t>(live_[0].sequence.tokens.size());
    most_ =
        longest > 0 ? std::min(options.max_new_tokens, longest + 1 - held) : options.max_new_tokens;
  }

  bool done() const { return live_.empty() || length_ >= most_ || !can_improve(); }
  size_t live() const { return live_.size(); }
  /// Tokens of the prompt that came out of the cache.
  int64_t reused() const { return reused_; }

  void step() {
    const auto kept = static_cast<size_t>(beams_.beams);
    const std::vector<Candidate> ranked = rank();
    ++length_;
    std::vector<Hypothesis> next;
    std::vector<size_t> parents;
    for (size_t i = 0; i < ranked.size() && next.size() < kept; ++i) {
      const Candidate& c = ranked[i];
      const Hypothesis& parent = live_[c.beam];
      if (ends(c.id)) {
        if (i < kept) finish(parent.made, c.log_p, "stop");
        continue;
      }
      next.push_back({parent.sequence, parent.made, c.log_p});
      next.back().sequence.tokens.push_back(c.id);
      next.back().made.push_back(c.id);
      parents.push_back(c.beam);
    }
    feeder_.arrange(parents);
    live_ = std::move(next);
  }

  /// The best of all; `interrupted` where the search was ended from outside.
  Finished best(bool interrupted) {
    for (const Hypothesis& h : live_)
      if (interrupted || length_ >= most_)
        finish(h.made, h.log_p, interrupted ? "cancelled" : "length");
    return finished_.empty() ? Finished{{}, 0, "length"} : finished_.front();
  }

 private:
  bool ends(int64_t id) const {
    return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
           options_.stop_ids.end();
  }
  double score(double log_p, int64_t length) const {
    return log_p /
           std::pow(static_cast<double>(std::max<int64_t>(length, 1)), beams_.length_penalty);
  }

  /// Keeps the best `beams`, best first; of equal scores the earlier one.
  void finish(const std::vector<int64_t>& made, double log_p, const char* reason) {
    const Finished f{made, score(log_p, length_), reason};
    const auto behind = [](const Finished& a, const Finished& b) { return a.score > b.score; };
    finished_.insert(std::upper_bound(finished_.begin(), finished_.end(), f, behind), f);
    if (static_cast<int64_t>(finished_.size()) > beams_.beams) finished_.pop_back();
  }

  /// log p only falls; how far a score can still come follows from the length that favours it most.
  bool can_improve() const {
    if (static_cast<int64_t>(finished_.size()) < beams_.beams) return true;
    const int64_t length = beams_.length_penalty > 0 ? most_ : length_ + 1;
    return score(live_.front().log_p, length) > finished_.back().score;
  }

  /// The best continuations of all hypotheses: enough that `beams` go on whatever ends.
  std::vector<Candidate> rank() {
    std::vector<size_t> active;
    std::vector<const Sequence*> rows;
    for (size_t b = 0; b < live_.size(); ++b) {
      active.push_back(b);
      rows.push_back(&live_[b].sequence);
    }
    const Tensor logits = feeder_.next(active, rows).to(at::kCPU, at::kFloat).contiguous();
    if (length_ == 0) reused_ = feeder_.reused(0);
    const int64_t vocab = logits.size(1);
    std::vector<Candidate> all;
    // what must be chosen is certain
    if (const auto forced = forced_id(options_, length_)) {
      for (size_t b = 0; b < live_.size(); ++b) all.push_back({b, *forced, live_[b].log_p});
      return all;
    }
    all.reserve(live_.size() * static_cast<size_t>(vocab));
    for (size_t b = 0; b < live_.size(); ++b) {
      const float* row = logits.const_data_ptr<float>() + static_cast<int64_t>(b) * vocab;
      const double largest = *std::max_element(row, row + vocab);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - largest);
      const double rest = live_[b].log_p - largest - std::log(sum);
      for (int64_t v = 0; v < vocab; ++v) all.push_back({b, v, rest + row[v]});
    }
    const size_t wanted = static_cast<size_t>(beams_.beams) * (1 + options_.stop_ids.size());
    const size_t n = std::min(all.size(), wanted);
    const auto before = [](const Candidate& x, const Candidate& y) {
      if (x.log_p != y.log_p) return x.log_p > y.log_p;
      return x.beam != y.beam ? x.beam < y.beam : x.id < y.id;
    };
    std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(n), all.end(), before);
    all.resize(n);
    return all;
  }

  const GenerateOptions& options_;
  const BeamOptions& beams_;
  Feeder feeder_;
  std::vector<Hypothesis> live_;    // best first
  std::vector<Finished> finished_;  // best first
  int64_t length_ = 0, most_ = 0, reused_ = 0;
};

}  // namespace

Generations beam_search(const model::Model& model,
                        const text::Tokenizer* tokenizer,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const GenerateOptions& options,
                        const BeamOptions& beams) {
  if (beams.beams < 1)
    fail(ErrorKind::usage, "generate", "beams = {}; expected at least 1", beams.beams);
  if (!options.stop_strings.empty())
    fail(
        ErrorKind::usage, "generate",
        "stop strings end a text that is being written, and beams rewrite theirs; use stop tokens");
  if (options.session != nullptr)
    fail(ErrorKind::usage, "generate",
         "a session goes on with what one row has said, and a search keeps many; use beams = 1");
  const int64_t longest = check_request(model, prompts, options);
  const at::NoGradGuard no_gradients;
  Generations out;
  for (size_t r = 0; r < prompts.size(); ++r) {
    Search search(model, prompts[r], options, beams, longest);
    if (r == 0 && options.on_start) options.on_start();
    bool cancelled = false;
    for (bool prefill = true; !search.done(); prefill = false) {
      const auto start = std::chrono::steady_clock::now();
      if (!prefill) out.decode_tokens += static_cast<int64_t>(search.live());
      try {
        if (options.cancel != nullptr) options.cancel->check("generate");
        search.step();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::cancelled) throw;
        cancelled = true;
        break;
      }
      (prefill ? out.prefill_seconds : out.decode_seconds) +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    Finished best = search.best(cancelled);
    Generation row;
    row.prompt_tokens = static_cast<int64_t>(prompts[r].size());
    row.cached_tokens = std::min(search.reused(), row.prompt_tokens);
    out.prefill_tokens += row.prompt_tokens - row.cached_tokens;
    row.finish_reason = best.reason;
    if (tokenizer != nullptr) {
      text::StreamDecoder decoder(*tokenizer);
      if (!model.spec().encoder)
        decoder.prime(std::vector<int32_t>(prompts[r].begin(), prompts[r].end()));
      for (const int64_t id : best.made) row.text += decoder.push(static_cast<int32_t>(id));
      row.text += decoder.finish();
      if (options.on_text) options.on_text(r, row.text);
    }
    row.token_ids = std::move(best.made);
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace tessera::infer
