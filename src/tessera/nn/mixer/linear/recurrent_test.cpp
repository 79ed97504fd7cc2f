// Whole layers with a linear recurrence: against values computed independently (specification
// goldens, transformers 5.23) and against their definitions written out token by token.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/linear/lightning_attention.h"
#include "tessera/nn/mixer/linear/recurrence_testing.h"
#include "tessera/nn/mixer/linear/retention.h"

namespace tessera::nn::recurrent_test {
namespace {

using ops::gen;
using ops::tensor;
using spec::Json;

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
/// The first `width` of d channels pass unchanged, divided by silu(40): what a gate of 40 undoes.
Tensor first_channels(int64_t d, int64_t width) {
  return at::eye(d, width, at::kDouble) / 40;
}
Tensor gate_of_40(int64_t width, int64_t d) {
  return at::full({width, d}, 40, at::kDouble);
}

// --- goldens
// --------------------------------------------------------------------------------------

/// One head with gamma = 0.96875, keys before their scale K^{-1/2}, values in the first channels.
Layer retention_of(const Tensor& q, const Tensor& k, const Tensor& v, Json more) {
  const int64_t width = v.size(1);
  Json part = {{"type", "retention"},    {"n_heads", 1}, {"key_dim", q.size(1)},
               {"value_dim", v.size(1)}, {"chunk", 3},   {"angles", "none"}};
  part.update(more);
  return {part,
          {{"q.weight", picks(q)},
           {"k.weight", picks(k)},
           {"v.weight", picks(v)},
           {"g.weight", gate_of_40(width, 4)},
           {"o.weight", first_channels(4, width)}}};
}
const Tensor& retention_values() {
  static const Tensor v = tensor({1, 2, -1, .5, .5, 1, 2, -1}, {4, 2});
  return v;
}
Layer plain_retention(Json more = Json::object()) {
  return retention_of(tensor({1, 2, -.5, 1, 2, 1, .5, -1}, {4, 2}),
                      tensor({.5, -1, 1, .5, -1, 1, .25, 2}, {4, 2}), retention_values(), more);
}
Tensor padded(const Tensor& y) {
  return at::constant_pad_nd(y, {0, 4 - y.size(1)});
}

TEST(Retention, GoldenWithoutAndWithRotation) {
  const Layer plain = plain_retention();
  plain.expect(tokens(4),
               padded(tensor({-0.63245542, -1.26491084, -0.63245536, -1.26491072, -1.41054231,
                              0.10183059, -1.10066535, 0.88799513},
                             {4, 2})),
               1e-8);
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{4}, {1, 2, 1}}) {
    std::unique_ptr<RowState> row;
    plain.of_width(4).split(tokens(4), calls, &row);
    ops::expect_near(row->fixed(0)[0],
                     tensor({-0.33112183, 0.11288072, 2.19626486, -1.84903417}, {2, 2}), 1e-8);
  }
  const Tensor q = tensor({1, 2, .5, -1, -.5, 1, 1, 0, 2, 1, -1, .5, .5, -1, 0, 2}, {4, 4}),
               k = tensor({.5, -1, 1, 0, 1, .5, -.5, 2, -1, 1, .5, .5, .25, 2, -1, 1}, {4, 4});
  const Tensor raw =
      tensor({-0.5, -1, 0.40723884, 0.18947767, -3.22922815, -3.00658117, -2.90421321, -0.09494295},
             {4, 2});
  retention_of(q, k, retention_values(), {{"angles", "linear"}})
      .expect(tokens(4), padded(rms_normed(raw, 1e-6)), 1e-7);
}

/// An eps far above every square makes the norm a factor of 1e-6 to all digits.
Json unnormed(const char* normalise) {
  return {{"norm_eps", 1e12}, {"normalise", normalise}};
}

TEST(Retention, GoldenNormalisations) {
  const Tensor raw = tensor({-1.06066017, -2.12132034, -0.85626212, -1.71252424, -2.06607763,
                             0.14915534, -2.36182577, 1.90547453},
                            {4, 2}),
               decays = tensor({-1.06066017, -2.12132034, -0.61025514, -1.22051028, -1.21173373,
                                0.08747810, -1.20898885, 0.97538840},
                               {4, 2}),
               scores = tensor({-1, -2, -0.61025514, -1.22051028, -0.85388128, 0.06164384,
                                -0.74814202, 0.60358625},
                               {4, 2});
  const auto check = [](const char* normalise, const Tensor& want, std::vector<int64_t> calls) {
    const Layer layer = plain_retention(unnormed(normalise));
    const auto y = [&](at::ScalarType type) {
      return layer.of_width(4).run(tokens(4), type, calls) * 1e6;
    };
    ops::expect_near(y(at::kDouble), padded(want), 1e-8, normalise);
    const at::NoGradGuard no_gradients;
    ops::expect_near(y(at::kFloat), padded(want), 2e-5, normalise);
  };
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {4}, {2, 2}, {1, 1, 1, 1}}) {
    check("none", raw, calls);
    check("decays", decays, calls);
  }
  check("scores", scores, {});
}

/// Queries and keys of one, values that name their token: the rows are those of D'.
TEST(Retention, GoldenNormalisedDecays) {
  const Tensor one = at::ones({4, 1}, at::kDouble);
  const Layer layer = retention_of(one, one, at::eye(4, at::kDouble), unnormed("decays"));
  const Tensor want = tensor({1, 0, 0, 0, 0.69042487, 0.71269665, 0, 0, 0.55040706, 0.56816212,
                              0.58648993, 0, 0.46538200, 0.48039432, 0.49589092, 0.51188740},
                             {4, 4});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {4}, {1, 3}})
    ops::expect_near(layer.of_width(4).run(tokens(4), at::kDouble, calls) * 1e6, want, 1e-8);
}

/// One call of one token at position `at` in a row whose state is `state_HKV`, which is replaced.
Tensor one_token(const MixerUnderTest& mixer, const Tensor& x_D, int64_t at, Tensor& state_HKV) {
  RowState row(mixer.state(), 0, at::TensorOptions().dtype(at::kDouble));
  row.fixed(0) = state_HKV;
  Batch batch;
  batch.segments = {{0, 0, 1, at}};
  batch.number();
  Context context;
  context.batch = &batch;
  const StateRows rows{&row};
  const Tensor y_D = build_mixer(mixer.part, mixer.builder(at::kDouble))
                         ->forward(x_D.unsqueeze(0), context, &rows)[0];
  state_HKV = row.fixed(0);
  return y_D;
}

/// A state of ones on the diagonal is read as the rotated query, and what a key writes beside a
/// value of one in a state of zeros is the rotated key.
TEST(Retention, GoldenRotations) {
  const Tensor q = tensor({1, 2, .5, -1, -.5, 1, 1, 0, 2, 1, -1, .5, .5, -1, 0, 2}, {4, 4}),
               k = tensor({.5, -1, 1, 0, 1, .5, -.5, 2, -1, 1, .5, .5, .25, 2, -1, 1}, {4, 4});
  const auto mixer = [&](const Tensor& v, const char* angles) {
    Json part = unnormed("none");
    part["angles"] = angles;
    return retention_of(q, k, v, part).of_width(4);
  };
  Tensor state = at::eye(4, at::kDouble).unsqueeze(0);
  const Tensor read =
      1e6 / 0.96875 *
      one_token(mixer(at::zeros({4, 4}, at::kDouble), "linear"), tokens(4)[1], 1, state);
  ops::expect_near(read, tensor({-1.11162214, 0.11956681, 1, 0.0001}), 1e-8);
  Tensor written = at::zeros({1, 4, 1}, at::kDouble);
  one_token(mixer(at::ones({4, 1}, at::kDouble), "linear"), tokens(4)[3], 3, written);
  ops::expect_near(written.flatten(), tensor({-0.26486907, -0.97235250, -0.50014998, 0.49984998}),
                   1e-8);
}

/// Of eight channels: channel 0 of every pair, written at position 1, is the cosine of its angle.
TEST(Retention, GoldenAngles) {
  const Tensor cosines[] = {at::cos(tensor({1, 0.04641589, 0.00215443, 0.0001})),
                            at::cos(tensor({1, 0.1, 0.01, 0.001}))};
  const std::vector<int64_t> first[] = {{0, 2, 4, 6}, {0, 1, 2, 3}};
  const char* names[] = {"linear", "rope"};
  for (size_t i = 0; i < 2; ++i) {
    Tensor k = at::zeros({8}, at::kDouble);
    const Tensor places = at::tensor(first[i], at::kLong);
    k.index_put_({places}, at::full({4}, std::sqrt(8.0), at::kDouble));
    const Layer layer = retention_of(k.expand({4, 8}), k.expand({4, 8}),
                                     at::ones({4, 1}, at::kDouble), {{"angles", names[i]}});
    Tensor written = at::zeros({1, 8, 1}, at::kDouble);
    one_token(layer.of_width(4), tokens(4)[1], 1, written);
    ops::expect_near(written.flatten().index({places}), cosines[i], 1e-8, names[i]);
  }
}

TEST(Retention, NormalisedScoresHaveNoState) {
  EXPECT_NE(plain_retention(unnormed("scores")).of_width(4).part.config->no_state_reason(), "");
  EXPECT_EQ(plain_retention(unnormed("decays")).of_width(4).part.config->no_state_reason(), "");
}

/// Long documents, several to a call, with their gradients, in which the divisors are constants.
TEST(Retention, NormalisedScoresAgainstTheirDefinition) {
  const std::vector<int64_t> lengths{140, 3, 33};
  constexpr int64_t kN = 176, kH = 2, kK = 4, kV = 3;
  MixerUnderTest mixer({{"type", "retention"},
                        {"n_heads", kH},
                        {"key_dim", kK},
                        {"value_dim", kV},
                        {"decay_offset", 2},
                        {"norm_eps", 1e12},
                        {"normalise", "scores"},
                        {"angles", "none"}},
                       5);
  mixer.fill();
  const auto defined = [&](const Tensor& x) {
    const auto project = [&](const char* name, int64_t width) {
      return at::matmul(x, mixer.values.at(name).t()).reshape({kN, kH, width}).transpose(0, 1);
    };
    const Tensor q = project("q.weight", kK), k = project("k.weight", kK) / std::sqrt(1.0 * kK),
                 v = project("v.weight", kV);
    std::vector<Tensor> rows;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      std::vector<Tensor> heads;
      for (int64_t h = 0; h < kH; ++h) {
        const auto of = [&](const Tensor& t) { return t[h].narrow(0, begin, length); };
        const Tensor t = at::arange(length, at::kDouble), away = t.unsqueeze(1) - t;
        const Tensor d = at::pow(1 - std::exp2(-2.0 - static_cast<double>(h)), away).tril();
        const Tensor scores = at::matmul(of(q), of(k).t()) * d / d.sum(1, true).sqrt();
        heads.push_back(
            at::matmul(scores / scores.detach().abs().sum(1, true).clamp_min(1), of(v)));
      }
      rows.push_back(at::cat(heads, 1));
      begin += length;
    }
    const Tensor gate = at::silu(at::matmul(x, mixer.values.at("g.weight").t()));
    return at::matmul(gate * at::cat(rows), mixer.values.at("o.weight").t());
  };
  const Tensor x = 3 * gen({kN, 5}, .7, .1), dy = gen({kN, 5}, .3, .4);
  const auto outcome = [&](const auto& form, at::ScalarType type) {
    const Tensor leaf = x.to(type).clone().requires_grad_(true);
    const Tensor y = form(leaf);
    y.backward(dy.to(type));
    return std::pair{y.detach(), leaf.grad()};
  };
  const auto layer = [&](const Tensor& in) { return mixer.whole(in, lengths) * 1e6; };
  const auto [want, want_grad] = outcome(defined, at::kDouble);
  for (const auto& [type, within] : {std::pair{at::kDouble, 1e-11}, {at::kFloat, 2e-5}}) {
    const auto [y, grad] = outcome(layer, type);
    ops::expect_near(y, want, within * want.abs().max().item<double>());
    ops::expect_near(grad, want_grad, within * want_grad.abs().max().item<double>());
  }
  const at::NoGradGuard no_gradients;
  ops::expect_near(layer(x.to(at::kFloat)), want, 2e-5 * want.abs().max().item<double>());
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

/// The layer whose projections give q, k and v [T, 2] on unit vectors, with the default eps.
Layer linear_attention_giving(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {{{"type", "linear_attention"},
           {"n_heads", 1},
           {"key_dim", 2},
           {"value_dim", 2},
           {"chunk", 3}},
          {{"q.weight", picks(q)},
           {"k.weight", picks(k)},
           {"v.weight", picks(v)},
           {"o.weight", at::eye(4, 2, at::kDouble)}}};
}

TEST(LinearAttention, GoldenG1) {
  const Layer layer =
      linear_attention_giving(gen({4, 2}, .7, .1), gen({4, 2}, .5, .3), gen({4, 2}, .9, .2));
  ops::expect_both(
      [&](at::ScalarType type) { return layer.run(tokens(4), type)[3].narrow(0, 0, 2); },
      tensor({0.1225176003, 0.0727351174}), 1e-9);
}

TEST(LinearAttention, GoldenG5) {
  Layer layer =
      linear_attention_giving(gen({4, 2}, .37, .11), gen({4, 2}, .53, .29), gen({4, 2}, .71, .05));
  const auto padded = [](const Tensor& y) { return at::constant_pad_nd(y, {0, 2}); };
  layer.expect(tokens(4),
               padded(tensor({0.04997915664, 0.688921271, 0.5826301751, 0.7628669429, 0.4865663749,
                              0.4097464715, 0.3320114208, 0.2558702193},
                             {4, 2})),
               1e-9);
  layer.causal = false;
  layer.expect(tokens(4),
               padded(tensor({0.3365997191, 0.2730664521, 0.3348879566, 0.2666510145, 0.3335023534,
                              0.2614579887, 0.3320114208, 0.2558702193},
                             {4, 2})),
               1e-9);
}

// Efficient attention: the context k^T v of keys that are a softmax over the document, read by
// queries that are one over their channels.
TEST(LinearAttention, SoftmaxOverChannelsAndTokens) {
  MixerUnderTest m(R"({"type": "linear_attention", "n_heads": 2, "key_dim": 3, "value_dim": 4,
      "feature": "softmax"})",
                   5, /*causal=*/false);
  m.fill({.size = 1});
  const Tensor x = gen({7, 5}, 1.3, 0.2);
  const auto heads = [&](const char* name, int64_t width) {
    return at::matmul(x, m.values[name].t()).reshape({7, 2, width}).transpose(0, 1);
  };
  const Tensor q_HTK = at::softmax(heads("q.weight", 3), 2),
               k_HTK = at::softmax(heads("k.weight", 3), 1),
               context_HKV = at::matmul(k_HTK.transpose(1, 2), heads("v.weight", 4));
  const Tensor mixed = at::matmul(q_HTK, context_HKV).transpose(0, 1).reshape({7, 8});
  const Tensor want = at::matmul(mixed, m.values["o.weight"].t());
  m.expect(x, want, 1e-13);
  // of its own document
  const Tensor behind = m.whole(at::cat({x.narrow(0, 0, 2), x}), {2, 7});
  ops::expect_near(behind.narrow(0, 2, 7), want, 1e-13);
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

TEST(Hgrn2, GoldenWithTheTableOfAllLayers) {
  const Json part = {
      {"type", "hgrn2"}, {"n_heads", 1}, {"key_dim", 2}, {"value_dim", 2}, {"chunk", 2}};
  const Tensor table = gen({4, 2}, .8, .1);
  Values values{{"q.weight", picks(gen({3, 2}, .7, .1))},
                {"f.weight", picks(gen({3, 2}, .9, .3))},
                {"v.weight", picks(gen({3, 2}, .5, .4))},
                {"norm.weight", tensor({1, 2})},
                {"o.weight", at::eye(3, 2, at::kDouble)}};
  values["shared.hgrn2.lower_bounds"] = table;
  const Tensor o =
      tensor({0.03174270, 0.06385142, 0.26132661, 0.31160862, -0.04597394, -0.02625737}, {3, 2});
  const Tensor want = at::constant_pad_nd(rms_normed(o, 1e-5) * tensor({1, 2}), {0, 1});
  // rows as small as 0.05 are normed to 1
  Layer{part, values, 2, 4}.expect(tokens(3), want, 4e-7);
}

/// A closed forget gate is g = lb, and after one token with values of one the state is 1 - lb.
TEST(Hgrn2, GoldenLowerBoundsOfEveryLayer) {
  const Tensor bounds = tensor(
      {0, 0, 0.53601723, 0.36199772, 0.70584007, 0.44978255, 0.78028420, 0.56450092}, {4, 2});
  for (int64_t l = 0; l < 4; ++l) {
    Values values{{"q.weight", at::ones({2, 1}, at::kDouble)},
                  {"f.weight", at::full({2, 1}, -1000, at::kDouble)},
                  {"v.weight", at::ones({1, 1}, at::kDouble)},
                  {"norm.weight", tensor({1})},
                  {"o.weight", at::ones({1, 1}, at::kDouble)}};
    if (l > 0) values["shared.hgrn2.lower_bounds"] = gen({4, 2}, .8, .1);
    const Layer layer{
        {{"type", "hgrn2"}, {"n_heads", 1}, {"key_dim", 2}, {"value_dim", 1}}, values, l, 4};
    std::unique_ptr<RowState> row;
    layer.of_width(1).split(at::ones({1, 1}, at::kDouble), {1}, &row);
    ops::expect_near(1 - row->fixed(0)[0].select(1, 0), bounds[l], 1e-8);
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
  const Tensor last = tensor({-1.23244562, -1.24469564, 0.62319392, 0.57767883, -1.27299557,
                              -1.60760216, -0.67656089, -1.14121049},
                             {2, 2, 2});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{5}, {2, 1, 2}}) {
    std::unique_ptr<RowState> row;
    layer.of_width(3).split(x, calls, &row);
    ops::expect_near(row->fixed(0), last, 1e-8);
  }
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

/// The cell's example inside the block: tokens pick what the cell reads, queries hold the gates in
/// channels that the keys leave at 0.
TEST(Mlstm, GoldenInsideTheUpProjection) {
  const auto picked = [](const std::vector<double>& rows) {
    return at::constant_pad_nd(tensor(rows, {3, 4}), {0, 0, 0, 1}).t().contiguous();
  };
  const auto gate = [](int64_t channel) {
    Tensor weight = at::zeros({1, 12}, at::kDouble);
    weight[0][channel] = 1;
    return weight;
  };
  const auto zeros = [](int64_t n) { return at::zeros({n}, at::kDouble); };
  const Layer layer{
      {{"type", "mlstm"},
       {"n_heads", 1},
       {"chunk", 2},
       {"norm_eps", 1e12},
       {"up_projection", {{"d_inner", 4}, {"d_conv", 0}}}},
      {{"up.weight", at::cat({at::eye(4, at::kDouble), gate_of_40(4, 4)})},
       {"q.weight", picked({1, 2, .5, 1, -.5, 1, -1, -.5, 2, 1, 2, 3})},
       // heads are four wide here, two there
       {"k.weight", std::sqrt(2.0) * picked({.5, -1, 0, 0, 1, .5, 0, 0, -1, 1, 0, 0})},
       {"v.weight", picked({1, 2, 0, 0, -1, .5, 0, 0, .5, 1, 0, 0})},
       {"i.weight", gate(2)},
       {"i.bias", zeros(1)},
       {"f.weight", gate(3)},
       {"f.bias", zeros(1)},
       {"norm.weight", at::ones({4}, at::kDouble)},
       {"skip", zeros(4)},
       {"o.weight", at::eye(4, at::kDouble) / 40}}};
  const Tensor want = tensor(
      {-0.99999906, -1.99999811, -0.55018118, -1.10036235, -0.70176867, -1.06725489}, {3, 2});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {3}, {1, 2}, {1, 1, 1}}) {
    // the norm takes the mean from every channel, those at 0 included
    const auto h = [&](at::ScalarType type) {
      const Tensor y = layer.of_width(4).run(at::eye(3, 4, at::kDouble), type, calls) * 1e6;
      return y.narrow(1, 0, 2) - y.narrow(1, 2, 1);
    };
    ops::expect_near(h(at::kDouble), want, 1e-8);
    const at::NoGradGuard no_gradients;
    ops::expect_near(h(at::kFloat), want, 5e-6);
  }
}

TEST(Mlstm, RefusesWidthsThatTheUpProjectionDoesNotHave) {
  const auto read = [](const char* fields) {
    MixerUnderTest(std::string(R"({"type": "mlstm", "n_heads": 2, )") + fields + "}", 8);
  };
  EXPECT_NO_THROW(read(R"("up_projection": {"d_inner": 24})"));
  EXPECT_THROW(read(R"("up_projection": {"d_inner": 24}, "key_dim": 4)"), Error);
  EXPECT_THROW(read(R"("up_projection": {"d_inner": 24, "block": 5})"), Error);
  EXPECT_THROW(read(R"("up_projection": {"d_inner": 25})"), Error);
}

// --- definitions, token by token
// ------------------------------------------------------------------

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
    test::expect_error(ErrorKind::spec, text,
                       [&] { spec::read_part(spec::Slot::mixer, part, scope); });
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

/// Where the paper's layer is built around its convolution it has one tap at least; elsewhere 0
/// leaves the convolution out.
TEST(RecurrentConfigs, TapsOfShortConvolutions) {
  register_mechanisms();
  const auto read = [](const char* type, int64_t taps) {
    Json part = {{"type", type}, {"d_conv", taps}};
    const std::set<std::string> headless{"mamba", "short_conv", "hgrn", "hyena"};
    if (!headless.contains(type)) part["n_heads"] = 2;
    if (part["type"] == "hyena") part["max_length"] = 8;
    spec::Scope scope;
    scope.d_model = 8, scope.path = "mixer";
    spec::read_part(spec::Slot::mixer, part, scope);
  };
  for (const char* type : {"mamba", "mamba2", "rg_lru", "short_conv", "hyena"}) {
    EXPECT_NO_THROW(read(type, 1)) << type;
    test::expect_error(ErrorKind::spec, "[mixer.d_conv] found 0; expected at least 1",
                       [&] { read(type, 0); });
  }
  for (const char* type : {"slstm", "hgrn", "hgrn2", "delta_net", "gated_delta_net", "kda"}) {
    EXPECT_NO_THROW(read(type, 0)) << type;
    test::expect_error(ErrorKind::spec, "[mixer.d_conv] found -1; expected at least 0",
                       [&] { read(type, -1); });
  }
}

}  // namespace
}  // namespace tessera::nn::recurrent_test
