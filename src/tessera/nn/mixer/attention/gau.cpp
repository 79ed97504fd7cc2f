#include "tessera/nn/mixer/attention/gau.h"

#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/gau_parts.h"
#include "tessera/ops/attention/unit_attention.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

constexpr int64_t kUnitQueryBlock = 64;  // queries whose bias is in memory at a time

class Gau final : public Mixer {
 public:
  Gau(const GauConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        parts_(builder,
               config.d_hidden,
               config.d_key,
               config.position,
               config.child_scope(builder.scope(), "position")),
        out_(builder, "out") {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto [u_NE, v_NE, z_NS] = parts_.project(x_ND, context);
    const Tensor q_NS = parts_.copy(z_NS, 0, context), k_NS = parts_.copy(z_NS, 1, context);
    const Tensor v = v_NE;
    const BySegment part(*context.batch);
    // the terms of positions are made here: a context is for one thread
    std::vector<ops::ScoreOptions> how;
    for (const Segment& s : context.batch->segments)
      how.push_back(weight_dropout(context, name_, config_.dropout).in(options(s, context), s));
    const bool apart = std::all_of(how.begin(), how.end(), [&](const ops::ScoreOptions& o) {
      return ops::may_go_side_by_side(q_NS, o);
    });
    const auto of_segment = [&](size_t i, const Segment& s) {
      const Tensor keys = part(k_NS, i).unsqueeze(1), values = part(v, i).unsqueeze(1);
      std::vector<ops::KeyValues> kv{{keys, values, 0}};
      if (rows != nullptr) {
        TokenBuffer &held_k = (*rows)[i]->tokens(0), &held_v = (*rows)[i]->tokens(1);
        held_k.append(keys);
        held_v.append(values);
        kv = held_keys(held_k, held_v, 0, held_k.length());
      }
      return attend(part(q_NS, i), kv, rows != nullptr ? s.start : 0, how[i]);
    };
    const Tensor mixed_NE =
        over_segments(*context.batch, apart, pairs_of(*context.batch), of_segment);
    return out_(u_NE * mixed_NE, context);
  }

 private:
  bool softmax() const { return config_.weights == GauWeights::softmax; }
  /// The divisor of scores of weights without a softmax, of all queries by their number of keys.
  double divisor(int64_t keys) const {
    return static_cast<double>(config_.divisor == GauDivisor::max_length ? config_.max_length
                                                                         : keys);
  }

  /// Of the document of a segment, with what the position adds.
  ops::ScoreOptions options(const Segment& segment, Context& context) const {
    const double scale = softmax() ? 1 / std::sqrt(static_cast<double>(config_.d_key))
                         : config_.grows(context.causal)
                             ? 1
                             : 1 / divisor(segment.start + segment.length);
    return parts_.with_term({.scale = scale, .causal = context.causal}, context);
  }

  /// One document: its queries from `start` on, and all keys up to them.
  Tensor attend(const Tensor& q_TS,
                const std::vector<ops::KeyValues>& kv,
                int64_t start,
                const ops::ScoreOptions& how) const {
    if (softmax()) return ops::attention(q_TS.unsqueeze(1), kv, start, how).squeeze(1);
    std::vector<Tensor> k_parts, v_parts;
    for (const ops::KeyValues& part : kv) {
      k_parts.push_back(part.k_SGD.squeeze(1));
      v_parts.push_back(part.v_SGD.squeeze(1));
    }
    const int64_t t = q_TS.size(0);
    const auto options = q_TS.options().dtype(ops::wide(q_TS));
    // a position scheme may have changed the factor
    const Tensor divisor_T =
        config_.grows(how.causal)
            ? at::arange(start + 1, start + t + 1, options) / how.scale
            : at::full({t}, how.term ? 1 / how.scale : divisor(start + t), options);
    ops::UnitScores scores{
        divisor_T,
        config_.weights == GauWeights::relu2 ? ops::ScoreAct::relu2 : ops::ScoreAct::laplace,
        how.causal, start};
    if (ops::kernel_serves(ops::Op::unit_attention, q_TS))
      return by_kernel(q_TS, k_parts, v_parts, scores, how);
    return ops::unit_attention_blocks(q_TS.to(options), joined(k_parts).to(options),
                                      joined(v_parts).to(options), scores, how.term, how.scale)
        .to(q_TS.scalar_type());
  }

  static Tensor joined(const std::vector<Tensor>& parts) {
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  /// Keys and values are read in the pages they lie in. A bias is made for a few queries at a time:
  /// memory stays linear in the keys.
  static Tensor by_kernel(const Tensor& q_TS,
                          const std::vector<Tensor>& k_parts,
                          const std::vector<Tensor>& v_parts,
                          const ops::UnitScores& scores,
                          const ops::ScoreOptions& how) {
    if (!how.term) return ops::unit_attention_kernel(q_TS, k_parts, v_parts, scores);
    int64_t keys = 0;
    for (const Tensor& part : k_parts) keys += part.size(0);
    // a function may read all keys of a query at once; of a table only their number matters
    const Tensor k_SS =
        how.term.bias ? joined(k_parts) : k_parts[0].narrow(0, 0, 1).expand({keys, -1});
    // one tensor, for the memory of a step to serve the next one
    Tensor out = at::empty({q_TS.size(0), v_parts[0].size(1)}, q_TS.options());
    for (int64_t i = 0; i < q_TS.size(0); i += kUnitQueryBlock) {
      const int64_t n = std::min(kUnitQueryBlock, q_TS.size(0) - i);
      const int64_t seen = scores.causal ? scores.start + i + n : keys;
      const Tensor q = q_TS.narrow(0, i, n), k = k_SS.narrow(0, 0, seen);
      ops::UnitScores some = scores;
      some.start += i;
      some.divisor_T = scores.divisor_T.narrow(0, i, n);
      some.bias_TS = GauParts::bias(how, q.unsqueeze(0), k.unsqueeze(0), some.start, 0).squeeze(0);
      out.narrow(0, i, n).copy_(ops::unit_attention_kernel(q, k_parts, v_parts, some));
    }
    return out;
  }

  GauConfig config_;
  std::string name_;
  GauParts parts_;
  Linear out_;
};

}  // namespace

std::unique_ptr<Mixer> build(const GauConfig& config, const Builder& builder) {
  return std::make_unique<Gau>(config, builder);
}

}  // namespace tessera::nn
