#include "tessera/nn/mixer/attend.h"

#include "tessera/ops/flash_attention.h"

#include "tessera/ops/random.h"

namespace tessera::nn {

ops::Dropout WeightDropout::at(int64_t segment_begin) const {
  return {p, key.fold(static_cast<uint64_t>(segment_begin))};
}

ops::ScoreOptions WeightDropout::in(ops::ScoreOptions how, int64_t segment_begin) const {
  how.dropout = at(segment_begin);
  return how;
}

std::vector<RandomKey> WeightDropout::streams(const Batch& batch) const {
  std::vector<RandomKey> out;
  for (const Segment& s : batch.segments) out.push_back(at(s.begin).key);
  return out;
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
  return how;
}

HeadNorms::HeadNorms(const Builder& builder,
                     const std::string& name,
                     const spec::AnyPart& norm,
                     QkNormOver over,
                     int64_t heads)
    : over_(over), heads_(heads) {
  if (!norm) return;
  if (over != QkNormOver::each_head)
    norms_.push_back(build_norm(norm, builder.under(name)));
  else
    for (int64_t h = 0; h < heads; ++h)
      norms_.push_back(build_norm(norm, builder.under(fmt::format("{}.{}", name, h))));
}

Tensor HeadNorms::operator()(const Tensor& projected) const {
  const auto apart = [&](const Tensor& x) { return x.reshape({x.size(0), heads_, -1}); };
  if (norms_.empty()) return apart(projected);
  if (over_ == QkNormOver::projection) return apart(norms_[0]->forward(projected));
  const Tensor y_NHD = apart(projected);
  if (over_ == QkNormOver::head) return norms_[0]->forward(y_NHD);
  std::vector<Tensor> each;
  for (int64_t h = 0; h < heads_; ++h)
    each.push_back(norms_[static_cast<size_t>(h)]->forward(y_NHD.select(1, h)));
  return at::stack(each, 1);
}

LearnedScale::LearnedScale(const Builder& builder, ScoreScale scale) {
  if (scale == ScoreScale::learned || scale == ScoreScale::learned_headwise)
    factors_ = builder.weight("scale");
}

Tensor LearnedScale::operator()(const Tensor& q_NHD) const {
  return factors_ ? q_NHD * factors_->tensor().to(q_NHD.options()).unsqueeze(-1) : q_NHD;
}

std::vector<ops::KeyValues> held_keys(const TokenBuffer& keys,
                                      const TokenBuffer& values,
                                      int64_t from,
                                      int64_t to) {
  const std::vector<Tensor> k = keys.spans(from, to), v = values.spans(from, to);
  std::vector<ops::KeyValues> held;
  held.reserve(k.size());
  for (size_t i = 0; i < k.size(); from += k[i].size(0), ++i) held.push_back({k[i], v[i], from});
  return held;
}

std::optional<Tensor> attend_packed(const Tensor& q_NHK,
                                    const Tensor& k_NGK,
                                    const Tensor& v_NGV,
                                    const Batch& batch,
                                    const ops::ScoreOptions& options,
                                    const WeightDropout& dropout) {
  if (batch.segments.size() < 2 || ops::use_kernels(q_NHK) ||
      !ops::flash_documents_applies(q_NHK, options))
    return std::nullopt;
  const std::vector<int64_t> lengths = lengths_of(batch);
  return ops::flash_documents(q_NHK, k_NGK, v_NGV, lengths, lengths, dropout.in(options, 0),
                              dropout.streams(batch));
}

Tensor attend_documents(const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const ops::ScoreOptions& options,
                        const WeightDropout& dropout) {
  if (const int64_t t = batch.equal_length(); t > 0 && !ops::use_kernels(q_NHK)) {
    const int64_t b = q_NHK.size(0) / t;
    const auto fold = [&](const Tensor& x) { return x.reshape({b, t, x.size(1), x.size(2)}); };
    return ops::attention_equal(fold(q_NHK), fold(k_NGK), fold(v_NGV), dropout.in(options, 0))
        .reshape({q_NHK.size(0), q_NHK.size(1), v_NGV.size(2)});
  }
  if (const auto out = attend_packed(q_NHK, k_NGK, v_NGV, batch, options, dropout)) return *out;
  const BySegment part(batch);
  return over_segments(batch, [&](size_t i, const Segment& s) {
    const ops::KeyValues kv{part(k_NGK, i), part(v_NGV, i), s.start};
    return ops::attention(part(q_NHK, i), {kv}, s.start, dropout.in(options, s.begin));
  });
}

}  // namespace tessera::nn
