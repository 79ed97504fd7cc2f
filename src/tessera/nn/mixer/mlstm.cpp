#include "tessera/nn/mixer/mlstm.h"

#include <cmath>

#include "tessera/nn/mixer/recurrence.h"
#include "tessera/ops/mlstm.h"

namespace tessera::nn {
namespace {

class Mlstm final : public Mixer {
 public:
  Mlstm(const MlstmConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        i_(builder, "i"),
        f_(builder, "f"),
        o_(builder, "o"),
        norm_weight_(builder.weight("norm.weight")),
        norm_bias_(builder.optional("norm.bias")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    const Tensor q_NE = q_(x_ND), k_NE = k_(x_ND) * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor v_NHV =
        at::cat({v_(x_ND).reshape({n, h, v}), at::ones({n, h, 1}, x_ND.options())}, -1);
    const Tensor i_NH = gate(i_, x_ND), log_f_NH = ops::log_sigmoid(gate(f_, x_ND));

    const Tensor h_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      const ops::MlstmGates gates = gates_of(run, run.of(log_f_NH, {h}), run.of(i_NH, {h}));
      const Tensor key =
          run.of(k_NE, {h, k}).to(gates.write_BTH.scalar_type()) * gates.write_BTH.unsqueeze(-1);
      const Tensor value = run.of(v_NHV, {h, v + 1}).to(key.scalar_type());
      const Tensor y = recur(run, {run.of(q_NE, {h, k}), key, value, gates.log_decay_BTH},
                             config_.chunk, kState);
      if (run.row != nullptr)
        run.row->fixed(kMaximum) =
            gates.last_BH.squeeze(0).to(run.row->fixed(kMaximum).scalar_type());
      return ops::mlstm_read(y, gates.m_BTH, config_.eps);
    });
    Tensor normed =
        ops::layer_norm(h_NE.reshape({n, h, v}), Tensor(), Tensor(), 0, config_.norm_eps)
            .reshape({n, h * v});
    normed = normed * norm_weight_->tensor().to(normed.scalar_type());
    if (norm_bias_) normed = normed + norm_bias_->tensor().to(normed.scalar_type());
    return o_(ops::gated(g_(x_ND), normed.to(x_ND.scalar_type()), ops::Activation::sigmoid));
  }

 private:
  Tensor gate(const Linear& linear, const Tensor& x_ND) const {
    const Tensor raw = linear(x_ND);
    return ops::softcap(raw.to(ops::wide(raw)), config_.gate_cap);
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
  Linear q_, k_, v_, g_, i_, f_, o_;
  WeightPtr norm_weight_, norm_bias_;
};

}  // namespace

std::unique_ptr<Mixer> build(const MlstmConfig& config, const Builder& builder) {
  return std::make_unique<Mlstm>(config, builder);
}

}  // namespace tessera::nn
