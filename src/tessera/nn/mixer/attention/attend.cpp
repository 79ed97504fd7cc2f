#include "tessera/nn/mixer/attention/attend.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/nn/select/selected_keys.h"
#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/attention/documents_attention.h"
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/form.h"
#include "tessera/ops/attention/fused_attention.h"
#include "tessera/ops/random.h"

namespace tessera::nn {

ops::ScoreOptions WeightDropout::in(ops::ScoreOptions how,
                                    std::span<const Segment> segments,
                                    int64_t at) const {
  if (p == 0) return how;
  how.dropout = {.p = p};
  for (const Segment& s : segments) how.dropout.streams.push_back(s.stream(key, at));
  return how;
}

WeightDropout weight_dropout(const Context& context,
                             const std::string& name,
                             double p,
                             const std::string& site) {
  if (!context.training || p == 0) return {};
  return {p, context.key.fold(name + "." + site)};
}

ops::ScoreOptions with_term(ops::ScoreOptions how,
                            const Position& position,
                            ScoreSite site,
                            Context& context) {
  site.scale = how.scale;
  how.term = position.score_term(site, context);
  how.scale = site.scale;
  how.products = context.products.type;
  return how;
}

Tensor tempered(const Tensor& q_NHD, const QueryTemperature& temperature, const Context& context) {
  if (!temperature.acts()) return q_NHD;
  const Tensor positions = context.batch->positions_N.to(at::kCPU).contiguous();
  Tensor factors = at::empty({positions.numel(), 1, 1}, at::kDouble);
  for (int64_t i = 0; i < positions.numel(); ++i)
    factors.data_ptr<double>()[i] = temperature.factor(positions.const_data_ptr<int64_t>()[i]);
  return q_NHD * factors.to(q_NHD.options());
}

ops::ScoreOptions PatternedScores::in_document(const BySegment& part, size_t segment) const {
  ops::ScoreOptions own = how;
  if (!documents.empty())
    own.visibility = std::make_shared<PatternVisibility>(*who, documents[segment]);
  if (!chosen.empty() && chosen[segment] != nullptr) own.visibility = chosen[segment];
  if (far_q_NHK.defined()) {
    own.far_q = part(far_q_NHK, segment);
    own.far_end = who->first_kept();
  }
  return own;
}

void PatternedScores::choose(const Select& select,
                             const Tensor& key_NK,
                             int64_t n_heads,
                             const Batch& batch) {
  if (!key_NK.defined()) return;
  dense = select.dense_length(key_NK);
  const int64_t heads = n_heads / (key_NK.dim() == 3 ? key_NK.size(1) : 1);
  const BySegment part(batch);
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& s = batch.segments[i];
    chosen.push_back(
        s.start + s.length <= dense
            ? nullptr
            : std::make_shared<SelectedKeys>(part(key_NK, i), s.start, select.block(), heads));
  }
}

void PatternedScores::add_call(std::vector<ops::AttentionCall>& calls,
                               ops::AttentionCall call,
                               size_t segment) const {
  const int64_t t = call.q_THD.size(0);
  const bool chooses = !chosen.empty() && chosen[segment] != nullptr;
  const int64_t n = chooses ? std::clamp<int64_t>(dense - call.start, 0, t) : 0;
  if (n == 0 || !ops::documents_apart(call.q_THD)) {
    calls.push_back(std::move(call));
    return;
  }
  calls.push_back(call);
  calls.back().q_THD = call.q_THD.narrow(0, 0, n);
  calls.back().options.visibility = nullptr;
  call.q_THD = call.q_THD.narrow(0, n, t - n);
  call.start += n;
  calls.push_back(std::move(call));
}

bool PatternedScores::all_alike() const {
  if (!chosen.empty()) return false;
  return std::all_of(documents.begin(), documents.end(), [&](const PatternSite& d) {
    return d.prefix == documents.front().prefix && !d.global;
  });
}

PatternMask::PatternMask(const Builder& builder, const spec::AnyPart& pattern, int64_t n_heads)
    : pattern_(pattern),
      name_(builder.prefix()),
      layer_(builder.scope().layer),
      n_heads_(n_heads) {}

PatternedScores PatternMask::scores(ops::ScoreOptions how,
                                    const Context& context,
                                    Tensor far_q_NHK) const {
  const Batch& batch = *context.batch;
  PatternedScores out{&pattern_config(), std::move(how), {}, std::move(far_q_NHK)};
  if (pattern_config().window()) {
    out.how.window = *pattern_config().window();
    return out;
  }
  const Tensor marks =
      batch.global_N.defined() ? batch.global_N.to(at::kCPU, at::kBool).contiguous() : Tensor();
  for (const Segment& s : batch.segments) {
    PatternSite document{layer_, n_heads_, s.start + s.length, context.causal, s.prefix, {}};
    if (marks.defined()) {
      if (s.start > 0)
        fail(ErrorKind::input, name_,
             "global tokens are marked in a call that starts at position {}; expected whole "
             "documents, or the pattern's global_tokens",
             s.start);
      const bool* first = marks.const_data_ptr<bool>() + s.begin;
      document.global = std::make_shared<const std::vector<char>>(first, first + s.length);
    }
    pattern_config().check_call(document, s.start);
    out.documents.push_back(std::move(document));
  }
  return out;
}

Tensor PatternMask::far_queries(const Tensor& unrotated,
                                const Position& position,
                                Context& context) const {
  const int64_t farthest = pattern_config().farthest();
  if (farthest == 0 || context.batch->longest() <= farthest + 1) return {};
  if (context.batch->axes_3N.defined())
    fail(ErrorKind::input, name_,
         "positions in time, height and width, but pattern \"{}\" sees queries beyond {} at one "
         "place; expected position_ids [B, T]",
         pattern_.type(), farthest);
  struct Far {
    Batch batch;
    Context context;
  };
  const auto name = fmt::format("positions up to {}", farthest);
  Far& far = *context.once<std::shared_ptr<Far>>(name, [&] {
    auto made = std::make_shared<Far>();
    made->batch = *context.batch;
    made->batch.positions_N = made->batch.positions_N.clamp_max(farthest);
    made->context.causal = context.causal;
    made->context.training = context.training;
    made->context.products = context.products;
    return made;
  });
  far.context.batch = &far.batch;
  return position.rotate(unrotated, Side::query, far.context);
}

void PatternMask::Past::keep() {
  if (keys_ == nullptr) return;
  keys_->append(own_.k_SGD);
  if (values_ != nullptr) values_->append(own_.v_SGD);
  keys_ = nullptr;
}

PatternMask::Past PatternMask::past(const ops::KeyValues& own,
                                    TokenBuffer& keys,
                                    TokenBuffer* values) const {
  const int64_t horizon = pattern_config().horizon(), lead = pattern_config().first_kept();
  Past past;
  const Tensor k = keys.stored(own.k_SGD), v = values != nullptr ? values->stored(own.v_SGD) : k;
  past.own_ = {k, v, own.first};
  past.keys_ = &keys, past.values_ = values;
  const int64_t start = own.first, length = own.k_SGD.size(0);
  require(keys.length() == start, "attention", "the state holds {} tokens, the call starts at {}",
          keys.length(), start);
  // first position that the first query sees, those apart that are kept for ever
  int64_t from = horizon > 0 ? std::max<int64_t>(0, start - horizon + 1) : 0;
  // of a recorded step the home, in which the device hides what the query does not see
  if (from <= lead || keys.place().defined()) from = 0;
  const auto held = [&](int64_t begin, int64_t end) {
    for (const ops::KeyValues& part :
         held_keys(keys, values != nullptr ? *values : keys, begin, end))
      past.kv.push_back(part);
  };
  // a window may not hold both the oldest visible key and all new ones: several new tokens stay
  // outside until computed
  const bool append_first = horizon == 0 || length == 1;
  if (append_first) past.keep();
  if (from > 0 && lead > 0) held(0, lead);
  held(from, append_first ? start + length : start);
  if (!append_first) past.kv.push_back({k, v, start});
  return past;
}

void PatternMask::after_past(
    const ops::KeyValues& own,
    TokenBuffer& keys,
    TokenBuffer* values,
    const std::function<void(const std::vector<ops::KeyValues>&)>& compute) const {
  Past seen = past(own, keys, values);
  compute(seen.kv);
  seen.keep();
}

std::vector<ops::KeyValues> held_keys(const TokenBuffer& keys,
                                      const TokenBuffer& values,
                                      int64_t from,
                                      int64_t to) {
  const std::vector<Tensor> k = keys.spans(from, to), v = values.spans(from, to);
  std::vector<ops::KeyValues> held;
  held.reserve(k.size());
  for (size_t i = 0; i < k.size(); from += k[i].size(0), ++i)
    held.push_back({k[i], v[i], from, keys.place()});
  return held;
}

namespace {

/// Whether one flash attention serves documents of any lengths.
bool serves_packed(const Tensor& q_NHK, const Batch& batch, const PatternedScores& scores) {
  // a pattern's positions, and the keys that a query has chosen, are those in one document
  if (batch.segments.size() < 2 || !scores.documents.empty() || !scores.chosen.empty() ||
      scores.far_q_NHK.defined())
    return false;
  if (!ops::documents_apart(q_NHK))
    return ops::tiles_serve_packed(q_NHK, scores.how) ||
           ops::fused_serves_packed(q_NHK, scores.how);
  return !scores.how.term && !scores.how.visibility && ops::may_go_side_by_side(q_NHK, scores.how);
}

/// Documents one after another, by one flash attention: serves_packed().
Tensor attend_packed(const Tensor& q_NHK,
                     const Tensor& k_NGK,
                     const Tensor& v_NGV,
                     const Batch& batch,
                     const ops::ScoreOptions& how,
                     const WeightDropout& dropout) {
  const std::vector<int64_t> lengths = lengths_of(batch);
  if (ops::documents_apart(q_NHK))
    return ops::attention_kernel_of_documents(q_NHK, k_NGK, v_NGV, lengths, how);
  const ops::ScoreOptions own = dropout.in(how, batch.segments);
  return ops::tiles_serve_packed(q_NHK, how)
             ? ops::flash_documents(q_NHK, k_NGK, v_NGV, lengths, lengths, own)
             : ops::fused_documents(q_NHK, k_NGK, v_NGV, lengths, lengths, own);
}

/// Documents of equal length in one [B, T, H, D].
Tensor attend_together(const Tensor& q_NHK,
                       const Tensor& k_NGK,
                       const Tensor& v_NGV,
                       const Batch& batch,
                       const PatternedScores& scores,
                       const WeightDropout& dropout) {
  const int64_t t = batch.equal_length();
  const auto fold = [&](const Tensor& x) {
    return x.reshape({x.size(0) / t, t, x.size(1), x.size(2)});
  };
  ops::ScoreOptions how = dropout.in(scores.in_document(BySegment(batch), 0), batch.segments);
  if (how.far_q.defined()) how.far_q = fold(scores.far_q_NHK);
  return ops::attention_equal(fold(q_NHK), fold(k_NGK), fold(v_NGV), how)
      .reshape({q_NHK.size(0), q_NHK.size(1), v_NGV.size(2)});
}

/// A text that is given in an order, and the queries after it.
Tensor attend_in_order(const Tensor& q_NHK,
                       const Tensor& k_NGK,
                       const Tensor& v_NGV,
                       const std::shared_ptr<const TokenOrder>& order,
                       const std::function<ops::ScoreOptions(int64_t at)>& options) {
  const int64_t text = order->text(), queries = order->queries();
  const ops::KeyValues kv{k_NGK.narrow(0, 0, text), v_NGV.narrow(0, 0, text), 0};
  ops::ScoreOptions how = options(0);
  how.visibility = std::make_shared<OrderVisibility>(order, false);
  const Tensor out = ops::attention(q_NHK.narrow(0, 0, text), {kv}, 0, how);
  if (queries == 0) return out;
  // queries where the tokens stand that they ask for, so that distances are theirs
  const Tensor places = at::tensor(order->places, at::kLong).to(q_NHK.device()),
               asking = at::zeros({text, q_NHK.size(1), q_NHK.size(2)}, q_NHK.options())
                            .index_copy(0, places, q_NHK.narrow(0, text, queries));
  how = options(text);
  how.visibility = std::make_shared<OrderVisibility>(order, true);
  return at::cat({out, ops::attention(asking, {kv}, 0, how).index_select(0, places)});
}

}  // namespace

uint32_t documents_bring(const Tensor& q_NHK, const Batch& batch, const PatternedScores& scores) {
  uint32_t brought = 0;
  if (batch.in_order()) brought |= brings::order;
  // batch-invariant kernels take documents apart or packed
  if (batch.equal_length() > 0 && !ops::documents_apart(q_NHK) && scores.all_alike())
    brought |= brings::equal;
  if (serves_packed(q_NHK, batch, scores)) brought |= brings::packs;
  return brought;
}

Tensor attend_documents(const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const PatternedScores& scores,
                        const WeightDropout& dropout) {
  return attend_documents(call_form(documents_bring(q_NHK, batch, scores)), q_NHK, k_NGK, v_NGV,
                          batch, scores, dropout);
}

Tensor attend_documents(CallForm form,
                        const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const PatternedScores& scores,
                        const WeightDropout& dropout) {
  if (form == CallForm::together)
    return attend_together(q_NHK, k_NGK, v_NGV, batch, scores, dropout);
  if (form == CallForm::packed)
    return attend_packed(q_NHK, k_NGK, v_NGV, batch, scores.how, dropout);
  const BySegment part(batch);
  return over_segments(batch, [&](size_t i, const Segment& s) {
    const auto options = [&](int64_t at) { return dropout.in(scores.in_document(part, i), s, at); };
    const ops::KeyValues kv{part(k_NGK, i), part(v_NGV, i), s.start};
    if (form == CallForm::ordered && s.order)
      return attend_in_order(part(q_NHK, i), kv.k_SGD, kv.v_SGD, s.order, options);
    std::vector<ops::AttentionCall> calls;
    scores.add_call(calls, {part(q_NHK, i), {kv}, s.start, options(0)}, i);
    return ops::attention(calls);
  });
}

}  // namespace tessera::nn
