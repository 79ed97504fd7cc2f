#include "tessera/nn/mixer/attention.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/nn/mixer/attend.h"
#include "tessera/nn/sequence_split.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/random.h"
#include "tessera/ops/ring_attention.h"

namespace tessera::nn {
namespace {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        layer_(builder.scope().layer),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        q_norm_(builder, "q_norm", config.qk_norm, config.qk_norm_over, config.n_heads),
        k_norm_(builder, "k_norm", config.qk_norm, config.qk_norm_over, config.n_kv_heads),
        scale_(builder, config.scale),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    if (config.who().global_projections()) {
      q_global_ = Linear(builder, "q_global");
      k_global_ = Linear(builder, "k_global");
      v_global_ = Linear(builder, "v_global");
    }
    if (config.gate != OutputGate::none) gate_ = Linear(builder, "gate");
    if (config.sinks) sinks_ = builder.weight("sinks");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, d = config_.head_dim;
    // projections, norms, rotation
    const Tensor unrotated = tempered(queries(q_, x_ND), context);
    Projected x{position_->rotate(unrotated, Side::query, context),
                position_->rotate(keys(x_ND), Side::key, context),
                values(v_, x_ND),
                {}};
    x.far_q = far_queries(unrotated, context);
    const Site site = site_of(context);
    if (rows != nullptr && sequence_split(context).ranks > 1 && !ops::use_kernels(x_ND))
      fail(
          ErrorKind::spec, name_,
          "a sequence that goes on from a state is not split over ranks; use windows \"isolated\"");
    Tensor o_NHD =
        rows != nullptr ? with_state(x, 0, site, context, *rows) : whole(x, site, context);
    if (config_.who().global_projections())
      o_NHD = with_global_rows(o_NHD, x_ND, site, context, rows);
    o_NHD = gated(o_NHD, x_ND, GatePlace::after_sdpa);
    return gated(o_(o_NHD.reshape({n, h * d})), x_ND, GatePlace::after_o);
  }

 private:
  /// Queries, keys and values of the tokens of a call; far_q may be undefined.
  struct Projected {
    Tensor q_NHD, k_NGD, v_NGD, far_q;
  };
  /// What all documents of a call have in common, and each one's pattern.
  struct Site {
    ops::ScoreOptions how;
    std::vector<PatternSite> documents;  // by segment
  };

  Tensor projected(const Linear& linear, const Tensor& x_ND) const {
    const Tensor y = linear(x_ND);
    return config_.clip > 0 ? y.clamp(-config_.clip, config_.clip) : y;
  }
  Tensor values(const Linear& linear, const Tensor& x_ND) const {
    const Tensor v_NGD =
        projected(linear, x_ND).reshape({x_ND.size(0), config_.n_kv_heads, config_.head_dim});
    return gated(v_NGD, x_ND, GatePlace::after_value);
  }
  /// y, by heads [N, H, D] or [N, d_model], times the gate of its tokens where that acts `here`.
  Tensor gated(const Tensor& y, const Tensor& x_ND, GatePlace here) const {
    if (!gate_.weight || config_.gate_at != here) return y;
    const Tensor gate = ops::activate(gate_(x_ND), config_.gate_act == GateActivation::silu
                                                       ? ops::Activation::silu
                                                       : ops::Activation::sigmoid);
    return y * (y.dim() == 3 ? gate.reshape({y.size(0), y.size(1), -1}) : gate);
  }
  Tensor queries(const Linear& linear, const Tensor& x_ND) const {
    return scale_(q_norm_(projected(linear, x_ND)));
  }
  Tensor keys(const Tensor& x_ND) const { return k_norm_(projected(k_, x_ND)); }

  /// The queries times the factors of their positions.
  Tensor tempered(const Tensor& q_NHD, Context& context) const {
    if (config_.temperature.scale == 0) return q_NHD;
    const Tensor positions = context.batch->positions_N.to(at::kCPU).contiguous();
    Tensor factors = at::empty({positions.numel(), 1, 1}, at::kDouble);
    for (int64_t i = 0; i < positions.numel(); ++i)
      factors.data_ptr<double>()[i] = config_.query_factor(positions.const_data_ptr<int64_t>()[i]);
    return q_NHD * factors.to(q_NHD.options());
  }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    how.scale = config_.score_scale(layer_);
    how.softcap = config_.softcap;
    how.causal = context.causal;
    if (sinks_) how.sinks_H = sinks_->tensor();
    return with_term(std::move(how), *position_,
                     {.n_heads = config_.n_heads,
                      .head_dim = config_.head_dim,
                      .longest = context.batch->longest(),
                      .project_q = [this](const Tensor& x) { return queries(q_, x); },
                      .project_k = [this](const Tensor& x) { return keys(x); }},
                     context);
  }

  Site site_of(Context& context) const {
    const PatternConfig& who = config_.who();
    const Batch& batch = *context.batch;
    Site site{options(context), {}};
    if (who.window()) {
      site.how.window = *who.window();
      return site;
    }
    const Tensor marks =
        batch.global_N.defined() ? batch.global_N.to(at::kCPU, at::kBool).contiguous() : Tensor();
    for (const Segment& s : batch.segments) {
      PatternSite document{layer_,         config_.n_heads, s.start + s.length,
                           context.causal, s.prefix,        {}};
      if (marks.defined()) {
        if (s.start > 0)
          fail(ErrorKind::input, name_,
               "global tokens are marked in a call that starts at position {}; expected whole "
               "documents, or the pattern's global_tokens",
               s.start);
        const bool* first = marks.const_data_ptr<bool>() + s.begin;
        document.global = std::make_shared<const std::vector<char>>(first, first + s.length);
      }
      who.check_call(document, s.start);
      site.documents.push_back(std::move(document));
    }
    return site;
  }

  /// With the pattern of one document.
  ops::ScoreOptions in_document(const Site& site, size_t segment) const {
    ops::ScoreOptions how = site.how;
    if (!site.documents.empty())
      how.visibility = std::make_shared<PatternVisibility>(config_.who(), site.documents[segment]);
    return how;
  }

  /// Whether one document's pattern is every document's.
  static bool all_alike(const Site& site) {
    return std::all_of(site.documents.begin(), site.documents.end(), [&](const PatternSite& d) {
      return d.prefix == site.documents.front().prefix && !d.global;
    });
  }

  /// The queries as keys at the start of the document meet them, where that makes a difference.
  Tensor far_queries(const Tensor& unrotated, Context& context) const {
    const int64_t farthest = config_.who().farthest();
    if (farthest == 0 || context.batch->longest() <= farthest + 1) return {};
    if (context.batch->axes_3N.defined())
      fail(ErrorKind::input, name_,
           "positions in time, height and width, but pattern \"{}\" sees queries beyond {} at one "
           "place; expected position_ids [B, T]",
           config_.pattern.type(), farthest);
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
      return made;
    });
    far.context.batch = &far.batch;
    return position_->rotate(unrotated, Side::query, far.context);
  }

  void set_far(ops::ScoreOptions& how, const Tensor& far_q) const {
    how.far_q = far_q;
    how.far_end = config_.who().first_kept();
  }

  /// Refuses what a part of a sequence cannot compute.
  void check_split(const Projected& x) const {
    const auto refuse = [&](std::string_view what, std::string_view remedy) {
      fail(ErrorKind::spec, name_, "{} cannot be computed where a sequence is split over ranks; {}",
           what, remedy);
    };
    if (config_.dropout > 0)
      refuse(fmt::format("dropout = {} of the weights", config_.dropout), "set it to 0");
    if (x.far_q.defined())
      refuse(fmt::format("pattern \"{}\" with other queries for the first keys",
                         config_.pattern.type()),
             "use \"window\"");
    if (config_.who().global_projections())
      refuse("global tokens with projections of their own",
             "set its \"projections\" to \"shared\"");
    if (config_.position.as<PositionConfig>().counts_keys())
      refuse(fmt::format("position \"{}\", which counts every key between key and query,",
                         config_.position.type()),
             "use another position");
  }

  /// Whole sequences by the ranks of a ring.
  Tensor spread(const Tensor& q_BTHD,
                const Tensor& k_BTGD,
                const Tensor& v_BTGD,
                const SequenceSplit& split,
                const ops::ScoreOptions& how) const {
    const ops::RingOrder order(q_BTHD.size(1), split.ranks, split.layout);
    return ops::ring_attention(q_BTHD, k_BTGD, v_BTGD, order, how).out;
  }

  /// Whole documents, without a past.
  Tensor whole(const Projected& x, const Site& site, Context& context) const {
    const Batch& batch = *context.batch;
    const SequenceSplit split =
        ops::use_kernels(x.q_NHD) ? SequenceSplit() : sequence_split(context);
    if (split.ranks > 1) check_split(x);
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    if (const int64_t t = batch.equal_length();
        t > 0 && !ops::use_kernels(x.q_NHD) && all_alike(site)) {
      const int64_t b = x.q_NHD.size(0) / t;
      const auto fold = [&](const Tensor& y) { return y.reshape({b, t, y.size(1), y.size(2)}); };
      ops::ScoreOptions how = dropout.in(in_document(site, 0), 0);
      if (x.far_q.defined()) set_far(how, fold(x.far_q));
      if (split.ranks > 1)
        return spread(fold(x.q_NHD), fold(x.k_NGD), fold(x.v_NGD), split, how)
            .reshape(x.q_NHD.sizes());
      return ops::attention_equal(fold(x.q_NHD), fold(x.k_NGD), fold(x.v_NGD), how)
          .reshape(x.q_NHD.sizes());
    }
    if (split.ranks <= 1 && site.documents.empty() && !x.far_q.defined())
      if (const auto out = attend_packed(x.q_NHD, x.k_NGD, x.v_NGD, batch, site.how, dropout))
        return *out;
    const BySegment part(batch);
    std::vector<Tensor> out;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& s = batch.segments[i];
      if (split.ranks > 1) {
        const auto alone = [&](const Tensor& y) { return part(y, i).unsqueeze(0); };
        out.push_back(
            spread(alone(x.q_NHD), alone(x.k_NGD), alone(x.v_NGD), split, in_document(site, i))
                .squeeze(0));
        continue;
      }
      const ops::KeyValues kv{part(x.k_NGD, i), part(x.v_NGD, i), s.start};
      ops::ScoreOptions how = dropout.in(in_document(site, i), s.begin);
      if (x.far_q.defined()) set_far(how, part(x.far_q, i));
      out.push_back(ops::attention(part(x.q_NHD, i), {kv}, s.start, how));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// Each segment after what its row holds in declarations `slot` and `slot` + 1.
  Tensor with_state(const Projected& x,
                    size_t slot,
                    const Site& site,
                    Context& context,
                    const StateRows& rows) const {
    const Batch& batch = *context.batch;
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(batch);
    std::vector<Tensor> out;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Segment& s = batch.segments[i];
      ops::ScoreOptions how = dropout.in(in_document(site, i), s.begin);
      if (x.far_q.defined()) set_far(how, part(x.far_q, i));
      const ops::KeyValues own{part(x.k_NGD, i), part(x.v_NGD, i), s.start};
      after_past(own, slot, *rows[i], [&](const std::vector<ops::KeyValues>& kv) {
        out.push_back(ops::attention(part(x.q_NHD, i), kv, s.start, how));
      });
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// Calls `compute` with what a row holds and the segment's own keys, and appends these.
  void after_past(const ops::KeyValues& own,
                  size_t slot,
                  RowState& row,
                  const std::function<void(const std::vector<ops::KeyValues>&)>& compute) const {
    const int64_t horizon = config_.who().horizon(), lead = config_.who().first_kept();
    TokenBuffer &keys = row.tokens(slot), &values = row.tokens(slot + 1);
    const Tensor k = keys.stored(own.k_SGD), v = values.stored(own.v_SGD);
    const int64_t start = own.first, length = own.k_SGD.size(0);
    require(keys.length() == start, "attention", "the state holds {} tokens, the call starts at {}",
            keys.length(), start);
    // first position that the first query sees, those apart that are kept for ever
    int64_t from = horizon > 0 ? std::max<int64_t>(0, start - horizon + 1) : 0;
    if (from <= lead) from = 0;
    std::vector<ops::KeyValues> kv;
    const auto held = [&](int64_t begin, int64_t end) {
      for (const ops::KeyValues& part : held_keys(keys, values, begin, end)) kv.push_back(part);
    };
    // a window may not hold both the oldest visible key and all new ones: several new tokens stay
    // outside until computed
    const bool append_first = horizon == 0 || length == 1;
    if (append_first) {
      keys.append(k);
      values.append(v);
    }
    if (from > 0 && lead > 0) held(0, lead);
    held(from, append_first ? start + length : start);
    if (!append_first) kv.push_back({k, v, start});
    compute(kv);
    if (!append_first) {
      keys.append(k);
      values.append(v);
    }
  }

  /// o_NHD with the rows of global tokens replaced by what their own projections give: attention
  /// over the whole document.
  Tensor with_global_rows(const Tensor& o_NHD,
                          const Tensor& x_ND,
                          const Site& site,
                          Context& context,
                          const StateRows* rows) const {
    const Batch& batch = *context.batch;
    const Tensor q = queries(q_global_, x_ND), k = k_norm_(projected(k_global_, x_ND));
    const Projected x{position_->rotate(tempered(q, context), Side::query, context),
                      position_->rotate(k, Side::key, context),
                      values(v_global_, x_ND),
                      {}};
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(batch);
    std::vector<Tensor> found, numbers;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& s = batch.segments[i];
      const auto compute = [&](const std::vector<ops::KeyValues>& kv) {
        const auto global = [&](int64_t t) {
          return t < s.length && config_.who().is_global(site.documents[i], s.start + t);
        };
        // runs of neighbouring global tokens
        for (int64_t t = 0; t < s.length; ++t) {
          if (!global(t)) continue;
          int64_t end = t;
          while (global(end)) ++end;
          found.push_back(ops::attention(x.q_NHD.narrow(0, s.begin + t, end - t), kv, s.start + t,
                                         dropout.in(site.how, batch.n_tokens() + s.begin + t)));
          numbers.push_back(at::arange(s.begin + t, s.begin + end, at::kLong));
          t = end;
        }
      };
      const ops::KeyValues own{part(x.k_NGD, i), part(x.v_NGD, i), s.start};
      if (rows != nullptr)
        after_past(own, 2, *(*rows)[i], compute);
      else
        compute({own});
    }
    if (found.empty()) return o_NHD;
    return o_NHD.index_copy(0, at::cat(numbers).to(o_NHD.device()), at::cat(found));
  }

  AttentionConfig config_;
  std::string name_;
  int64_t layer_ = 0;
  Linear q_, k_, v_, o_, gate_, q_global_, k_global_, v_global_;
  WeightPtr sinks_;
  HeadNorms q_norm_, k_norm_;
  LearnedScale scale_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const AttentionConfig& config, const Builder& builder) {
  return std::make_unique<Attention>(config, builder);
}

}  // namespace tessera::nn
