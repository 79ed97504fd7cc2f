#include "tessera/nn/mixer/attend.h"

#include "tessera/ops/random.h"

namespace tessera::nn {

Dropper WeightDropout::at(int64_t segment_begin) const {
  if (p == 0) return {};
  return [stream = key.fold(static_cast<uint64_t>(segment_begin)), p = p](const Tensor& weights) {
    return ops::dropout(weights, p, stream);
  };
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

Tensor attend_documents(const Tensor& q_NHK,
                        const Tensor& k_NGK,
                        const Tensor& v_NGV,
                        const Batch& batch,
                        const ops::ScoreOptions& options,
                        const WeightDropout& dropout) {
  if (const int64_t t = batch.equal_length(); t > 0 && !ops::use_kernels(q_NHK)) {
    const int64_t b = q_NHK.size(0) / t;
    const auto fold = [&](const Tensor& x) { return x.reshape({b, t, x.size(1), x.size(2)}); };
    return ops::attention_equal(fold(q_NHK), fold(k_NGK), fold(v_NGV), options, dropout.at(0))
        .reshape({q_NHK.size(0), q_NHK.size(1), v_NGV.size(2)});
  }
  return over_segments(batch, [&](size_t, const Segment& s) {
    const ops::KeyValues kv{k_NGK.narrow(0, s.begin, s.length), v_NGV.narrow(0, s.begin, s.length),
                            s.start};
    return ops::attention(q_NHK.narrow(0, s.begin, s.length), {kv}, s.start, options,
                          dropout.at(s.begin));
  });
}

}  // namespace tessera::nn
