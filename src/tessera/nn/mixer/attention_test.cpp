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
                 k = normed(projected("k", kGroups), "k_norm"),
                 v = gated(projected("v", kGroups), GatePlace::after_value);
    Tensor mixed = at::zeros({kT, kHeads, kE}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const Tensor keys = k.select(1, h / 2).narrow(0, 0, i + 1);
        const Tensor scores = at::mv(keys, q[i][h]) * temperature(i) * scale(h);
        mixed[i][h] = at::mv(v.select(1, h / 2).narrow(0, 0, i + 1).t(), at::softmax(scores, 0));
      }
    mixed = gated(mixed, GatePlace::after_sdpa).reshape({kT, kHeads * kE});
    const Tensor out = at::matmul(mixed, m_.values.at("o.weight").t());
    return gated(out.unsqueeze(-1), GatePlace::after_o).squeeze(-1);
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
  Tensor gated(const Tensor& y, GatePlace here) const {
    if (!has("gate.weight") || config_.gate_at != here) return y;
    const Tensor z = linear("gate"), gate = config_.gate_act == GateActivation::silu
                                                ? z * at::sigmoid(z)
                                                : at::sigmoid(z);
    return y * gate.reshape({y.size(0), y.size(1), -1});
  }
  double scale(int64_t head) const {
    if (config_.scale == ScoreScale::one) return 1;
    if (!has("scale")) return 1 / std::sqrt(double{kE});
    const Tensor& g = m_.values.at("scale");
    return g[g.size(0) == 1 ? 0 : head].item<double>();
  }
  /// Unit vectors, or layer norms of eps 0.1, one per head.
  Tensor normed(const Tensor& y_THE, const std::string& name) const {
    if (!config_.qk_norm) return y_THE;
    if (config_.qk_norm.type() == "l2_norm")
      return y_THE / (y_THE.square().sum(-1, true) + 1e-12).sqrt() *
             (has(name + ".weight") ? m_.values.at(name + ".weight") : at::ones({1}, at::kDouble));
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
        R"(, "gate": "elementwise", "gate_bias": true)", R"(, "gate": "elementwise")",
        R"(, "gate": "headwise", "gate_at": "after_value", "gate_bias": true)",
        R"(, "gate": "elementwise", "gate_at": "after_value")",
        R"(, "gate": "elementwise", "gate_at": "after_o", "gate_bias": true)",
        R"(, "gate": "headwise", "gate_act": "silu")",
        R"(, "gate": "elementwise", "gate_at": "after_value", "gate_act": "silu")",
        R"(, "gate": "elementwise", "gate_at": "after_o", "gate_act": "silu")",
        R"(, "qk_norm": "l2_norm")", R"(, "scale": "learned")",
        R"(, "qk_norm": "l2_norm", "scale": "learned")",
        R"(, "qk_norm": "l2_norm", "scale": "learned_headwise")",
        R"(, "qk_norm": {"type": "l2_norm", "weight": "scalar"}, "scale": "one")"}) {
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

/// The mixer of these options with the values of `from`, and its own of the gate.
MixerUnderTest with_gate(const MixerUnderTest& from,
                         const char* options,
                         const Tensor& weight,
                         const Tensor& bias) {
  MixerUnderTest m(
      std::string(
          R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "gate_bias": true, )") +
          options + "}",
      kD);
  m.values = from.values;
  m.values["gate.weight"] = weight;
  m.values["gate.bias"] = bias;
  return m;
}

TEST(Attention, AGateThatIsOpenChangesNothingAndAClosedOneGivesNothing) {
  MixerUnderTest plain(R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3})",
                       kD);
  plain.fill();
  const Tensor x = gen({kT, kD}, 1.3, 0.2), want = plain.run(x, at::kDouble);
  for (const auto& [options, width] :
       {std::pair{R"("gate": "elementwise")", kHeads * kE},
        {R"("gate": "headwise")", kHeads},
        {R"("gate": "elementwise", "gate_at": "after_value")", kGroups * kE},
        {R"("gate": "headwise", "gate_at": "after_value")", kGroups},
        {R"("gate": "elementwise", "gate_at": "after_o")", kD}}) {
    SCOPED_TRACE(options);
    const Tensor zero = at::zeros({width, kD}, at::kDouble),
                 far = at::full({width}, 100, at::kDouble);
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {4, 1, 6}}) {
      ops::expect_near(with_gate(plain, options, zero, far).run(x, at::kDouble, calls), want,
                       1e-13);
      ops::expect_near(with_gate(plain, options, zero, -far).run(x, at::kDouble, calls),
                       at::zeros_like(want), 1e-13);
    }
  }
}

TEST(Attention, AGateOfHeadsIsOneOfEqualChannels) {
  MixerUnderTest plain(R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3})",
                       kD);
  plain.fill();
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const auto& [at, heads] : {std::pair{"after_sdpa", kHeads}, {"after_value", kGroups}}) {
    const Tensor weight = gen({heads, kD}, 0.7, 0.4), bias = gen({heads}, 0.9, 0.1);
    const auto options = [&, at = at](const char* gate) {
      return std::string(R"("gate_act": "silu", "gate_at": ")") + at + R"(", "gate": ")" + gate +
             "\"";
    };
    ops::expect_near(
        with_gate(plain, options("elementwise").c_str(), weight.repeat_interleave(kE, 0),
                  bias.repeat_interleave(kE, 0))
            .run(x, at::kDouble),
        with_gate(plain, options("headwise").c_str(), weight, bias).run(x, at::kDouble), 1e-14);
  }
}

TEST(Attention, CosinesDoNotKnowHowLongQueriesAndKeysAre) {
  MixerUnderTest m(
      R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "qk_norm": {"type": "l2_norm", "eps": 0},
          "scale": "learned_headwise", "scale_value": 10})",
      kD);
  const auto declared = m.declared();
  const auto scale = std::find_if(declared.begin(), declared.end(),
                                  [](const spec::ParamDecl& d) { return d.name == "scale"; });
  ASSERT_NE(scale, declared.end());
  EXPECT_EQ(scale->shape, std::vector<int64_t>{4});
  EXPECT_EQ(scale->init.a, 10);
  m.fill();
  const Tensor x = gen({kT, kD}, 1.3, 0.2), want = m.run(x, at::kDouble);
  m.values["q.weight"] = m.values["q.weight"] * 7;
  m.values["k.weight"] = m.values["k.weight"] * 0.3;
  ops::expect_near(m.run(x, at::kDouble), want, 1e-13);
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
