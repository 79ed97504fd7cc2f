#include "tessera/nn/mixer/attention/lsh_attention.h"

#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/position/relative.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/ops/attention/lsh_attention.h"

namespace tessera::nn {
namespace {

class LshAttention final : public Mixer {
 public:
  LshAttention(const LshAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        qk_(builder, "qk"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, d = config_.head_dim;
    const Tensor qk_NHD = qk_(x_ND, context).reshape({n, h, d}),
                 v_NHD = v_(x_ND, context).reshape({n, h, d});
    const ops::ScoreTerm term = distances(qk_NHD, context);
    const BySegment part(*context.batch);
    const Tensor o_NHD = over_segments(*context.batch, [&](size_t i, const Segment& s) {
      const Tensor qk_THD = part(qk_NHD, i);
      ops::Lsh how{config_.chunk, config_.chunks_before, config_.chunks_after, context.causal};
      how.pad_to = config_.pad_to;
      how.same_bucket_only = config_.same_bucket_only;
      how.dedupe = config_.dedupe;
      how.bias_HR = term.bias_HR;
      how.zero = term.zero;
      how.rotations = rotations(how.padded(s.length), context);
      if (s.length > config_.chunk)
        how.buckets_RHT =
            chosen(context, [&] { return ops::lsh_buckets(qk_THD, how).to(at::kInt); });
      return ops::lsh_attention(qk_THD, part(v_NHD, i), how);
    });
    return o_(o_NHD.reshape({n, h * d}), context);
  }

 private:
  /// What the position adds to the scores, by distance.
  ops::ScoreTerm distances(const Tensor& qk_NHD, Context& context) const {
    ScoreSite site;
    site.n_heads = config_.n_heads;
    site.head_dim = config_.head_dim;
    site.longest = context.batch->longest();
    site.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
    const ops::ScoreTerm term = position_->score_term(site, context);
    return term ? as_table(term, DistanceRange::of(site, context), qk_NHD) : term;
  }

  std::vector<Tensor> rotations(int64_t places, const Context& context) const {
    const std::vector<int64_t> factors =
        config_.n_buckets.empty()
            ? ops::lsh_bucket_factors(places, config_.chunk, config_.max_length)
            : config_.n_buckets;
    const auto seed = static_cast<uint64_t>(config_.seed);
    if (config_.rotations == RotationSource::torch)
      return ops::lsh_torch_rotations(seed, factors, config_.n_hashes, config_.n_heads,
                                      config_.head_dim);
    const auto draws = static_cast<uint64_t>(context.draws(config_.redraw_every));
    const RandomKey key = draws == 0 ? RandomKey(seed) : RandomKey(seed).fold(draws);
    return ops::lsh_rotations(key.fold(name_), factors, config_.n_hashes, config_.n_heads,
                              config_.head_dim);
  }

  LshAttentionConfig config_;
  std::string name_;
  Linear qk_, v_, o_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LshAttentionConfig& config, const Builder& builder) {
  return std::make_unique<LshAttention>(config, builder);
}

}  // namespace tessera::nn
