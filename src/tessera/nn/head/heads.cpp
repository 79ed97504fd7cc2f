#include <mutex>

#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/nn/head/linear.h"
#include "tessera/nn/head/masked_lm.h"
#include "tessera/nn/head/pooler.h"
#include "tessera/nn/head/span.h"
#include "tessera/nn/head/tied.h"
#include "tessera/nn/head/token_score.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

/// logits = softcap(scale * W h + b), or of [W, R] where a rest R reads the last channels of h
class LogitHead final : public Head {
 public:
  LogitHead(const HeadConfig& config, WeightPtr weight, WeightPtr bias, WeightPtr rest = nullptr)
      : scale_(config.scale),
        softcap_(config.softcap),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        rest_(std::move(rest)) {}
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    const int64_t own = h_ND.size(-1) - (rest_ ? rest_->size(1) : 0);
    const auto channels = [&](int64_t begin, int64_t end) {
      return h_ND.narrow(-1, begin, end - begin).contiguous();
    };
    Tensor logits =
        ops::linear(channels(0, own), *weight_, scale_ == 1 ? bias_.get() : nullptr, products);
    if (rest_)
      logits = logits + ops::linear(channels(own, h_ND.size(-1)), *rest_, nullptr, products);
    if (scale_ != 1) {
      logits = logits * scale_;
      if (bias_) logits = logits + ops::spread(bias_->tensor(), logits);
    }
    return ops::softcap(logits, softcap_);
  }

 private:
  double scale_, softcap_;
  WeightPtr weight_, bias_, rest_;
};

/// Logits of rows of length 1: those of the matrix as it is, each over the length of its row.
class UnitRowsHead final : public Head {
 public:
  UnitRowsHead(const LinearHeadConfig& config, const Builder& builder)
      : config_(config), weight_(builder.weight("weight")), bias_(builder.optional("bias")) {}
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    const Tensor raw = ops::linear(h_ND, *weight_, nullptr, products);
    Tensor logits = raw / ops::spread(lengths(products).to(raw.scalar_type()), raw) * config_.scale;
    if (bias_) logits = logits + ops::spread(bias_->tensor(), logits);
    return ops::softcap(logits, config_.softcap);
  }

 private:
  /// [V]; of stored weights, which nothing changes, they are computed once.
  Tensor lengths(const ops::ProductSettings& products) const {
    const auto compute = [&] {
      constexpr double kLeast = 1e-12;
      const Tensor w_VD = weight_->tensor(products);
      return w_VD.to(ops::wide(w_VD)).square().sum(-1).sqrt().clamp_min(kLeast);
    };
    if (weight_->parts() != nullptr || weight_->dense_tensor().defined()) return compute();
    std::call_once(once_, [&] { lengths_ = compute(); });
    return lengths_;
  }

  LinearHeadConfig config_;
  WeightPtr weight_, bias_;
  mutable std::once_flag once_;
  mutable Tensor lengths_;
};

class TiedHead final : public Head {
 public:
  TiedHead(const TiedHeadConfig& config, const Builder& builder)
      : logits_(config, builder.absolute("embed.token.weight"), builder.optional("bias")) {
    if (config.projects(builder.scope())) project_ = Linear(builder, "project");
  }
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    return logits_.forward(project_.weight ? project_(h_ND, products) : h_ND, products);
  }

 private:
  Linear project_;
  LogitHead logits_;
};

/// Null where the config has none.
template <class C>
std::unique_ptr<Norm> norm_of(const C& config, const Builder& builder) {
  if (!config.norm) return nullptr;
  return build_norm(config.norm,
                    builder.under("norm", config.child_scope(builder.scope(), "norm")));
}

class PoolerHead final : public Head {
 public:
  PoolerHead(const PoolerConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)),
        weight_(builder.optional("weight")),
        bias_(builder.optional("bias")),
        norm_(norm_of(config, builder)) {}
  Tensor forward(const Tensor& h_RD, const ops::ProductSettings& products) const override {
    const Tensor p =
        ops::activate(weight_ ? ops::linear(h_RD, *weight_, bias_.get(), products) : h_RD, act_);
    return norm_ ? norm_->forward(p, products) : p;
  }

 private:
  ops::Activation act_;
  WeightPtr weight_, bias_;
  std::unique_ptr<Norm> norm_;
};

/// Logits, after a transform where the config has one.
class TransformedHead final : public Head {
 public:
  TransformedHead(const TransformedHeadConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)),
        logits_(config, builder.weight("weight"), builder.optional("bias")) {
    if (!config.transform) return;
    transform_ = Linear(builder, "transform");
    norm_ = norm_of(config, builder);
  }
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    if (!transform_.weight) return logits_.forward(h_ND, products);
    const Tensor x = ops::activate(transform_(h_ND, products), act_);
    return logits_.forward(norm_ ? norm_->forward(x, products) : x, products);
  }

 private:
  ops::Activation act_;
  Linear transform_;
  std::unique_ptr<Norm> norm_;
  LogitHead logits_;
};

/// Logits of pairs of documents, which are neighbouring rows.
class PairHead final : public Head {
 public:
  PairHead(const ClassifierConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)),
        first_(builder, "pair"),
        second_(builder, "pair_2"),
        logits_(config, builder.weight("weight"), builder.optional("bias")) {}
  Tensor forward(const Tensor& h_RD, const ops::ProductSettings& products) const override {
    if (h_RD.size(0) % 2 != 0)
      fail(ErrorKind::input, "head", "{} documents; expected pairs of them", h_RD.size(0));
    const Tensor pairs = h_RD.reshape({-1, 2, h_RD.size(1)});
    const Tensor u_RD = pairs.select(1, 0), v_RD = pairs.select(1, 1);
    const Tensor x_RF =
        ops::activate(first_(at::cat({u_RD, v_RD, u_RD * v_RD, u_RD - v_RD}, -1), products), act_);
    return logits_.forward(ops::activate(second_(x_RF, products), act_), products);
  }

 private:
  ops::Activation act_;
  Linear first_, second_;
  LogitHead logits_;
};

class MaskedLmHead final : public Head {
 public:
  MaskedLmHead(const MaskedLmHeadConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)),
        transform_(builder, "transform"),
        norm_(norm_of(config, builder)),
        logits_(config,
                config.is_tied ? builder.absolute("embed.token.weight") : builder.weight("weight"),
                builder.optional("bias"),
                builder.optional("rest.weight")) {
    if (config.d_hidden > 0) hidden_ = Linear(builder, "hidden");
  }
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    const Tensor below = hidden_.weight ? ops::activate(hidden_(h_ND, products), act_) : h_ND;
    const Tensor x = ops::activate(transform_(below, products), act_);
    return logits_.forward(norm_ ? norm_->forward(x, products) : x, products);
  }

 private:
  ops::Activation act_;
  Linear hidden_, transform_;
  std::unique_ptr<Norm> norm_;
  LogitHead logits_;
};

class TokenScoreHead final : public Head {
 public:
  TokenScoreHead(const TokenScoreConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)),
        dense_(builder, "dense"),
        logit_(config, builder.weight("weight"), builder.weight("bias")) {}
  Tensor forward(const Tensor& h_ND, const ops::ProductSettings& products) const override {
    return logit_.forward(ops::activate(dense_(h_ND, products), act_), products);
  }

 private:
  ops::Activation act_;
  Linear dense_;
  LogitHead logit_;
};

}  // namespace

std::unique_ptr<Head> build(const MaskedLmHeadConfig& config, const Builder& builder) {
  return std::make_unique<MaskedLmHead>(config, builder);
}
std::unique_ptr<Head> build(const TiedHeadConfig& config, const Builder& builder) {
  return std::make_unique<TiedHead>(config, builder);
}
std::unique_ptr<Head> build(const PoolerConfig& config, const Builder& builder) {
  return std::make_unique<PoolerHead>(config, builder);
}
std::unique_ptr<Head> build(const ClassifierConfig& config, const Builder& builder) {
  if (config.two_towers()) return std::make_unique<PairHead>(config, builder);
  return std::make_unique<TransformedHead>(config, builder);
}
std::unique_ptr<Head> build(const SpanHeadConfig& config, const Builder& builder) {
  return std::make_unique<TransformedHead>(config, builder);
}
std::unique_ptr<Head> build(const TokenScoreConfig& config, const Builder& builder) {
  return std::make_unique<TokenScoreHead>(config, builder);
}
std::unique_ptr<Head> build(const LinearHeadConfig& config, const Builder& builder) {
  if (config.unit_rows) return std::make_unique<UnitRowsHead>(config, builder);
  return std::make_unique<LogitHead>(config, builder.weight("weight"), builder.optional("bias"));
}

}  // namespace tessera::nn
