// What softmax attention may do to its queries, keys and values besides projecting them, against
// the definition in double.
#include "tessera/nn/mixer/attention.h"

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn {
namespace {

using ops::gen;

constexpr int64_t kT = 11, kD = 8, kHeads = 4, kGroups = 2, kE = 3;

/// Query by query and head by head, from the inputs' projections on.
class Definition {
 public:
  Definition(const MixerUnderTest& m, const Tensor& x_TD)
      : m_(m), config_(m.part.as<AttentionConfig>()), x_(x_TD) {}

  Tensor output() const {
    const Tensor q = normed(projected("q", kHeads), "q_norm"),
                 k = normed(projected("k", kGroups), "k_norm"), v = projected("v", kGroups);
    Tensor mixed = at::zeros({kT, kHeads, kE}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const Tensor keys = k.select(1, h / 2).narrow(0, 0, i + 1);
        const Tensor scores = at::mv(keys, q[i][h]) * temperature(i) / std::sqrt(double{kE});
        mixed[i][h] = at::mv(v.select(1, h / 2).narrow(0, 0, i + 1).t(), at::softmax(scores, 0));
      }
    if (has("gate.weight")) mixed = mixed * at::sigmoid(linear("gate")).reshape({kT, kHeads, -1});
    return at::matmul(mixed.reshape({kT, kHeads * kE}), m_.values.at("o.weight").t());
  }

 private:
  bool has(const std::string& name) const { return m_.values.contains(name); }
  Tensor linear(const std::string& name) const {
    const Tensor y = at::matmul(x_, m_.values.at(name + ".weight").t());
    return has(name + ".bias") ? y + m_.values.at(name + ".bias") : y;
  }
  Tensor projected(const std::string& name, int64_t heads) const {
    const Tensor y = linear(name).reshape({kT, heads, kE});
    return config_.clip == 0
               ? y
               : at::minimum(at::maximum(y, at::full({1}, -config_.clip, at::kDouble)),
                             at::full({1}, config_.clip, at::kDouble));
  }
  /// Layer norms of eps 0.1, one per head.
  Tensor normed(const Tensor& y_THE, const std::string& name) const {
    if (!config_.qk_norm) return y_THE;
    Tensor out = at::empty_like(y_THE);
    for (int64_t t = 0; t < kT; ++t)
      for (int64_t h = 0; h < y_THE.size(1); ++h) {
        const std::string norm = name + "." + std::to_string(h);
        const Tensor centred = y_THE[t][h] - y_THE[t][h].mean();
        out[t][h] =
            centred / at::sqrt(centred.square().mean() + 0.1) * m_.values.at(norm + ".weight") +
            m_.values.at(norm + ".bias");
      }
    return out;
  }
  double temperature(int64_t position) const {
    const QueryTemperature& t = config_.temperature;
    return 1 + t.scale * std::log(1 + std::floor(static_cast<double>(position + t.offset) /
                                                 static_cast<double>(t.floor)));
  }

  const MixerUnderTest& m_;
  const AttentionConfig& config_;
  Tensor x_;
};

TEST(Attention, AgainstTheDefinition) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  Tensor plain;
  for (const char* option :
       {"", R"(, "clip": 0.4)",
        R"(, "qk_norm": {"type": "layer_norm", "eps": 0.1}, "qk_norm_over": "each_head")",
        R"(, "temperature": {"scale": 0.7, "floor": 3})",
        R"(, "temperature": {"scale": 0.7, "floor": 3, "offset": 0})",
        R"(, "gate": "headwise", "gate_bias": true)",
        R"(, "gate": "elementwise", "gate_bias": true)", R"(, "gate": "elementwise")"}) {
    SCOPED_TRACE(option);
    MixerUnderTest m(
        std::string(R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3)") +
            option + "}",
        kD);
    m.fill({.size = 1});
    const Tensor want = Definition(m, x).output();
    // every option is a function of its own
    if (!plain.defined())
      plain = want;
    else
      EXPECT_GT((want - plain).abs().max().item<double>(), 1e-3);
    EXPECT_LT((m.run(x, at::kDouble) - want).abs().max().item<double>(), 1e-12);
    EXPECT_LT((m.run(x, at::kFloat) - want).abs().max().item<double>(), 1e-5);
    // positions go on where the state ends
    EXPECT_LT((m.run(x, at::kDouble, {4, 1, 6}) - want).abs().max().item<double>(), 1e-12);
  }
}

TEST(Attention, FactorsOfPositions) {
  // Llama 4: 0.1 and steps of 8192
  AttentionConfig config;
  config.temperature.scale = 0.1;
  for (const auto& [position, factor] : {std::pair{0, 1.0},
                                         {8190, 1.0},
                                         {8191, 1.0693147181},
                                         {16383, 1.1098612289},
                                         {65536, 1.2197224577},
                                         {100000, 1.2564949357}})
    EXPECT_NEAR(config.query_factor(position), factor, 1e-10) << position;
}

}  // namespace
}  // namespace tessera::nn
