// What softmax attention may do to its queries, keys and values besides projecting them, against
// the definition in double.
#include "tessera/nn/mixer/attention/attention.h"

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::attention_test {
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
                 v = gated(values_normed(projected(config_.k_eq_v ? "k" : "v", kGroups)),
                           GatePlace::after_value);
    Tensor mixed = at::zeros({kT, kHeads, kE}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t from = std::max<int64_t>(0, i + 1 - width_);
        std::vector<Tensor> keys{k.select(1, h / 2).narrow(0, from, i + 1 - from)},
            read{v.select(1, h / 2).narrow(0, from, i + 1 - from)};
        if (config_.add_zero_attn)
          for (auto* list : {&keys, &read}) list->push_back(at::zeros({1, kE}, at::kDouble));
        Tensor scores = at::mv(at::cat(keys), q[i][h]) * temperature(i) * scale(h);
        if (config_.softcap > 0) scores = config_.softcap * at::tanh(scores / config_.softcap);
        Tensor powers = scores.exp();
        Tensor sum = powers.sum();
        if (has("sinks")) sum = sum + m_.values.at("sinks")[h].exp();
        mixed[i][h] = at::mv(at::cat(read).t(), powers / sum);
      }
    mixed = gated(mixed, GatePlace::after_sdpa).reshape({kT, kHeads * kE});
    const Tensor out = at::matmul(mixed, m_.values.at("o.weight").t());
    return gated(out.unsqueeze(-1), GatePlace::after_o).squeeze(-1);
  }

  /// Of the pattern window; else all of the past.
  Definition& within(int64_t width) {
    width_ = width;
    return *this;
  }

 private:
  bool has(const std::string& name) const { return m_.values.contains(name); }
  /// Root mean square norm of eps 0.1.
  Tensor values_normed(const Tensor& v_TGE) const {
    if (!config_.v_norm) return v_TGE;
    const Tensor y = v_TGE / (v_TGE.square().mean(-1, true) + 0.1).sqrt();
    return has("v_norm.weight") ? y * m_.values.at("v_norm.weight") : y;
  }
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
    const Tensor z = linear("gate"),
                 gate = config_.gate_act == GateActivation::softplus ? at::log1p(z.exp())
                        : config_.gate_act == GateActivation::silu   ? z * at::sigmoid(z)
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
  int64_t width_ = kT;
};

TEST(Attention, AgainstTheDefinition) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  Tensor plain;
  for (
      const char* option :
      {"",
       R"(, "clip": 0.4)",
       R"(, "qk_norm": {"type": "layer_norm", "eps": 0.1}, "qk_norm_over": "each_head")",
       R"(, "temperature": {"scale": 0.7, "floor": 3})",
       R"(, "temperature": {"scale": 0.7, "floor": 3, "offset": 0})",
       R"(, "gate": "headwise", "gate_bias": true)",
       R"(, "gate": "elementwise", "gate_bias": true)",
       R"(, "gate": "elementwise")",
       R"(, "gate": "headwise", "gate_at": "after_value", "gate_bias": true)",
       R"(, "gate": "elementwise", "gate_at": "after_value")",
       R"(, "gate": "elementwise", "gate_at": "after_o", "gate_bias": true)",
       R"(, "gate": "headwise", "gate_act": "silu")",
       R"(, "gate": "elementwise", "gate_at": "after_value", "gate_act": "silu")",
       R"(, "gate": "elementwise", "gate_at": "after_o", "gate_act": "silu")",
       R"(, "gate": "headwise", "gate_act": "softplus")",
       R"(, "gate": "elementwise", "gate_at": "after_value", "gate_act": "softplus")",
       R"(, "qk_norm": "l2_norm")",
       R"(, "scale": "learned")",
       R"(, "qk_norm": "l2_norm", "scale": "learned")",
       R"(, "qk_norm": "l2_norm", "scale": "learned_headwise")",
       R"(, "qk_norm": {"type": "l2_norm", "weight": "scalar"}, "scale": "one")",
       R"(, "v_norm": {"type": "rms_norm", "eps": 0.1, "weight": "none"})",
       R"(, "v_norm": {"type": "rms_norm", "eps": 0.1}, "gate": "headwise", "gate_at": "after_value")",
       R"(, "k_eq_v": true)",
       R"(, "k_eq_v": true, "v_norm": {"type": "rms_norm", "eps": 0.1, "weight": "none"}, "qk_norm": "l2_norm")",
       R"(, "add_zero_attn": true)",
       R"(, "add_zero_attn": true, "sinks": true, "softcap": 2)",
       R"(, "temperature": {"scale": 0.7, "floor": 3}, "scale_on": "query")"}) {
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

TEST(Attention, TheKeyOfZerosIsSeenBesideAWindow) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  MixerUnderTest m(
      R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3,
          "add_zero_attn": true, "pattern": {"type": "window", "width": 3}})",
      kD);
  m.fill({.size = 1});
  EXPECT_EQ(m.state().size(), 2u);
  EXPECT_EQ(m.state()[0].keep, 3);
  m.expect_everywhere(x, Definition(m, x).within(3).output(), 1e-12);
}

TEST(Attention, TheKeyOfZerosIsThatOfTorch) {
  // torch.nn.MultiheadAttention(4, 2, bias=False, add_zero_attn=True) in float64, causal mask;
  // in_proj_weight, out_proj.weight and x as below
  MixerUnderTest m(R"({"type": "attention", "n_heads": 2, "add_zero_attn": true})", 4);
  const char* names[] = {"q.weight", "k.weight", "v.weight", "o.weight"};
  double n = 0;
  for (const char* name : names) {
    m.values[name] = gen({4, 4}, 0.37 + 0.06 * n, 0.1 + 0.2 * n);
    n += 1;
  }
  m.expect_all_given();
  m.expect_everywhere(gen({3, 4}, 1.3, 0.2),
                      ops::tensor({7.397108734906e-02, 4.180535400678e-01, -5.660210381539e-01,
                                   2.481544866195e-01, 1.218657084625e-02, 2.513521745603e-01,
                                   -3.080286419528e-01, 1.111982253115e-01, 3.105518671387e-05,
                                   -2.411867838532e-01, 2.838463283430e-01, -9.290097886412e-02},
                                  {3, 4}),
                      1e-9);
}

TEST(Attention, AFactorOnTheQueriesIsOneOnTheScores) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  const auto of = [&](const std::string& options) {
    MixerUnderTest m(R"({"type": "attention", "n_heads": 4, "head_dim": 4, "position": "rope", )" +
                         options + "}",
                     kD);
    m.fill({.size = 1});
    return m.run(x, at::kDouble);
  };
  for (const std::string scale : {R"("scale": "rsqrt_head_dim")", R"("scale": "inverse_layer")",
                                  R"("scale": "rsqrt_of", "scale_value": 7)",
                                  R"("scale": "value", "scale_value": 0.4, "softcap": 3)"}) {
    const Tensor want = of(scale);
    ops::expect_near(of(scale + R"(, "scale_on": "query")"), want, 1e-13);
    ops::expect_near(of(scale + R"(, "scale_on": "query",
        "pattern": {"type": "longformer", "width": 2, "global_tokens": [0], "projections": "separate"})"),
                     of(scale + R"(,
        "pattern": {"type": "longformer", "width": 2, "global_tokens": [0], "projections": "separate"})"),
                     1e-13);
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

TEST(Attention, ANormAfterTheRotationWeighsTurnedChannels) {
  // one head of 4 channels, pairs (0, 2) and (1, 3), RMS norms with weights
  const int64_t width = 4;
  const auto mixer = [](const char* at) {
    return MixerUnderTest(
        std::string(
            R"({"type": "attention", "n_heads": 1, "qk_norm": {"type": "rms_norm", "eps": 0.1},
            "position": {"type": "rope", "theta": 100}, "temperature": {"scale": 0.7, "floor": 3}, "qk_norm_at": ")") +
            at + "\"}",
        width);
  };
  MixerUnderTest after = mixer("after_rotation"), before = mixer("before_rotation");
  after.fill({.size = 1});
  before.values = after.values;
  const Tensor x = gen({kT, width}, 1.3, 0.2);
  const Tensor angles =
      at::arange(kT, at::kDouble).unsqueeze(1) * at::tensor({1.0, 0.1}, at::kDouble).unsqueeze(0);
  const auto made = [&](const std::string& name) {
    const Tensor y = at::matmul(x, after.values.at(name + ".weight").t()), a = y.narrow(1, 0, 2),
                 b = y.narrow(1, 2, 2);
    const Tensor turned =
        at::cat({a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()}, 1);
    return turned / (turned.square().mean(-1, true) + 0.1).sqrt() *
           after.values.at(name + "_norm.weight");
  };
  const Tensor q = made("q"), k = made("k"), v = at::matmul(x, after.values.at("v.weight").t());
  Tensor want = at::empty({kT, width}, at::kDouble);
  for (int64_t i = 0; i < kT; ++i) {
    const double growth = 1 + 0.7 * std::log(1 + std::floor(static_cast<double>(i + 1) / 3));
    const Tensor weights = (at::mv(k.narrow(0, 0, i + 1), q[i]) * growth / 2).softmax(0);
    want[i] = at::mv(v.narrow(0, 0, i + 1).t(), weights);
  }
  want = at::matmul(want, after.values.at("o.weight").t());
  ops::expect_both([&](at::ScalarType type) { return after.run(x, type); }, want, 1e-12);
  ops::expect_both([&](at::ScalarType type) { return after.run(x, type, {4, 1, 6}); }, want, 1e-12);
  EXPECT_GT((before.run(x, at::kDouble) - want).abs().max().item<double>(), 1e-3);
  // a rotation keeps lengths: without weights the two are one
  after.values["q_norm.weight"] = after.values["k_norm.weight"] = at::ones({width}, at::kDouble);
  before.values = after.values;
  ops::expect_near(after.run(x, at::kDouble), before.run(x, at::kDouble), 1e-13);
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
    EXPECT_NEAR(config.temperature.factor(position), factor, 1e-10) << position;
}

}  // namespace
}  // namespace tessera::nn::attention_test
