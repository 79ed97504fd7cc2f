// Whole layers with a linear recurrence: against values computed independently (specification
// goldens, transformers 5.23) and against their definitions written out token by token.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/nn/mixer/lightning_attention.h"
#include "tessera/nn/mixer/retention.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/registry.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn {
namespace {

using ops::gen;
using ops::tensor;
using spec::Json;

using Values = std::map<std::string, Tensor>;

/// A mixer with given weights in layer `layer` of `n_layers`.
struct Layer {
  Json part;
  Values values;
  int64_t layer = 0, n_layers = 1;
  bool causal = true;

  std::unique_ptr<Mixer> build(at::ScalarType type, int64_t d_model) const {
    register_mechanisms();
    spec::Scope scope;
    scope.d_model = d_model, scope.layer = layer, scope.n_layers = n_layers, scope.causal = causal;
    scope.path = "test";
    const auto read = spec::read_part(spec::Slot::mixer, part, scope);
    // the declared parameters are exactly the given ones
    spec::ParamList declared;
    read.config->params(declared, scope);
    EXPECT_EQ(declared.all().size(), values.size());
    for (const spec::ParamDecl& decl : declared.all()) {
      const auto found = values.find(decl.name);
      if (found == values.end())
        ADD_FAILURE() << "no value for " << decl.name;
      else
        EXPECT_EQ(found->second.sizes().vec(), decl.shape) << decl.name;
    }
    const WeightSource source = [this, type](const std::string& name) -> WeightPtr {
      const auto found = values.find(name);
      return found == values.end()
                 ? nullptr
                 : std::make_shared<ops::Weight>(ops::Weight::dense(name, found->second.to(type)));
    };
    return build_mixer(read, Builder(source, "", scope));
  }
  Tensor run(const Tensor& x_TD, at::ScalarType type, Context context = {}) const {
    Batch batch;
    batch.segments = {{0, 0, x_TD.size(0), 0}};
    batch.number();
    context.batch = &batch;
    context.causal = causal;
    return build(type, x_TD.size(1))->forward(x_TD.to(type), context, nullptr);
  }
  /// The plain form in double within `tolerance`, and the kernels.
  void expect(const Tensor& x_TD,
              const Tensor& want,
              double tolerance,
              const char* what = "") const {
    ops::expect_near(run(x_TD, at::kDouble), want, tolerance, what);
    const at::NoGradGuard no_gradients;
    ops::expect_near(run(x_TD, at::kFloat), want,
                     std::max(tolerance, 5e-6 * std::max(1.0, want.abs().max().item<double>())),
                     what);
  }
};

/// Tokens that pick the columns of a projection: W x_t is row t of `rows`.
Tensor tokens(int64_t t) {
  return at::eye(t, at::kDouble);
}
Tensor picks(const Tensor& rows) {
  return rows.t().contiguous();
}
Tensor rms_normed(const Tensor& x, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps);
}
Tensor layer_normed(const Tensor& x, double eps) {
  const Tensor centred = x - x.mean(-1, true);
  return centred * at::rsqrt(centred.square().mean(-1, true) + eps);
}
/// The first `width` of d channels pass unchanged, divided by silu(40): what a gate of 40 undoes.
Tensor first_channels(int64_t d, int64_t width) {
  return at::eye(d, width, at::kDouble) / 40;
}
Tensor gate_of_40(int64_t width, int64_t d) {
  return at::full({width, d}, 40, at::kDouble);
}

// --- goldens
// --------------------------------------------------------------------------------------

TEST(Retention, GoldenWithoutAndWithRotation) {
  const Tensor v = tensor({1, 2, -1, .5, .5, 1, 2, -1}, {4, 2});
  const Tensor plain_q = tensor({1, 2, -.5, 1, 2, 1, .5, -1}, {4, 2}),
               plain_k = tensor({.5, -1, 1, .5, -1, 1, .25, 2}, {4, 2});
  const auto layer = [&](const Tensor& q, const Tensor& k, const char* angles) {
    return Layer{{{"type", "retention"},
                  {"n_heads", 1},
                  {"key_dim", q.size(1)},
                  {"value_dim", 2},
                  {"chunk", 3},
                  {"angles", angles}},
                 {{"q.weight", picks(q)},
                  {"k.weight", picks(k)},
                  {"v.weight", picks(v)},
                  {"g.weight", gate_of_40(2, 4)},
                  {"o.weight", first_channels(4, 2)}}};
  };
  const auto padded = [](const Tensor& y) { return at::constant_pad_nd(y, {0, 2}); };
  layer(plain_q, plain_k, "none")
      .expect(tokens(4),
              padded(tensor({-0.63245542, -1.26491084, -0.63245536, -1.26491072, -1.41054231,
                             0.10183059, -1.10066535, 0.88799513},
                            {4, 2})),
              1e-8);
  const Tensor q = tensor({1, 2, .5, -1, -.5, 1, 1, 0, 2, 1, -1, .5, .5, -1, 0, 2}, {4, 4}),
               k = tensor({.5, -1, 1, 0, 1, .5, -.5, 2, -1, 1, .5, .5, .25, 2, -1, 1}, {4, 4});
  const Tensor raw =
      tensor({-0.5, -1, 0.40723884, 0.18947767, -3.22922815, -3.00658117, -2.90421321, -0.09494295},
             {4, 2});
  layer(q, k, "linear").expect(tokens(4), padded(rms_normed(raw, 1e-6)), 1e-7);
}

TEST(LinearAttention, Golden) {
  const Tensor q = tensor({1, .5, -.5, 1, 2, 1}, {3, 2}),
               k = tensor({.6, .8, 1, 0, -.6, .8}, {3, 2}),
               v = tensor({1, 2, -1, .5, .5, 1}, {3, 2});
  Layer layer{{{"type", "linear_attention"},
               {"n_heads", 1},
               {"key_dim", 2},
               {"value_dim", 2},
               {"chunk", 2},
               {"eps", 0}},
              {{"q.weight", picks(q)},
               {"k.weight", picks(k)},
               {"v.weight", picks(v)},
               {"o.weight", at::eye(3, 2, at::kDouble)}}};
  const Tensor want =
      tensor({1, 2, 0, 0.17439274, 1.38079456, 0, 0.13966353, 1.20326673, 0}, {3, 3});
  layer.expect(tokens(3), want, 1e-8);
  // without order the last row is the same, and every row is a mean weighted by phi(q) . phi(k)
  layer.causal = false;
  const auto phi = [](const Tensor& x) { return at::elu(x) + 1; };
  const Tensor weights = at::matmul(phi(q), phi(k).t());
  const Tensor all = at::matmul(weights / weights.sum(1, true), v);
  ops::expect_near(all[2], want[2].narrow(0, 0, 2), 1e-8);
  layer.expect(tokens(3), at::constant_pad_nd(all, {0, 1}), 1e-8);
}

TEST(Gla, Golden) {
  const Tensor a = tensor({.9, .5, .8, .6, .7, .95}, {3, 2});
  const Layer layer{{{"type", "gla"},
                     {"n_heads", 1},
                     {"key_dim", 2},
                     {"value_dim", 2},
                     {"chunk", 2},
                     {"decay_rank", 3},
                     {"temper", 2}},
                    {{"q.weight", picks(tensor({1, .5, -.5, 1, 2, 1}, {3, 2}))},
                     {"k.weight", picks(tensor({.6, .8, 1, 0, -.6, .8}, {3, 2}))},
                     {"v.weight", picks(tensor({1, 2, -1, .5, .5, 1}, {3, 2}))},
                     // logsigmoid(raw) / 2 = ln a
                     {"decay_down.weight", at::eye(3, at::kDouble)},
                     {"decay_up.weight", picks(at::logit(a.square()) - 1)},
                     {"decay_up.bias", at::ones({2}, at::kDouble)},
                     {"g.weight", gate_of_40(2, 3)},
                     {"norm.weight", tensor({1, 3})},
                     {"o.weight", first_channels(3, 2)}}};
  const Tensor o =
      tensor({0.70710678, 1.41421356, 0.52325902, 0.16263456, -0.33375440, 1.80736493}, {3, 2});
  layer.expect(tokens(3), at::constant_pad_nd(rms_normed(o, 1e-5) * tensor({1, 3}), {0, 1}), 1e-7);
}

TEST(Hgrn2, GoldenWithTheTableOfLayer0) {
  const Json part = {
      {"type", "hgrn2"}, {"n_heads", 1}, {"key_dim", 2}, {"value_dim", 2}, {"chunk", 2}};
  const Tensor table = gen({4, 2}, .8, .1);
  Values values{{"q.weight", picks(gen({3, 2}, .7, .1))},
                {"f.weight", picks(gen({3, 2}, .9, .3))},
                {"v.weight", picks(gen({3, 2}, .5, .4))},
                {"norm.weight", tensor({1, 2})},
                {"o.weight", at::eye(3, 2, at::kDouble)}};
  const Layer third{part, values, 2, 4};
  values["lower_bounds"] = table;
  const Layer first{part, values, 0, 4};
  const Tensor o =
      tensor({0.03174270, 0.06385142, 0.26132661, 0.31160862, -0.04597394, -0.02625737}, {3, 2});
  const Tensor want = at::constant_pad_nd(rms_normed(o, 1e-5) * tensor({1, 2}), {0, 1});
  const auto run = [&](at::ScalarType type) {
    Batch batch;
    batch.segments = {{0, 0, 3, 0}};
    batch.number();
    Context context;
    context.batch = &batch;
    first.build(type, 3)->forward(tokens(3).to(type), context, nullptr);
    return third.build(type, 3)->forward(tokens(3).to(type), context, nullptr);
  };
  ops::expect_both(run, want, 4e-7);  // rows as small as 0.05 are normed to 1
  // alone, layer 2 has no table
  try {
    third.run(tokens(3), at::kDouble);
    ADD_FAILURE() << "a missing table is accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("lower_bound linear or none"), std::string::npos)
        << e.what();
  }
}

TEST(LightningAttention, GoldenAgainstTransformers) {
  const Tensor qkv = gen({12, 3}, .31, .2).reshape({2, 3, 2, 3});  // [head, q k v, D, d]
  const auto part_of = [&](int64_t i) { return qkv.select(1, i).reshape({4, 3}).contiguous(); };
  const Layer layer{{{"type", "lightning_attention"},
                     {"n_heads", 2},
                     {"key_dim", 2},
                     {"value_dim", 2},
                     {"chunk", 2}},
                    {{"q.weight", part_of(0)},
                     {"k.weight", part_of(1)},
                     {"v.weight", part_of(2)},
                     {"g.weight", gen({4, 3}, .77, .4)},
                     {"norm.weight", 1 + .1 * gen({4}, .9, .3)},
                     {"o.weight", gen({3, 4}, .53, -.1)}},
                    1,
                    4};
  const Tensor x = gen({5, 3}, .6, .15), y = layer.run(x, at::kDouble);
  ops::expect_near(
      at::stack({y[0], y[4]}),
      tensor({-1.37593489, -0.41833456, 1.81268301, -1.75027148, 1.05005861, 0.65399313}, {2, 3}),
      1e-8);
  // the other rows as transformers gives them, which norms in float32
  layer.expect(x,
               tensor({-1.37593483, -0.41833454, 1.81268294, -0.54005963, -1.24436192, 1.83919383,
                       0.30415646, 0.75199893, -1.08925563, -1.17188086, -0.27771003, 1.46181468,
                       -1.75027154, 1.05005865, 0.65399315},
                      {5, 3}),
               5e-7);
}

// transformers runs the recurrence of the next three in float32
constexpr double kSingle = 5e-6;

TEST(GatedDeltaNet, AgainstTransformersQwen3Next) {
  const Layer layer{{{"type", "gated_delta_net"},
                     {"n_heads", 4},
                     {"n_key_heads", 2},
                     {"key_dim", 3},
                     {"value_dim", 2},
                     {"d_conv", 3},
                     {"chunk", 2}},
                    {{"q.weight", gen({6, 6}, .31, .2)},
                     {"k.weight", gen({6, 6}, .47, .1)},
                     {"v.weight", gen({8, 6}, .53, -.1)},
                     {"g.weight", gen({8, 6}, .77, .4)},
                     {"beta.weight", gen({4, 6}, .61, .3)},
                     {"decay.weight", gen({4, 6}, .37, -.2)},
                     {"conv.weight", gen({20, 3}, .9, .3)},
                     {"dt_bias", gen({4}, .8, .1)},
                     {"a_log", gen({4}, .5, .2)},
                     {"norm.weight", 1 + .1 * gen({2}, .9, .3)},
                     {"o.weight", gen({6, 8}, .43, .15)}}};
  layer.expect(
      gen({5, 6}, .6, .15),
      tensor({1.88183839,  -1.31187001, 0.62594790,  0.11530057,  -0.84635784, 1.50260712,
              -4.57118494, 4.16472675,  -3.39015618, 2.31593607,  -1.03701472, -0.33356641,
              -3.24381598, 1.49600935,  0.38402675,  -2.23011944, 3.87909606,  -5.18520666,
              -3.51130347, 2.85633427,  -1.94889906, 0.86920431,  0.28731777,  -1.41844438,
              -3.66358746, 2.14926915,  -0.44498097, -1.29863824, 2.92747325,  -4.29755439},
             {5, 6}),
      kSingle);
}

TEST(Kda, AgainstTransformersKimiLinear) {
  const Layer layer{{{"type", "kda"},
                     {"n_heads", 2},
                     {"key_dim", 3},
                     {"value_dim", 3},
                     {"d_conv", 3},
                     {"chunk", 2}},
                    {{"q.weight", gen({6, 6}, .31, .2)},
                     {"k.weight", gen({6, 6}, .47, .1)},
                     {"v.weight", gen({6, 6}, .53, -.1)},
                     {"conv.weight", gen({18, 3}, .9, .3)},
                     {"decay_down.weight", gen({3, 6}, .37, -.2)},
                     {"decay_up.weight", gen({6, 3}, .83, .6)},
                     {"dt_bias", gen({6}, .8, .1)},
                     {"a_log", gen({2}, .5, .2)},
                     {"beta.weight", gen({2, 6}, .61, .3)},
                     {"g_down.weight", gen({3, 6}, .77, .4)},
                     {"g_up.weight", gen({6, 3}, .71, .5)},
                     {"norm.weight", 1 + .1 * gen({3}, .9, .3)},
                     {"o.weight", gen({6, 6}, .43, .15)}}};
  layer.expect(
      gen({5, 6}, .6, .15),
      tensor({1.14044231,  -1.50817427, 1.41261935,  -0.88313048, 0.08235813,  0.74371331,
              -2.23025037, 1.74952668,  -0.73137652, -0.51144074, 1.59715163,  -2.19224323,
              -1.00542731, 1.48059016,  -1.50093953, 1.06022442,  -0.29382541, -0.56283204,
              -1.74454969, 0.95257568,  0.13201426,  -1.17605154, 1.85882470,  -1.97059681,
              -1.67401973, 1.92964868,  -1.59252059, 0.76619579,  0.29549204,  -1.26640946},
             {5, 6}),
      kSingle);
}

TEST(Mlstm, AgainstTransformersXlstm) {
  const Layer layer{{{"type", "mlstm"}, {"n_heads", 2}, {"chunk", 3}},
                    {{"q.weight", gen({4, 8}, .31, .2)},
                     {"k.weight", gen({4, 8}, .47, .1)},
                     {"v.weight", gen({8, 8}, .53, -.1)},
                     {"g.weight", gen({8, 8}, .77, .4)},
                     {"i.weight", gen({2, 8}, .61, .3)},
                     {"i.bias", gen({2}, .7, .2)},
                     {"f.weight", gen({2, 8}, .37, -.2)},
                     {"f.bias", gen({2}, .4, .9)},
                     {"norm.weight", 1 + .1 * gen({8}, .9, .3)},
                     {"o.weight", gen({8, 8}, .43, .15)}}};
  const Tensor y = layer.run(gen({8, 8}, .6, .15), at::kDouble);
  ops::expect_near(
      at::stack({y[0], y[1], y[3], y[7]}),
      tensor({0.08719487,  -0.01828629, -0.05223857, 0.11814617,  -0.17361105, 0.21373077,
              -0.23495924, 0.23542009,  0.21804003,  -0.24923943, 0.25840902,  -0.24473833,
              0.20943567,  -0.15562139, 0.08805202,  -0.01269990, 0.02439788,  -0.19819788,
              0.35447953,  -0.47942941, 0.56200342,  -0.59490300, 0.57522022,  -0.50469481,
              0.27150653,  -0.39042206, 0.47482892,  -0.51726655, 0.51398395,  -0.46527128,
              0.37543415,  -0.25241311},
             {4, 8}),
      kSingle);
}

// --- definitions, token by token
// ------------------------------------------------------------------

/// S_t = d o S + k v^T, or with the delta rule or the RWKV-7 removal, on one head's rows.
struct Cell {
  Tensor state;  // [K, V]
  Cell(int64_t k, int64_t v) : state(at::zeros({k, v}, at::kDouble)) {}
  void decay(const Tensor& d_K) { state = d_K.unsqueeze(1) * state; }
  void write(const Tensor& k, const Tensor& v) { state = state + at::outer(k, v); }
  Tensor read(const Tensor& q) const { return at::mv(state.t(), q); }
};

Tensor unit(const Tensor& x, double eps) {
  return x / at::sqrt(x.square().sum() + eps);
}

TEST(DeltaNet, AgainstItsDefinition) {
  constexpr int64_t kT = 7, kD = 6, kH = 2, kK = 3, kV = 2;
  const Values w{{"q.weight", gen({6, kD}, .31, .2)},   {"k.weight", gen({6, kD}, .47, .1)},
                 {"v.weight", gen({4, kD}, .53, -.1)},  {"beta.weight", gen({kH, kD}, .61, .3)},
                 {"conv.weight", gen({16, 4}, .9, .3)}, {"g.weight", gen({4, kD}, .77, .4)},
                 {"norm.weight", gen({kV}, .8, 1)},     {"o.weight", gen({kD, 4}, .43, .15)}};
  const Tensor x = gen({kT, kD}, .6, .15);
  const Tensor qkv =
      at::matmul(x, at::cat({w.at("q.weight"), w.at("k.weight"), w.at("v.weight")}).t());
  std::vector<Cell> cells(kH, Cell(kK, kV));
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < kT; ++t) {
    Tensor mixed = at::zeros({16}, at::kDouble);
    for (int64_t j = 0; j < 4; ++j)
      if (t - 3 + j >= 0) mixed = mixed + w.at("conv.weight").select(1, j) * qkv[t - 3 + j];
    mixed = at::silu(mixed);
    const Tensor beta = 2 * at::sigmoid(at::mv(w.at("beta.weight"), x[t]));
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < kH; ++h) {
      const Tensor q = unit(mixed.narrow(0, h * kK, kK), 1e-6) / std::sqrt(3.0),
                   k = unit(mixed.narrow(0, 6 + h * kK, kK), 1e-6),
                   v = mixed.narrow(0, 12 + h * kV, kV);
      Cell& cell = cells[static_cast<size_t>(h)];
      cell.write(beta[h] * k, v - cell.read(k));
      heads.push_back(rms_normed(cell.read(q), 1e-5) * w.at("norm.weight"));
    }
    const Tensor gate = at::silu(at::mv(w.at("g.weight"), x[t]));
    rows.push_back(at::mv(w.at("o.weight"), at::cat(heads) * gate));
  }
  Layer{{{"type", "delta_net"},
         {"n_heads", kH},
         {"key_dim", kK},
         {"value_dim", kV},
         {"chunk", 3},
         {"gate", true},
         {"negative_eigenvalues", true}},
        w}
      .expect(x, at::stack(rows), 1e-10);
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
    context.batch = &batch;
    const Tensor h = first.build(type, kD)->forward(x.to(type), context, nullptr);
    return second.build(type, kD)->forward(h, context, nullptr);
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

// --- configs
// --------------------------------------------------------------------------------------

TEST(RecurrentConfigs, SlopesOfLightningAttention) {
  register_mechanisms();
  const auto slopes = [](int64_t heads, int64_t layers, int64_t layer, const char* rule) {
    spec::Scope scope;
    scope.d_model = heads, scope.n_layers = layers, scope.layer = layer;
    LightningAttentionConfig config;
    config.n_heads = heads;
    if (std::string(rule) == "fla") config.slopes = LightningSlopes::fla;
    std::vector<double> out;
    for (const double log : config.log_decays(scope)) out.push_back(-log);
    return out;
  };
  const auto expect = [](const std::vector<double>& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-8);
  };
  expect(slopes(2, 4, 0, "minimax"), {0.06250063, 0.00390629});
  expect(slopes(2, 4, 1, "minimax"), {0.04166736, 0.00260421});
  expect(slopes(2, 4, 3, "minimax"), {0.00000083, 0.00000005});
  expect(slopes(64, 80, 0, "minimax"), {0.91701321, 0.84090482, 0.77111312});
  expect(slopes(4, 8, 2, "fla"), {0, 1.5, 3, 4.5});
}

TEST(RecurrentConfigs, DecaysOfRetention) {
  RetentionConfig config;
  config.n_heads = 8;
  const double want[] = {0.96875,     0.984375,     0.9921875,     0.99609375,
                         0.998046875, 0.9990234375, 0.99951171875, 0.999755859375};
  for (size_t h = 0; h < 8; ++h) EXPECT_NEAR(std::exp(config.log_decays()[h]), want[h], 1e-15);
}

TEST(RecurrentConfigs, RefusalsSayWhatToDo) {
  register_mechanisms();
  const auto refused = [](const Json& part, bool causal, const char* text) {
    spec::Scope scope;
    scope.d_model = 6, scope.causal = causal, scope.path = "layers[0].mixer";
    try {
      spec::read_part(spec::Slot::mixer, part, scope);
      ADD_FAILURE() << part << " is accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::spec);
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  refused({{"type", "retention"}, {"n_heads", 4}}, true, "does not divide d_model = 6");
  refused({{"type", "retention"}, {"n_heads", 2}}, true, "key_dim = 3; a rotation needs an even");
  refused({{"type", "gla"}, {"n_heads", 2}}, true, "give key_dim");
  refused({{"type", "gated_delta_net"}, {"n_heads", 3}, {"n_key_heads", 2}}, true,
          "n_key_heads = 2 does not divide n_heads = 3");
  refused(
      {{"type", "linear_attention"}, {"n_heads", 2}, {"feature", "identity"}, {"normaliser", true}},
      true, "drop the normaliser");
  for (const char* type : {"retention", "gla", "hgrn2", "delta_net", "gated_delta_net", "kda",
                           "lightning_attention", "mlstm", "rwkv5", "rwkv6", "rwkv7"})
    refused({{"type", type}, {"n_heads", 3}, {"key_dim", 2}}, false, "cannot stand in an encoder");
  refused({{"type", "rwkv_channel_mix"}}, false, "cannot stand in an encoder");
}

}  // namespace
}  // namespace tessera::nn
