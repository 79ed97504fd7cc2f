// Lightning indexer: DeepSeek sparse attention (DSA). A second, cheap attention of a few heads with
// one key for all of them scores the keys of every query, and the main one reads those of greatest
// score.
//   qI = W_q c per head;  kI = LN(W_k x);  the first or last rotary_dim channels of both rotated
//   w_t = n_heads^-1/2 W_w x_t;  I_ts = sum_h w_th max(0, head_dim^-1/2 qI_th . kI_s)
//   S_t = the min(top_k, t + 1) keys s <= t of greatest I_ts, the same for all heads
// c: what the mixer's queries are projected from (the normed latent of latent_attention). max(0, .)
// makes ties, of which the earlier key wins. A state keeps kI of every token.
// DeepSeek-AI 2025, arXiv:2512.02556, sec. 2.1. Golden: successors of attention 1.
//
// No gradient passes the choice: in training the indexer learns from a loss of its own alone,
// kl_loss KL(p_t || softmax_s I_ts) over S_t, p_t the weights that the main attention would give
// all keys, summed over heads, there and divided by their sum. Its inputs are constants for that
// loss. With top_k of at least the length of the documents it is the dense warm-up of the paper.
//
// Layers may share a choice: one gives it a `name`, later ones `share` it, the last of that name,
// and have no indexer (GLM-5).
#pragma once

#include "tessera/nn/select/index_heads.h"

namespace tessera::nn {

enum class RotatedChannels { first, last };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RotatedChannels> {
  using R = nn::RotatedChannels;
  static constexpr std::array names{std::pair{R::first, "first"}, std::pair{R::last, "last"}};
};

namespace tessera::nn {

struct IndexerConfig final : IndexHeadsConfig {
  int64_t top_k = 2048;
  RotatedChannels rotated = RotatedChannels::first;
  double norm_eps = 1e-6;
  std::string name;
  std::string share;

  static constexpr auto fields() {
    using C = IndexerConfig;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("n_heads", &C::n_heads, "heads of the indexer; 0 with share", {.min = 0}),
                   field("head_dim", &C::head_dim,
                         "width of one of them, and of its keys; 0 with share", {.min = 0}),
                   field("top_k", &C::top_k, "keys that a query attends to", {.min = 1}),
                   rotary_dim_field(
                       "channels of each head that rotate, by the angles of the mixer's rope; "
                       "0 = as many as rotate there"),
                   field("rotated", &C::rotated, "which channels these are (Hy4: the last)"),
                   layout_field(),
                   field("norm_eps", &C::norm_eps, "added to the variance in the norm of its keys",
                         {.min = 0})},
        IndexLossConfig::fields(),
        std::tuple{
            field("name", &C::name, "a name under which later layers use its choice"),
            field("share", &C::share,
                  "the name of an earlier layer's choice that is used here; \"\" = its own")});
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"n_heads", 4}, {"head_dim", 32}, {"top_k", 256}};
  }
  static spec::Info info() {
    return {.summary =
                "Lightning indexer: the keys of greatest index score (DeepSeek sparse "
                "attention).",
            .paper = "DeepSeek-AI: DeepSeek-V3.2, arXiv:2512.02556",
            .year = 2025,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void complete(const spec::Scope& scope) override {
    if (share.empty()) IndexHeadsConfig::complete(scope);
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  int64_t keys_met(int64_t context) const override { return std::min(context, top_k); }
  bool shares() const override { return !name.empty() || !share.empty(); }
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;

  /// The norm of its keys: with mean and bias.
  spec::AnyPart key_norm(const spec::Scope& scope) const;
};

}  // namespace tessera::nn
