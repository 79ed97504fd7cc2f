#include "tessera/nn/mixer/linear/mlstm.h"

#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/linear/mlstm.h"

namespace tessera::nn {
namespace {

/// The matrix memory and its norm: what both layers have in common.
class MlstmCell {
 public:
  MlstmCell(const MlstmConfig& config, const Builder& builder)
      : config_(config),
        norm_weight_(builder.weight("norm.weight")),
        norm_bias_(builder.optional("norm.bias")) {}

  /// Queries, keys, values [N, H * width] and gates before their caps [N, H] to normed h [N, H *
  /// V].
  Tensor operator()(const Tensor& q_NE,
                    const Tensor& k_NE,
                    const Tensor& v_NE,
                    const Tensor& i_NH,
                    const Tensor& f_NH,
                    Context& context,
                    const StateRows* rows) const {
    const int64_t n = q_NE.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    const Tensor scaled_NE = k_NE * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor v_NHV =
        at::cat({v_NE.reshape({n, h, v}), at::ones({n, h, 1}, v_NE.options())}, -1);
    const Tensor write_NH = capped(i_NH), log_f_NH = ops::log_sigmoid(capped(f_NH));

    const Tensor h_NE = for_runs(q_NE, context, rows, [&](const Run& run) {
      const ops::MlstmGates gates = gates_of(run, run.of(log_f_NH, {h}), run.of(write_NH, {h}));
      const Tensor key = run.of(scaled_NE, {h, k}).to(gates.write_BTH.scalar_type()) *
                         gates.write_BTH.unsqueeze(-1);
      const Tensor value = run.of(v_NHV, {h, v + 1}).to(key.scalar_type());
      const Tensor y = recur(run, {run.of(q_NE, {h, k}), key, value, gates.log_decay_BTH},
                             config_.chunk, kState);
      if (run.row != nullptr)
        run.row->fixed(kMaximum) =
            gates.last_BH.squeeze(0).to(run.row->fixed(kMaximum).scalar_type());
      return ops::mlstm_read(y, gates.m_BTH, config_.eps);
    });
    Tensor normed =
        ops::layer_norm(h_NE.reshape({n, h, v}), Tensor(), Tensor(), 0, *config_.norm_eps)
            .reshape({n, h * v});
    normed = normed * ops::spread(norm_weight_->tensor().to(normed.scalar_type()), normed);
    if (norm_bias_)
      normed = normed + ops::spread(norm_bias_->tensor().to(normed.scalar_type()), normed);
    return normed.to(q_NE.scalar_type());
  }

 private:
  Tensor capped(const Tensor& raw) const {
    return ops::softcap(raw.to(ops::wide(raw)), *config_.gate_cap);
  }

  static ops::MlstmGates gates_of(const Run& run, const Tensor& log_f_BTH, const Tensor& i_BTH) {
    if (run.documents.empty())
      return ops::mlstm_gates(
          log_f_BTH, i_BTH, run.row != nullptr ? run.row->fixed(kMaximum).unsqueeze(0) : Tensor());
    // a maximum begins with its document
    const auto log_f = log_f_BTH.split_with_sizes(run.documents, 1),
               i = i_BTH.split_with_sizes(run.documents, 1);
    std::vector<Tensor> log_decay, write, m;
    for (size_t n = 0; n < i.size(); ++n) {
      const ops::MlstmGates own = ops::mlstm_gates(log_f[n], i[n]);
      log_decay.push_back(own.log_decay_BTH);
      write.push_back(own.write_BTH);
      m.push_back(own.m_BTH);
    }
    return {at::cat(log_decay, 1), at::cat(write, 1), at::cat(m, 1), {}};
  }

  static constexpr size_t kState = 0, kMaximum = 1;  // as MlstmConfig::state declares them
  MlstmConfig config_;
  WeightPtr norm_weight_, norm_bias_;
};

class Mlstm final : public Mixer {
 public:
  Mlstm(const MlstmConfig& config, const Builder& builder)
      : cell_(config, builder),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        i_(builder, "i"),
        f_(builder, "f"),
        o_(builder, "o") {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor h_NE = cell_(q_(x_ND, context), k_(x_ND, context), v_(x_ND, context),
                              i_(x_ND, context), f_(x_ND, context), context, rows);
    return o_(ops::gated(g_(x_ND, context), h_NE, ops::Activation::sigmoid), context);
  }

 private:
  MlstmCell cell_;
  Linear q_, k_, v_, g_, i_, f_, o_;
};

class UpProjectedMlstm final : public Mixer {
 public:
  UpProjectedMlstm(const MlstmConfig& config, const Builder& builder)
      : block_(config.up_projection->block),
        cell_(config, builder),
        up_(builder, "up"),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        i_(builder, "i"),
        f_(builder, "f"),
        o_(builder, "o"),
        skip_(builder.weight("skip")) {
    if (config.up_projection->d_conv > 0) conv_.emplace(builder, "conv", kernels::Activation::silu);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto halves = up_(x_ND, context).chunk(2, -1);  // x', z
    const Tensor& x_NE = halves[0];
    const Tensor c_NE = conv_ ? (*conv_)(x_NE, *context.batch, rows, kConv) : x_NE;
    const Tensor q_NE = blocks(q_, c_NE, context), k_NE = blocks(k_, c_NE, context),
                 v_NE = blocks(v_, x_NE, context);
    const Tensor all = at::cat({q_NE, k_NE, v_NE}, -1);
    const Tensor h_NE = cell_(q_NE, k_NE, v_NE, i_(all, context), f_(all, context), context, rows);
    const Tensor skipped_NE =
        h_NE + ops::spread(skip_->tensor().to(c_NE.scalar_type()), c_NE) * c_NE;
    return o_(ops::gated(halves[1], skipped_NE, ops::Activation::silu), context);
  }

 private:
  /// The block-diagonal product.
  Tensor blocks(const Linear& linear, const Tensor& x_NE, const Context& context) const {
    return ops::head_linear(x_NE.reshape({x_NE.size(0), -1, block_}), *linear.weight,
                            linear.bias.get(), context.products)
        .flatten(1);
  }

  static constexpr size_t kConv = 2;  // after the cell's declarations
  int64_t block_;
  MlstmCell cell_;
  Linear up_, q_, k_, v_, i_, f_, o_;
  WeightPtr skip_;
  std::optional<CausalConv> conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MlstmConfig& config, const Builder& builder) {
  if (config.up_projection) return std::make_unique<UpProjectedMlstm>(config, builder);
  return std::make_unique<Mlstm>(config, builder);
}

}  // namespace tessera::nn
