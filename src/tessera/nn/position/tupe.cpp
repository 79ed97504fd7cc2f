#include "tessera/nn/position/tupe.h"

#include <cmath>

#include "tessera/nn/position/relative.h"
#include "tessera/nn/position/t5.h"

namespace tessera::nn {
namespace {

class Tupe final : public Position {
 public:
  Tupe(const TupeConfig& config, const Builder& builder) : config_(config) {
    const Builder all = home(builder, config.share);
    // layers that share a block may adapt it, each in its own way; blocks of `share` are not adapted
    name_ = config.share.empty() ? fmt::format("tupe {} {}", builder.scope().layer, all.prefix())
                                 : "tupe " + all.prefix();
    table_ = all.weight("weight");
    q_ = Linear(all, "q");
    k_ = Linear(all, "k");
    if (config.norm)
      norm_ =
          build_norm(config.norm, all.under("norm", config.child_scope(builder.scope(), "norm")));
    if (config.buckets > 0) relative_ = all.weight("relative.weight");
  }

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    site.scale /= std::sqrt(2.0);
    ops::ScoreTerm term;
    // the places that the longest document has, [P, D]
    const Tensor rows = context.values.once(name_, [&] { return table(site.longest, context); });
    const auto per_head = [&](const Tensor& x) {
      return x.reshape({x.size(0), site.n_heads, site.head_dim}).transpose(0, 1);
    };
    // projected, [H, P, D]; with an untied token 0 the extra row comes first
    term.inputs = {context.values.once(name_ + " q", [&] { return per_head(q_(rows, context)); }),
                   context.values.once(name_ + " k", [&] { return per_head(k_(rows, context)); })};
    if (relative_) term.inputs.push_back(relative_->tensor());
    const double scale = 1 / std::sqrt(2.0 * static_cast<double>(site.head_dim));
    term.bias = [config = config_, scale](const ops::ScoreBlock& block,
                                          const std::vector<Tensor>& inputs) {
      const auto type = block.q_BHTD.scalar_type();
      Tensor sum = absolute(config, block, inputs[0].to(type), inputs[1].to(type)) * scale;
      if (config.buckets > 0) sum = sum + relative(config, block, inputs[2].to(type));
      return sum.unsqueeze(0);
    };
    return term;
  }

 private:
  Tensor table(int64_t longest, const Context& context) const {
    const Tensor rows = table_->tensor().narrow(0, 0, longest + (config_.untie_cls ? 1 : 0));
    return norm_ ? norm_->forward(rows, context.products) : rows;
  }

  /// `from` where the query is token 0, else `to` where the key is, else x.
  static Tensor untied(const ops::ScoreBlock& block,
                       const Tensor& x_HTS,
                       const Tensor& from,
                       const Tensor& to) {
    const Tensor query = query_positions(block), key = key_positions(block);
    return at::where(query.eq(0).unsqueeze(1), from, at::where(key.eq(0).unsqueeze(0), to, x_HTS));
  }

  static Tensor absolute(const TupeConfig& config,
                         const ops::ScoreBlock& block,
                         const Tensor& q_HPD,
                         const Tensor& k_HPD) {
    const int64_t extra = config.untie_cls ? 1 : 0;
    const Tensor tied = ops::row_products(q_HPD.index_select(1, query_positions(block) + extra),
                                          k_HPD.index_select(1, key_positions(block) + extra));
    if (extra == 0) return tied;
    const auto score = [&](int64_t row) {
      return ops::row_products(q_HPD.narrow(1, row, 1), k_HPD.narrow(1, row, 1));
    };
    return untied(block, tied, score(0), score(1));
  }

  static Tensor relative(const TupeConfig& config,
                         const ops::ScoreBlock& block,
                         const Tensor& table_NH) {
    T5Config t5;
    t5.n_buckets = config.buckets;
    t5.max_distance = config.max_distance;
    const Tensor index_TS = indices(block, [&](int64_t d) { return t5.bucket(d, false); });
    const Tensor bias_HTS = table_NH.index_select(0, index_TS.flatten())
                                .reshape({index_TS.size(0), index_TS.size(1), -1})
                                .permute({2, 0, 1});
    if (!config.untie_cls) return bias_HTS;
    // the bucket that no distance uses, and one more
    const auto row = [&](int64_t n) { return table_NH[n].reshape({-1, 1, 1}); };
    return untied(block, bias_HTS, row(config.buckets / 2), row(config.buckets));
  }

  TupeConfig config_;
  std::string name_;
  WeightPtr table_, relative_;
  Linear q_, k_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace

std::unique_ptr<Position> build(const TupeConfig& config, const Builder& builder) {
  return std::make_unique<Tupe>(config, builder);
}

}  // namespace tessera::nn
