// What the tests of mixers share: one mixer with weights given by name, and its output by every
// path.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn {

struct MixerUnderTest {
  spec::Json json;
  spec::Scope scope;
  Values values;
  spec::Part<spec::Slot::mixer> part;

  MixerUnderTest(const spec::Json& given, int64_t d_model, bool causal = true) : json(given) {
    register_mechanisms();
    scope.d_model = d_model;
    scope.width = d_model;
    scope.causal = causal;
    scope.path = "test";
    read();
  }
  MixerUnderTest(const std::string& text, int64_t d_model, bool causal = true)
      : MixerUnderTest(spec::parse_json(text, "test"), d_model, causal) {}
  MixerUnderTest(const char* text, int64_t d_model, bool causal = true)
      : MixerUnderTest(std::string(text), d_model, causal) {}

  void read() {
    static_cast<spec::AnyPart&>(part) = spec::read_part(spec::Slot::mixer, json, scope);
  }
  std::vector<spec::ParamDecl> declared() const {
    spec::ParamList list;
    part.config->params(list, scope);
    return list.all();
  }
  std::vector<spec::StateDecl> state() const { return part.config->state(scope); }
  bool recurrent() const { return part.info().forms.recurrent; }

  /// Every declared parameter that has no value yet.
  void fill(const Waves& waves = {}) { draw_weights(declared(), values, waves); }
  /// The declared parameters are exactly the given ones.
  void expect_all_given() const {
    const auto all = declared();
    EXPECT_EQ(all.size(), values.size());
    for (const spec::ParamDecl& decl : all) {
      const auto found = values.find(decl.name);
      if (found == values.end())
        ADD_FAILURE() << "no value for " << decl.name;
      else
        EXPECT_EQ(found->second.sizes().vec(), decl.shape) << decl.name;
    }
  }

  Builder builder(at::ScalarType type) const { return {weights_from(values, type), "", scope}; }

  /// All rows of `batch`, without a state; layers of one call share `context`.
  Tensor forward(const Tensor& x_ND,
                 const Batch& batch,
                 at::ScalarType type,
                 Context& context) const {
    context.batch = &batch;
    context.causal = scope.causal;
    return build_mixer(part, builder(type))->forward(x_ND.to(type), context, nullptr);
  }
  Tensor forward(const Tensor& x_ND, const Batch& batch, at::ScalarType type) const {
    Context context;
    return forward(x_ND, batch, type, context);
  }
  /// Whole documents of the given lengths, in the type of x.
  Tensor whole(const Tensor& x_ND, const std::vector<int64_t>& lengths) const {
    Batch batch;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      batch.segments.push_back({static_cast<int64_t>(batch.segments.size()), begin, length, 0});
      begin += length;
    }
    batch.number();
    return forward(x_ND, batch, x_ND.scalar_type());
  }
  /// One document from a state, in calls of the given lengths; `row` receives the state.
  Tensor split(const Tensor& x_TD,
               const std::vector<int64_t>& calls,
               std::unique_ptr<RowState>* row = nullptr) const {
    auto kept =
        std::make_unique<RowState>(state(), 0, at::TensorOptions().dtype(x_TD.scalar_type()));
    const auto mixer = build_mixer(part, builder(x_TD.scalar_type()));
    std::vector<Tensor> out;
    int64_t at = 0;
    for (const int64_t n : calls) {
      Batch batch;
      batch.segments = {{0, 0, n, at}};
      batch.ids_N = at::zeros({n}, at::kLong);
      batch.number();
      Context context;
      context.batch = &batch;
      context.causal = scope.causal;
      const StateRows rows{kept.get()};
      out.push_back(run_mixer(*mixer, x_TD.narrow(0, at, n), context, &rows));
      at += n;
    }
    if (row != nullptr) *row = std::move(kept);
    return at::cat(out);
  }
  /// One document in calls of the given lengths with a state, or whole.
  Tensor run(const Tensor& x_TD,
             at::ScalarType type,
             const std::vector<int64_t>& calls = {}) const {
    return calls.empty() ? whole(x_TD.to(type), {x_TD.size(0)}) : split(x_TD.to(type), calls);
  }

  /// One document against `want`: the plain form in double within `tolerance`, and the kernels.
  void expect(const Tensor& x_TD,
              const Tensor& want,
              double tolerance,
              const char* what = "") const {
    ops::expect_near(run(x_TD, at::kDouble), want, tolerance, what);
    const at::NoGradGuard no_gradients;
    ops::expect_near(run(x_TD, at::kFloat), want, std::max(tolerance, float_tolerance(want)), what);
  }
  /// The same by every path: in double, by the forms of float32 training and inference, alone and
  /// after another document, whole and in calls.
  void expect_everywhere(const Tensor& x_TD, const Tensor& want, double tolerance) const {
    const int64_t t = x_TD.size(0);
    const auto expect_forms = [&](at::ScalarType type, double within, const char* what) {
      const Tensor x = x_TD.to(type);
      ops::expect_near(whole(x, {t}), want, within, what);
      const Tensor behind = whole(at::cat({x.narrow(0, 0, 2), x}), {2, t});
      ops::expect_near(behind.narrow(0, 2, t), want, within, what);
      ops::expect_near(whole(at::cat({x, x}), {t, t}).narrow(0, t, t), want, within, what);
      if (!recurrent()) return;
      for (const std::vector<int64_t>& calls :
           {std::vector<int64_t>{t}, {1, t - 1}, {t - 2, 1, 1}, std::vector<int64_t>(t, 1)})
        ops::expect_near(split(x, calls), want, within, what);
    };
    expect_forms(at::kDouble, tolerance, "double");
    expect_forms(at::kFloat, float_tolerance(want), "float32, with gradients");
    const at::NoGradGuard no_gradients;
    expect_forms(at::kFloat, float_tolerance(want), "float32 kernels");
  }

 private:
  static double float_tolerance(const Tensor& want) {
    return 5e-6 * std::max(1.0, want.abs().max().item<double>());
  }
};

/// A mixer with the parameters of tools/golden/sequence_mixers.py, but for those in `values`.
inline MixerUnderTest golden_mixer(const spec::Json& json,
                                   int64_t d_model,
                                   Values values = {},
                                   bool causal = true) {
  MixerUnderTest mixer(json, d_model, causal);
  mixer.values = std::move(values);
  mixer.fill({.frequency_step = 0.13, .phase = 0, .size = 1});
  return mixer;
}
/// Its input.
inline Tensor golden_input(int64_t t, int64_t d) {
  return ops::gen({t, d}, 0.41, 0.2);
}

/// x_TD and weights such that a projection named w of width o gives `want` [T, o] on the first T
/// unit vectors: the columns of the weight are the wanted rows, the rest is zero.
inline Tensor weight_giving(const Tensor& want_TO, int64_t d_model) {
  return at::constant_pad_nd(want_TO, {0, 0, 0, d_model - want_TO.size(0)}).t().contiguous();
}

}  // namespace tessera::nn
