#include "tessera/nn/mixer/attention/latent_attention.h"

#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/head_gate.h"
#include "tessera/nn/mixer/attention/latent_attention_step.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {
namespace {

class LatentAttention final : public Mixer {
 public:
  LatentAttention(const LatentAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        kv_a_(builder, "kv_a"),
        o_(builder, "o"),
        k_b_(builder.weight("k_b.weight")),
        v_b_(builder.weight("v_b.weight")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        gate_(builder, config),
        mask_(builder, config.pattern, config.n_heads) {
    if (config.select)
      select_ = build_select(
          config.select, builder.under("select", config.child_scope(builder.scope(), "select")));
    if (config.q_lora_rank > 0) {
      q_a_ = Linear(builder, "q_a");
      q_ = Linear(builder, "q_b");
      if (config.latent_norm) q_norm_ = build_norm(config.latent_norm, builder.under("q_norm"));
    } else {
      q_ = Linear(builder, "q");
    }
    if (config.latent_norm) kv_norm_ = build_norm(config.latent_norm, builder.under("kv_norm"));
    if (config.rope_norm)
      rope_norm_ =
          build_norm(config.rope_norm,
                     builder.under("rope_norm", config.child_scope(builder.scope(), "rope_norm")));
    if (config.sinks) sinks_ = builder.weight("sinks");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), nope = config_.qk_nope_head_dim,
                  rope = config_.qk_rope_head_dim;
    const QueryInput from = query_input(x_ND, context);
    const Tensor q_NHK = tempered(queries_of(from.read_NQ, context), config_.temperature, context);
    Choice choice{{x_ND, from.normed_NQ, position_.get()}, {}};
    if (select_) choice.key_NK = select_->choose(choice.input, context, rows, kLatentSelectSlot);
    const Tensor unrotated = q_NHK.narrow(2, nope, rope);
    Queries q{q_NHK.narrow(2, 0, nope), rotated(unrotated, Side::query, context)};
    if (rope > 0) q.far_NHR = mask_.far_queries(unrotated, *position_, context);
    // the latent and the rotary key that all heads share
    const Tensor a_NA = kv_a_(x_ND, context);
    const Tensor c_NC = kv_latent(a_NA.narrow(1, 0, config_.kv_lora_rank), context);
    const Tensor r_N1R = rotated(rotary_key(a_NA, context).unsqueeze(1), Side::key, context);

    Tensor o_NHV = rows == nullptr && !ops::documents_apart(x_ND)
                       ? expanded(q, c_NC, r_N1R, choice, context)
                       : absorbed(q, c_NC, r_N1R, choice, context, rows);
    const ops::SharedInput read(config_.gate_of == LatentGateSource::input ? x_ND : from.read_NQ);
    o_NHV = gate_(o_NHV, read, GatePlace::after_sdpa, context);
    return o_(o_NHV.reshape({n, config_.n_heads * config_.v_head_dim}), context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    return latent_attention_step({config_, q_a_, q_, kv_a_, o_, k_b_, v_b_, q_norm_.get(),
                                  kv_norm_.get(), *position_, select_.get()},
                                 products);
  }

 private:
  /// What chooses the keys of the call's queries, and which (Select::choose).
  struct Choice {
    SelectInput input;
    Tensor key_NK;
  };
  /// What queries are projected from, and its normed part, which `select` reads.
  struct QueryInput {
    Tensor normed_NQ, read_NQ;
  };
  /// Queries by heads: channels that meet the latent, and those that are rotated, perhaps also as
  /// the first keys of a document meet them.
  struct Queries {
    Tensor n_NHK, r_NHR, far_NHR = {};
  };

  /// The scores of queries whose unrotated channels are `n`, as they are or absorbed.
  PatternedScores scores(const Tensor& n,
                         const Queries& q,
                         const Choice& choice,
                         Context& context) const {
    PatternedScores out = mask_.scores(
        options(context), context, q.far_NHR.defined() ? at::cat({n, q.far_NHR}, -1) : q.far_NHR);
    if (select_) out.choose(*select_, choice.key_NK, config_.n_heads, *context.batch);
    return out;
  }

  static Tensor normed(const Tensor& x, const Norm* norm, const Context& context) {
    return norm != nullptr ? norm->forward(x, context.products) : x;
  }
  Tensor rotated(const Tensor& x_NHR, Side side, Context& context) const {
    return config_.qk_rope_head_dim > 0 ? position_->rotate(x_NHR, side, context) : x_NHR;
  }

  QueryInput query_input(const Tensor& x_ND, const Context& context) const {
    if (!q_a_.weight) return {x_ND, x_ND};
    const Tensor raw = q_a_(x_ND, context),
                 latent = times(normed(raw, q_norm_.get(), context), config_.q_latent_scale);
    return {latent, config_.q_latent == QueryLatent::normed ? latent : at::cat({latent, raw}, 1)};
  }
  /// The channels of [N, kv_lora_rank + qk_rope_head_dim] that are to be rotated.
  Tensor rotary_key(const Tensor& a_NA, const Context& context) const {
    return normed(a_NA.narrow(1, config_.kv_lora_rank, config_.qk_rope_head_dim), rope_norm_.get(),
                  context);
  }
  Tensor kv_latent(const Tensor& a_NC, const Context& context) const {
    return times(normed(a_NC, kv_norm_.get(), context), config_.kv_latent_scale);
  }
  static Tensor times(const Tensor& x, double factor) { return factor == 1 ? x : x * factor; }
  Tensor queries_of(const Tensor& read_NQ, const Context& context) const {
    return q_(read_NQ, context).reshape({read_NQ.size(0), config_.n_heads, config_.head_dim()});
  }
  Tensor queries(const Tensor& x_ND, const Context& context) const {
    return queries_of(query_input(x_ND, context).read_NQ, context);
  }

  /// Entries [S, c + r] as the keys of every head, [H, S, D].
  static Tensor expanded_keys(const Tensor& entries_SE, const Tensor& k_b, int64_t heads) {
    const int64_t nope = k_b.size(1), c = k_b.size(0) / heads;
    const Tensor to_keys = k_b.to(entries_SE.device(), entries_SE.scalar_type())
                               .reshape({heads, c, nope})
                               .transpose(1, 2);
    const Tensor kn_HSK = ops::row_products(entries_SE.narrow(1, 0, c).unsqueeze(0), to_keys);
    const Tensor r_SR = entries_SE.narrow(1, c, entries_SE.size(1) - c);
    const std::vector<int64_t> of_heads{heads, r_SR.size(0), r_SR.size(1)};
    return at::cat({kn_HSK, ops::expanded(r_SR, of_heads)}, -1);
  }
  /// The keys of inputs [R, d_model] without positions.
  Tensor unplaced_keys(const Tensor& x, const Context& context) const {
    const Tensor a = kv_a_(x, context);
    const Tensor latent = kv_latent(a.narrow(1, 0, config_.kv_lora_rank), context);
    const Tensor entries = at::cat({latent, rotary_key(a, context)}, 1);
    return expanded_keys(entries, k_b_->tensor(context.products), config_.n_heads).transpose(0, 1);
  }

  ops::ScoreOptions options(Context& context) const {
    return with_term(
        {.scale = config_.score_scale(),
         .causal = context.causal,
         .sinks_H = sinks_ ? sinks_->tensor() : Tensor()},
        *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim(),
         .longest = context.batch->longest(),
         .project_q = [this, &context](const Tensor& x) { return queries(x, context); },
         .project_k = [this, &context](const Tensor& x) { return unplaced_keys(x, context); }},
        context);
  }

  /// The options of a segment in the absorbed form: its term still reads what was not absorbed.
  ops::ScoreOptions absorbed_options(ops::ScoreOptions how,
                                     const Tensor& q_THD,
                                     int64_t start,
                                     const ops::ProductSettings& products) const {
    if (!how.term.bias) return how;
    const bool reads_keys = config_.position.as<PositionConfig>().takes_scale();
    if (reads_keys) how.term.inputs.push_back(k_b_->tensor(products));
    how.term.inputs.push_back(q_THD);
    how.term.bias = [inner = how.term.bias, start, reads_keys](const ops::ScoreBlock& block,
                                                               const std::vector<Tensor>& inputs) {
      const auto own = inputs.end() - (reads_keys ? 2 : 1);
      const int64_t heads = block.q_BHTD.size(1), t = block.q_BHTD.size(2);
      const Tensor q = inputs.back()
                           .narrow(0, block.first_query - start, t)
                           .transpose(0, 1)
                           .unsqueeze(0)
                           .to(block.q_BHTD.scalar_type());
      const Tensor k =
          reads_keys ? expanded_keys(block.k_BHSD[0][0], *own, heads).unsqueeze(0) : block.k_BHSD;
      return inner({q, k, block.first_query, block.first_key, block.scale}, {inputs.begin(), own});
    };
    return how;
  }

  /// Keys and values of every head, as in training.
  Tensor expanded(const Queries& q,
                  const Tensor& c_NC,
                  const Tensor& r_N1R,
                  const Choice& choice,
                  Context& context) const {
    const int64_t n = c_NC.size(0), h = config_.n_heads, c = config_.kv_lora_rank;
    const auto type = ops::widen_products(c_NC) ? at::kFloat : c_NC.scalar_type();
    const Tensor k_b = k_b_->tensor(context.products).to(c_NC.device(), type).reshape({h, c, -1});
    const Tensor kn_NHK = ops::einsum("nc,hck->nhk", c_NC.to(type), k_b).to(c_NC.scalar_type());
    const Tensor v_NHV =
        ops::linear(c_NC, *v_b_, nullptr, context.products).reshape({n, h, config_.v_head_dim});
    const std::vector<int64_t> of_heads{n, h, r_N1R.size(2)};
    const Tensor k_NHK = at::cat({kn_NHK, ops::expanded(r_N1R, of_heads)}, -1),
                 q_NHK = at::cat({q.n_NHK, q.r_NHR}, -1);
    const PatternedScores how = scores(q.n_NHK, q, choice, context);
    if (select_) select_->learn(choice.input, choice.key_NK, {q_NHK, k_NHK, how.how}, context);
    return attend_documents(q_NHK, k_NHK, v_NHV, *context.batch, how,
                            weight_dropout(context, name_, config_.dropout));
  }

  /// One key and value for all heads: the entries (c, r) themselves.
  Tensor absorbed(const Queries& q,
                  const Tensor& c_NC,
                  const Tensor& r_N1R,
                  const Choice& choice,
                  Context& context,
                  const StateRows* rows) const {
    const Tensor n_NHC = ops::head_linear(q.n_NHK, *k_b_, nullptr, context.products),
                 q_NHE = at::cat({n_NHC, q.r_NHR}, -1), q_NHK = at::cat({q.n_NHK, q.r_NHR}, -1);
    const Tensor entries_N1E = at::cat({c_NC.unsqueeze(1), r_N1R}, -1);
    const PatternedScores how = scores(n_NHC, q, choice, context);
    if (select_ && rows == nullptr)
      select_->learn(choice.input, choice.key_NK, {q_NHE, entries_N1E, how.how}, context);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    std::vector<PatternMask::Past> pasts;
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      std::vector<ops::KeyValues> kv{{part(entries_N1E, i), {}, s.start}};
      if (rows != nullptr) {
        pasts.push_back(mask_.past(kv[0], (*rows)[i]->tokens(0), nullptr));
        kv = pasts.back().kv;
      }
      for (ops::KeyValues& entries : kv)
        entries.v_SGD = ops::first_of_rows(entries.k_SGD, config_.kv_lora_rank);
      how.add_call(calls,
                   {part(q_NHE, i), std::move(kv), s.start,
                    dropout.in(absorbed_options(how.in_document(part, i), part(q_NHK, i), s.start,
                                                context.products),
                               s)},
                   i);
    }
    const Tensor u_NHC = ops::attention(calls);
    for (PatternMask::Past& past : pasts) past.keep();
    return ops::head_linear(u_NHC, *v_b_, nullptr, context.products);
  }

  LatentAttentionConfig config_;
  std::string name_;
  Linear q_a_, q_, kv_a_, o_;
  WeightPtr k_b_, v_b_, sinks_;
  std::unique_ptr<Norm> q_norm_, kv_norm_, rope_norm_;
  std::unique_ptr<Position> position_;
  std::unique_ptr<Select> select_;
  HeadGate gate_;
  PatternMask mask_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LatentAttentionConfig& config, const Builder& builder) {
  return std::make_unique<LatentAttention>(config, builder);
}

}  // namespace tessera::nn
