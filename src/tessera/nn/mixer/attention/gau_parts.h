// What the two gated attention units share: their projections.
#pragma once

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {

/// U, V and Z of every token, and the affine copies of Z.
class GauParts {
 public:
  /// `position_scope`: that of the position's parameters.
  GauParts(const Builder& builder,
           int64_t hidden,
           int64_t key,
           const spec::AnyPart& position,
           const spec::Scope& position_scope)
      : hidden_(hidden),
        key_(key),
        in_(builder, "in"),
        gamma_(builder.weight("gamma")),
        beta_(builder.weight("beta")),
        position_(build_position(position, builder.under("position", position_scope))) {}

  struct Projected {
    Tensor u_NE, v_NE, z_NS;
  };
  Projected project(const Tensor& x_ND, const Context& context) const {
    const Tensor all = ops::activate(in_(x_ND, context), ops::Activation::silu);
    const auto parts = all.split_with_sizes({hidden_, hidden_, key_}, -1);
    return {parts[0], parts[1], parts[2]};
  }
  /// Z gamma_i + beta_i, rotated; queries have even i, keys odd.
  Tensor copy(const Tensor& z_NS, int64_t i, Context& context) const {
    return position_
        ->rotate(affine(z_NS, i).unsqueeze(1), i % 2 == 0 ? Side::query : Side::key, context)
        .squeeze(1);
  }
  /// `how` with what the position adds to the scores of the first two copies.
  ops::ScoreOptions with_term(ops::ScoreOptions how, Context& context) const {
    const auto projected = [this, &context](int64_t i) {
      return [this, i, &context](const Tensor& x) {
        return affine(project(x, context).z_NS, i).unsqueeze(1);
      };
    };
    return nn::with_term(std::move(how), *position_,
                         {.n_heads = 1,
                          .head_dim = key_,
                          .longest = context.batch->longest(),
                          .project_q = projected(0),
                          .project_k = projected(1)},
                         context);
  }
  /// What the term of `how` adds to the scores of queries from position `query` and keys from
  /// position `key`, q_BTS and k_BSS -> [B or 1, T, S]; undefined where there is none.
  static Tensor bias(const ops::ScoreOptions& how,
                     const Tensor& q_BTS,
                     const Tensor& k_BSS,
                     int64_t query,
                     int64_t key) {
    const Tensor q = q_BTS.unsqueeze(1), k = k_BSS.unsqueeze(1);
    const Tensor added = ops::added_by_term(how.term, {q, k, query, key, how.scale});
    return added.defined() ? added.squeeze(1) : added;
  }

 private:
  Tensor affine(const Tensor& z_NS, int64_t i) const {
    const auto row = [&](const WeightPtr& w) {
      return w->tensor().select(0, i).to(z_NS.device(), z_NS.scalar_type());
    };
    return z_NS * ops::over_rows(row(gamma_), z_NS) + ops::over_rows(row(beta_), z_NS);
  }

  int64_t hidden_, key_;
  Linear in_;
  WeightPtr gamma_, beta_;
  std::unique_ptr<Position> position_;
};

}  // namespace tessera::nn
