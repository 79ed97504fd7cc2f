// HGRN against the values of the specification (flash-linear-attention), its definition written out
// token by token, and HGRN2 with heads of one channel.
#include "tessera/nn/mixer/scan/hgrn.h"

#include "tessera/nn/mixer/linear/recurrence_testing.h"

namespace tessera::nn::hgrn_test {
namespace {

using ops::gen;
using ops::tensor;
using spec::Json;

/// A projection that gives `rows` on the unit vectors.
Tensor picks(const Tensor& rows) {
  return rows.t().contiguous();
}

/// HGRN on three unit vectors in layer `layer` of four, its gate open: silu(40) = 40.
Layer on_unit_vectors(const Tensor& i, const Tensor& f, double norm_eps, int64_t layer = 2) {
  const int64_t width = i.size(1);
  Values values{{"i.weight", picks(i)},
                {"f.weight", picks(f)},
                {"g.weight", at::full({width, 3}, 40, at::kDouble)},
                {"norm.weight", at::ones({width}, at::kDouble)},
                {"o.weight", at::eye(3, width, at::kDouble) / 40}};
  if (layer > 0) values["shared.hgrn.lower_bounds"] = gen({4, width}, .8, .1);
  return {
      {{"type", "hgrn"}, {"width", width}, {"chunk", 2}, {"norm_eps", norm_eps}}, values, layer, 4};
}

TEST(Hgrn, Golden) {
  // an eps far above every square makes the norm a factor of 1e-6 to all digits
  const Layer layer = on_unit_vectors(gen({3, 2}, .6, .2), gen({3, 2}, .9, .3), 1e12);
  const Tensor h =
      tensor({0.01370126, 0.07493591, 0.07512862, 0.22153589, 0.12360221, 0.12113112}, {3, 2});
  const Tensor x = at::eye(3, at::kDouble);
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {3}, {1, 2}, {1, 1, 1}}) {
    const auto y = [&](at::ScalarType type) {
      return layer.of_width(3).run(x, type, calls).narrow(1, 0, 2) * 1e6;
    };
    ops::expect_near(y(at::kDouble), h, 1e-8);
    const at::NoGradGuard no_gradients;
    ops::expect_near(y(at::kFloat), h, 1e-6);
  }
  std::unique_ptr<RowState> row;
  layer.of_width(3).split(x, {2, 1}, &row);
  ops::expect_near(row->fixed(0), h[2], 1e-8);
}

/// A state of ones that is given no input shows the forget gate.
TEST(Hgrn, GoldenForgetGates) {
  const Tensor want =
      tensor({0.87449579, 0.84455740, 0.91273179, 0.74427079, 0.80424545, 0.59817409}, {3, 2});
  const Layer layer = on_unit_vectors(at::zeros({3, 2}, at::kDouble), gen({3, 2}, .9, .3), 1e12);
  const MixerUnderTest mixer = layer.of_width(3);
  for (int64_t t = 0; t < 3; ++t) {
    RowState row(mixer.state(), 0, at::TensorOptions().dtype(at::kDouble));
    row.fixed(0) = at::ones({2}, at::kDouble);
    Batch batch;
    batch.segments = {{0, 0, 1, 1}};
    batch.number();
    Context context;
    context.batch = &batch;
    const StateRows rows{&row};
    const auto built = build_mixer(mixer.part, mixer.builder(at::kDouble));
    built->forward(at::eye(3, at::kDouble).narrow(0, t, 1), context, &rows);
    ops::expect_near(row.fixed(0), want[t], 1e-8);
  }
}

TEST(Hgrn, AgainstItsDefinition) {
  constexpr int64_t kT = 9, kD = 5, kW = 7;
  for (const char* bound : {"learned", "linear", "none"})
    for (const int64_t taps : {0, 3})
      for (const int64_t number : {0, 2}) {
        MixerUnderTest mixer({{"type", "hgrn"},
                              {"width", kW},
                              {"chunk", 4},
                              {"lower_bound", bound},
                              {"d_conv", taps}},
                             kD);
        mixer.scope.layer = number, mixer.scope.n_layers = 4;
        mixer.fill({.size = 1});
        const Tensor x = gen({kT, kD}, 0.41, 0.2);
        const auto project = [&](const char* name) {
          return at::matmul(x, mixer.values.at(name).t());
        };
        Tensor mixed = at::cat({project("i.weight"), project("f.weight")}, 1);
        if (taps > 0) {
          const Tensor w = mixer.values.at("conv.weight");
          Tensor sum = at::zeros_like(mixed);
          for (int64_t t = 0; t < kT; ++t)
            for (int64_t j = 0; j < taps; ++j)
              if (t - taps + 1 + j >= 0) sum[t] += w.select(1, j) * mixed[t - taps + 1 + j];
          mixed = sum;
        }
        Tensor lb = at::zeros({kW}, at::kDouble);
        if (std::string(bound) == "linear") lb += static_cast<double>(number) / 4;
        EXPECT_EQ(mixer.values.contains("shared.hgrn.lower_bounds"),
                  std::string(bound) == "learned" && number > 0);
        if (mixer.values.contains("shared.hgrn.lower_bounds")) {
          const Tensor e = mixer.values.at("shared.hgrn.lower_bounds").exp();
          for (int64_t j = 1; j <= number; ++j) lb += e[j] / e.sum(0);
        }
        Tensor h = at::zeros({kW}, at::kDouble);
        std::vector<Tensor> rows;
        for (int64_t t = 0; t < kT; ++t) {
          const Tensor g = lb + (1 - lb) * at::sigmoid(mixed[t].narrow(0, kW, kW));
          h = g * h + (1 - g) * at::silu(mixed[t].narrow(0, 0, kW));
          rows.push_back(h);
        }
        const Tensor all = at::stack(rows);
        const Tensor normed = all * at::rsqrt(all.square().mean(-1, true) + 1e-5) *
                              mixer.values.at("norm.weight") * at::silu(project("g.weight"));
        mixer.expect_everywhere(x, at::matmul(normed, mixer.values.at("o.weight").t()), 1e-12);
      }
}

/// HGRN2 with heads of one channel, queries of silu(1.278..) = 1 and values that are silu(i).
TEST(Hgrn, IsHgrn2WithOneChannelPerHead) {
  const Tensor i = gen({3, 3}, .6, .2), f = gen({3, 3}, .9, .3);
  for (const int64_t number : {0, 1, 3}) {
    const Layer hgrn = on_unit_vectors(i, f, 1e-5, number);
    Values values{{"q.weight", at::full({3, 3}, 1.2784645427610738, at::kDouble)},
                  {"f.weight", picks(f)},
                  {"v.weight", picks(at::silu(i))},
                  {"norm.weight", at::ones({3}, at::kDouble)},
                  {"o.weight", at::eye(3, at::kDouble)}};
    if (number > 0) values["shared.hgrn2.lower_bounds"] = gen({4, 3}, .8, .1);
    const Layer hgrn2{
        {{"type", "hgrn2"}, {"n_heads", 3}, {"key_dim", 1}, {"value_dim", 1}, {"chunk", 2}},
        values,
        number,
        4};
    const Tensor x = at::eye(3, at::kDouble);
    ops::expect_near(hgrn.run(x, at::kDouble), hgrn2.run(x, at::kDouble), 1e-13);
  }
}

/// f -> infinity freezes the state.
TEST(Hgrn, AnOpenForgetGateKeepsTheState) {
  Tensor f = at::full({3, 2}, 1000, at::kDouble);
  f[0].fill_(0);
  const MixerUnderTest mixer = on_unit_vectors(gen({3, 2}, .6, .2), f, 1e-5).of_width(3);
  std::unique_ptr<RowState> one, three;
  const Tensor x = at::eye(3, at::kDouble);
  mixer.split(x, {1}, &one);
  mixer.split(x, {1, 2}, &three);
  EXPECT_TRUE(at::equal(one->fixed(0), three->fixed(0)));
}

TEST(Hgrn, IsRefusedInAnEncoder) {
  EXPECT_THROW(MixerUnderTest(R"({"type": "hgrn"})", 4, false), Error);
}

}  // namespace
}  // namespace tessera::nn::hgrn_test
