// Cross-attention against its definition in double.
#include "tessera/nn/mixer/attention/cross_attention.h"

#include <cmath>

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::cross_attention_test {
namespace {

using ops::gen;

constexpr int64_t kWidth = 6, kTokens = 5, kSource = 7;

struct Definition {
  int64_t n_heads, n_kv_heads, head_dim;
  double scale, softcap;
};

/// o_i = W_o [sum_j softmax_j(cap(scale q_i . k_j)) v_j]_heads + b_o, number by number.
Tensor by_definition(const std::map<std::string, Tensor>& values,
                     const Definition& d,
                     const Tensor& x_TD,
                     const Tensor& e_SD) {
  const auto project = [&](const std::string& name, const Tensor& x) {
    Tensor y = at::matmul(x, values.at(name + ".weight").t());
    if (values.contains(name + ".bias")) y = y + values.at(name + ".bias");
    return y;
  };
  const Tensor q = project("q", x_TD), k = project("k", e_SD), v = project("v", e_SD);
  Tensor heads = at::zeros({x_TD.size(0), d.n_heads * d.head_dim}, at::kDouble);
  const auto at = [](const Tensor& t, int64_t i, int64_t j) { return t[i][j].item<double>(); };
  for (int64_t h = 0; h < d.n_heads; ++h) {
    const int64_t g = h * d.n_kv_heads / d.n_heads;
    for (int64_t i = 0; i < x_TD.size(0); ++i) {
      std::vector<double> p;
      double sum = 0;
      for (int64_t j = 0; j < e_SD.size(0); ++j) {
        double s = 0;
        for (int64_t c = 0; c < d.head_dim; ++c)
          s += at(q, i, h * d.head_dim + c) * at(k, j, g * d.head_dim + c);
        s *= d.scale;
        if (d.softcap > 0) s = d.softcap * std::tanh(s / d.softcap);
        p.push_back(std::exp(s));
        sum += p.back();
      }
      for (int64_t c = 0; c < d.head_dim; ++c) {
        double o = 0;
        for (int64_t j = 0; j < e_SD.size(0); ++j)
          o += p[static_cast<size_t>(j)] / sum * at(v, j, g * d.head_dim + c);
        heads[i][h * d.head_dim + c] = o;
      }
    }
  }
  return project("o", heads);
}

void expect_definition(const std::string& json, const Definition& definition) {
  register_mechanisms();
  MixerUnderTest m(R"({"type": "short_conv"})", kWidth);  // replaced below: it needs a source
  m.json = spec::parse_json(json, "test");
  m.scope.source = kWidth;
  m.read();
  m.fill();
  const Tensor x = gen({kTokens, kWidth}, 0.37, 0.11), e = gen({kSource, kWidth}, 0.53, 0.29);
  const Tensor want = by_definition(m.values, definition, x, e);
  ops::expect_both(
      [&](at::ScalarType type) {
        const auto mixer = build_mixer(m.part, m.builder(type));
        const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 0, 0, 0, 0}});
        const Encoded encoded{Batch::of(std::vector<std::vector<int64_t>>{{0, 0, 0, 0, 0, 0, 0}}),
                              e.to(type)};
        Context context;
        context.batch = &batch;
        context.encoded = &encoded;
        return mixer->forward(x.to(type), context, nullptr);
      },
      want, 1e-12);
}

TEST(CrossAttention, IsItsDefinition) {
  expect_definition(R"({"type": "cross_attention", "n_heads": 2})",
                    {2, 2, 3, 1 / std::sqrt(3.0), 0});
}

TEST(CrossAttention, GroupedScaledAndCapped) {
  expect_definition(
      R"({"type": "cross_attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "scale": "one",
          "softcap": 1.5, "bias": {"q": true, "k": true, "v": true, "o": true}})",
      {4, 2, 3, 1, 1.5});
}

}  // namespace
}  // namespace tessera::nn::cross_attention_test
