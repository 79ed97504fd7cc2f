// RWKV layers against their definitions, written out token by token.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/nn/mixer/linear/recurrence_testing.h"

namespace tessera::nn::rwkv_test {
namespace {

using ops::gen;
using spec::Json;

Tensor layer_normed(const Tensor& x, double eps) {
  const Tensor centred = x - x.mean(-1, true);
  return centred * at::rsqrt(centred.square().mean(-1, true) + eps);
}

/// Tokens with the one before each: x_{-1} = 0.
Tensor shifted(const Tensor& x) {
  return at::cat({at::zeros({1, x.size(1)}, at::kDouble), x.narrow(0, 0, x.size(0) - 1)});
}

constexpr int64_t kT = 7, kD = 6, kH = 2, kN = 3;  // RWKV layers: H heads of N, D = H N

Values rwkv_values(std::string_view mixes) {
  Values w{{"r.weight", gen({kD, kD}, .31, .2)},  {"k.weight", gen({kD, kD}, .47, .1)},
           {"v.weight", gen({kD, kD}, .53, -.1)}, {"o.weight", gen({kD, kD}, .43, .15)},
           {"norm.weight", gen({kD}, .8, 1)},     {"norm.bias", gen({kD}, .5, .7)},
           {"bonus", gen({kH, kN}, .9, -.4)}};
  double phase = 0;
  for (const char name : mixes) w[std::string("mix_") + name] = gen({kD}, .7, phase += .3).square();
  return w;
}

Tensor times(const Tensor& x, const Tensor& w) {
  return at::matmul(x, w.t());
}

/// r, k, v, log decay of all tokens [T, D] to y [T, D] before the norm; `rate` and `removed` make
/// it RWKV-7, else the bonus acts on the present token.
Tensor wkv(const Values& w,
           const Tensor& r,
           const Tensor& k,
           const Tensor& v,
           const Tensor& decay,
           const Tensor& rate = {},
           const Tensor& removed = {}) {
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < kH; ++h) {
    const auto of = [&](const Tensor& x, int64_t t) { return x[t].narrow(0, h * kN, kN); };
    Cell cell(kN, kN);
    std::vector<Tensor> ys;
    for (int64_t t = 0; t < kT; ++t) {
      if (removed.defined()) {
        const Tensor seen = cell.read(of(removed, t));
        cell.decay(of(decay, t));
        cell.write(-of(removed, t) * of(rate, t), seen);
        cell.write(of(k, t), of(v, t));
        ys.push_back(cell.read(of(r, t)));
      } else {
        Cell present = cell;
        present.write(w.at("bonus")[h] * of(k, t), of(v, t));
        ys.push_back(present.read(of(r, t)));
        cell.decay(of(decay, t));
        cell.write(of(k, t), of(v, t));
      }
    }
    heads.push_back(at::stack(ys));
  }
  return at::cat(heads, 1);
}

Tensor group_normed(const Values& w, const Tensor& y) {
  return layer_normed(y.reshape({kT, kH, kN}), 64e-5).reshape({kT, kD}) * w.at("norm.weight") +
         w.at("norm.bias");
}

TEST(Rwkv5, AgainstItsDefinition) {
  Values w = rwkv_values("rkvg");
  w["g.weight"] = gen({kD, kD}, .77, .4);
  w["decay"] = gen({kH, kN}, 1.1, .3);
  const Tensor x = gen({kT, kD}, .6, .15), before = shifted(x);
  const auto mixed = [&](const char* name) {
    const Tensor mu = w.at(std::string("mix_") + name);
    return mu * x + (1 - mu) * before;
  };
  const Tensor decay = at::exp(-at::exp(w.at("decay"))).reshape({1, kD}).expand({kT, kD});
  const Tensor y = wkv(w, times(mixed("r"), w.at("r.weight")), times(mixed("k"), w.at("k.weight")),
                       times(mixed("v"), w.at("v.weight")), decay);
  // the published form: divided by 8, eps 1e-5
  const Tensor normed =
      layer_normed(y.reshape({kT, kH, kN}) / 8, 1e-5).reshape({kT, kD}) * w.at("norm.weight") +
      w.at("norm.bias");
  const Tensor gate = at::silu(times(mixed("g"), w.at("g.weight")));
  Layer{{{"type", "rwkv5"}, {"n_heads", kH}, {"chunk", 3}}, w}.expect(
      x, times(normed * gate, w.at("o.weight")), 1e-10);
  w.erase("g.weight");
  w.erase("mix_g");
  Layer{{{"type", "rwkv5"}, {"n_heads", kH}, {"chunk", 3}, {"gate", false}}, w}.expect(
      x, times(normed, w.at("o.weight")), 1e-10);
}

TEST(Rwkv6, AgainstItsDefinition) {
  constexpr int64_t kRank = 2;
  Values w = rwkv_values("xwkvrg");
  w["g.weight"] = gen({kD, kD}, .77, .4);
  w["mix_down.weight"] = gen({5 * kRank, kD}, .35, .6);
  for (const char name : std::string_view("wkvrg"))
    w[std::string("mix_up_") + name + ".weight"] = gen({kD, kRank}, .57, 0.1 * name);
  w["decay_down.weight"] = gen({4, kD}, .29, .8);
  w["decay_up.weight"] = gen({kD, 4}, .63, .2);
  w["decay_up.bias"] = gen({kD}, 1.1, .3);
  const Tensor x = gen({kT, kD}, .6, .15), step = shifted(x) - x;
  const Tensor z = at::tanh(times(x + step * w.at("mix_x"), w.at("mix_down.weight")));
  const auto mixed = [&](char name, int64_t j) {
    const Tensor add =
        times(z.narrow(1, j * kRank, kRank), w.at(std::string("mix_up_") + name + ".weight"));
    return x + step * (w.at(std::string("mix_") + name) + add);
  };
  const Tensor raw =
      times(at::tanh(times(mixed('w', 0), w.at("decay_down.weight"))), w.at("decay_up.weight")) +
      w.at("decay_up.bias");
  const Tensor y =
      wkv(w, times(mixed('r', 3), w.at("r.weight")), times(mixed('k', 1), w.at("k.weight")),
          times(mixed('v', 2), w.at("v.weight")), at::exp(-at::exp(raw)));
  const Tensor gate = at::silu(times(mixed('g', 4), w.at("g.weight")));
  Layer{{{"type", "rwkv6"}, {"n_heads", kH}, {"chunk", 3}, {"mix_rank", kRank}, {"decay_rank", 4}},
        w}
      .expect(x, times(group_normed(w, y) * gate, w.at("o.weight")), 1e-10);
}

/// y of a layer from its inputs; `first` is v_first, undefined in the first layer.
Tensor rwkv7_definition(const Values& w, const Tensor& x, Tensor& first) {
  const Tensor step = shifted(x) - x;
  const auto mixed = [&](const char* name) { return x + step * w.at(std::string("mix_") + name); };
  const auto low_rank = [&](const std::string& name, const Tensor& in,
                            Tensor (*act)(const Tensor&)) {
    const Tensor inner = times(in, w.at(name + "_down.weight"));
    return times(act != nullptr ? act(inner) : inner, w.at(name + "_up.weight"));
  };
  const Tensor r = times(mixed("r"), w.at("r.weight")), raw_k = times(mixed("k"), w.at("k.weight"));
  Tensor v = times(mixed("v"), w.at("v.weight"));
  const Tensor decay =
      at::exp(-std::exp(-0.5) * at::sigmoid(w.at("decay_up.bias") +
                                            low_rank("decay", mixed("w"),
                                                     [](const Tensor& t) { return at::tanh(t); })));
  if (first.defined())
    v = v + (first - v) *
                at::sigmoid(w.at("value_mix_up.bias") + low_rank("value_mix", mixed("v"), nullptr));
  else
    first = v;
  const Tensor rate = at::sigmoid(w.at("rate_up.bias") + low_rank("rate", mixed("a"), nullptr));
  const Tensor gate = low_rank("gate", mixed("g"), [](const Tensor& t) { return at::sigmoid(t); });
  const Tensor scaled = (raw_k * w.at("key_scale")).reshape({kT, kH, kN});
  const Tensor removed = (scaled / scaled.norm(2, {-1}, true)).reshape({kT, kD});
  const Tensor k = raw_k * (1 + (rate - 1) * w.at("key_rate"));
  const Tensor y = wkv(w, r, k, v, decay, rate, removed);
  const Tensor present =
      ((r * k).reshape({kT, kH, kN}) * w.at("bonus")).sum(-1, true) * v.reshape({kT, kH, kN});
  return times((group_normed(w, y) + present.reshape({kT, kD})) * gate, w.at("o.weight"));
}

TEST(Rwkv7, TwoLayersAgainstTheirDefinition) {
  Values w = rwkv_values("rwkvag");
  double phase = 0;
  for (const auto& [name, rank] :
       {std::pair{"decay", 2}, std::pair{"rate", 3}, std::pair{"gate", 4}}) {
    w[std::string(name) + "_down.weight"] = gen({rank, kD}, .37, phase += .2);
    w[std::string(name) + "_up.weight"] = gen({kD, rank}, .59, phase += .2);
  }
  w["decay_up.bias"] = gen({kD}, 1.1, .3);
  w["rate_up.bias"] = gen({kD}, .6, .8);
  w["key_scale"] = gen({kD}, .3, 1);
  w["key_rate"] = gen({kD}, .4, .2);
  const Json part = {{"type", "rwkv7"}, {"n_heads", kH},  {"chunk", 3},     {"decay_rank", 2},
                     {"rate_rank", 3},  {"gate_rank", 4}, {"value_rank", 2}};
  const Layer first{part, w, 0, 2};
  w["value_mix_down.weight"] = gen({2, kD}, .37, 1.5);
  w["value_mix_up.weight"] = gen({kD, 2}, .59, 1.7);
  w["value_mix_up.bias"] = gen({kD}, .9, .1);
  const Layer second{part, w, 1, 2};

  const Tensor x = gen({kT, kD}, .6, .15);
  Tensor v_first;
  const Tensor want_first = rwkv7_definition(first.values, x, v_first);
  const Tensor want_second = rwkv7_definition(second.values, want_first, v_first);
  first.expect(x, want_first, 1e-10);
  const auto run = [&](at::ScalarType type) {
    Batch batch;
    batch.segments = {{0, 0, kT, 0}};
    batch.number();
    Context context;
    const Tensor h = first.of_width(kD).forward(x, batch, type, context);
    return second.of_width(kD).forward(h, batch, type, context);
  };
  ops::expect_near(run(at::kDouble), want_second, 1e-9);
  {
    const at::NoGradGuard no_gradients;
    ops::expect_near(run(at::kFloat), want_second,
                     1e-5 * std::max(1.0, want_second.abs().max().item<double>()));
  }
  // alone, the second layer has nothing to mix with
  EXPECT_THROW(second.run(x, at::kDouble), Error);
}

TEST(RwkvChannelMix, EveryVersionAgainstItsDefinition) {
  const Tensor x = gen({kT, kD}, .6, .15), before = shifted(x);
  for (const std::string version : {"rwkv4", "rwkv5", "rwkv6", "rwkv7"}) {
    Values w{{"k.weight", gen({5, kD}, .47, .1)},
             {"v.weight", gen({kD, 5}, .53, -.1)},
             {"mix_k", gen({kD}, .7, .3).square()}};
    const bool gated = version != "rwkv7";
    if (gated) {
      w["r.weight"] = gen({kD, kD}, .31, .2);
      w["mix_r"] = gen({kD}, .7, .6).square();
    }
    const auto mixed = [&](const char* name) {
      const Tensor mix = w.at(name);
      return version <= "rwkv5" ? mix * x + (1 - mix) * before : x + (before - x) * mix;
    };
    Tensor want =
        times(at::relu(times(mixed("mix_k"), w.at("k.weight"))).square(), w.at("v.weight"));
    if (gated) want = at::sigmoid(times(mixed("mix_r"), w.at("r.weight"))) * want;
    Layer{{{"type", "rwkv_channel_mix"}, {"version", version}, {"d_hidden", 5}}, w}.expect(
        x, want, 1e-10, version.c_str());
  }
}

/// One head of two channels, whose tokens pick r, k, v, the raw decay and the rate.
struct Rwkv7Golden {
  static constexpr int64_t kTokens = 3, kWidth = 4;
  static Tensor picked(const Tensor& rows) { return weight_giving(rows, kWidth); }

  Values values{{"r.weight", picked(ops::tensor({1, .5, -.5, 1, 2, 1}, {3, 2}))},
                {"k.weight", picked(ops::tensor({.5, -1, 1, .5, -1, 1}, {3, 2}))},
                {"v.weight", picked(ops::tensor({1, 2, -1, .5, .5, 1}, {3, 2}))},
                // tanh(1) w2 is the raw decay
                {"decay_down.weight", at::eye(kTokens, kWidth, at::kDouble)},
                {"decay_up.weight",
                 ops::tensor({-1, 0, .5, -.5, -2, 1}, {3, 2}).t().contiguous() / std::tanh(1.0)},
                {"decay_up.bias", at::zeros({2}, at::kDouble)},
                {"rate_down.weight", at::eye(kTokens, kWidth, at::kDouble)},
                {"rate_up.weight",
                 at::logit(ops::tensor({.5, .25, .75, .5, .1, .9}, {3, 2})).t().contiguous()},
                {"rate_up.bias", at::zeros({2}, at::kDouble)},
                {"gate_down.weight", at::zeros({1, kWidth}, at::kDouble)},
                {"gate_up.weight", at::ones({2, 1}, at::kDouble)},
                {"key_scale", ops::tensor({.7, .9})},
                {"key_rate", at::ones({2}, at::kDouble)},
                {"bonus", at::zeros({1, 2}, at::kDouble)},
                {"norm.weight", at::ones({2}, at::kDouble)},
                {"norm.bias", at::zeros({2}, at::kDouble)},
                {"o.weight", at::zeros({kWidth, 2}, at::kDouble)}};
  Rwkv7Golden() {
    for (const char name : std::string_view("rwkvag"))
      values[std::string("mix_") + name] = at::zeros({kWidth}, at::kDouble);
  }
  /// S [K, V] after the first n tokens.
  Tensor state(int64_t n, at::ScalarType type) const {
    const Layer layer{{{"type", "rwkv7"},
                       {"n_heads", 1},
                       {"key_dim", 2},
                       {"value_dim", 2},
                       {"decay_rank", 3},
                       {"rate_rank", 3},
                       {"gate_rank", 1}},
                      values};
    std::unique_ptr<RowState> row;
    layer.of_width(kWidth).split(at::eye(kTokens, kWidth, type).narrow(0, 0, n), {n}, &row);
    return row->fixed(0)[0];
  }
};

TEST(Rwkv7, GoldenStateFromRawDecaysAndRates) {
  const Tensor want =
      ops::tensor({-0.63147412, 0.13893362, 0.44088882, 1.14632766}, {2, 2}).t();  // [V, K]
  const Rwkv7Golden golden;
  ops::expect_near(golden.state(3, at::kDouble), want, 1e-8);
  const at::NoGradGuard no_gradients;
  ops::expect_near(golden.state(3, at::kFloat), want, 2e-6);
}

/// Nothing is removed or written behind the first token: what is left of the state shows w.
TEST(Rwkv7, GoldenDecaysFromRawOnes) {
  Rwkv7Golden golden;
  golden.values["rate_up.weight"] = at::full({2, 3}, -1000, at::kDouble);
  golden.values["key_rate"] = at::zeros({2}, at::kDouble);
  // the first token's own decay meets an empty state
  golden.values["k.weight"] = golden.values["v.weight"] =
      Rwkv7Golden::picked(ops::tensor({1, 1, 0, 0, 0, 0}, {3, 2}));
  const Tensor raw = ops::tensor({-1, 0, .5, -.5, -2, 1}, {3, 2});
  const Tensor w =
      ops::tensor({0.84948821, 0.73840315, 0.68554532, 0.79533649, 0.93025157, 0.64184436}, {3, 2});
  // every raw decay once behind the first
  for (const auto& [at, then] : {std::pair{1, 2}, {0, 1}}) {
    const Tensor order = at::tensor({int64_t{0}, int64_t{at}, int64_t{then}});
    golden.values["decay_up.weight"] = raw.index_select(0, order).t().contiguous() / std::tanh(1.0);
    const Tensor rows = golden.state(2, at::kDouble).select(1, 0),
                 both = golden.state(3, at::kDouble).select(1, 0);
    ops::expect_near(rows, w[at], 1e-8);
    ops::expect_near(both / rows, w[then], 1e-8);
  }
}

}  // namespace
}  // namespace tessera::nn::rwkv_test
