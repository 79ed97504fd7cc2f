// What the relatives of softmax attention share: attention inside the documents of a batch under a
// pattern, what a state holds of it, and the random numbers of its dropout.
#pragma once

#include <functional>
#include <span>

#include "tessera/nn/mixer/attention/call_form.h"
#include "tessera/nn/mixer/attention/query_temperature.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/ops/attention/attention.h"

namespace tessera::nn {

/// Dropout on attention weights, from a stream of its own for every segment.
struct WeightDropout {
  double p = 0;  // 0 = none
  RandomKey key{0};
  /// `how` with that of the queries of segments from their token `at` on, which are one sequence
  /// each.
  ops::ScoreOptions in(ops::ScoreOptions how,
                       std::span<const Segment> segments,
                       int64_t at = 0) const;
  ops::ScoreOptions in(ops::ScoreOptions how, const Segment& segment, int64_t at = 0) const {
    return in(std::move(how), std::span(&segment, 1), at);
  }
};
/// Of the weights `site` in the part `name`; none outside training.
WeightDropout weight_dropout(const Context& context,
                             const std::string& name,
                             double p,
                             const std::string& site = "weights");

/// `how` with what a position scheme adds to the scores of the site, with the factor it leaves on
/// them, and with the call's type of products; the site's scale is how.scale.
ops::ScoreOptions with_term(ops::ScoreOptions how,
                            const Position& position,
                            ScoreSite site,
                            Context& context);

/// Queries [N, H, D] times the factors of their positions.
Tensor tempered(const Tensor& q_NHD, const QueryTemperature& temperature, const Context& context);

/// The scores of a call under a pattern: what all its documents have in common, and each one's own.
struct PatternedScores {
  const PatternConfig* who = nullptr;
  ops::ScoreOptions how;
  std::vector<PatternSite> documents;  // by segment; none where causality and a window say all
  /// The queries as the first tokens of their document meet them (ScoreOptions::far_q); may be
  /// undefined.
  Tensor far_q_NHK = {};
  /// What the queries of each document attend to, where a part has chosen keys (Select::choose);
  /// null where they attend to all.
  std::vector<std::shared_ptr<const kernels::Visibility>> chosen = {};
  int64_t dense = 0;  // Select::dense_length: the queries up to there have all keys before them

  /// Takes over what `select` has chosen for the queries of the call, which have `n_heads` heads.
  void choose(const Select& select, const Tensor& key_NK, int64_t n_heads, const Batch& batch);
  /// With the pattern of the document of `segment`.
  ops::ScoreOptions in_document(const BySegment& part, size_t segment) const;
  /// Whether one document's pattern is every document's.
  bool all_alike() const;
  /// Adds the call of a document's queries, which stand at `call.start` .., under in_document().
  /// Queries with no more keys than are chosen attend to all of them by the form of calls in which
  /// nothing is chosen, so that no bits depend on how a document was cut into calls.
  void add_call(std::vector<ops::AttentionCall>& calls,
                ops::AttentionCall call,
                size_t segment) const;
};

/// A mixer's pattern, where a call asks it.
class PatternMask {
 public:
  PatternMask(const Builder& builder, const spec::AnyPart& pattern, int64_t n_heads);
  const PatternConfig& pattern_config() const { return pattern_.as<PatternConfig>(); }

  /// `how` under the pattern; `far_q_NHK` from far_queries().
  PatternedScores scores(ops::ScoreOptions how, const Context& context, Tensor far_q_NHK) const;
  /// The queries as keys at the start of their document meet them, where that makes a difference;
  /// `unrotated` as `position` takes them.
  Tensor far_queries(const Tensor& unrotated, const Position& position, Context& context) const;
  /// What a row holds that queries of a call see, its own entries last. These are kept by keep(),
  /// after they have been seen. Entries without `values` are keys and values in one.
  class Past {
   public:
    std::vector<ops::KeyValues> kv;
    void keep();

   private:
    friend class PatternMask;
    ops::KeyValues own_;  // as stored
    TokenBuffer *keys_ = nullptr, *values_ = nullptr;
  };
  Past past(const ops::KeyValues& own, TokenBuffer& keys, TokenBuffer* values) const;
  /// Calls `compute` with the result of past(), then stores the entries.
  void after_past(const ops::KeyValues& own,
                  TokenBuffer& keys,
                  TokenBuffer* values,
                  const std::function<void(const std::vector<ops::KeyValues>&)>& compute) const;

 private:
  spec::AnyPart pattern_;
  std::string name_;  // of the mixer
  int64_t layer_, n_heads_;
};

/// What a row holds of positions [from, to), as it lies in the pages of its state.
std::vector<ops::KeyValues> held_keys(const TokenBuffer& keys,
                                      const TokenBuffer& values,
                                      int64_t from,
                                      int64_t to);

/// Every document of the batch attends to itself: q_NHK, k_NGK, v_NGV -> [N, H, V].
Tensor attend_documents(const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const PatternedScores& scores,
                        const WeightDropout& dropout = {});
/// The same in a form without a state and ranks, which call_form() has chosen for what the
/// documents bring.
Tensor attend_documents(CallForm form,
                        const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const PatternedScores& scores,
                        const WeightDropout& dropout);
/// What documents bring to the choice of that form (brings::Bit).
uint32_t documents_bring(const Tensor& q_NHK, const Batch& batch, const PatternedScores& scores);

}  // namespace tessera::nn
